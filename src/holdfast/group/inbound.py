"""Frames of other nodes: each one is validated and passed to the part that it concerns. Invalid frames, and those from
unknown nodes, are counted and ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.group.config import source_unit
from holdfast.group.consensus.election import Election
from holdfast.group.consensus.follower import Follower
from holdfast.group.consensus.leader import Leader
from holdfast.group.core import Core
from holdfast.group.frames import (
    AdminRequest,
    Append,
    AppendResponse,
    CommitQuery,
    CommitReply,
    FeedRequest,
    Freed,
    Idle,
    JoinRequest,
    JoinResponse,
    LossQuery,
    LossReply,
    Nack,
    OutputsAck,
    Payload,
    StateChunk,
    StateRequest,
    StreamId,
    VoteRequest,
    VoteResponse,
)
from holdfast.group.log.replicated_log import NUMBER_MAX, is_sound_stream
from holdfast.group.membership.bootstrap import Bootstrap
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.group.services.desk import reply_to
from holdfast.group.services.frames import ServiceReply, ServiceRequest
from holdfast.group.streams.message_metadata import is_sound_about
from holdfast.group.streams.relay import Relay
from holdfast.group.streams.stream_buffer import is_sound_payload
from holdfast.group.transfer.snapshot import SnapshotSender
from holdfast.group.transfer.snapshot_install import SnapshotInstaller
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.stability.frames import STABILITY_FRAMES, StabilityFrame
from holdfast.types import Nanos, NodeId


class Inbound:
    """Processes frames of other nodes, and of the source on this one."""

    def __init__(
        self,
        core: Core,
        follower: Follower,
        leader: Leader,
        election: Election,
        bootstrap: Bootstrap,
        installer: SnapshotInstaller,
        snapshot_sender: SnapshotSender,
        relay: Relay,
    ) -> None:
        self._core = core
        self._follower = follower
        self._leader = leader
        self._election = election
        self._bootstrap = bootstrap
        self._installer = installer
        self._snapshot_sender = snapshot_sender
        self._relay = relay
        self._frames: dict[type[Any], Callable[[Nanos, NodeId, Any, Outbox], None]] = {
            Payload: self._payload,
            Idle: self._idle,
            Nack: self._nack,
            Append: self._append,
            AppendResponse: self._append_response,
            StateRequest: self._state_request,
            StateChunk: self._state_chunk,
            Freed: self._freed,
            **dict.fromkeys(STABILITY_FRAMES, self._stability),
            VoteRequest: self._vote_request,
            VoteResponse: self._vote_response,
            JoinRequest: self._join_request,
            JoinResponse: self._join_response,
            AdminRequest: self._admin_request,
            LossQuery: self._loss_query,
            LossReply: self._loss_reply,
            OutputsAck: self._outputs_ack,
            CommitQuery: self._commit_query,
            ServiceRequest: self._service_request,
            FeedRequest: self._feed_request,
        }

    def received(self, now: Nanos, item: Received, out: Outbox) -> None:
        group = self._core.config.name
        for frame in item.frames:
            if type(frame) is Payload and frame.group == group:
                self._payload(now, item.peer, frame, out)
                continue
            take = self._frames.get(type(frame))
            if take is None or frame.group != group:  # type: ignore[attr-defined]  # all that are in _frames have one
                self._core.ignore("not ours")
            else:
                take(now, item.peer, frame, out)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _payload(self, now: Nanos, peer: NodeId, frame: Payload, out: Outbox) -> None:
        core, stream, tail = self._core, frame.stream, self._core.log.tail
        own = peer == stream.source or peer == core.node
        if not own and core.peers.replica_at(peer) is None:
            core.ignore("stranger")
        elif (tail.over and tail.is_over(stream)) or not is_sound_payload(frame):
            core.ignore("payload")
        elif (taken := core.streams.take(frame, tail.next.get(stream, 1), now)) is None:
            core.ignore("too many streams")
        elif taken:
            self._relay.pass_on(frame, peer, out)
            if core.journal is not None:
                core.journal.taken(frame)

    def _feed_request(self, now: Nanos, peer: NodeId, frame: FeedRequest, _out: Outbox) -> None:
        self._relay.asked(peer, frame, now)

    def _commit_query(self, now: Nanos, peer: NodeId, frame: CommitQuery, out: Outbox) -> None:
        """A source asks whether its stream is committed up to a number."""
        core = self._core
        if peer != frame.stream.source:
            core.ignore("commit query")
        elif self._decided_upto(frame.stream) >= frame.number:
            answer = CommitReply(frame.group, frame.stream, frame.number)
            if peer == core.node:
                out.up(source_unit(core.config.name), Received(peer, [answer], now))
            else:
                post(out, [peer], answer)

    def _decided_upto(self, stream: StreamId) -> int:
        """The last number of a stream that is committed or dropped."""
        log, at = self._core.log, self._core.delivery.at
        if at.index > log.commit:
            at = log.cursor_at(log.commit)  # `fast`: more is delivered than is committed
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
            # The source manages its own buffer. Another side of a partition may have announced to it that more is free.
            held = core.streams.get(stream)
            gone = held.origin - 1 if held is not None else 0
            ranges = tuple(
                (first, min(last, gone)) for first, last in frame.ranges if first <= gone
            )
            # rule: 11g
            frame = Nack(frame.group, stream, ranges)
        core.recovery.answer(frame, peer, out)

    def _loss_query(self, _now: Nanos, peer: NodeId, frame: LossQuery, out: Outbox) -> None:
        core = self._core
        if core.peers.replica_at(peer) is None or not is_sound_stream(frame.stream):
            core.ignore("stranger")
        else:
            core.recovery.answer_loss_query(frame, peer, out)

    def _loss_reply(self, now: Nanos, node: NodeId, frame: LossReply, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or not core.leadership.leading:
            core.ignore("found")
        else:
            self._leader.decisions.found(name, node, frame, now)

    def _stability(self, now: Nanos, node: NodeId, frame: StabilityFrame, _out: Outbox) -> None:
        core = self._core
        if core.stability is None or core.peers.replica_at(node) is None:
            core.ignore("stranger")
        else:
            core.stability.take(node, frame, now)

    def _freed(self, _now: Nanos, peer: NodeId, frame: Freed, _out: Outbox) -> None:
        stability = self._core.stability
        if stability is not None and stability.active:
            return  # It is for the source of this node. Replicas determine this by themselves.
        if self._core.peers.replica_at(peer) is None or self._core.leadership.leading:
            self._core.ignore("freed")
        else:
            self._follower.collector.take(frame)

    def _outputs_ack(self, _now: Nanos, node: NodeId, frame: OutputsAck, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or frame.group_epoch != core.group_epoch or not core.leadership.leading:
            core.ignore("outputs")
        else:
            self._leader.output_sender.here(name, frame)

    def _service_request(
        self, now: Nanos, node: NodeId, frame: ServiceRequest, out: Outbox
    ) -> None:
        """A node asks for locks or barriers. The leader serves it, any other replica names the leader."""
        core = self._core
        peer = core.peers.at(node)
        incarnation = core.incarnation if node == core.node else peer.incarnation if peer else -1
        # Requests of an earlier incarnation are over; `availability` groups have no locks.
        # rule: S-13f
        if frame.incarnation != incarnation or core.config.mode == "availability":
            core.ignore("service")
        elif not core.leadership.leading:
            name, leader = core.config.name, core.leadership.leader
            hint = ServiceReply(name, frame.incarnation, core.group_epoch, leader=leader)
            reply_to(core, node, hint, now, out)
        elif self._leader.takes_requests:
            self._leader.services.take(node, frame, now, out)

    # -- elections ---------------------------------------------------------------------------------------------------

    def _vote_request(self, now: Nanos, node: NodeId, frame: VoteRequest, out: Outbox) -> None:
        # rule: 6i
        peer = self._core.peers.at(
            node
        )  # it may have been admitted since we last learned the members
        if peer is None:
            self._core.ignore("stranger")
        elif self._election.asked(peer, frame, now, out):
            self._leader.begin(now, out)

    def _vote_response(self, now: Nanos, node: NodeId, frame: VoteResponse, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
        if peer is None:
            self._core.ignore("stranger")
        elif self._election.voted(peer, frame, now, out):
            self._leader.begin(now, out)

    def _join_request(self, _now: Nanos, node: NodeId, _frame: JoinRequest, out: Outbox) -> None:
        peer = self._core.peers.at(node)
        if peer is None:
            self._core.ignore("stranger")
            return
        response = self._bootstrap.answer()
        if self._core.leadership.leading and not self._leader.membership.seeks(peer):
            response = msgspec.structs.replace(response, removed=True)
        post(out, [node], response)

    def _admin_request(self, now: Nanos, node: NodeId, frame: AdminRequest, out: Outbox) -> None:
        core, membership = self._core, self._leader.membership
        if core.peers.at(node) is None:
            core.ignore("stranger")
        elif not core.leadership.leading or frame.group_epoch != core.group_epoch:
            core.ignore("admin request")
        elif frame.action == "add":
            membership.add(frame.name, frame.voter)
        elif frame.action == "remove":
            membership.remove(frame.name)
        elif frame.action == "resume":
            self._leader.decisions.end_ignoring(frame.criterion, now, out)
        else:
            core.ignore("admin request")

    def _join_response(self, _now: Nanos, node: NodeId, frame: JoinResponse, _out: Outbox) -> None:
        peer = self._core.peers.at(node)
        if peer is None or not 0 <= frame.group_epoch < NUMBER_MAX << 1:
            self._core.ignore("stranger")
        else:
            self._bootstrap.heard(peer, frame)

    # -- the order ---------------------------------------------------------------------------------------------------

    def _append(self, now: Nanos, node: NodeId, frame: Append, out: Outbox) -> None:
        core = self._core
        # rule: 6h
        peer = core.peers.at(node)  # as above
        if peer is None:
            core.ignore("stranger")
        elif not 0 < frame.term < NUMBER_MAX or not 0 < frame.group_epoch < NUMBER_MAX << 1:
            core.ignore("append")
        elif self._is_our_epoch(peer, frame, now, out):
            leads = self._follower.append(peer, frame, now, out)
            # rule: 5a
            if leads and 0 <= frame.contact_ns < core.config.election_ns:
                self._election.heard(now)

    def _is_our_epoch(self, peer: Peer, frame: Append, now: Nanos, out: Outbox) -> bool:
        """A replica without a state follows whichever leader admits it. One with another epoch must not follow: it
        would deliver other messages at the same positions."""
        core = self._core
        if frame.group_epoch == core.group_epoch:
            return True
        if core.is_blank:
            core.group_epoch = frame.group_epoch
            self._election.wait(now)
            return True
        core.ignore("another epoch")
        if core.peers.replica_at(peer.node) is None:
            return False
        led = core.leadership.leading or core.leadership.is_led(now, 4 * core.config.election_ns)
        if not led and not core.delivery.suspended:
            why = f"{peer.name} leads another epoch of the group; restart this replica to join it"
            core.delivery.suspend(why)
            core.fact("suspended", why, now, out)
        return False

    def _append_response(
        self, now: Nanos, node: NodeId, frame: AppendResponse, out: Outbox
    ) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        numbers = (frame.term, frame.match, frame.hint, frame.applied, frame.failed, frame.commit)
        sound = min(numbers) >= 0 and max(*numbers, frame.held_bytes) < NUMBER_MAX
        if peer is None or not sound or frame.group_epoch != core.group_epoch:
            core.ignore("appended")
            return
        if frame.term > core.leadership.term:
            core.new_term(frame.term)
        if core.leadership.leading:
            self._leader.appended(peer, frame, now, out)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _state_request(self, now: Nanos, node: NodeId, frame: StateRequest, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        if peer is None or frame.request < 0:
            core.ignore("stranger")
        elif core.log.tail.view is None or core.delivery.suspended or core.delivery.paused:
            core.ignore("no state to give")
        # rule: S-5a
        elif core.delivery.at.index < self._pin_of(peer):
            core.ignore("state before the pin")
        else:
            self._snapshot_sender.asked(peer, frame, now, out)

    def _pin_of(self, peer: Peer) -> int:
        """The index from which the log is kept for a member that installs a snapshot: an earlier snapshot is of no use
        to it."""
        view = self._core.log.tail.view
        member = view.named(peer.name) if view is not None else None
        return member.pin if member is not None else 0

    def _state_chunk(self, now: Nanos, node: NodeId, frame: StateChunk, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
        if peer is None or self._core.leadership.leading:
            self._core.ignore("stranger")
        elif frame.parts == 0 and not frame.request:
            self._installer.offered(peer, frame, now, out)
        else:
            self._installer.chunk(peer, frame, now, out)
