"""Who a node is: an id that is made once, and a number that grows with every start.

Peers tell a restart from a pause by the incarnation, so it is durable before the node says anything to anybody.
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
    """The node's durable id, and which of its lives this is: 1 for the first."""

    node: NodeId
    incarnation: int


def open_identity(store: Store, make_id: Callable[[], bytes]) -> Identity:
    """Begin a new life of the node in `store`. `make_id` is asked for 16 bytes when there was none before."""
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
            f"a node id has {ID_BYTES} bytes, make_id gave {len(node)}; nothing was written"
        )
    return NodeId(node)


def _read(rows: dict[bytes, bytes]) -> Identity:
    node, incarnation = rows.get(_NODE, b""), rows.get(_INCARNATION, b"")
    if len(node) != ID_BYTES or len(incarnation) != 8:
        raise StoreDamaged(
            f"the store's identity is not readable ({sorted(rows)}); nothing was written; restore a copy of the "
            "store, or let the node start with an empty data directory and so as a new node"
        )
    return Identity(NodeId(node), int.from_bytes(incarnation, "big"))
