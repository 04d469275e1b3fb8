"""A replica that needs a state: it fell too far behind, its application failed, or it has nothing yet.

It pulls a state from the leader, or from another replica when that gives none or is lost in the middle; then only what
is still lacking is asked for. It puts the state into the application, and goes on from there. What its log has above
the state stays: it was acknowledged.

A state that is ahead of what is decided (`fast`) is put in only when its own log has come to the very entry that the
state is after. Then it is as if this replica had run ahead itself: if its log is cut below, it gives the state up.
Where its log ends too far back to be continued, it begins anew where the state is decided. So it takes part in deciding
the rest before it has a state.
"""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.group.config import replica_unit
from holdfast.group.core import Core
from holdfast.group.following import Following
from holdfast.group.image import Image, Place, encode_image
from holdfast.group.log import Cursor
from holdfast.group.peers import Peer
from holdfast.group.ports import Restored, RestoreState
from holdfast.group.transfer import StateIn
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.frames import StateChunk, StreamId

FAILURES_MAX: Final = 6
"""Each failure of the application doubles the time to the next try, so often."""


class Joining:
    """Takes states in."""

    def __init__(self, core: Core, following: Following, rng: Random) -> None:
        self._core = core
        self._following = following
        self._state_in = StateIn(core.config, rng)
        self._image: Image | None = None
        """A state that is being put into the application."""
        self._own: Image | None = None
        """A state from our own store that the application has not been given yet."""
        self._awaited: Image | None = None
        """A state that our log has not come to yet."""
        self._givers_tried = 0
        self._failures = 0
        self._rejoin_ns: Nanos = NEVER
        self._lost: dict[StreamId, int] = {}
        """How far the application had come in each stream, with messages that the order does not have."""

    def begin_with(self, image: Image) -> None:
        """The state that this replica's own store has."""
        self._own = image
        self._core.delivery.paused = True

    @property
    def is_restoring(self) -> bool:
        return self._state_in.active or self._image is not None or self._own is not None

    def peer_down(self, peer: Peer, now: Nanos) -> None:
        if self._state_in.peer == peer:
            self._state_in.stop()
            self._rejoin_ns = now
            self._go_on()

    def _go_on(self) -> None:
        """No state is on its way: a suspended replica goes on through the order, so that it holds nothing."""
        if not self.is_restoring and self._awaited is None:
            self._core.delivery.paused = False

    def wake(self, now: Nanos, out: Outbox) -> None:
        if self._own is not None:
            image, self._own = self._own, None
            self._take(image, now, out)
        if not self._state_in.wake(now, out):
            self._rejoin_ns = now
        self._go_on()
        if now >= self._rejoin_ns:
            self._rejoin_ns = now + self._core.config.rejoin_ns
            self._fetch(now, out)

    def settle(self, now: Nanos, out: Outbox) -> None:
        """One that cannot get a message of the order takes a state that covers it, and asks to be suspended meanwhile.
        It cannot know whether it is: that entry lies behind the one that it lacks."""
        if self._awaited is not None and self._has_come_to(self._awaited.at):
            self._take(self._awaited, now, out)
        if self._rejoin_ns == NEVER and not self.is_restoring:
            self._state_in.forget()
            if self._following.lacks(now):
                self._rejoin_ns = now

    def failed(self, now: Nanos) -> None:
        """The application raised: it needs a state from one that did not, after a while."""
        self._image = self._awaited = None
        self._state_in.stop()
        self._core.delivery.paused = False
        self._rejoin_ns = now + (self._core.config.rejoin_ns << self._failures)
        self._failures = min(self._failures + 1, FAILURES_MAX)

    def undone(self, now: Nanos, delivered: dict[StreamId, int]) -> None:
        """What was delivered here is not in the order: a state is needed at once, whatever was under way."""
        self._image = self._awaited = None
        self._state_in.stop()
        self._core.delivery.paused = False
        self._lost = delivered
        self._rejoin_ns = now

    def _report_lost(self, cursor: Cursor, now: Nanos, out: Outbox) -> None:
        """Say what this replica had delivered that the state does not have."""
        delivery = self._core.delivery
        delivered = self._lost if delivery.suspended else delivery.at.next
        self._lost = {}
        parts = []
        for stream, number in delivered.items():
            first = cursor.next.get(stream, 1)
            if number > first and not cursor.is_over(stream):
                label = f"{stream.source.hex()}/{stream.incarnation}/{stream.stream}"
                parts.append(f"{label} {first} to {number - 1}")
        if parts:
            self._core.fact(
                "lost", "delivered here, not (yet) in the order: " + "; ".join(parts), now, out
            )

    def _fetch(self, now: Nanos, out: Outbox) -> None:
        """Take a state from the leader, or from another replica when the leader has not given one."""
        core = self._core
        peers = core.peers
        if self.is_restoring or not peers.replicas or core.leadership.leading:
            return
        leader = peers.named(core.leadership.leader)
        others = [peer for peer in peers.replicas if peer is not leader]
        givers = [leader, *others] if leader is not None else others
        # What comes after the state must not be gone when it arrives.
        core.delivery.paused = bool(core.delivery.suspended)
        giver = givers[self._givers_tried % len(givers)]
        self._state_in.begin(giver, now, out, self._least())
        self._givers_tried += 1

    def _least(self) -> int:
        """States from before this entry are of no use. One without a state has passed entries that its application was
        not given: it may go back as far as entries and messages are still here."""
        core = self._core
        at = core.delivery.at.index
        if not core.delivery.suspended:
            return at
        return max(core.log.ground.index, min(self._following.release.index, at))

    def offered(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        """The leader's log does not go back to where ours ends: only a state helps."""
        core = self._core
        if peer.name == core.leadership.leader and frame.index > core.waiting.match:
            self._fetch(now, out)

    def chunk(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        core = self._core
        image = self._state_in.chunk(peer, frame, now, out)
        if image is None or self._image is not None:
            return
        suspended = bool(core.delivery.suspended)
        beyond = image.begin.index > core.log.last
        # Our log ends before it, and is of a later term: it is of a side that has lost. But whoever leads has won.
        leads = peer.name == core.leadership.leader
        lost = beyond and image.begin.term < core.log.tail.term and not leads
        takes = (suspended or beyond) and not lost
        if image.history != core.history or image.index < self._least() or not takes:
            # What was delivered after it would be delivered again, or is there anyway.
            core.ignore("old state")
            self._go_on()
            needed = suspended or image.index > core.log.last
            self._rejoin_ns = self._rejoin_ns if needed else NEVER
            self._state_in.forget()
            return
        self._take(image, now, out)

    def _has_come_to(self, place: Place) -> bool:
        """Whether our log has this very entry."""
        return self._core.log.term_at(place.index) == place.term

    def _take(self, image: Image, now: Nanos, out: Outbox) -> None:
        """Give a state to the application, if that is possible already."""
        core = self._core
        core.delivery.paused = True
        if image.ground is None or self._has_come_to(image.at):
            self._image, self._awaited = image, None
            self._put_in(image, out)
            return
        self._awaited = image
        self._rejoin_ns = now + core.config.rejoin_ns
        begins = image.ground.index > core.log.ground.index and not self._has_come_to(image.ground)
        if begins or not core.delivery.suspended:
            ahead = image.index - image.ground.index
            why = f"its state is {ahead} entries ahead of what is decided"
            delivered = core.delivery.undo(why, image.ground.cursor())
            self._lost = self._lost or delivered
        if begins:
            self._begin_log(image.ground.cursor(), image, out)
        core.fact("awaits", f"the order up to entry {image.index}, to put in its state", now, out)

    def _begin_log(self, at: Cursor, image: Image, out: Outbox) -> None:
        """The log goes on from here."""
        core = self._core
        if at.term > core.leadership.term:
            core.new_term(at.term)  # whoever gave it has heard of a leader of whom we have not
        emptied = core.log.restart(at)
        core.recovery.forget()
        core.streams.forget_over(at)
        if emptied:
            core.streams.need_all()
        for stream in core.streams.streams.values():
            stream.drop_below(at.next.get(stream.id, 1))
            core.streams.changed[stream.id] = None
        self._following.restarted()
        if core.journal is not None:
            core.journal.begin_again(at, encode_image(image), emptied, out)

    def _put_in(self, image: Image, out: Outbox) -> None:
        effect = RestoreState(replica_unit(self._core.config.name), image.index, image.state)
        out.effect(effect, immediate=True)

    def restored(self, item: Restored, now: Nanos, out: Outbox) -> None:
        """The application has the state: take its place in the order."""
        core = self._core
        image, self._image = self._image, None
        if image is None or image.index != item.index:
            return
        if image.ground is not None and not self._has_come_to(image.at):
            # The log was cut meanwhile.
            self._take(image, now, out)
            return
        cursor = image.at.cursor()
        self._report_lost(cursor, now, out)
        core.delivery.restart(cursor, image.digest, image.outputs)
        stored = core.journal is not None and image.begin.index == core.journal.state_index
        if image.ground is None and not stored:
            self._begin_log(cursor, image, out)
        self._givers_tried = 0
        self._rejoin_ns = NEVER
        what = "own state" if stored else f"{len(image.state)} bytes"
        core.fact("restored", f"{what} at position {cursor.position}", now, out)

    def deadline(self) -> Nanos:
        return min(self._rejoin_ns, self._state_in.deadline())
