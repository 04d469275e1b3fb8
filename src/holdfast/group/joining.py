"""A replica that has just started: finds out what there is, takes a state in, and comes into the order.

One that follows asks the leader how far it is, takes a state from it (or from another replica, if it gives none), and
follows from there. The one that is to lead goes the way that `leadership` describes.
"""

from __future__ import annotations

from random import Random

from holdfast.group.config import replica_unit
from holdfast.group.core import Core
from holdfast.group.following import Following
from holdfast.group.leadership import NO_CONTACT, Accession, Claim, Phase
from holdfast.group.log import Kind
from holdfast.group.peers import Peer, post
from holdfast.group.ports import Restored, RestoreState
from holdfast.group.transfer import Image, StateIn
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.frames import Append, Appended, StateChunk


class Joining:
    """What a replica does until its memory is whole, and when it has fallen too far behind."""

    def __init__(self, core: Core, following: Following, rng: Random) -> None:
        self._core = core
        self._following = following
        self._state_in = StateIn(core.config, rng)
        self._image: Image | None = None
        """A state that is being put into the application."""
        self.accession: Accession | None = None
        """Only on the one that is to lead, until it does."""
        if core.name == core.config.leader:
            self.accession = Accession(core.config, core.name, core.incarnation)
        self.term = 0
        """The term that it leads in."""
        self._query_ns = 0
        self._givers_tried = 0
        self._stuck = ""

    @property
    def is_restoring(self) -> bool:
        return self._state_in.active or self._image is not None

    # -- asking --------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._state_in.wake(now, out)
        if now >= self._query_ns and not self._core.admission.is_whole:
            self._query_ns = now + self._core.config.query_period_ns
            self._query(now, out)

    def _query(self, now: Nanos, out: Outbox) -> None:
        """Ask who has what: the one that is to lead asks all voters, others ask the leader."""
        core = self._core
        question = Append(core.config.name, 0, 0, 0, 0)
        if self.accession is not None:
            if self.accession.phase is Phase.PROMISE:
                self._ask_promises(out)
            elif self.accession.phase is Phase.GATHER:
                post(out, self._voters(), question)
        elif core.admission.target is None:
            leader = core.peers.named(core.leadership.leader)
            if leader is not None:
                post(out, [leader.node], question)
        elif core.admission.is_blank:
            self._fetch(now, out)

    def _voters(self) -> list[NodeId]:
        voters = self._core.config.voters
        return [peer.node for peer in self._core.peers.replicas if peer.name in voters]

    def _ask_promises(self, out: Outbox) -> None:
        assert self.accession is not None
        log, group = self._core.log, self._core.config.name
        tail = log.tail
        ask = Append(group, self.accession.term, tail.index, tail.term, log.commit, (), NO_CONTACT)
        post(out, self._voters(), ask)

    def claim(self) -> Appended:
        """What this replica has, for one who asks. A memory that is not whole is as good as none."""
        core = self._core
        if not core.admission.is_whole:
            return Appended(core.config.name, 0, 0, False)
        tail = core.log.tail
        return Appended(core.config.name, tail.term, tail.index, False, core.leadership.term)

    def peer_up(self, now: Nanos) -> None:
        self._query_ns = now

    def peer_down(self, peer: Peer) -> None:
        if self._state_in.peer == peer:
            self._state_in.stop()
        if self.accession is not None:
            self.accession.peer_down(peer.name)

    def answered(self, peer: Peer, frame: Appended, now: Nanos, out: Outbox) -> None:
        """Somebody says what it has."""
        if self.accession is not None:
            if self.accession.phase is Phase.PROMISE:
                self.accession.promised(peer.name, frame.term)
            elif not frame.ok:
                self.accession.claimed(peer.name, Claim(frame.hint, frame.term, frame.match))
        elif peer.name == self._core.leadership.leader and not frame.ok:
            self._leader_answered(frame, now, out)

    def _leader_answered(self, frame: Appended, now: Nanos, out: Outbox) -> None:
        """The leader's log has come to `match`: so far a replica without memory must come."""
        admission, leadership = self._core.admission, self._core.leadership
        if admission.is_whole or frame.hint < max(1, leadership.term):
            return
        if admission.is_blank:
            leadership.adopt(frame.hint)
        admission.leader_at(frame.match)
        if admission.is_blank:
            self._fetch(now, out)

    # -- taking a state in ---------------------------------------------------------------------------------------

    def _fetch(self, now: Nanos, out: Outbox) -> None:
        """Take a state from the leader, or from another replica when the leader has not given one."""
        peers = self._core.peers
        if self.is_restoring or not peers.replicas or self._core.delivery.suspended:
            return
        leader = peers.named(self._core.leadership.leader)
        others = [peer for peer in peers.replicas if peer is not leader]
        givers = [leader, *others] if leader is not None else others
        self._state_in.begin(givers[self._givers_tried % len(givers)], now, out)
        self._givers_tried += 1

    def offered(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        """The leader's log does not go back to where ours ends: only a state helps."""
        core = self._core
        if (
            peer.name == core.leadership.leader
            and not core.admission.is_blank
            and frame.index > core.log.last
        ):
            self._fetch(now, out)

    def chunk(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        core = self._core
        image = self._state_in.chunk(peer, frame, now, out)
        if image is None or self._image is not None:
            return
        starting = core.admission.is_blank or self.accession is not None
        if image.index <= core.log.last and not starting:
            # What the log has above the state was acknowledged, and would be forgotten.
            core.ignore("old state")
            return
        self._image = image
        core.delivery.paused = True
        out.effect(RestoreState(replica_unit(core.config.name), image.index, image.state))

    def restored(self, item: Restored, now: Nanos, out: Outbox) -> None:
        """The application has the state: take its place in the order."""
        core = self._core
        image, self._image = self._image, None
        if image is None or image.index != item.index:
            return
        cursor = image.cursor()
        core.log.restart(cursor)
        core.delivery.restart(cursor, image.digest)
        core.recovery.forget()
        for stream in core.streams.streams.values():
            stream.drop_below(cursor.next.get(stream.id, 1))
            core.streams.changed[stream.id] = None
        core.admission.restored()
        self._following.restarted()
        self._givers_tried = 0
        if self.accession is not None:
            self._expect(image)
        core.fact("restored", f"{len(image.state)} bytes at position {cursor.position}", now, out)

    def _expect(self, image: Image) -> None:
        """The one that is to lead needs the giver's whole log, and the messages in it."""
        assert self.accession is not None
        self.accession.restored = True
        self._following.waiting.expect(image.entries)
        for entry in image.entries:
            if entry.kind == Kind.ORDER and entry.stream is not None:
                self._core.know(entry.stream, entry.last)

    def failed(self) -> None:
        """The application did not take the state."""
        self._image = None
        self._core.delivery.paused = False

    # -- the way into a term -------------------------------------------------------------------------------------

    def accede(self, now: Nanos, out: Outbox) -> bool:
        """The next steps of the one that is to lead, as far as there is enough for them; True when it leads."""
        way = self.accession
        assert way is not None
        if not self._core.admission.is_blank:
            self._following.waiting.settle()
        before = way.phase
        way.decide()
        if way.phase is Phase.FETCH:
            self._fetch_log(way, now, out)
        if way.phase is Phase.PROMISE and before is not Phase.PROMISE:
            self._core.admission.restored()
            self._ask_promises(out)
        self._say_stuck(way, now, out)
        if not way.may_lead():
            return False
        self._core.admission.founded()
        self.accession = None
        self.term = way.term
        return True

    def _fetch_log(self, way: Accession, now: Nanos, out: Outbox) -> None:
        if self.is_restoring:
            return
        if way.restored:
            way.fetched(self._core.log.last)
            return
        giver = self._core.peers.named(way.giver)
        if way.asked or giver is None:
            way.fetch_failed()
            return
        way.asked = True
        self._state_in.begin(giver, now, out)

    def _say_stuck(self, way: Accession, now: Nanos, out: Outbox) -> None:
        if way.stuck != self._stuck:
            self._stuck = way.stuck
            if self._stuck:
                self._core.fact("halted", self._stuck, now, out)

    @property
    def stuck(self) -> str:
        return self._stuck

    def deadline(self) -> Nanos:
        query_ns = NEVER if self._core.admission.is_whole else self._query_ns
        return min(query_ns, self._state_in.deadline())
