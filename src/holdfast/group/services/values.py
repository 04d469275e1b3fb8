"""Values of the group services: operations, outcomes, and the tables as they travel with a snapshot."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from holdfast.types import MILLISECOND, SECOND, Nanos

NAME_MAX: Final = 64
"""Characters of the name of a lock or a barrier."""
LEASE_MIN_NS: Final[Nanos] = 100 * MILLISECOND
LEASE_MAX_NS: Final[Nanos] = 3600 * SECOND
LEASE_NS: Final[Nanos] = 10 * SECOND
PARTIES_MAX: Final = 1024
PHASES_MAX: Final = 1024
REQUESTS_MAX: Final = 256
"""Requests of one node that wait or hold something, at most; more are refused."""
RANGES_MAX: Final = 2 * REQUESTS_MAX
"""Ranges of numbers that are over, of one node."""
RESULTS_MAX: Final = 256
"""Results that are kept for one node until it has heard of them; then the oldest is dropped."""
LIVES_MAX: Final = 4096
"""Nodes with requests, at most; more are refused. Idle ones make room, the oldest first."""
NAMES_MAX: Final = 4096
"""Locks that are held, and barriers that are waited at, at most; more are refused."""
WAITERS_MAX: Final = 1024
"""Requests that wait for one lock, at most; more are refused."""


class Op(IntEnum):
    """What a request does."""

    ACQUIRE = 1
    RELEASE = 2
    """Releases a lock, or withdraws a request that waits."""
    RENEW = 3
    """The node is alive: extends all its leases."""
    ARRIVE = 4
    EXPIRE = 5
    """By the leader: the lease of a request has run out."""


_OPS: Final = frozenset(map(int, Op))


class Outcome(IntEnum):
    """What became of a request."""

    QUEUED = 1
    HELD = 2
    RELEASED = 3
    EXPIRED = 4
    REFUSED = 5
    WAITING = 6
    PASSED = 7
    BROKEN = 8
    RENEWED = 9


class ServiceOp(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One operation. `number` identifies the request within one incarnation of its node; a request keeps its number
    until it is over. For `RENEW` it is the number of the renewal."""

    op: int
    number: int
    name: str = ""
    lease_ns: Nanos = 0
    parties: int = 0
    phases: int = 1
    phase: int = 1
    token: int = 0
    """Of a release: the token of the lock; 0: whatever it is."""


class Served(msgspec.Struct, frozen=True, array_like=True):
    """SERVICE: one operation of a node, in one incarnation."""

    node: bytes
    incarnation: int
    heard: int
    """The node knows the results of all requests below this number."""
    op: ServiceOp


class Event(msgspec.Struct, frozen=True, gc=False):
    """What an entry means for one request."""

    node: bytes
    incarnation: int
    number: int
    outcome: Outcome
    value: int = 0
    """The token of a lock, or the generation of a barrier."""
    phase: int = 0
    why: str = ""


class Result(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How a request ended."""

    outcome: int
    value: int = 0
    phase: int = 0
    why: str = ""


class Pending(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request that waits, or holds a lock."""

    name: str
    is_lock: bool
    lease_ns: Nanos
    since_ns: Nanos
    """Log time of the request or, for a lock that is held, of the grant."""


Party = tuple[bytes, int, int]
"""(node, incarnation, number): one request of one life."""


class LifeState(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a node that uses services."""

    node: bytes
    incarnation: int
    renewed_ns: Nanos = 0
    """Log time of its last operation."""
    done: tuple[tuple[int, int], ...] = ()
    """Ranges of numbers of requests that are over: a late copy must not act again."""
    requests: tuple[tuple[int, Pending], ...] = ()
    results: tuple[tuple[int, Result], ...] = ()


class LockState(msgspec.Struct, frozen=True, array_like=True):
    """A lock that is held."""

    name: str
    holder: Party
    token: int
    """The index of the entry that granted it."""
    waiters: tuple[Party, ...] = ()


class BarrierState(msgspec.Struct, frozen=True, array_like=True):
    """One generation of a barrier, from its first arrival on."""

    name: str
    generation: int
    """The index of the entry with the first arrival."""
    parties: int
    phases: int
    phase: int
    members: tuple[Party, ...] = ()
    arrived: tuple[Party, ...] = ()


class ServiceState(msgspec.Struct, frozen=True, array_like=True):
    """All tables, as they travel with a snapshot."""

    lives: tuple[LifeState, ...] = ()
    locks: tuple[LockState, ...] = ()
    barriers: tuple[BarrierState, ...] = ()

    def is_sound(self) -> bool:
        return (
            len(self.lives) <= LIVES_MAX
            and len(self.locks) + len(self.barriers) <= NAMES_MAX
            and all(len(life.node) == 16 and life.incarnation >= 0 for life in self.lives)
            and all(len(lock.waiters) <= WAITERS_MAX for lock in self.locks)
        )


def is_sound_op(op: ServiceOp) -> bool:
    """Whether an operation is valid by itself."""
    if not (0 <= op.number < 1 << 60 and op.op in _OPS):
        return False
    if op.op == Op.ACQUIRE:
        return is_name(op.name) and LEASE_MIN_NS <= op.lease_ns <= LEASE_MAX_NS
    if op.op == Op.ARRIVE:
        return (
            is_name(op.name)
            and LEASE_MIN_NS <= op.lease_ns <= LEASE_MAX_NS
            and 1 <= op.parties <= PARTIES_MAX
            and 1 <= op.phase <= op.phases <= PHASES_MAX
        )
    return True


def is_sound_service(served: Served) -> bool:
    sound = len(served.node) == 16 and 0 <= served.incarnation < 1 << 60
    return sound and 0 <= served.heard < 1 << 60 and is_sound_op(served.op)


def is_name(name: str) -> bool:
    return 0 < len(name) <= NAME_MAX
