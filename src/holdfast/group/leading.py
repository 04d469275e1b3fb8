"""A replica that leads: orders, replicates, commits what a majority has, and frees what all have applied."""

from __future__ import annotations

from typing import Final

from holdfast.group.core import Core
from holdfast.group.decisions import Decisions
from holdfast.group.entries import View, encode_data
from holdfast.group.freeing import Tally
from holdfast.group.log import NUMBER_MAX, Kind, is_sound_stream
from holdfast.group.order import Order
from holdfast.group.outputs import Emitter
from holdfast.group.peers import Peer
from holdfast.group.progress import Appends
from holdfast.group.tenure import Tenure
from holdfast.group.views import Membership
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, Nanos
from holdfast.wire.frames import Appended

MARKS_MAX: Final = 1024
"""Streams that a replica says its highest number of in one answer."""
LOOK_NS: Final = MILLISECOND
"""So often at most it is looked at what is free and whether this replica may go on leading: that may wait a little, and
under load there are many turns in a millisecond."""


class Leading:
    """What a replica does while it leads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.order = Order(core.config, core.log, core.streams, core.delivery.pace)
        self.decisions = Decisions(core, self.order)
        self.emitter = Emitter(core, self.order, core.delivery.kept)
        self._tally = Tally(core)
        self.appends = Appends(core)
        self.tenure = Tenure(core, self.appends)
        self.membership = Membership(core, self.appends)
        self.halted = ""
        """Why nothing more is ordered: a message that the applications of a majority cannot take."""
        self._looked_ns: Nanos = 0
        self._watch_ns: Nanos = 0
        """When it was last looked at, and when it has to be at the latest."""
        self._is_decided = True
        """Whether the view was decided when it was last looked at."""
        self._skipped = False
        """It was not looked at in this turn."""

    def begin(self, now: Nanos, out: Outbox) -> None:
        """A term begins, with an entry of its own: it is what commits everything that earlier terms left behind."""
        core = self._core
        core.follow_view()
        self.halted = ""
        self._watch_ns = 0
        self.appends.begin(now)
        self.tenure.begin(now)
        self.order.begin(core.leadership.term, now, out)
        self.membership.begin()
        self.decisions.begin(now)
        self.emitter.begin()
        core.fact("leads", f"{core.name} leads", now, out)

    def appended(self, peer: Peer, frame: Appended, now: Nanos, out: Outbox) -> None:
        """A replica says how far it is, and of what numbers it has heard."""
        self.appends.heard(peer, frame, now, out)
        if frame.why:
            self.membership.look_again()
        if frame.failed:
            self._look_for_poison(now, out)
        tail = self._core.log.tail
        for stream, number in frame.marks[:MARKS_MAX]:
            if is_sound_stream(stream) and 0 < number < NUMBER_MAX and not tail.is_over(stream):
                self._core.know(stream, number)

    def settle(self, now: Nanos, out: Outbox) -> bool:
        """One turn of leading; False when it is over."""
        core = self._core
        if core.follow_view():
            self.appends.follow_view(now)
        for stream in core.streams.changed:
            self.order.note(stream)
        if core.delivery.failed:
            self._look_for_poison(now, out)
        if not self.tenure.handing_over and not self.halted:
            self.membership.settle(self._change, now, out)
            self.decisions.settle(self.appends.is_informed(), now, out)
            self.order.turn(now, out)
            self.emitter.settle(now, out)
        self._commit()
        core.delivery.hand_out(now, out)
        if not self._look_around(now, out):
            return False
        self.appends.send(now, out)
        return True

    def _look_around(self, now: Nanos, out: Outbox) -> bool:
        """What is free, who holds the others back, and whether this replica may go on; False when it may not."""
        core, log = self._core, self._core.log
        is_decided = log.view_index <= log.commit
        urgent = (
            is_decided != self._is_decided or self.tenure.handing_over or core.delivery.suspended
        )
        self._skipped = not urgent and now < min(self._looked_ns + LOOK_NS, self._watch_ns)
        if self._skipped:
            return True
        self._looked_ns, self._is_decided = now, is_decided
        behind = self._tally.settle(self.appends.progress, now, out)
        if behind and not self.tenure.handing_over:
            self.membership.suspend(behind, self._change, now, out)
        return self.tenure.settle(now, out)

    def _change(self, view: View, now: Nanos, out: Outbox) -> None:
        """A view takes effect, for majorities, as soon as it is in the log."""
        self.order.append(Kind.VIEW, None, 0, 0, encode_data(view), now, out)
        if self._core.follow_view():
            self.appends.follow_view(now)

    def _commit(self) -> None:
        """What a majority has is decided, once an entry of this term is among it (Raft, 5.4.2)."""
        log = self._core.log
        agreed = self.appends.agreed()
        if agreed > log.commit and log.term_at(agreed) == self._core.leadership.term:
            log.commit_to(agreed)

    def _look_for_poison(self, now: Nanos, out: Outbox) -> None:
        """An entry that the applications of a majority fail at would take the whole group along (rule 9)."""
        core, view = self._core, self._core.log.tail.view
        if view is None or self.halted:
            return
        failed: dict[int, list[str]] = {}
        why = core.delivery.suspended
        for voter in view.voters:
            other = self.appends.progress.get(voter.name)
            at = core.delivery.failed if other is None else other.failed
            if at:
                failed.setdefault(at, []).append(voter.name)
                why = why or (other.why if other is not None else "")
        for index, names in failed.items():
            if len(names) >= view.majority:
                self.halted = f"entry {index} fails on {', '.join(names)}: {why}"
                core.fact("halted", self.halted, now, out)

    def deadline(self, now: Nanos) -> Nanos:
        if self._skipped:
            later_ns = max(LOOK_NS, self._core.config.free_period_ns)
            watch_ns = min(self._watch_ns, self._looked_ns + later_ns)
        else:
            watch_ns = self._watch_ns = min(self._tally.deadline(), self.tenure.deadline(now))
        due_ns = min(self.appends.deadline(), watch_ns)
        if self.tenure.handing_over or self.halted:
            return due_ns  # What it would decide or send waits, and must not wake it.
        return min(
            due_ns,
            self.membership.deadline(now),
            self.decisions.deadline(),
            self.emitter.deadline(),
        )
