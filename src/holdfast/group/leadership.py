"""Who leads, in which term, and what this replica is in it. The rest of a replica asks here and assumes nothing.

    follower ──► asking ──► candidate ──► leader
        ▲          │ ▲          │           │
        └──────────┴─┴──────────┴───────────┘

`election` moves this, `tenure` says when a leader has to go. Terms only grow, and a replica votes once in each.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.types import Nanos


class Role(Enum):
    """What a replica is in its term."""

    FOLLOWER = "follower"
    ASKING = "asking"
    """Would it be elected? Nothing has changed yet (the pre-vote)."""
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final[dict[Role, tuple[Role, ...]]] = {
    Role.FOLLOWER: (Role.FOLLOWER, Role.ASKING, Role.CANDIDATE),
    Role.ASKING: (Role.ASKING, Role.CANDIDATE, Role.FOLLOWER),
    Role.CANDIDATE: (Role.LEADER, Role.FOLLOWER, Role.ASKING),
    Role.LEADER: (Role.FOLLOWER,),
}


class Leadership:
    """The term, the vote in it, and who is believed to lead it."""

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
        """Empty while nobody is known to lead."""
        self.incarnation = 0
        """The leader's, when it was first heard."""
        self.heard_ns: Nanos = -1
        """When the leader was last heard to be in touch with a majority."""
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
        """A later term: nobody leads it yet, as far as is known here."""
        assert term > self.term, "terms only grow"
        self.term = term
        self.voted = b""
        self.leader = ""
        self.heard_ns = -1
        if self.role is not Role.FOLLOWER:
            self.go(Role.FOLLOWER)

    def follow(self, name: str, incarnation: int) -> None:
        """Somebody leads the term."""
        self.leader, self.incarnation = name, incarnation
        if self.role is not Role.FOLLOWER:
            self.go(Role.FOLLOWER)

    def is_led(self, now: Nanos, patience_ns: Nanos) -> bool:
        """Whether somebody leads who was in touch with a majority not long ago."""
        return bool(self.leader) and self.heard_ns >= 0 and now - self.heard_ns < patience_ns

    def hand_over(self, prefer: tuple[str, ...] = ()) -> None:
        """Let somebody else lead: one of `prefer`, in this order, or else whoever has most. Nothing is ordered from
        now on until that has happened, or could not be done."""
        if self.leading and self.wanted is None:
            self.wanted = prefer
