"""A follower: processes entries of the leader and reports its progress."""

from __future__ import annotations

from typing import Final

from holdfast.group.core import Core
from holdfast.group.frames import Append, AppendResponse, StreamId
from holdfast.group.log.garbage_collection import GarbageCollector
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos

WHY_MAX = 200
LEARNER_ACK_NS: Final = 500_000
"""The minimum interval between reports of a learner with a feed, per replica of the group: commits do not depend on
them, and the leader receives 2000 reports a second from learners, however many there are."""


class Follower:
    """The work of a replica while another one leads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.collector = GarbageCollector(core.log, core.streams, core.delivery)
        self._answer: bool | None = None
        """The answer to the leader at the end of the turn; None: there was no request."""
        self._hint = 0
        """With a negative answer: where it should continue."""
        self._all_marks = False
        self._changed: dict[StreamId, None] = {}
        """Streams of which the leader was not informed since something arrived."""
        self._turn = 0
        """How many streams were reported, if they are too many for one answer."""
        self._told = (0, 0)
        """The last report to the leader: (match, applied)."""
        self.due_ns: Nanos = NEVER
        """When a deferred answer is due."""
        self._stands = (0, 0)
        """Where the log stopped while entries waited for their messages, and since when."""

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, peer: Peer, frame: Append, now: Nanos, out: Outbox) -> bool:
        """Entries or a heartbeat of a leader; False if it no longer leads."""
        core, leadership = self._core, self._core.leadership
        if frame.term < leadership.term:
            core.ignore("old term")
            match = core.pending.match
            stale = AppendResponse(
                core.config.name,
                leadership.term,
                match,
                False,
                core.log.commit,
                group_epoch=core.group_epoch,
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
        # Also if it does not match: a new leader needs to know what all replicas hold. A commit notice needs no answer.
        asks = not frame.entries and frame.commit <= core.pending.leader_commit
        self._all_marks = self._all_marks or asks
        if not core.pending.take(frame):
            # The lowest mismatch of a turn counts: frames sent after it cannot take it into account.
            hint = core.pending.hint
            # rule: 1a
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
        """Which entry could not be completed for long; empty while everything arrives in time."""
        pending, last = self._core.pending.entries, self._core.log.tail.index
        if not pending or self._stands[0] != last:
            self._stands = (last, now)
            return ""
        if now - self._stands[1] < self._core.config.lack_ns:
            return ""
        return f"it cannot obtain the messages of entry {last + 1}"

    def restarted(self) -> None:
        """The log continues from an installed snapshot: the leader should continue from there."""
        self._core.pending.restart()
        self._answer, self._hint = False, self._core.pending.end

    # -- answers -------------------------------------------------------------------------------------------------

    def settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        pending, log = core.pending, core.log
        if pending.entries or pending.leader_commit > log.commit:
            pending.settle()
        core.follow_view()
        core.delivery.hand_out(now, out)
        self._acknowledge(now, out)

    def _acknowledge(self, now: Nanos, out: Outbox) -> None:
        """Report the progress of this replica. Reports that commit nothing can wait a little."""
        core = self._core
        if core.streams.changed:
            self._changed.update(core.streams.changed)
        told = (core.pending.match, core.delivery.applied)
        leader = core.peers.named(core.leadership.leader)
        if leader is None:
            self._changed.clear()  # the next leader gets a complete report
        if leader is None or (self._answer is None and told == self._told):
            self.due_ns = NEVER
            return
        period_ns = core.config.free_period_ns
        urgent = self._answer is False or self._all_marks or told[0] != self._told[0]
        if core.recovery.feeds:
            # rule: S-11b
            urgent = self._answer is False
            period_ns = max(period_ns, LEARNER_ACK_NS * len(core.peers.replicas))
        if not urgent:
            self.due_ns = min(self.due_ns, now + period_ns)
            if now < self.due_ns:
                return
        ok = self._answer is not False
        hint = 0 if ok else self._hint
        marks, every = self._marks(self._all_marks)
        self._all_marks = False
        ack = AppendResponse(
            core.config.name, core.leadership.term, told[0], ok, hint, marks, told[1],
            core.group_epoch, every, core.delivery.failed, (core.delivery.trouble or self.lacks(now))[:WHY_MAX],
            core.log.commit, self._held_bytes(every),
        )  # fmt: skip
        post(out, [leader.node], ack)
        if core.stability is not None:
            core.stability.ride(leader.node, now, out)
        self._answer = None
        self._told = told
        self.due_ns = NEVER

    def _held_bytes(self, is_heartbeat: bool) -> int:
        """What this replica keeps, counted with reports to the detector; where none runs, with heartbeats."""
        stability = self._core.stability
        if stability is not None and stability.active:
            return stability.held_bytes
        return self._core.streams.all_bytes() if is_heartbeat else -1

    def _marks(self, every: bool) -> tuple[tuple[tuple[StreamId, int], ...], bool]:
        """The highest numbers held: of the streams that changed since the last answer, and of all of them with each
        heartbeat, or in turn if they are too many. And whether that was all."""
        streams = self._core.streams.streams
        if not every and not self._changed:
            return (), False
        names = [
            n for n in (streams if every else self._changed) if n in streams and streams[n].top
        ]
        if len(names) <= self._core.config.marks:
            self._changed.clear()
        else:
            begin = self._turn if self._turn < len(names) else 0
            # rule: 7g
            self._turn = begin + self._core.config.marks
            every = every and self._turn >= len(names)
            names = names[begin : self._turn]
            for name in names:
                self._changed.pop(name, None)
        return tuple([(name, streams[name].top) for name in names]), every
