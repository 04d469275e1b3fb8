"""The interface between the unit `collect` and its edge, which reads and writes files."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.collect.frames import Reply, Request
from holdfast.types import NodeId

COLLECT: Final = "collect"


class Say(msgspec.Struct, frozen=True, gc=False):
    """Input: send a request or a reply to a peer."""

    peer: NodeId
    frame: Request | Reply


class Asked(msgspec.Struct, frozen=True, gc=False):
    """Effect: a peer asks for something."""

    peer: NodeId
    frame: Request


class Answered(msgspec.Struct, frozen=True, gc=False):
    """Effect: a peer has answered."""

    peer: NodeId
    frame: Reply


class PeerGone(msgspec.Struct, frozen=True, gc=False):
    """Effect: no answer of this peer will come any more."""

    peer: NodeId
