"""Who leads, in which term: here one configured voter. An election takes the place of this file, and of no other.

The rest of a replica asks four things only: which term is it, do we lead, who is believed to lead, and (of the one
that is to lead) what has to be done before it does. It never assumes that the answers stay.

The way of a leader into its term
---------------------------------
A replica keeps the order in memory, so a leader that starts knows nothing, not even whether the group is new. It

1. *gathers*: asks the other voters what they have (`Append` with term 0, answered by `Appended` with `ok` false: their
   last term and index, and in `hint` their current term, 0 from those without a whole memory);
2. *fetches* the longest log, if there is any: a state, the entries after it, and their messages;
3. *asks for promises*: takes a term above all that it heard of and asks the voters to follow it (`Append` without
   entries; `contact_ns` is `NO_CONTACT`, so a replica without memory knows that a group is being founded);
4. *leads*: appends the entry that begins the term.

Why this is safe with a fixed leader. There is one process at a time that may lead; when its successor asks, its own
acknowledgements are no longer counted by anybody. What it committed is on a majority, so on `majority - 1` other
voters, and any `witnesses` voters whose memory is whole include one of those (`GroupConfig.witnesses`). Of these the
one with the highest (last term, last index) has everything that is committed: entries of one term come from one
process, in order, and each earlier leader began with everything that was committed before. So gathering needs that
many voters with a whole memory.

A group is new when *every* voter has been heard and none has a memory. Less would not do: a voter that was not heard
may be the one that remembers, when those that were heard have restarted or never came to know. If some have a memory
and too few are left, the memory of a majority is lost: the group stops and says so, until an operator restarts its
replicas.

Promises keep terms apart. A leader appends nothing in a term before `witnesses` voters follow it there; any later
successor hears from one of them, and takes a higher term. (The term is also never below the leader's incarnation:
a group that is founded again after all memory was lost does not use the terms of its earlier life.)

An election does the same with other words: gathering and promises are its votes, and the up-to-date rule takes the
place of fetching, because the one with the longest log leads itself.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from holdfast.group.config import GroupConfig

NO_CONTACT: Final = -1
"""`Append.contact_ns` of a leader whose term has not begun."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a voter says that it has. `term` is its current term, 0 if its memory is not whole."""

    term: int
    last_term: int
    last_index: int


class Leadership:
    """Whom a replica believes. Fixed: the configured leader, in the highest term that was heard of."""

    __slots__ = ("_config", "leading", "term", "wanted")

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self.term = 0
        self.leading = False
        self.wanted: tuple[str, ...] | None = None
        """This replica leads and wants to hand over, to one of these if possible."""

    def hand_over(self, prefer: tuple[str, ...] = ()) -> None:
        """Let somebody else lead: one of `prefer`, in this order, or else whoever has most."""
        if self.leading and self.wanted is None:
            self.wanted = prefer

    @property
    def leader(self) -> str:
        return self._config.leader

    def may_lead(self, name: str) -> bool:
        """Whether entries from `name` can be a leader's at all."""
        return name == self._config.leader

    def adopt(self, term: int) -> None:
        assert term >= self.term, "terms do not go back"
        self.term = term

    def begin(self, term: int) -> None:
        self.adopt(term)
        self.leading = True


class Phase(Enum):
    """Where a leader is on its way into its term."""

    GATHER = "gather"
    FETCH = "fetch"
    PROMISE = "promise"
    LEAD = "lead"


TRANSITIONS: Final[dict[Phase, tuple[Phase, ...]]] = {
    Phase.GATHER: (Phase.FETCH, Phase.PROMISE),
    Phase.FETCH: (Phase.PROMISE, Phase.GATHER),
    Phase.PROMISE: (Phase.LEAD,),
    Phase.LEAD: (),
}


class Accession:
    """The way of the configured leader into its term, step by step. Told what arrives; says what is next."""

    def __init__(self, config: GroupConfig, name: str, incarnation: int) -> None:
        self._needed = config.witnesses
        self._voters = tuple(voter for voter in config.voters if voter != name)
        self._incarnation = incarnation
        self._claims: dict[str, Claim] = {}
        self._promises: dict[str, None] = {}
        self.phase = Phase.GATHER
        self.term = 0
        """The term that it is about to begin."""
        self.giver = ""
        """Whose log is fetched, and up to which index."""
        self.upto = 0
        self.asked = False
        """Whether the giver was asked for its state, and whether that has been put in."""
        self.restored = False

    def _go(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase

    def claimed(self, name: str, claim: Claim) -> None:
        """A voter has said what it has."""
        if self.phase is Phase.GATHER and name in self._voters:
            self._claims[name] = claim

    def decide(self) -> None:
        """Go on from gathering when enough is known."""
        if self.phase is not Phase.GATHER or len(self._claims) < self._needed:
            return
        whole = [name for name in self._voters if name in self._claims and self._claims[name].term]
        if len(whole) < self._needed and (whole or len(self._claims) < len(self._voters)):
            return
        terms = [self._claims[name].term for name in whole]
        self.term = max(1, self._incarnation, max(terms, default=0) + 1)
        best = max(whole, key=self._length, default="")
        if not best or self._claims[best].last_index == 0:
            self._go(Phase.PROMISE)
            return
        self.giver = best
        self.upto = self._claims[best].last_index
        self.asked = self.restored = False
        self._go(Phase.FETCH)

    def _length(self, name: str) -> tuple[int, int]:
        return (self._claims[name].last_term, self._claims[name].last_index)

    @property
    def stuck(self) -> str:
        """Why gathering cannot end; empty while it still may."""
        if self.phase is not Phase.GATHER or len(self._claims) < len(self._voters):
            return ""
        whole = sum(1 for claim in self._claims.values() if claim.term)
        if not whole or whole >= self._needed:
            return ""
        return (
            f"the memory of a majority is lost: {whole} of the other voters have theirs, "
            f"{self._needed} are needed; restart all replicas to begin again from nothing"
        )

    def fetched(self, last_index: int) -> None:
        """The log has come to `last_index`, messages included."""
        if self.phase is Phase.FETCH and self.restored and last_index >= self.upto:
            self._go(Phase.PROMISE)

    def fetch_failed(self) -> None:
        """The giver is gone or silent: begin again."""
        if self.phase is Phase.FETCH:
            self._claims.clear()
            self._go(Phase.GATHER)

    def promised(self, name: str, term: int) -> None:
        """A voter has answered in `term`: it follows in ours, or it has heard of a later one."""
        if self.phase is not Phase.PROMISE or name not in self._voters:
            return
        if term > self.term:
            self.term = term + 1
            self._promises.clear()
        elif term == self.term:
            self._promises[name] = None

    def may_lead(self) -> bool:
        """Whether the term can begin now."""
        if self.phase is not Phase.PROMISE or len(self._promises) < self._needed:
            return False
        self._go(Phase.LEAD)
        return True

    def peer_down(self, name: str) -> None:
        """What a voter said is worth nothing when it may have restarted."""
        self._claims.pop(name, None)
        self._promises.pop(name, None)
        if self.phase is Phase.FETCH and name == self.giver:
            self.fetch_failed()
