"""A node with an open session, as seen by a group."""

from __future__ import annotations

import msgspec

from holdfast.types import NodeId


class Peer(msgspec.Struct, frozen=True, gc=False):
    """A node with an open session."""

    node: NodeId
    name: str
    incarnation: int
    life: int
    """As named in a view (see `entries.Member`)."""
