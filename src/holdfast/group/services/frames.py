"""Frames of group services. They are synchronisation messages: they have priority, and the paths for them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.services.values import ServiceOp
from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame

OPS_MAX: Final = 64
"""Operations in one frame; the others follow in the next."""


class ServiceAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What became of one request of the receiving node."""

    number: int
    outcome: int
    value: int = 0
    phase: int = 0
    why: str = ""


class ServiceRequest(Frame, frozen=True, gc=False, array_like=True, tag=112):
    """Operations of the sending node, in order. A replica that does not lead names the leader."""

    group: str
    incarnation: int
    heard: int
    """The node knows the results of all requests below this number."""
    ops: tuple[ServiceOp, ...]


class ServiceReply(Frame, frozen=True, gc=False, array_like=True, tag=113):
    """What the committed log says about requests of the receiving node."""

    group: str
    incarnation: int
    """Of the node that asked."""
    group_epoch: int
    answers: tuple[ServiceAnswer, ...] = ()
    leader: str = ""
    """If `answers` is empty: the replica to ask; empty if none is known."""


SERVICE_FRAMES: Final[tuple[type[Frame], ...]] = (ServiceRequest, ServiceReply)
learn(SERVICE_FRAMES)
