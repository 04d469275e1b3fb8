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

from holdfast.errors import MisuseError
from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.election import Election
from holdfast.group.entries import View
from holdfast.group.following import Following
from holdfast.group.founding import Founding
from holdfast.group.hearing import Hearing
from holdfast.group.joining import Joining
from holdfast.group.journal import Durable, Journal, Rows
from holdfast.group.leading import Leading
from holdfast.group.peers import post
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
from holdfast.group.transfer import StateOut
from holdfast.links.ports import PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.frames import Seek


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
        self._hearing = Hearing(
            core,
            self._following,
            self._leading,
            self._election,
            self._founding,
            self._joining,
            self._state_out,
        )
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
            Received: self._hearing.received,
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
        if self._core.history:
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
        if not core.history and self._founding.found(now, out):
            core.follow_view()
            if self._election.campaign(now, out):
                self._leading.begin(now, out)
        if leadership.leading:
            if not self._leading.settle(now, out):
                self._election.be_shy(now)
        elif core.history:
            self._following.settle(now, out)
            self._joining.settle(now, out)
        if not leadership.leading:
            self._leading.emitter.end(out)
        if streams.changed and core.history:
            # While blank they gather: what was heard of before the start is a gap afterwards.
            for stream in streams.changed:
                recovery.look(streams.streams[stream], now, out)
            streams.changed.clear()
        if self._state_out.is_unsure:
            self._state_out.settle(now, out)
        waits = leadership.leading and core.log.view_index > core.log.commit
        if not leadership.leader or waits or self._stuck:
            self._say_stuck(now, out)
        if core.journal is not None:
            if core.journal.wants_state:
                self._state_out.for_store(now, out)
            core.journal.settle(out)
        self.deadline = self._next_deadline(now)

    def _next_deadline(self, now: Nanos) -> Nanos:
        core = self._core
        if core.leadership.leading:
            due_ns = self._leading.deadline(now)
        elif core.history:
            due_ns = min(self._following.due_ns, self._election.due_ns)
        else:
            due_ns = self._following.due_ns
        if core.recovery.gaps:
            due_ns = min(due_ns, core.recovery.deadline())
        return min(due_ns, self._joining.deadline(), self._founding.deadline())

    def _look_at_cuts(self, now: Nanos, out: Outbox) -> None:
        """Entries were cut off. If they had been delivered (`fast`), or decided by a side of a cut that has lost
        (`availability`), the application has to begin again from a state of those who know better (rule 11)."""
        core, log = self._core, self._core.log
        if core.waiting.diverged:
            core.waiting.diverged = False
            why = "another side of a cut has won: what was decided here is given up"
            log.restart_empty()
            core.streams.need_all()
            self._following.restarted()
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
        stuck = self._founding.stuck
        if stuck and stuck != self._stuck:
            self._core.fact("halted", stuck, now, out)
        self._stuck = stuck

    # -- inputs --------------------------------------------------------------------------------------------------

    def _peer_up(self, now: Nanos, item: PeerUp, _out: Outbox) -> None:
        peer = self._core.peers.up(item.peer, item.member)
        leadership = self._core.leadership
        if peer.name == leadership.leader and peer.incarnation != leadership.incarnation:
            leadership.leader = ""  # it leads no more; who cannot vote hears it from nobody else
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
        why = f"the application failed at entry {item.index}: {item.error}"
        self._joining.failed(now)  # also when it was a state that it failed at: another one may do
        if not self._core.delivery.suspended:
            self._core.delivery.suspend(why, item.index)
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

    def _refound(self, now: Nanos, item: Refound, out: Outbox) -> None:
        if not self._founding.refound(item.force, now, out):
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

    def _end_ignoring(self, now: Nanos, item: EndIgnoring, out: Outbox) -> None:
        core = self._core
        if core.leadership.leading:
            self._leading.decisions.end_ignoring(item.criterion, now, out)
        else:
            seek = Seek(core.config.name, core.history, 3, criterion=item.criterion)
            self._ask_leader(seek, out)

    # -- what people see -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        core = self._core
        if core.leadership.leading and (self._leading.halted or self._stuck):
            return "halted"
        if core.delivery.suspended:
            return "suspended"
        if core.leadership.leading:
            return "leading"
        if self._joining.is_restoring:
            return "restoring"
        if self._founding.removed:
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

    @property
    def _why(self) -> str:
        """What keeps this replica from its work, if something does."""
        delivery = self._core.delivery
        halted = self._leading.halted if self._core.leadership.leading else ""
        return (
            halted or delivery.suspended or self._stuck or self._founding.lacks or delivery.kept.why_full
        )  # fmt: skip

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
            "why": self._why,
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
            "no_state": self._state_out.problem,
            "streams": streams,
            "peers": {
                name: {"match": other.match, "applied": other.applied}
                for name, other in progress.items()
            },
            "gaps": len(core.recovery.gaps),
            "nacks": core.recovery.nacks,
            "outputs": {name: len(queue) for name, queue in delivery.kept.queues.items()},
            "questions": self._leading.decisions.asked,
            "decisions": list(delivery.decisions),
            "losses": {
                **{f"from {place}": count for place, count in core.recovery.brought.items()},
                "questions": self._leading.decisions.asked,
                **delivery.skipped,
            },
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
