"""The leader: orders, replicates, commits what a majority has, and frees what all have applied."""

from __future__ import annotations

from typing import Final

from holdfast.group.consensus.commit import Commit
from holdfast.group.consensus.replication import Replication
from holdfast.group.consensus.step_down import StepDown
from holdfast.group.core import Core
from holdfast.group.frames import AppendResponse
from holdfast.group.log.entries import View, encode_data
from holdfast.group.log.garbage_collection import AppliedTracker
from holdfast.group.log.order import Order
from holdfast.group.log.replicated_log import NUMBER_MAX, Kind, is_sound_stream
from holdfast.group.loss.decisions import Decisions
from holdfast.group.membership.seating import PathRows
from holdfast.group.membership.view_changes import Membership
from holdfast.group.outputs.output_sender import OutputSender
from holdfast.group.peer import Peer
from holdfast.group.services.desk import ServiceDesk
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, Nanos

LOOK_NS: Final = MILLISECOND
"""The minimum interval between checks for garbage and for leadership: they are not urgent, and under load there are
many turns per millisecond."""


class Leader:
    """The work of a replica while it leads."""

    def __init__(self, core: Core, rows: PathRows = tuple) -> None:
        self._core = core
        self.order = Order(core.config, core.log, core.streams, core.delivery.apply_window)
        self.decisions = Decisions(core, self.order)
        self.output_sender = OutputSender(core, self.order, core.delivery.output_buffer)
        self._applied_tracker = AppliedTracker(core)
        self.replication = Replication(core)
        self.commit = Commit(core, self.replication)
        self.step_down = StepDown(core, self.replication)
        self.membership = Membership(core, self.replication, rows)
        self.services = ServiceDesk(core, self.order, self.replication)
        self.halted = ""
        """Why nothing more is ordered: an entry at which the applications of a majority fail."""
        self._looked_ns: Nanos = 0
        self._watch_ns: Nanos = 0
        """When the last check was, and when the next is due at the latest."""
        self._is_decided = True
        """Whether the view was committed at the last check."""
        self._skipped = False
        """There was no check in this turn."""

    def begin(self, now: Nanos, out: Outbox) -> None:
        """A term starts with its own entry, which commits everything that earlier terms left behind."""
        core = self._core
        core.follow_view()
        self.halted = ""
        self._watch_ns = 0
        self.replication.begin(now)
        self.step_down.begin(now)
        self.order.begin(core.leadership.term, now, out)
        self.membership.begin()
        self.decisions.begin(now)
        self.output_sender.begin()
        self.services.begin(now)
        core.fact("leads", f"{core.name} leads", now, out)

    @property
    def takes_requests(self) -> bool:
        """Whether something may be added to the log."""
        return not self.step_down.handing_over and not self.halted

    def was_late(self, now: Nanos) -> None:
        """This process did not run in time: it has heard nothing, and the others are not to blame."""
        self.step_down.was_late(now)
        self.services.was_late(now)

    def appended(self, peer: Peer, frame: AppendResponse, now: Nanos, out: Outbox) -> None:
        """A replica reports its progress, and the numbers that it knows."""
        core = self._core
        self.replication.heard(peer, frame, now, out)
        progress = self.replication.of(peer)
        if progress is not None and core.stability is not None:
            core.stability.heard(peer.node, progress.reported, progress.applied)
        if frame.why:
            self.membership.look_again()
        if frame.failed:
            self._look_for_poison(now, out)
        tail = self._core.log.tail
        for stream, number in frame.marks[: self._core.config.marks]:
            if is_sound_stream(stream) and 0 < number < NUMBER_MAX and not tail.is_over(stream):
                # rule: 7a
                self._core.know(stream, number)

    def settle(self, now: Nanos, out: Outbox) -> bool:
        """One turn of leading; False when it is over."""
        core = self._core
        if core.follow_view():
            self.replication.follow_view(now)
        for stream in core.streams.changed:
            self.order.note(stream)
        if core.delivery.failed:
            self._look_for_poison(now, out)
        if not self.step_down.handing_over and not self.halted:
            self.membership.settle(self._change, now, out)
            # rule: 6b
            self.decisions.settle(self.replication.is_informed(), now, out)
            self.services.settle(now, out)
            self.order.turn(now, out)
            self.output_sender.settle(now, out)
        self.commit.advance()
        self.services.committed(now, out)
        core.delivery.hand_out(now, out)
        if core.stability is not None:
            # Before entries are sent: its frames travel with them.
            core.stability.settle(now, out)
        if not self._periodic_checks(now, out):
            return False
        self.replication.send(now, out)
        return True

    def _periodic_checks(self, now: Nanos, out: Outbox) -> bool:
        """Check what can be freed, which replicas block the others, and whether this replica may continue; False if
        not."""
        core, log = self._core, self._core.log
        is_decided = log.view_index <= log.commit
        urgent = (
            is_decided != self._is_decided or self.step_down.handing_over or core.delivery.suspended
        )
        self._skipped = not urgent and now < min(self._looked_ns + LOOK_NS, self._watch_ns)
        if self._skipped:
            return True
        self._looked_ns, self._is_decided = now, is_decided
        behind = self._applied_tracker.settle(self.replication.progress, now, out)
        # rule: 8c
        if behind and not self.step_down.handing_over:
            self.membership.suspend(behind, self._change, now, out)
        return self.step_down.settle(now, out)

    def _change(self, view: View, now: Nanos, out: Outbox) -> None:
        """A view takes effect for majorities as soon as it is in the log."""
        self.order.append(Kind.VIEW, None, 0, 0, encode_data(view), now, out)
        if self._core.follow_view():
            self.replication.follow_view(now)

    def _look_for_poison(self, now: Nanos, out: Outbox) -> None:
        """An entry at which the applications of a majority fail would stop the whole group (rule 9)."""
        core, view = self._core, self._core.log.tail.view
        if view is None or self.halted:
            return
        failed: dict[int, list[str]] = {}
        why = core.delivery.suspended
        for voter in view.voters:
            other = self.replication.progress.get(voter.name)
            at = core.delivery.failed if other is None else other.failed
            if at:
                failed.setdefault(at, []).append(voter.name)
                why = why or (other.why if other is not None else "")
        for index, names in failed.items():
            # rule: 9b
            if len(names) >= view.majority:
                self.halted = f"entry {index} fails on {', '.join(names)}: {why}"
                core.fact("halted", self.halted, now, out)

    def deadline(self, now: Nanos) -> Nanos:
        if self._skipped:
            later_ns = max(LOOK_NS, self._core.config.free_period_ns)
            watch_ns = min(self._watch_ns, self._looked_ns + later_ns)
        else:
            watch_ns = self._watch_ns = min(
                self._applied_tracker.deadline(), self.step_down.deadline(now)
            )
        due_ns = min(self.replication.deadline(), watch_ns)
        if self.step_down.handing_over or self.halted:
            return due_ns  # what it would commit or send waits, and must not wake it
        return min(
            due_ns,
            self.membership.deadline(now),
            self.decisions.deadline(),
            self.output_sender.deadline(),
            self.services.deadline(),
        )
