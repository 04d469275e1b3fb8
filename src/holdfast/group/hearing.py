"""What other nodes say to a replica: each frame is checked before anything believes it, and given to the piece that it
concerns. What makes no sense, or comes from a stranger, is counted and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.group.config import source_unit
from holdfast.group.core import Core
from holdfast.group.election import Election
from holdfast.group.following import Following
from holdfast.group.founding import Founding
from holdfast.group.joining import Joining
from holdfast.group.leading import Leading
from holdfast.group.log import NUMBER_MAX, is_sound_stream
from holdfast.group.metadata import is_sound_about
from holdfast.group.peers import Peer, post
from holdfast.group.streams import is_sound_payload
from holdfast.group.transfer import StateOut
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import Nanos, NodeId
from holdfast.wire.frames import (
    Append,
    Appended,
    Ballot,
    Found,
    Freed,
    Idle,
    Lost,
    Nack,
    OutputsHere,
    Payload,
    Placed,
    Seek,
    Standing,
    StateChunk,
    StateRequest,
    StreamId,
    Vote,
)


class Hearing:
    """Takes frames of other nodes, and of the source on this one."""

    def __init__(
        self,
        core: Core,
        following: Following,
        leading: Leading,
        election: Election,
        founding: Founding,
        joining: Joining,
        state_out: StateOut,
    ) -> None:
        self._core = core
        self._following = following
        self._leading = leading
        self._election = election
        self._founding = founding
        self._joining = joining
        self._state_out = state_out
        self._frames: dict[type[Any], Callable[[Nanos, NodeId, Any, Outbox], None]] = {
            Payload: self._payload,
            Idle: self._idle,
            Nack: self._nack,
            Append: self._append,
            Appended: self._appended,
            StateRequest: self._state_request,
            StateChunk: self._state_chunk,
            Freed: self._freed,
            Ballot: self._ballot,
            Vote: self._vote,
            Seek: self._seek,
            Standing: self._standing,
            Lost: self._lost,
            Found: self._found,
            OutputsHere: self._outputs_here,
            Placed: self._placed,
        }

    def received(self, now: Nanos, item: Received, out: Outbox) -> None:
        group = self._core.config.name
        for frame in item.frames:
            take = self._frames.get(type(frame))
            if take is None or frame.group != group:  # type: ignore[union-attr]  # all that are in _frames have one
                self._core.ignore("not ours")
            else:
                take(now, item.peer, frame, out)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _payload(self, now: Nanos, peer: NodeId, frame: Payload, _out: Outbox) -> None:
        core, stream, tail = self._core, frame.stream, self._core.log.tail
        own = peer == stream.source or peer == core.node
        if not own and core.peers.replica_at(peer) is None:
            core.ignore("stranger")
        elif (tail.over and tail.is_over(stream)) or not is_sound_payload(frame):
            core.ignore("payload")
        elif (taken := core.streams.take(frame, tail.next.get(stream, 1), now)) is None:
            core.ignore("too many streams")
        elif taken and core.journal is not None:
            core.journal.taken(frame)

    def _placed(self, now: Nanos, peer: NodeId, frame: Placed, out: Outbox) -> None:
        """A source asks whether its stream is decided up to a number."""
        core = self._core
        if peer != frame.stream.source or frame.yes:
            core.ignore("placed")
        elif self._decided_upto(frame.stream) >= frame.number:
            answer = msgspec.structs.replace(frame, yes=True)
            if peer == core.node:
                out.up(source_unit(core.config.name), Received(peer, [answer], now))
            else:
                post(out, [peer], answer)

    def _decided_upto(self, stream: StreamId) -> int:
        """The last number of a stream of which it is decided what becomes of it."""
        log, at = self._core.log, self._core.delivery.at
        if at.index > log.commit:
            at = log.cursor_at(log.commit)  # `fast`: more is handed out than is decided
        upto = NUMBER_MAX if at.is_over(stream) else at.next.get(stream, 1) - 1
        for entry in log.entries(at.index + 1, log.commit - at.index):
            if entry.stream == stream:
                upto = max(upto, entry.last)
        return upto

    def _idle(self, _now: Nanos, peer: NodeId, frame: Idle, _out: Outbox) -> None:
        core = self._core
        sound = is_sound_stream(frame.stream) and 0 <= frame.freed <= frame.last < NUMBER_MAX
        sound = sound and is_sound_about(frame.about, 0)
        if not sound or peer != frame.stream.source or core.log.tail.is_over(frame.stream):
            core.ignore("idle")
            return
        core.know(frame.stream, frame.last)
        stream = core.streams.get(frame.stream)
        if stream is not None:
            stream.idle = frame
            if frame.freed >= stream.origin:
                stream.origin = frame.freed + 1
                core.streams.changed[stream.id] = None

    def _nack(self, _now: Nanos, peer: NodeId, frame: Nack, out: Outbox) -> None:
        core, stream = self._core, frame.stream
        if core.peers.replica_at(peer) is None:
            core.ignore("stranger")
            return
        if stream.source == core.node and stream.incarnation == core.incarnation:
            # What the source has is its own business. Another side of a cut may have told it that more is free.
            held = core.streams.get(stream)
            gone = held.origin - 1 if held is not None else 0
            ranges = tuple(
                (first, min(last, gone)) for first, last in frame.ranges if first <= gone
            )
            frame = Nack(frame.group, stream, ranges)
        core.recovery.answer(frame, peer, out)

    def _lost(self, _now: Nanos, peer: NodeId, frame: Lost, out: Outbox) -> None:
        core = self._core
        if core.peers.replica_at(peer) is None or not is_sound_stream(frame.stream):
            core.ignore("stranger")
        else:
            core.recovery.say_found(frame, peer, out)

    def _found(self, now: Nanos, node: NodeId, frame: Found, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or not core.leadership.leading:
            core.ignore("found")
        else:
            self._leading.decisions.found(name, node, frame, now)

    def _freed(self, _now: Nanos, peer: NodeId, frame: Freed, _out: Outbox) -> None:
        if self._core.peers.replica_at(peer) is None or self._core.leadership.leading:
            self._core.ignore("freed")
        else:
            self._following.release.take(frame)

    def _outputs_here(self, _now: Nanos, node: NodeId, frame: OutputsHere, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or frame.history != core.history or not core.leadership.leading:
            core.ignore("outputs")
        else:
            self._leading.emitter.here(name, frame)

    # -- who leads ---------------------------------------------------------------------------------------------------

    def _ballot(self, now: Nanos, node: NodeId, frame: Ballot, out: Outbox) -> None:
        peer = self._core.peers.at(node)  # it may have been let in since we last heard who is
        if peer is None:
            self._core.ignore("stranger")
        elif self._election.asked(peer, frame, now, out):
            self._leading.begin(now, out)

    def _vote(self, now: Nanos, node: NodeId, frame: Vote, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
        if peer is None:
            self._core.ignore("stranger")
        elif self._election.voted(peer, frame, now, out):
            self._leading.begin(now, out)

    def _seek(self, now: Nanos, node: NodeId, frame: Seek, out: Outbox) -> None:
        core = self._core
        peer = core.peers.at(node)
        if peer is None:
            core.ignore("stranger")
            return
        standing = self._founding.answer()
        if core.leadership.leading:
            standing = msgspec.structs.replace(
                standing, removed=not self._sought(peer, frame, now, out)
            )
        if not frame.kind:
            post(out, [node], standing)

    def _sought(self, peer: Peer, frame: Seek, now: Nanos, out: Outbox) -> bool:
        """Do what is asked of the leader; False when the one that asks was removed."""
        membership = self._leading.membership
        if not frame.kind:
            return membership.seeks(peer)
        if frame.history == self._core.history and frame.kind == 1:
            membership.add(frame.name, frame.voter)
        elif frame.history == self._core.history and frame.kind == 2:
            membership.remove(frame.name)
        elif frame.history == self._core.history and frame.kind == 3:
            self._leading.decisions.end_ignoring(frame.criterion, now, out)
        return True

    def _standing(self, _now: Nanos, node: NodeId, frame: Standing, _out: Outbox) -> None:
        peer = self._core.peers.at(node)
        if peer is None or not 0 <= frame.history < NUMBER_MAX << 1:
            self._core.ignore("stranger")
        else:
            self._founding.heard(peer, frame)

    # -- the order ---------------------------------------------------------------------------------------------------

    def _append(self, now: Nanos, node: NodeId, frame: Append, out: Outbox) -> None:
        core = self._core
        peer = core.peers.at(node)  # as above
        if peer is None:
            core.ignore("stranger")
        elif not 0 < frame.term < NUMBER_MAX or not 0 < frame.history < NUMBER_MAX << 1:
            core.ignore("append")
        elif self._is_our_history(peer, frame, now, out):
            leads = self._following.append(peer, frame, now, out)
            if leads and 0 <= frame.contact_ns < core.config.election_ns:
                self._election.heard(now)

    def _is_our_history(self, peer: Peer, frame: Append, now: Nanos, out: Outbox) -> bool:
        """One that is blank belongs to whoever lets it in. One that remembers another history must not follow: it
        would deliver other messages at the same positions."""
        core = self._core
        if frame.history == core.history:
            return True
        if core.is_blank:
            core.history = frame.history
            self._election.wait(now)
            return True
        core.ignore("another history")
        if core.peers.replica_at(peer.node) is None:
            return False
        led = core.leadership.leading or core.leadership.is_led(now, 4 * core.config.election_ns)
        if not led and not core.delivery.suspended:
            why = f"{peer.name} leads another history of the group; restart this replica to join it"
            core.delivery.suspend(why)
            core.fact("suspended", why, now, out)
        return False

    def _appended(self, now: Nanos, node: NodeId, frame: Appended, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        numbers = (frame.term, frame.match, frame.hint, frame.applied, frame.failed)
        sound = min(numbers) >= 0 and max(numbers) < NUMBER_MAX
        if peer is None or not sound or frame.history != core.history:
            core.ignore("appended")
            return
        if frame.term > core.leadership.term:
            core.new_term(frame.term)
        if core.leadership.leading:
            self._leading.appended(peer, frame, now, out)

    # -- states ------------------------------------------------------------------------------------------------------

    def _state_request(self, now: Nanos, node: NodeId, frame: StateRequest, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        if peer is None or frame.request < 0:
            core.ignore("stranger")
        elif core.log.tail.view is None or core.delivery.suspended or core.delivery.paused:
            core.ignore("no state to give")
        else:
            self._state_out.asked(peer, frame, now, out)

    def _state_chunk(self, now: Nanos, node: NodeId, frame: StateChunk, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
        if peer is None or self._core.leadership.leading:
            self._core.ignore("stranger")
        elif frame.parts == 0 and not frame.request:
            self._joining.offered(peer, frame, now, out)
        else:
            self._joining.chunk(peer, frame, now, out)
