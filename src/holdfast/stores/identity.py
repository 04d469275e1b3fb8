"""The identity of a node: an id that is created once, and an incarnation that increases with every start.

Peers distinguish a restart from a pause by the incarnation, so it is durable before the node sends anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.errors import MisuseError, StoreDamaged
from holdfast.machine import Put
from holdfast.stores.port import Store
from holdfast.types import NodeId

TABLE: Final = "identity"
ID_BYTES: Final = 16

_NODE: Final = b"node"
_INCARNATION: Final = b"incarnation"


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The durable id of the node and its incarnation, 1 for the first start."""

    node: NodeId
    incarnation: int


def open_identity(store: Store, make_id: Callable[[], bytes]) -> Identity:
    """Start a new incarnation of the node in `store`. `make_id` returns 16 bytes if there is no id yet."""
    rows = dict(store.load(TABLE))
    before = _read(rows) if rows else Identity(_new_id(make_id), 0)
    identity = Identity(before.node, before.incarnation + 1)
    store.commit(
        [
            Put(TABLE, _NODE, identity.node),
            Put(TABLE, _INCARNATION, identity.incarnation.to_bytes(8, "big")),
        ]
    )
    return identity


def _new_id(make_id: Callable[[], bytes]) -> NodeId:
    node = make_id()
    if len(node) != ID_BYTES:
        raise MisuseError(
            f"a node id must have {ID_BYTES} bytes, but make_id returned {len(node)}; nothing was "
            "written"
        )
    return NodeId(node)


def _read(rows: dict[bytes, bytes]) -> Identity:
    node, incarnation = rows.get(_NODE, b""), rows.get(_INCARNATION, b"")
    if len(node) != ID_BYTES or len(incarnation) != 8:
        raise StoreDamaged(
            f"the identity in the store is not readable ({sorted(rows)}); nothing was written; "
            "restore a copy of the store, or start the node with an empty data directory as a "
            "new node"
        )
    return Identity(NodeId(node), int.from_bytes(incarnation, "big"))
