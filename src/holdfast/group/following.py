"""A replica that follows: takes the leader's entries in, and tells it how far it has come."""

from __future__ import annotations

from holdfast.group.core import Core
from holdfast.group.freeing import Release
from holdfast.group.leading import MARKS_MAX
from holdfast.group.log import Kind
from holdfast.group.peers import Peer, post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.frames import Append, Appended, StreamId

WHY_MAX = 200


class Following:
    """What a replica does while another leads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.release = Release(core.log, core.streams, core.delivery)
        self._answer: bool | None = None
        """What to answer the leader at the end of the turn; None: it has asked nothing."""
        self._hint = 0
        """With the answer no: where it should go on."""
        self._all_marks = False
        self._changed: dict[StreamId, None] = {}
        """The streams that the leader was not told of since something of them came."""
        self._turn = 0
        """How many streams it was told of, where they are too many for one answer."""
        self._told = (0, 0)
        """What the leader was last told: (match, applied)."""
        self.due_ns: Nanos = NEVER
        """When an answer that could wait has waited long enough."""
        self._stands = (0, 0)
        """Where the log stood still while entries waited for their messages, and since when."""

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, peer: Peer, frame: Append, now: Nanos, out: Outbox) -> bool:
        """Entries, or a sign of life, from one that leads; False when it does not, any more."""
        core, leadership = self._core, self._core.leadership
        if frame.term < leadership.term:
            core.ignore("old term")
            match = core.waiting.match
            stale = Appended(
                core.config.name,
                leadership.term,
                match,
                False,
                core.log.commit,
                history=core.history,
            )
            post(out, [peer.node], stale)
            return False
        if leadership.leading and frame.term == leadership.term:
            core.ignore("two leaders")
            return False
        if frame.term > leadership.term:
            core.new_term(frame.term)
        if leadership.leader != peer.name:
            leadership.follow(peer.name, peer.incarnation)
            self._told = (0, 0)
            self._all_marks = True
            core.fact("follows", f"{core.name} follows {peer.name}", now, out)
        self._take(frame)
        return True

    def _take(self, frame: Append) -> None:
        core = self._core
        # Also where it does not fit: a new leader wants to know what everybody holds. That something is decided now
        # is no question.
        asks = not frame.entries and frame.commit <= core.waiting.leader_commit
        self._all_marks = self._all_marks or asks
        if not core.waiting.take(frame):
            # Of all that does not fit in one turn the lowest place counts: what was sent after it cannot know of it.
            hint = core.waiting.hint
            self._hint = min(self._hint, hint) if self._answer is False else hint
            self._answer = False
            return
        if self._answer is None:
            self._answer = True
        streams = core.streams.streams
        for entry in frame.entries:
            if entry.kind == Kind.ORDER and entry.stream is not None:
                held = streams.get(entry.stream)
                if held is None or entry.last > held.exists:
                    core.know(entry.stream, entry.last)

    def lacks(self, now: Nanos) -> str:
        """What of the order could not be got for long; empty while all comes in time."""
        waiting, last = self._core.waiting.entries, self._core.log.tail.index
        if not waiting or self._stands[0] != last:
            self._stands = (last, now)
            return ""
        if now - self._stands[1] < self._core.config.lack_ns:
            return ""
        return f"it cannot get the messages of entry {last + 1}"

    def restarted(self) -> None:
        """The log goes on from a state that was put in: the leader is to go on from there."""
        self._core.waiting.restart()
        self._answer, self._hint = False, self._core.waiting.end

    # -- answers -------------------------------------------------------------------------------------------------

    def settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        waiting, log = core.waiting, core.log
        if waiting.entries or waiting.leader_commit > log.commit:
            waiting.settle()
        core.follow_view()
        core.delivery.hand_out(now, out)
        self._acknowledge(now, out)

    def _acknowledge(self, now: Nanos, out: Outbox) -> None:
        """Tell the leader how far this replica has come. What decides nothing can wait a little."""
        core = self._core
        if core.streams.changed:
            self._changed.update(core.streams.changed)
        told = (core.waiting.match, core.delivery.applied)
        leader = core.peers.named(core.leadership.leader)
        if leader is None:
            self._changed.clear()  # who leads next is told of all
        if leader is None or (self._answer is None and told == self._told):
            self.due_ns = NEVER
            return
        urgent = self._answer is False or self._all_marks or told[0] != self._told[0]
        if not urgent:
            self.due_ns = min(self.due_ns, now + core.config.free_period_ns)
            if now < self.due_ns:
                return
        ok = self._answer is not False
        hint = 0 if ok else self._hint
        marks, every = self._marks(self._all_marks)
        self._all_marks = False
        ack = Appended(
            core.config.name, core.leadership.term, told[0], ok, hint, marks, told[1],
            core.history, every, core.delivery.failed, (core.delivery.trouble or self.lacks(now))[:WHY_MAX],
        )  # fmt: skip
        post(out, [leader.node], ack)
        self._answer = None
        self._told = told
        self.due_ns = NEVER

    def _marks(self, every: bool) -> tuple[tuple[tuple[StreamId, int], ...], bool]:
        """The highest numbers held: of the streams that have changed since the last answer, and of all of them with
        each sign of life, or by and by where they are too many. And whether that was all."""
        streams = self._core.streams.streams
        if not every and not self._changed:
            return (), False
        names = [
            n for n in (streams if every else self._changed) if n in streams and streams[n].top
        ]
        if len(names) <= MARKS_MAX:
            self._changed.clear()
        else:
            begin = self._turn if self._turn < len(names) else 0
            self._turn = begin + MARKS_MAX
            every = every and self._turn >= len(names)
            names = names[begin : self._turn]
            for name in names:
                self._changed.pop(name, None)
        return tuple([(name, streams[name].top) for name in names]), every
