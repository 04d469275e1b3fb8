"""A replica: wires the pieces of this package together, and is otherwise as thin as it can be.

    messages ──► streams ──► order (leader) ──┐
                   │  ▲                       ▼
                   │  recovery               log ──► delivery ──► application
                   │                          ▲
    entries  ──────┴───────► waiting ─────────┘

Every call takes its inputs in, one by one, and then settles once: order or append, commit, deliver, answer, free.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.errors import MisuseError
from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.following import Following
from holdfast.group.joining import Joining
from holdfast.group.leading import Leading
from holdfast.group.log import NUMBER_MAX, is_sound_stream
from holdfast.group.metadata import is_sound_about
from holdfast.group.peers import post
from holdfast.group.ports import (
    AppFailed,
    Applied,
    EndIgnoring,
    LossAnswered,
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
    Found,
    Freed,
    Idle,
    Lost,
    Nack,
    Payload,
    StateChunk,
    StateRequest,
)


class ReplicaMachine(Machine):
    """The unit `replica/<group>` of a node."""

    layer = 6

    def __init__(
        self, *, config: GroupConfig, node: NodeId, name: str, incarnation: int, rng: Random
    ) -> None:
        if name not in config.replicas:
            replicas = ", ".join(config.replicas)
            raise MisuseError(
                f"{name} is no replica of group {config.name} ({replicas}); nothing was started"
            )
        self._core = core = Core(config, node, name, incarnation)
        self._following = Following(core)
        self._leading = Leading(core)
        self._joining = Joining(core, self._following, rng)
        self._state_out = StateOut(config, core.log, core.delivery)
        self.deadline = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, Outbox], None]] = {
            Received: self._received,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
            Applied: self._applied,
            SnapshotTaken: self._snapshot_taken,
            Restored: self._restored,
            AppFailed: self._app_failed,
            LossAnswered: self._loss_answered,
            EndIgnoring: self._end_ignoring,
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
            Lost: self._lost,
            Found: self._found,
        }

    # -- the machine ---------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            take = self._inputs.get(type(item))
            if take is None:
                self._core.ignore("input")
            else:
                take(now, item, out)
        self._settle(now, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        if not self._core.admission.is_blank:
            self._decide_at_once(now, out)
            self._core.recovery.wake(now, out)
        self._joining.wake(now, out)
        self._settle(now, out)
        # What was due has been done; a piece that wants this very moment again gets the next one.
        self.deadline = max(self.deadline, now + 1)

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
        if core.recovery.leading != core.leadership.leading:
            core.recovery.leading = core.leadership.leading
            core.recovery.forget()
        if self._joining.accession is not None and self._joining.accede(now, out):
            term = self._joining.term
            self._leading.begin(term, now, out)
        if core.leadership.leading:
            self._leading.settle(now, out)
        elif self._joining.accession is None and not core.admission.is_blank:
            self._following.settle(now, out)
        if not core.admission.is_blank:
            # While blank they gather: what was heard of before the start is a gap afterwards.
            for stream in core.streams.changed:
                core.recovery.look(core.streams.streams[stream], now, out)
            core.streams.changed.clear()
        role = self._leading if core.leadership.leading else self._following
        self.deadline = min(role.deadline(), core.recovery.deadline(), self._joining.deadline())

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
        self._core.recovery.source_back(item.peer)
        if self._core.peers.replica_at(item.peer) is not None:
            self._joining.peer_up(now)
            self._leading.peer_up(peer)

    def _peer_down(self, now: Nanos, item: PeerDown, _out: Outbox) -> None:
        self._core.recovery.source_down(item.peer, item.left, now)
        peer = self._core.peers.down(item.peer)
        if peer is not None:
            self._state_out.peer_down(peer)
            self._joining.peer_down(peer)

    def _applied(self, _now: Nanos, item: Applied, _out: Outbox) -> None:
        self._core.delivery.done(item.index)

    def _snapshot_taken(self, now: Nanos, item: SnapshotTaken, out: Outbox) -> None:
        self._state_out.taken(item, now, out)

    def _restored(self, now: Nanos, item: Restored, out: Outbox) -> None:
        self._joining.restored(item, now, out)

    def _app_failed(self, now: Nanos, item: AppFailed, out: Outbox) -> None:
        if self._core.delivery.suspended:
            return
        why = f"the application failed at entry {item.index}: {item.error}"
        self._core.delivery.suspend(why)
        self._joining.failed()
        self._state_out.stop()
        self._core.fact("suspended", why, now, out)

    def _loss_answered(self, now: Nanos, item: LossAnswered, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.decisions.answered(item, now, out)

    def _end_ignoring(self, now: Nanos, item: EndIgnoring, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leading.decisions.end_ignoring(item.criterion, now, out)

    # -- frames: messages ----------------------------------------------------------------------------------------

    def _payload(self, now: Nanos, peer: NodeId, frame: Payload, _out: Outbox) -> None:
        core, stream = self._core, frame.stream
        if peer not in (core.node, stream.source) and core.peers.replica_at(peer) is None:
            core.ignore("stranger")
        elif core.log.tail.is_over(stream) or not is_sound_payload(frame):
            core.ignore("payload")
        elif core.streams.take(frame, core.log.tail.next.get(stream, 1), now) is None:
            core.ignore("too many streams")

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
        peer = self._core.peers.replica_at(node)
        if peer is None or not self._core.leadership.leading:
            self._core.ignore("found")
        else:
            self._leading.decisions.found(peer, frame)

    def _freed(self, _now: Nanos, peer: NodeId, frame: Freed, _out: Outbox) -> None:
        if self._core.peers.replica_at(peer) is None or self._core.leadership.leading:
            self._core.ignore("freed")
        else:
            self._following.release.take(frame)

    # -- frames: the order ---------------------------------------------------------------------------------------

    def _append(self, now: Nanos, node: NodeId, frame: Append, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        if peer is None:
            core.ignore("stranger")
        elif frame.term == 0:
            post(out, [node], self._joining.claim())
        elif not core.leadership.may_lead(peer.name) or not 0 < frame.term < NUMBER_MAX:
            core.ignore("not the leader")
        elif core.admission.is_blank and (
            self._joining.is_restoring or not self._following.is_founding(frame)
        ):
            post(out, [node], self._joining.claim())
        else:
            self._following.append(node, frame, now, out)

    def _appended(self, now: Nanos, node: NodeId, frame: Appended, out: Outbox) -> None:
        peer = self._core.peers.replica_at(node)
        numbers = (frame.term, frame.match, frame.hint, frame.applied)
        if peer is None or not all(0 <= number < NUMBER_MAX for number in numbers):
            self._core.ignore("appended")
        elif self._core.leadership.leading:
            self._leading.appended(peer, frame, now, out)
        else:
            self._joining.answered(peer, frame, now, out)

    # -- frames: states ------------------------------------------------------------------------------------------

    def _state_request(self, _now: Nanos, node: NodeId, frame: StateRequest, out: Outbox) -> None:
        core = self._core
        peer = core.peers.replica_at(node)
        if peer is None or frame.request < 0:
            core.ignore("stranger")
        elif core.admission.is_blank or core.delivery.suspended or core.delivery.paused:
            core.ignore("no state to give")
        else:
            self._state_out.asked(peer, frame, out)

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
            return "leading"
        if self._joining.is_restoring:
            return "restoring"
        return "starting" if core.admission.is_blank or self._joining.accession else "following"

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
            "why": delivery.suspended or self._joining.stuck,
            "leader": core.leadership.leader,
            "term": core.leadership.term,
            "commit": log.commit,
            "applied": delivery.applied,
            "last": log.last,
            "log": len(log),
            "position": delivery.at.position - 1,
            "digest": delivery.digest,
            "lag": max(0, log.last + len(self._following.waiting.entries) - delivery.applied),
            "memory": core.admission.standing.value,
            "outstanding": delivery.outstanding,
            "streams": streams,
            "peers": {name: other.match for name, other in progress.items()},
            "gaps": len(core.recovery.gaps),
            "nacks": core.recovery.nacks,
            "questions": self._leading.decisions.asked,
            "decisions": list(self._leading.decisions.recent),
            "ignoring": [
                {"id": id_, "what": criterion.text(), "left": left}
                for id_, (criterion, left) in log.tail.rulings.criteria.items()
            ],
            "ignored": dict(core.ignored),
        }
