"""Whether a leader may continue. Besides a later term, four things end its term:

- it has not heard from a majority for one election timeout: it may be unreachable (rule 5 in docs/design/groups.md);
- it hears from a majority but cannot commit while work waits: heartbeats pass where larger frames do not;
- its own application makes no progress while buffers are full: only the leader could suspend it;
- it was requested (`Leadership.hand_over`), or it is no longer a voter.

In all cases but the first it hands over: it orders nothing more, waits until the successor has its whole log, and
instructs it to start an election at once. If that does not happen in time it steps down, or continues if it is healthy.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.consensus.election import NOW
from holdfast.group.consensus.leadership import Role
from holdfast.group.consensus.replication import Progress, Replication
from holdfast.group.core import Core
from holdfast.group.frames import VoteRequest
from holdfast.group.log.entries import Member
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos

STALLS_MAX: Final = 5
"""Each stall in a row doubles the timeout: if no replica can commit, changing leaders does not help."""


class StepDown:
    """Monitors a leader."""

    def __init__(self, core: Core, replication: Replication) -> None:
        self._core = core
        self._replication = replication
        self._commit = 0
        self._moved_ns: Nanos = 0
        """When the commit index last increased, or nothing waited."""
        self._stalls = 0
        self._applied = 0
        self._applied_ns: Nanos = 0
        """When its own application last made progress, or had nothing to do."""
        self._wanted_ns: Nanos = NEVER
        """Since when it wants to hand over, and whether it must because it cannot continue."""
        self._must = False
        self._heard_ns: Nanos = 0
        """When a majority was last heard."""
        self._grace_ns: Nanos = 0
        """Silence before this was caused by a delay of this process."""

    def begin(self, now: Nanos) -> None:
        self._commit = self._core.log.commit
        self._moved_ns = self._applied_ns = self._grace_ns = self._heard_ns = now
        self._wanted_ns = NEVER
        self._must = False

    def was_late(self, now: Nanos) -> None:
        self._grace_ns = self._moved_ns = self._applied_ns = now

    @property
    def handing_over(self) -> bool:
        return self._core.leadership.wanted is not None

    def settle(self, now: Nanos, out: Outbox) -> bool:
        """False if this replica no longer leads."""
        core = self._core
        if self._is_alone(now):
            ms = core.config.election_ns // MILLISECOND
            return self._step_down(f"it has not heard from a majority for {ms} ms", now, out)
        self._watch_commit(now, out)
        # rule: 8i
        self._watch_application(now, out)
        log, me = core.log, core.me
        if me is None and log.view_index <= log.commit:
            core.leadership.hand_over()
            self._must = True
        elif self._should_go(me, now):
            core.leadership.hand_over()
        return self._hand_over(now, out)

    def _is_alone(self, now: Nanos) -> bool:
        # rule: 5b
        self._heard_ns = max(now - self._replication.contact_ns(now), self._grace_ns)
        return now - self._heard_ns >= self._core.config.election_ns

    def _watch_commit(self, now: Nanos, out: Outbox) -> None:
        log = self._core.log
        if log.commit > self._commit:
            self._stalls = 0
        if log.commit > self._commit or log.commit == log.last:
            self._commit, self._moved_ns = log.commit, now
        elif now - self._moved_ns >= self._stall_ns and not self.handing_over:
            waits_ms = (now - self._moved_ns) // MILLISECOND
            self._core.fact("stalls", f"nothing was committed for {waits_ms} ms", now, out)
            self._stalls = min(self._stalls + 1, STALLS_MAX)
            self._moved_ns = now
            # rule: 5c
            if self._successor(now) is not None:
                self._core.leadership.hand_over()
                self._must = True

    def _watch_application(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        applied = core.delivery.applied
        waits = applied >= core.log.commit or core.delivery.output_buffer.full
        if applied != self._applied or waits:
            self._applied, self._applied_ns = applied, now
        elif now - self._applied_ns >= core.config.patience_ns:
            stands_s = (now - self._applied_ns) // SECOND
            self._applied_ns = now
            if core.is_tight and not self.handing_over and self._successor(now) is not None:
                what = f"its own application has made no progress for {stands_s} s"
                core.fact("stalls", what, now, out)
                # rule: 8z
                core.delivery.give_up()
                core.leadership.hand_over()
                self._must = True

    @property
    def _stall_ns(self) -> Nanos:
        return self._core.config.stall_ns << self._stalls

    def _hand_over(self, now: Nanos, out: Outbox) -> bool:
        """The next step of handing over; False if this replica has stepped down instead."""
        core = self._core
        if not self.handing_over:
            self._wanted_ns = NEVER
            return True
        if self._wanted_ns == NEVER:
            self._wanted_ns = now
        if now - self._wanted_ns >= core.config.election_ns:
            core.leadership.wanted = None
            self._wanted_ns = NEVER
            if self._must:
                return self._step_down("no replica took over", now, out)
            core.fact("stays", "no replica took over", now, out)
            return True
        found = self._successor(now)
        if found is not None:
            peer, progress = found
            if self._must or progress.match == core.log.last:
                tail = core.log.tail
                request = VoteRequest(
                    core.config.name,
                    core.group_epoch,
                    NOW,
                    core.leadership.term,
                    tail.term,
                    tail.index,
                )
                post(out, [peer.node], request)
        return True

    def _should_go(self, me: Member | None, now: Nanos) -> bool:
        """Whether another replica should and can lead. A replica in `never_lead` leads only until another has its
        log."""
        core = self._core
        if core.delivery.suspended:
            return self._successor(now) is not None
        if me is None or me.may_lead:
            return False
        found = self._successor(now)
        return found is not None and found[1].match == core.log.last

    def _successor(self, now: Nanos) -> tuple[Peer, Progress] | None:
        """The best successor: a preferred one, or else the one with the longest log."""
        core = self._core
        prefer = core.leadership.wanted or ()
        fit = [
            (peer, progress)
            for peer, progress in self._replication.here()
            if progress.member.voter
            and progress.member.may_lead
            and not progress.member.suspended
            and not progress.failed
            and now - progress.heard_ns < core.config.election_ns
        ]
        if not fit:
            return None
        ranks = {name: len(prefer) - at for at, name in enumerate(prefer)}
        return max(fit, key=lambda item: (ranks.get(item[0].name, 0), item[1].match))

    def _step_down(self, why: str, now: Nanos, out: Outbox) -> bool:
        core = self._core
        core.leadership.go(Role.FOLLOWER)
        core.leadership.leader = ""
        core.leadership.heard_ns = -1
        core.fact("steps down", f"{core.name} no longer leads: {why}", now, out)
        return False

    def deadline(self, now: Nanos) -> Nanos:
        """When to check again."""
        due_ns = self._heard_ns + self._core.config.election_ns
        if self.handing_over:
            due_ns = min(due_ns, now + self._core.config.append_period_ns)
        # rule: 5d
        elif self._core.log.last > self._core.log.commit:
            due_ns = min(due_ns, self._moved_ns + self._stall_ns)
        return due_ns
