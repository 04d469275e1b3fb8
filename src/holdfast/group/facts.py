"""The facts that groups record besides those of the order."""

from __future__ import annotations

from typing import ClassVar

from holdfast.telemetry.facts import Fact


class StabilityFact(Fact, frozen=True, gc=False):
    """The messages that a replica keeps for others: recorded periodically, and whenever another member blocks."""

    kind: ClassVar[str] = "stability"
    group: str
    """Name of the group."""
    protocol: str
    """The protocol in use."""
    members: int
    """Members whose reports count."""
    stable: int
    """All of them have applied the log up to this entry."""
    lag_ms: int
    """Age of the oldest report of this replica that is not stable."""
    held_bytes: int
    """Bytes that this replica keeps of its largest stream."""
    blocker: str = ""
    """The member that prevents this one from freeing; empty: none."""
    why: str = ""
    """`silent`, `unreachable`, `behind` or `on another protocol`."""
    epoch: int = 0
    """The group epoch, as in `order`."""
    view: int = 0
    """The number of the view that `members` is from."""
    held: int = -1
    """This replica has the log up to this entry, committed and, if the group is durable, on disk."""
    freed: int = -1
    """The log of this replica begins after this entry."""


class LeaseFact(Fact, frozen=True, gc=False):
    """A lease of a lock or barrier has expired, as decided by the leader of the group."""

    kind: ClassVar[str] = "lease"
    group: str
    """Name of the group."""
    lock: str
    """Name of the lock or barrier."""
    holder: str
    """The node that did not renew it, 32 hexadecimal digits."""
    lease_ms: int
    """Length of the lease."""
    is_lock: bool = True
    """False for a barrier."""


class LockFact(Fact, frozen=True, gc=False):
    """A lock of a group: `granted`, `released`, `expired` or `ended` (a later incarnation of the holder began), as the
    leader committed it; `held`, when the holder learns that it has it."""

    kind: ClassVar[str] = "lock"
    event: str
    """One of those above."""
    group: str
    """Name of the group."""
    epoch: int
    """The group epoch, as in `order`."""
    lock: str
    """Name of the lock."""
    holder: str
    """The node that has or had it, 32 hexadecimal digits."""
    holder_incarnation: int
    """The incarnation of that node."""
    token: int
    """The fencing token: a later holder has a higher one."""
    term: int = 0
    """Term of the entry that caused the event; 0 for `held`."""
    index: int = 0
    """Index of that entry; 0 for `held`."""
