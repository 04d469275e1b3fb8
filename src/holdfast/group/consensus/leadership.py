"""The leader and the term, and the role of this replica in it. All other parts of a replica use this state.

    follower ──► asking ──► candidate ──► leader
        ▲          │ ▲          │           │
        └──────────┴─┴──────────┴───────────┘

`election` changes it, and `step_down` decides when a leader must step down. Terms only increase, and a replica votes
once in each.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.types import Nanos


class Role(Enum):
    """The role of a replica in its term."""

    FOLLOWER = "follower"
    ASKING = "asking"
    """It asks for pre-votes. Nothing has changed yet."""
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final[dict[Role, tuple[Role, ...]]] = {
    Role.FOLLOWER: (Role.FOLLOWER, Role.ASKING, Role.CANDIDATE),
    Role.ASKING: (Role.ASKING, Role.CANDIDATE, Role.FOLLOWER),
    Role.CANDIDATE: (Role.LEADER, Role.FOLLOWER, Role.ASKING),
    Role.LEADER: (Role.FOLLOWER,),
}


class Leadership:
    """The term, the vote in it, and the presumed leader."""

    __slots__ = (
        "heard_ns",
        "incarnation",
        "leader",
        "leading",
        "role",
        "since_ns",
        "term",
        "voted",
        "wanted",
    )

    def __init__(self) -> None:
        self.term = 0
        self.voted = b""
        """The node that this one voted for in the term."""
        self.role = Role.FOLLOWER
        self.leading = False
        self.leader = ""
        """Empty while no leader is known."""
        self.incarnation = 0
        """Of the leader, when it was first heard."""
        self.heard_ns: Nanos = -1
        """When the leader was last known to be in contact with a majority."""
        self.since_ns: Nanos = 0
        self.wanted: tuple[str, ...] | None = None
        """This replica leads and wants to hand over, to one of these if possible."""

    def go(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"from {self.role} to {role}"
        self.role = role
        self.leading = role is Role.LEADER
        if not self.leading:
            self.wanted = None

    def adopt(self, term: int) -> None:
        """A later term, without a known leader yet."""
        assert term > self.term, "terms only grow"
        self.term = term
        self.voted = b""
        self.leader = ""
        self.heard_ns = -1
        if self.role is not Role.FOLLOWER:
            self.go(Role.FOLLOWER)

    def follow(self, name: str, incarnation: int) -> None:
        """The term has a leader."""
        self.leader, self.incarnation = name, incarnation
        if self.role is not Role.FOLLOWER:
            self.go(Role.FOLLOWER)

    def is_led(self, now: Nanos, patience_ns: Nanos) -> bool:
        """Whether there is a leader that was recently in contact with a majority."""
        return bool(self.leader) and self.heard_ns >= 0 and now - self.heard_ns < patience_ns

    def hand_over(self, prefer: tuple[str, ...] = ()) -> None:
        """Hand over to one of `prefer`, in this order, or else to the replica with the longest log. Nothing is ordered
        until that has happened or failed."""
        if self.leading and self.wanted is None:
            self.wanted = prefer
