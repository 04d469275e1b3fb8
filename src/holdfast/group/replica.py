"""A replica: wires the pieces of this package together, and is otherwise as thin as it can be.

    messages ──► streams ──► order (leader) ──┐
                   │  ▲                       ▼
                   │  recovery               log ──► delivery ──► application
                   │                          ▲
    entries  ──────┴───────► waiting ─────────┘

Every call takes its inputs in, one by one, and then settles once: order or append, commit, deliver, answer, free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from holdfast.errors import MisuseError
from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.election import Election
from holdfast.group.entries import View
from holdfast.group.following import Following
from holdfast.group.founding import Founding
from holdfast.group.joining import Joining
from holdfast.group.journal import Durable, Journal, Rows
from holdfast.group.leading import Leading
from holdfast.group.log import NUMBER_MAX, is_sound_stream
from holdfast.group.metadata import is_sound_about
from holdfast.group.peers import Peer, post
from holdfast.group.ports import (
    AddReplica,
    AppFailed,
    Applied,
    EndIgnoring,
    HandOver,
    LossAnswered,
    OutputsSent,
    Refound,
    RemoveReplica,
    Restored,
    SnapshotTaken,
)
from holdfast.group.streams import is_sound_payload
from holdfast.group.transfer import StateOut
from holdfast.links.ports import PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.types import NEVER, Nanos, NodeId
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
    Seek,
    Standing,
    StateChunk,
    StateRequest,
    Vote,
)


class ReplicaMachine(Machine):
    """The unit `replica/<group>` of a node."""

    layer = 6

    def __init__(
        self,
        *,
        config: GroupConfig,
        node: NodeId,
        name: str,
        incarnation: int,
        rng: Random,
        stored: Mapping[str, Rows] | None = None,
    ) -> None:
        """`stored` is what a durable replica wrote in earlier lives (`journal_tables`)."""
        if name not in config.replicas:
            replicas = ", ".join(config.replicas)
            raise MisuseError(
                f"{name} is no replica of group {config.name} ({replicas}); nothing was started"
            )
        self._core = core = Core(config, node, name, incarnation)
        self._following = Following(core)
        self._leading = Leading(core)
        self._election = Election(core, rng)
        self._founding = Founding(core, rng)
        self._joining = Joining(core, self._following, rng)
        self._state_out = StateOut(core)
        if config.is_durable:
            core.journal = Journal(core)
            image = core.journal.load(stored or {})
            core.follow_view()
            if image is not None:
                self._joining.begin_with(image)
            if not core.is_blank:
                self._election.wait(0)
        self._stuck = ""
        """What was last said of why there can be no leader."""
        self.deadline = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, Outbox], None]] = {
            Received: self._received,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
            Applied: self._applied,
            SnapshotTaken: self._snapshot_taken,
            Restored: self._restored,
            AppFailed: self._app_failed,
            AddReplica: self._add_replica,
            RemoveReplica: self._remove_replica,
            HandOver: self._hand_over,
            Refound: self._refound,
            LossAnswered: self._loss_answered,
            EndIgnoring: self._end_ignoring,
            OutputsSent: self._outputs_sent,
        }
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
        }

    # -- the machine ---------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self._excuse(now)
        for item in inputs:
            take = self._inputs.get(type(item))
            if take is None:
                self._core.ignore("input")
            else:
                take(now, item, out)
        self._settle(now, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._excuse(now)
        if not self._core.is_blank:
            self._decide_at_once(now, out)
            self._core.recovery.wake(now, out)
        self._joining.wake(now, out)
        self._founding.wake(now, out)
        if self._election.wake(now, out):
            self._leading.begin(now, out)
        self._settle(now, out)
        # What was due has been done; a piece that wants this very moment again gets the next one.
        self.deadline = max(self.deadline, now + 1)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """What this replica wrote is on disk."""
        journal = self._core.journal
        for item in inputs:
            if journal is not None and isinstance(item, Durable):
                journal.written(item)
        self._settle(now, out)
        self.deadline = max(self.deadline, now + 1)

    def _excuse(self, now: Nanos) -> None:
        """A process that did not run when it wanted to has heard nobody, and that is nobody's fault."""
        if now - self.deadline > self._core.config.election_ns // 2:
            self._leading.tenure.was_late(now)

    def _decide_at_once(self, now: Nanos, out: Outbox) -> None:
        """Holes that nothing was tried for yet, before it is."""
        if self._core.leadership.leading:
            for stream, gap in self._core.recovery.gaps.items():
                held = self._core.streams.get(stream)
                for hole in gap.holes if held is not None else ():
                    if hole.due_ns <= now and not hole.tries:
                        assert held is not None
                        if self._leading.decisions.at_once(held, hole.first, hole.last, now, out):
                            hole.due_ns = NEVER

    def _settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        leadership, recovery, streams = core.leadership, core.recovery, core.streams
        if core.waiting.diverged or core.log.cut_at:
            self._look_at_cuts(now, out)
        if recovery.leading != leadership.leading:
            recovery.leading = leadership.leading
            recovery.forget()
        recovery.leader = leadership.leader
        if core.is_blank and self._founding.found(now, out):
            core.follow_view()
            if self._election.campaign(now, out):
                self._leading.begin(now, out)
        if leadership.leading:
            if not self._leading.settle(now, out):
                self._election.be_shy(now)
        elif not core.is_blank:
            self._following.settle(now, out)
            self._joining.settle(now, out)
        if streams.changed and not core.is_blank:
            # While blank they gather: what was heard of before the start is a gap afterwards.
            for stream in streams.changed:
                recovery.look(streams.streams[stream], now, out)
            streams.changed.clear()
        if self._state_out.is_unsure:
            self._state_out.settle(now, out)
        if (not leadership.leader or self._stuck) and self._founding.stuck != self._stuck:
            self._say_stuck(now, out)
        if core.journal is not None:
            if core.journal.wants_state:
                self._state_out.for_store(out)
            core.journal.settle(out)
        self.deadline = min(
            self._leading.deadline(now) if leadership.leading else self._following.deadline(),
            recovery.deadline() if recovery.gaps else NEVER,
            self._joining.deadline(),
            self._founding.deadline(),
            self._election.deadline(),
        )

    def _look_at_cuts(self, now: Nanos, out: Outbox) -> None:
        """Entries were cut off. If they had been delivered (`fast`), or decided by a side of a cut that has lost
        (`availability`), the application has to begin again from a state of those who know better (rule 11)."""
        core, log = self._core, self._core.log
        if core.waiting.diverged:
            core.waiting.diverged = False
            why = "another side of a cut has won: what was decided here is given up"
            log.restart_empty()
            core.waiting.restart()
            core.waiting.hint = 0
        elif log.cut_at <= core.delivery.at.index:
            why = f"entries from {log.cut_at} on were delivered and are decided otherwise"
        else:
            log.cut_at = log.cut_at if core.journal is not None else 0
            return
        if core.journal is None:
            log.cut_at = 0
        core.fact("undone", why, now, out)
        delivered = core.delivery.undo(why, log.cursor_at(log.commit))
        self._state_out.stop()
        self._joining.undone(now, delivered)

    def _say_stuck(self, now: Nanos, out: Outbox) -> None:
        self._stuck = self._founding.stuck
        if self._stuck:
            self._core.fact("halted", self._stuck, now, out)

    # -- inputs --------------------------------------------------------------------------------------------------

    def _received(self, now: Nanos, item: Received, out: Outbox) -> None:
        group = self._core.config.name
        for frame in item.frames:
            take = self._frames.get(type(frame))
            if take is None or frame.group != group:  # type: ignore[union-attr]  # all that are in _frames have one
                self._core.ignore("not ours")
            else:
                take(now, item.peer, frame, out)

    def _peer_up(self, now: Nanos, item: PeerUp, _out: Outbox) -> None:
        peer = self._core.peers.up(item.peer, item.member)
        self._core.recovery.source_back(item.peer, now)
        self._leading.emitter.node_up(peer.name)
        if self._core.peers.replica_at(item.peer) is not None:
            self._founding.peer_up(now)
            self._leading.appends.peer_up(peer)

    def _peer_down(self, now: Nanos, item: PeerDown, _out: Outbox) -> None:
        self._core.recovery.source_down(item.peer, item.left, now)
        peer = self._core.peers.down(item.peer)
        if peer is not None:
            self._state_out.peer_down(peer)
            self._joining.peer_down(peer, now)
            self._founding.peer_down(peer)
            if peer.name == self._core.leadership.leader:
                self._election.leader_gone(now)

    def _applied(self, _now: Nanos, item: Applied, _out: Outbox) -> None:
        self._core.delivery.done(item.index, item.outputs)

    def _snapshot_taken(self, now: Nanos, item: SnapshotTaken, out: Outbox) -> None:
        self._state_out.taken(item, now, out)

    def _restored(self, now: Nanos, item: Restored, out: Outbox) -> None:
        self._joining.restored(item, now, out)

    def _app_failed(self, now: Nanos, item: AppFailed, out: Outbox) -> None:
        if self._core.delivery.suspended:
            return
        why = f"the application failed at entry {item.index}: {item.error}"
        self._core.delivery.suspend(why, item.index)
        self._joining.failed(now)
        self._state_out.stop()
        self._core.fact("suspended", why, now, out)

    # -- inputs: who is in the group -----------------------------------------------------------------------------

    def _add_replica(self, _now: Nanos, item: AddReplica, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.membership.add(item.name, item.voter)
        else:
            self._ask_leader(
                Seek(self._core.config.name, self._core.history, 1, item.name, item.voter), out
            )

    def _remove_replica(self, _now: Nanos, item: RemoveReplica, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.membership.remove(item.name)
        else:
            self._ask_leader(Seek(self._core.config.name, self._core.history, 2, item.name), out)

    def _ask_leader(self, frame: Seek, out: Outbox) -> None:
        leader = self._core.peers.named(self._core.leadership.leader)
        if leader is None:
            self._core.ignore("nobody leads")
        else:
            post(out, [leader.node], frame)

    def _hand_over(self, _now: Nanos, item: HandOver, _out: Outbox) -> None:
        self._core.leadership.hand_over(item.prefer)

    def _refound(self, now: Nanos, _item: Refound, out: Outbox) -> None:
        if not self._founding.refound(now, out):
            self._core.ignore("refound")
            return
        self._core.follow_view()
        if self._election.campaign(now, out):
            self._leading.begin(now, out)

    def _loss_answered(self, now: Nanos, item: LossAnswered, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.decisions.answered(item, now, out)

    def _outputs_sent(self, _now: Nanos, item: OutputsSent, _out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.emitter.arrived(item.destination, (item.position, item.k))

    def _outputs_here(self, _now: Nanos, node: NodeId, frame: OutputsHere, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or frame.history != core.history or not core.leadership.leading:
            core.ignore("outputs")
        else:
            self._leading.emitter.here(name, frame)

    def _end_ignoring(self, now: Nanos, item: EndIgnoring, out: Outbox) -> None:
        core = self._core
        if core.leadership.leading:
            self._leading.decisions.end_ignoring(item.criterion, now, out)
        else:
            seek = Seek(core.config.name, core.history, 3, criterion=item.criterion)
            self._ask_leader(seek, out)

    # -- frames: messages ----------------------------------------------------------------------------------------

    def _payload(self, now: Nanos, peer: NodeId, frame: Payload, _out: Outbox) -> None:
        core, stream = self._core, frame.stream
        if peer not in (core.node, stream.source) and core.peers.replica_at(peer) is None:
            core.ignore("stranger")
        elif core.log.tail.is_over(stream) or not is_sound_payload(frame):
            core.ignore("payload")
        elif (taken := core.streams.take(frame, core.log.tail.next.get(stream, 1), now)) is None:
            core.ignore("too many streams")
        elif taken and core.journal is not None:
            core.journal.taken(frame)

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
        if stream.source == core.node and stream.incarnation == core.incarnation:
            return  # the source's own business
        if core.peers.replica_at(peer) is None:
            core.ignore("stranger")
        else:
            core.recovery.answer(frame, peer, out)

    def _lost(self, _now: Nanos, peer: NodeId, frame: Lost, out: Outbox) -> None:
        core = self._core
        if core.peers.replica_at(peer) is None or not is_sound_stream(frame.stream):
            core.ignore("stranger")
        else:
            core.recovery.say_found(frame, peer, out)

    def _found(self, _now: Nanos, node: NodeId, frame: Found, _out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        name = core.name if node == core.node else peer.name if peer is not None else ""
        if not name or not core.leadership.leading:
            core.ignore("found")
        else:
            self._leading.decisions.found(name, node, frame)

    def _freed(self, _now: Nanos, peer: NodeId, frame: Freed, _out: Outbox) -> None:
        if self._core.peers.replica_at(peer) is None or self._core.leadership.leading:
            self._core.ignore("freed")
        else:
            self._following.release.take(frame)

    # -- frames: who leads ---------------------------------------------------------------------------------------

    def _ballot(self, now: Nanos, node: NodeId, frame: Ballot, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
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

    # -- frames: the order ---------------------------------------------------------------------------------------

    def _append(self, now: Nanos, node: NodeId, frame: Append, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
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
        if core.is_blank:
            core.history = frame.history
            self._election.wait(now)
        if frame.history == core.history:
            return True
        core.ignore("another history")
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
        sound = all(0 <= number < NUMBER_MAX for number in numbers)
        if peer is None or not sound or frame.history != core.history:
            core.ignore("appended")
            return
        if frame.term > core.leadership.term:
            core.new_term(frame.term)
        if core.leadership.leading:
            self._leading.appended(peer, frame, now, out)

    # -- frames: states ------------------------------------------------------------------------------------------

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
        elif frame.parts == 0:
            self._joining.offered(peer, frame, now, out)
        else:
            self._joining.chunk(peer, frame, now, out)

    # -- what people see -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        core = self._core
        if core.delivery.suspended:
            return "suspended"
        if core.leadership.leading:
            return "halted" if self._leading.halted else "leading"
        if self._joining.is_restoring:
            return "restoring"
        if self._founding.removed and core.me is None:
            return "removed"
        if core.is_blank:
            return "starting"
        return "halted" if self._stuck else "following"

    @property
    def memory(self) -> str:
        """What this replica's acknowledgements are worth."""
        if self._core.is_blank:
            return "blank"
        me = self._core.member_in(self._core.log.committed_view)
        return "learning" if me is None or me.promote or me.suspended else "whole"

    def status(self) -> dict[str, object]:
        core, log, delivery = self._core, self._core.log, self._core.delivery
        following = log.tail.next
        streams = {
            stream.label: {
                "held": stream.bytes,
                "next": following.get(stream.id, stream.origin),
                "lag": max(0, stream.exists + 1 - following.get(stream.id, stream.origin)),
            }
            for stream in core.streams.streams.values()
        }
        progress = self._leading.appends.progress if core.leadership.leading else {}
        return {
            "group": core.config.name,
            "state": self.state,
            "why": delivery.suspended or self._leading.halted or self._stuck,
            "leader": core.leadership.leader,
            "term": core.leadership.term,
            "view": view_status(log.committed_view),
            "commit": log.commit,
            "applied": delivery.applied,
            "last": log.last,
            "log": len(log),
            "position": delivery.at.position - 1,
            "digest": delivery.digest,
            "lag": max(0, log.last + len(core.waiting.entries) - delivery.applied),
            "memory": self.memory,
            "outstanding": delivery.outstanding,
            "streams": streams,
            "peers": {name: other.match for name, other in progress.items()},
            "gaps": len(core.recovery.gaps),
            "nacks": core.recovery.nacks,
            "outputs": {name: len(queue) for name, queue in delivery.kept.queues.items()},
            "questions": self._leading.decisions.asked,
            "decisions": list(self._leading.decisions.recent),
            "ignoring": [
                {"id": id_, "what": criterion.text(), "left": left}
                for id_, (criterion, left) in log.tail.rulings.criteria.items()
            ],
            "ignored": dict(core.ignored),
        }


def view_status(view: View | None) -> list[dict[str, object]]:
    """Who is in the group, for people."""
    return [
        {
            "name": member.name,
            "part": "voter" if member.voter else "learner",
            "suspended": member.suspended,
            "may_lead": member.may_lead,
        }
        for member in (view.members if view is not None else ())
    ]
