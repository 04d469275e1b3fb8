"""Inputs and effects of the unit `services/<group>` of a node."""

from __future__ import annotations

import msgspec

from holdfast.types import Nanos


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Base class of requests. `number` is chosen by the caller and never used twice in a run of the node."""

    number: int


class AskLock(Ask, frozen=True, gc=False):
    """Request a lock."""

    name: str
    lease_ns: Nanos


class AskBarrier(Ask, frozen=True, gc=False):
    """Arrive at a phase of a barrier. All phases have the number of the first."""

    name: str
    parties: int
    lease_ns: Nanos
    phases: int = 1
    phase: int = 1


class GiveUp(Ask, frozen=True, gc=False):
    """Release a lock, or withdraw a request."""

    token: int = 0


class ServiceNotice(msgspec.Struct, frozen=True, gc=False):
    """To the caller: what has become of a request."""

    unit: str
    number: int
    outcome: int
    value: int = 0
    phase: int = 0
    why: str = ""
    until_ns: Nanos = 0
    """Of a lock that is held: until when the caller may act, by the clock of this node, unless it is renewed."""
