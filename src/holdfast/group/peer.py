"""A node that a session is open with, as a group sees it."""

from __future__ import annotations

import msgspec

from holdfast.types import NodeId


class Peer(msgspec.Struct, frozen=True, gc=False):
    """A node that a session is open with."""

    node: NodeId
    name: str
    incarnation: int
    life: int
    """As a view has it (see `entries.Member`)."""
