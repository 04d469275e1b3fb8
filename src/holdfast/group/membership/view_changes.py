"""Membership changes by the leader, one at a time, each as a log entry.

A change is one step: one voter more, one voter less, or neither. Any majority before it therefore intersects any
majority after it; replacing a replica takes two entries. Because ended lives are not waited for, that is not enough: a
voter change must also be committed by the previous voters (`Replication`). Majorities are those of the view in the log,
committed or not; retention follows the committed view. No change before the term has committed an entry and a majority
has reported what it holds (rule 6 in docs/design/groups.md): an uncommitted change of an earlier term is settled by
then.

A replica that restarted without its state is another life. It takes its old place as a learner (the previous life will
never acknowledge anything again), receives what it lacks, and becomes a voter when it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.group.consensus.replication import Progress, Replication
from holdfast.group.core import Core
from holdfast.group.log.entries import NAMES_MAX, VOTERS_MAX, Member, View
from holdfast.group.membership.seating import PathRows, Seating
from holdfast.group.membership.values import ChangeRequest
from holdfast.group.peer import Peer
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos

REQUESTS_MAX: Final = NAMES_MAX
MISSES_MAX: Final = 3
"""Each time that a replica is not back in time doubles the time in which it is not waited for, up to 2^3 times."""
BEHIND_MAX: Final = 256
"""A learner that lacks no more entries than this has caught up."""


class _Together:
    """Changes that become one view: any number that do not change the voters, or one that does."""

    def __init__(self, view: View) -> None:
        self._before = view
        self._voters = view.voters
        self.view = view
        self.texts: list[str] = []
        self.is_closed = False
        """It changes the voters: nothing else may."""

    def add(self, change: tuple[View, str]) -> bool:
        """False if it must wait for the next view."""
        # A change of voters is a view of its own: any two majorities before and after it must intersect.
        changes_voters = change[0].voters != self._voters
        if self.texts and changes_voters:
            return False
        self.view = change[0]
        self.texts.append(change[1])
        # rule: S-11d
        self.is_closed = changes_voters
        return True

    def result(self) -> tuple[View, str]:
        view = msgspec.structs.replace(self.view, number=self._before.number + 1)
        return view, "; ".join(self.texts)


class Membership:
    """Changes the view, while this replica leads."""

    def __init__(self, core: Core, replication: Replication, rows: PathRows = tuple) -> None:
        self._core = core
        self._replication = replication
        self._seating = Seating(core.config, rows)
        self._requests: dict[str, ChangeRequest] = {}
        self._added: dict[str, bool] = {}
        """Added names whose nodes have not appeared yet, and whether they should vote."""
        self._term_index = 0
        self._look_ns: Nanos = 0
        """Not every turn needs a check."""
        self._refused = ""
        """Why a voter is not removed."""
        self._not_back = ""
        """Which member the log is no longer kept for."""

    def begin(self) -> None:
        self._requests.clear()
        self._term_index = self._core.log.last
        self._look_ns = 0

    def look_again(self) -> None:
        """Something has changed that must be checked soon."""
        self._look_ns = 0

    def deadline(self, now: Nanos) -> Nanos:
        """A new request waits for the next check; one that cannot be met yet waits for others."""
        return self._look_ns if self._requests and self._look_ns > now else NEVER

    # -- requests ------------------------------------------------------------------------------------------------

    def seeks(self, peer: Peer) -> bool:
        """A replica asks to be admitted; False if it was removed."""
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
            self._requests[peer.name] = ChangeRequest(peer)
        return True

    def add(self, name: str, voter: bool) -> None:
        if len(self._added) < REQUESTS_MAX and 0 < len(name) <= 64:
            self._added[name] = voter
            self._requests[name] = ChangeRequest(self._core.peers.named(name), True, voter)

    def remove(self, name: str) -> None:
        self._added.pop(name, None)
        if len(self._requests) < REQUESTS_MAX:
            self._requests[name] = ChangeRequest()

    # -- changes -------------------------------------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        core, log, view = self._core, self._core.log, self._core.log.tail.view
        # Two sides of a partition continue in `availability` groups, but they must stay one group.
        available = view is not None and core.config.mode == "availability"
        if available and len(core.voters_here()) + 1 < core.needed(view):  # type: ignore[arg-type]
            return False
        # rule: 6a
        return (
            log.commit >= self._term_index and log.view_index <= log.commit and self._replication.is_informed()
        )  # fmt: skip

    def settle(
        self, append: Callable[[View, Nanos, Outbox], None], now: Nanos, out: Outbox
    ) -> None:
        """Make the next change, if there is one and the last one is committed."""
        if now < self._look_ns or not self.may_change:
            return
        self._look_ns = now + self._core.config.free_period_ns
        view = self._core.log.tail.view
        assert view is not None, "a leader has a view"
        found = self._next(view, now)
        if self._refused:
            self._core.fact("stays", self._refused, now, out)
            self._refused = ""
        if self._not_back:
            self._core.fact("left behind", self._not_back, now, out)
            self._not_back = ""
        if found is not None and found[0].is_sound():
            append(found[0], now, out)
            self._core.fact("view", found[1], now, out)

    def _next(self, view: View, now: Nanos) -> tuple[View, str] | None:
        """The next change. Changes that leave the voters as they are can be made together: in a large group every view
        is large, and as many views as members would be too much."""
        asked = _Together(view)
        for name, request in list(self._requests.items()):
            if asked.is_closed:
                break
            change = self._asked(asked.view, name, request)
            if change is not None and not asked.add(change):
                break
            del self._requests[name]
        if asked.texts:
            return asked.result()
        me = view.named(self._core.name)
        if me is not None and me.suspended and not self._core.delivery.suspended:
            # No other replica could lead. It has a state, and its log is the longest.
            changed = msgspec.structs.replace(me, suspended=False)
            return view.with_member(changed), f"{me.name} participates again"
        steps = _Together(view)
        for name, progress in self._replication.progress.items():
            if steps.is_closed:
                break
            change = self._step(steps.view, name, progress, now)
            if change is not None and not steps.add(change):
                break
        if steps.texts:
            return steps.result()
        # rule: S-7a
        seated = self._seating.look(view, now)
        return None if seated is None else (seated, "members change places on the cube")

    def _asked(self, view: View, name: str, request: ChangeRequest) -> tuple[View, str] | None:
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
            return None if self._refused else (next_view, f"{name} changes its vote")
        peer = request.peer
        if peer is None or self._core.peers.named(name) != peer or len(view.members) >= NAMES_MAX:
            return None
        votes = self._votes(name, member)
        may_lead = name not in self._core.config.never_lead if member is None else member.may_lead
        # rule: 2a
        learner = Member(name, peer.node, peer.life, False, votes, False, may_lead)
        next_view = view.with_member(learner)
        if member is not None and member.voter and self._why_not(view, next_view, name):
            return None  # its earlier life had a vote; it asks again
        self._added.pop(name, None)
        return next_view, f"{name} is admitted as a learner (life {peer.life})"

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
        """Why the removal of a voter cannot be committed; empty if it can. That needs the voters after it and, if lives
        end, those before. A view counts for majorities at once, so if too few are reachable nothing could be
        committed."""
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
        """What the progress of one replica requires: a vote, a suspension, or the end of one."""
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
                changed = msgspec.structs.replace(member, suspended=False, pin=0)
                return view.with_member(changed), f"{name} participates again"
            return self._pin(view, progress, here, now)
        if (progress.failed or progress.why) and self.may_suspend(view, name):
            changed = msgspec.structs.replace(member, suspended=True)
            return view.with_member(changed), f"{name} is suspended: {progress.why}"
        # rule: 8a
        if member.promote and progress.caught_up and current and len(view.voters) < VOTERS_MAX:
            changed = msgspec.structs.replace(member, voter=True, promote=False)
            return view.with_member(changed), f"{name} votes"
        return None

    def _pin(
        self, view: View, progress: Progress, here: bool, now: Nanos
    ) -> tuple[View, str] | None:
        """Keep the log for a suspended member while it installs a snapshot, for a limited time (rule 5 in
        docs/design/stability.md).

        Otherwise the member would need another snapshot as soon as it has one, as long as messages flow.
        """
        log, member, config = self._core.log, progress.member, self._core.config
        if config.mode != "majority":
            return None
        if not member.pin:
            if not here or now < progress.out_until_ns or progress.next > log.ground.index:
                return None
            progress.held, progress.held_ns = log.last + 1, now
            pinned = msgspec.structs.replace(member, pin=log.last + 1)
            return view.with_member(pinned), f"{member.name} rejoins: the log is kept for it"
        if progress.held < 0:  # Another leader pinned it.
            progress.held, progress.held_ns = member.pin, now
        # rule: S-5c
        if here and now - progress.held_ns < config.patience_ns:
            return None
        progress.held = -1
        if here:
            self._not_back = f"{member.name} did not rejoin in time and is no longer waited for"
            progress.out_until_ns = now + (config.patience_ns << progress.misses)
            progress.misses = min(progress.misses + 1, MISSES_MAX)
        changed = msgspec.structs.replace(member, pin=0)
        return view.with_member(changed), f"{member.name} did not rejoin: its pin is removed"

    def may_suspend(self, view: View, name: str) -> bool:
        """A majority of the voters must stay healthy; otherwise the others wait for this one, and it is checked
        again."""
        well = sum(1 for voter in view.voters if not voter.suspended and voter.name != name)
        member = view.named(name)
        # rule: 8d
        return member is not None and (not member.voter or well >= view.majority)

    def suspend(
        self,
        names: dict[str, str],
        append: Callable[[View, Nanos, Outbox], None],
        now: Nanos,
        out: Outbox,
    ) -> bool:
        """Suspend one of the replicas that block the others; False if that is not possible now."""
        view = self._core.log.tail.view
        assert view is not None, "a leader has a view"
        if not self.may_change:
            return False
        for name, why in names.items():
            member = view.named(name)
            if member is None or member.suspended or not self.may_suspend(view, name):
                continue
            append(view.with_member(msgspec.structs.replace(member, suspended=True)), now, out)
            other, config = self._replication.progress[name], self._core.config
            if self._core.peers.is_here(member) and now - other.heard_ns < config.lack_ns:
                # Its application makes no progress. One that was only unreachable is healthy when it is back.
                other.out_until_ns = now + config.patience_ns
            self._core.fact(
                "left behind", f"{name} is suspended: {why}; it rejoins with a snapshot", now, out
            )
            return True
        return False
