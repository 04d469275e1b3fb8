"""A replica that leads: orders, replicates, commits what a majority has, and frees what all have applied."""

from __future__ import annotations

from holdfast.group.core import Core
from holdfast.group.decisions import Decisions
from holdfast.group.freeing import Tally
from holdfast.group.log import NUMBER_MAX, is_sound_stream
from holdfast.group.order import Order
from holdfast.group.peers import Peer
from holdfast.group.progress import Appends
from holdfast.machine import Outbox
from holdfast.types import Nanos
from holdfast.wire.frames import Appended

MARKS_MAX = 64
"""Streams that one acknowledgement speaks of."""


class Leading:
    """What a replica does while it leads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = Order(core.config, core.log, core.streams)
        self.decisions = Decisions(core, self._order)
        self._tally = Tally(core)
        self.appends = Appends(core.config, core.log, core.peers, core.name)
        self._heard: dict[str, None] = {}
        """Voters that have said in this term what they hold."""

    def begin(self, term: int, now: Nanos, out: Outbox) -> None:
        self._core.leadership.begin(term)
        self.appends.begin(term, now)
        self._order.begin(term, now, out)
        self.decisions.begin(now)
        self._heard.clear()
        self._core.fact("leads", f"{self._core.name} leads", now, out)

    def peer_up(self, peer: Peer) -> None:
        self.appends.peer_up(peer)

    def appended(self, peer: Peer, frame: Appended, now: Nanos, out: Outbox) -> None:
        """A replica says how far it is, and of what numbers it has heard."""
        if frame.term > self._core.leadership.term:
            # Only a replica that was left over from an earlier life of the group can know one; it suspends itself.
            self._core.ignore("later term")
        self.appends.heard(peer, frame, now, out)
        if frame.term == self._core.leadership.term and peer.name in self._core.config.voters:
            self._heard[peer.name] = None
        tail = self._core.log.tail
        for stream, number in frame.marks[:MARKS_MAX]:
            if is_sound_stream(stream) and 0 < number < NUMBER_MAX and not tail.is_over(stream):
                self._core.know(stream, number)

    def settle(self, now: Nanos, out: Outbox) -> None:
        for stream in self._core.streams.changed:
            self._order.note(stream)
        informed = len(self._heard) + 1 >= self._core.config.majority
        self.decisions.settle(informed, now, out)
        self._order.turn(now, out)
        self._commit()
        self._core.delivery.hand_out(now, out)
        self._tally.settle(self.appends.progress, now, out)
        self.appends.send(now, out)

    def _commit(self) -> None:
        """What a majority has is decided, once an entry of this term is among it (Raft, 5.4.2)."""
        log = self._core.log
        agreed = self.appends.agreed()
        if agreed > log.commit and log.term_at(agreed) == self._core.leadership.term:
            log.commit_to(agreed)

    def deadline(self) -> Nanos:
        return min(self.appends.deadline(), self._tally.deadline(), self.decisions.deadline())
