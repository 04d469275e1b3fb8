"""Who is in the group: the leader's part. One change at a time, each an entry of the log.

A change takes one step: a voter more, a voter less, or none of both. So any majority before it and any after it
have a voter in common; what people do in one go (replacing a replica) is not worse off with two entries. Because lives
that have ended are not waited for, that is not enough: a change of the voters is decided by those before it as well
(`Appends`). Majorities are those of the view in the log, decided or not; what is kept for whom, and
who is asked, follows the decided one. No change before the leader's term has decided something and a majority has said
what it holds (DESIGN, Groups, rule 6): a change of an earlier term that is still under way is settled by then.

A replica that restarted without its memory is another life of it. It takes its old place as a learner (the life before
will never acknowledge anything again), is given what it lacks, and becomes a voter when it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.group.core import Core
from holdfast.group.entries import NAMES_MAX, VOTERS_MAX, Member, View
from holdfast.group.peers import Peer
from holdfast.group.progress import Appends, Progress
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos

REQUESTS_MAX: Final = 32
BEHIND_MAX: Final = 256
"""A learner that lacks no more entries than this has caught up."""


class _Request(msgspec.Struct, frozen=True):
    """What somebody wants of one replica: to be let in (in this life), to be added, to be removed."""

    peer: Peer | None = None
    add: bool = False
    voter: bool = True


class Membership:
    """Changes the view, while this replica leads."""

    def __init__(self, core: Core, appends: Appends) -> None:
        self._core = core
        self._appends = appends
        self._requests: dict[str, _Request] = {}
        self._added: dict[str, bool] = {}
        """Names that somebody added and who have not come yet, and whether they are to vote."""
        self._term_index = 0
        self._look_ns: Nanos = 0
        """Not every turn is worth a look."""
        self._refused = ""
        """Why somebody is not removed."""

    def begin(self) -> None:
        self._requests.clear()
        self._term_index = self._core.log.last
        self._look_ns = 0

    def look_again(self) -> None:
        """Something has changed that should not wait."""
        self._look_ns = 0

    def deadline(self, now: Nanos) -> Nanos:
        """A request that came since the last look waits for the next one; one that cannot be met yet, for others."""
        return self._look_ns if self._requests and self._look_ns > now else NEVER

    # -- what is wanted ------------------------------------------------------------------------------------------

    def seeks(self, peer: Peer) -> bool:
        """A replica asks to be let in; False when it was removed."""
        view = self._core.log.tail.view
        assert view is not None, "a leader has a view"
        if peer.name in view.removed and peer.name not in self._added:
            return False
        member = view.named(peer.name)
        if member is not None and (member.node, member.life) == (peer.node, peer.life):
            return True
        known = (
            member is not None
            or peer.name in self._added
            or peer.name in self._core.config.replicas
        )
        if known and len(self._requests) < REQUESTS_MAX:
            self._requests[peer.name] = _Request(peer)
        return True

    def add(self, name: str, voter: bool) -> None:
        if len(self._added) < REQUESTS_MAX and 0 < len(name) <= 64:
            self._added[name] = voter
            self._requests[name] = _Request(self._core.peers.named(name), True, voter)

    def remove(self, name: str) -> None:
        self._added.pop(name, None)
        if len(self._requests) < REQUESTS_MAX:
            self._requests[name] = _Request()

    # -- what is done --------------------------------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        core, log, view = self._core, self._core.log, self._core.log.tail.view
        # Two sides of a cut go on in `availability` groups, but they must stay one group.
        available = view is not None and core.config.mode == "availability"
        if available and len(core.voters_here()) + 1 < core.needed(view):  # type: ignore[arg-type]
            return False
        return (
            log.commit >= self._term_index and log.view_index <= log.commit and self._appends.is_informed()
        )  # fmt: skip

    def settle(
        self, append: Callable[[View, Nanos, Outbox], None], now: Nanos, out: Outbox
    ) -> None:
        """Make the next change, if there is one and the last one is decided."""
        if now < self._look_ns or not self.may_change:
            return
        self._look_ns = now + self._core.config.free_period_ns
        view = self._core.log.tail.view
        assert view is not None, "a leader has a view"
        found = self._next(view, now)
        if self._refused:
            self._core.fact("stays", self._refused, now, out)
            self._refused = ""
        if found is not None and found[0].is_sound():
            append(found[0], now, out)
            self._core.fact("view", found[1], now, out)

    def _next(self, view: View, now: Nanos) -> tuple[View, str] | None:
        for name, request in list(self._requests.items()):
            del self._requests[name]
            change = self._asked(view, name, request)
            if change is not None:
                return change
        me = view.named(self._core.name)
        if me is not None and me.suspended and not self._core.delivery.suspended:
            # Nobody else could lead. It has a state, and its log is the longest.
            changed = msgspec.structs.replace(me, suspended=False)
            return view.with_member(changed), f"{me.name} takes part again"
        for name, progress in self._appends.progress.items():
            change = self._step(view, name, progress, now)
            if change is not None:
                return change
        return None

    def _asked(self, view: View, name: str, request: _Request) -> tuple[View, str] | None:
        member = view.named(name)
        if request.peer is None and not request.add:
            return self._removed(view, name)
        if request.add and member is not None:
            changed = msgspec.structs.replace(
                member, voter=member.voter and request.voter, promote=request.voter and not member.voter
            )  # fmt: skip
            if changed == member:
                return None
            next_view = view.with_member(changed)
            if member.voter and not changed.voter:
                self._refused = self._why_not(view, next_view, name)
            return None if self._refused else (next_view, f"{name} changes its part")
        peer = request.peer
        if peer is None or self._core.peers.named(name) != peer or len(view.members) >= NAMES_MAX:
            return None
        votes = self._votes(name, member)
        may_lead = name not in self._core.config.never_lead if member is None else member.may_lead
        learner = Member(name, peer.node, peer.life, False, votes, False, may_lead)
        next_view = view.with_member(learner)
        if member is not None and member.voter and self._why_not(view, next_view, name):
            return None  # Its other life had a vote. It asks again.
        self._added.pop(name, None)
        return next_view, f"{name} is let in (life {peer.life}), learns"

    def _votes(self, name: str, member: Member | None) -> bool:
        if member is not None:
            return member.voter or member.promote
        return self._added.get(name, name in self._core.config.voters)

    def _removed(self, view: View, name: str) -> tuple[View, str] | None:
        member = view.named(name)
        if member is None or (member.voter and len(view.voters) == 1):
            return None
        left = view.without(name)
        if member.voter:
            self._refused = self._why_not(view, left, name)
        return None if self._refused else (left, f"{name} is removed")

    def _why_not(self, view: View, left: View, name: str) -> str:
        """Why a voter less cannot be decided; empty when it can. That takes those after it and, where lives end, those
        before. A view counts at once, for majorities, and if too few of them can be reached nobody could decide
        anything."""
        core = self._core
        needed_of = [("that are left", left)]
        if not core.config.is_durable:
            needed_of.append(("there are now", view))
        for voters, one in needed_of:
            here = [v for v in one.voters if v.name == core.name or core.peers.is_here(v)]
            needed = core.needed(one)
            if len(here) < needed:
                return (
                    f"{name} keeps its vote: {len(here)} of the voters {voters} can be reached, "
                    f"{needed} are needed"
                )
        return ""

    def _step(
        self, view: View, name: str, progress: Progress, now: Nanos
    ) -> tuple[View, str] | None:
        """What one replica's progress asks for: to vote, to be suspended, to take part again."""
        log, member = self._core.log, progress.member
        here = self._core.peers.is_here(member)
        current = here and progress.match > 0 and progress.match + BEHIND_MAX >= log.last
        progress.caught_up = progress.caught_up or (
            current and progress.applied >= log.ground.index
        )
        if member.suspended:
            back = (
                current
                and not progress.failed
                and not progress.why
                and progress.applied >= log.ground.index
            )
            if back and now >= progress.out_until_ns:
                changed = msgspec.structs.replace(member, suspended=False)
                return view.with_member(changed), f"{name} takes part again"
            return None
        if (progress.failed or progress.why) and self.may_suspend(view, name):
            changed = msgspec.structs.replace(member, suspended=True)
            return view.with_member(changed), f"{name} is suspended: {progress.why}"
        if member.promote and progress.caught_up and current and len(view.voters) < VOTERS_MAX:
            changed = msgspec.structs.replace(member, voter=True, promote=False)
            return view.with_member(changed), f"{name} votes"
        return None

    def may_suspend(self, view: View, name: str) -> bool:
        """A majority of the voters must stay well; else the others wait for this one, and it is asked again."""
        well = sum(1 for voter in view.voters if not voter.suspended and voter.name != name)
        member = view.named(name)
        return member is not None and (not member.voter or well >= view.majority)

    def suspend(
        self,
        names: dict[str, str],
        append: Callable[[View, Nanos, Outbox], None],
        now: Nanos,
        out: Outbox,
    ) -> bool:
        """Suspend one of the replicas that hold everybody back; False when that cannot be, for now."""
        view = self._core.log.tail.view
        assert view is not None, "a leader has a view"
        if not self.may_change:
            return False
        for name, why in names.items():
            member = view.named(name)
            if member is None or member.suspended or not self.may_suspend(view, name):
                continue
            append(view.with_member(msgspec.structs.replace(member, suspended=True)), now, out)
            other, config = self._appends.progress[name], self._core.config
            if self._core.peers.is_here(member) and now - other.heard_ns < config.lack_ns:
                # Its application stands still. One that only could not be reached is well when it is back.
                other.out_until_ns = now + config.patience_ns
            self._core.fact(
                "left behind", f"{name} is suspended: {why}; it will be given a state", now, out
            )
            return True
        return False
