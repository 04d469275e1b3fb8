"""A replica that follows: takes the leader's entries in, and tells it how far it has come."""

from __future__ import annotations

from holdfast.group.core import Core
from holdfast.group.freeing import Release
from holdfast.group.leadership import NO_CONTACT
from holdfast.group.leading import MARKS_MAX
from holdfast.group.log import Kind
from holdfast.group.peers import post
from holdfast.group.waiting import Waiting
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.frames import Append, Appended, StreamId


class Following:
    """What a replica does while another leads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.waiting = Waiting(core.log, core.streams)
        self.release = Release(core.log, core.streams, core.delivery)
        self._answer: bool | None = None
        """What to answer the leader at the end of the turn; None: it has asked nothing."""
        self._all_marks = False
        self._told = (0, 0)
        """What the leader was last told: (match, applied)."""
        self._told_ns = 0
        self._due_ns = NEVER

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, node: NodeId, frame: Append, now: Nanos, out: Outbox) -> None:
        """Entries, or a sign of life, from one that may lead."""
        core = self._core
        term = core.leadership.term
        if frame.term < term:
            core.ignore("old term")
            stale = Appended(core.config.name, term, self.waiting.match, False, core.log.commit)
            post(out, [node], stale)
            return
        if frame.term > term and not self._new_term(frame, now, out):
            return
        if not self.waiting.take(frame):
            self._answer = False
            return
        if self._answer is None:
            self._answer = True
        self._all_marks = self._all_marks or not frame.entries
        for entry in frame.entries:
            if entry.kind == Kind.ORDER and entry.stream is not None:
                core.know(entry.stream, entry.last)

    def _new_term(self, frame: Append, now: Nanos, out: Outbox) -> bool:
        """Follow into a later term; False when whoever leads it does not know what was delivered here.

        A leader's log has everything that is committed. One that begins a term below that leads another group, which
        was founded when this one's memory was thought lost: to follow it would be to deliver other messages at the
        same positions.
        """
        core = self._core
        if frame.prev_index < core.log.commit:
            core.ignore("another history")
            if not core.delivery.suspended:
                leader = core.leadership.leader
                why = f"{leader} leads another history from entry {frame.prev_index}; restart this replica to join it"
                core.delivery.suspend(why)
                core.fact("suspended", why, now, out)
            return False
        core.leadership.adopt(frame.term)
        self.waiting.new_term()
        core.admission.new_leader()
        core.fact("follows", f"{core.name} follows {core.leadership.leader}", now, out)
        return True

    def is_founding(self, frame: Append) -> bool:
        """Whether a group begins with this: only then may a replica without memory follow at once."""
        new = frame.contact_ns == NO_CONTACT and frame.term > self._core.leadership.term
        return new and not frame.prev_index and not frame.entries

    def restarted(self) -> None:
        """The log goes on from a state that was put in: the leader is to go on from there."""
        self.waiting.restart()
        self.waiting.hint = self.waiting.match
        self._answer = False

    # -- answers -------------------------------------------------------------------------------------------------

    def settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        self.waiting.settle()
        core.delivery.hand_out(now, out)
        if core.admission.settle(self.waiting.match):
            core.fact("whole", f"{core.name} has all that it ever acknowledged", now, out)
        self._acknowledge(now, out)

    def _acknowledge(self, now: Nanos, out: Outbox) -> None:
        """Tell the leader how far this replica has come. That only its application has moved can wait a little."""
        core = self._core
        told = (self.waiting.match, core.delivery.applied)
        leader = core.peers.named(core.leadership.leader)
        self._due_ns = NEVER
        if (
            leader is None
            or not core.leadership.term
            or (self._answer is None and told == self._told)
        ):
            return
        due_ns = self._told_ns + core.config.free_period_ns
        if self._answer is None and told[0] == self._told[0] and now < due_ns:
            self._due_ns = due_ns
            return
        ok = self._answer is not False
        hint = 0 if ok else self.waiting.hint
        term = core.leadership.term
        ack = Appended(core.config.name, term, told[0], ok, hint, self._marks(), told[1])
        post(out, [leader.node], ack)
        self._answer = None
        self._told = told
        self._told_ns = now

    def _marks(self) -> tuple[tuple[StreamId, int], ...]:
        """The highest numbers held: of the streams that have changed, and of all of them with each sign of life."""
        streams = self._core.streams.streams
        names = streams if self._all_marks else self._core.streams.changed
        self._all_marks = False
        return tuple(
            (name, streams[name].top) for name in list(names)[:MARKS_MAX] if streams[name].top
        )

    def deadline(self) -> Nanos:
        return self._due_ns
