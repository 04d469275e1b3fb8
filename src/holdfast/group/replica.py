"""A replica: combines the parts of this package into one machine.

    messages ──► streams ──► order (leader) ──┐
                   │  ▲                       ▼
                   │  recovery               log ──► delivery ──► application
                   │                          ▲
    entries  ──────┴───────► waiting ─────────┘

Every call processes its inputs one by one, and then settles once: order or append, commit, deliver, answer, free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar

from holdfast.errors import MisuseError
from holdfast.group.config import GroupConfig
from holdfast.group.consensus.election import Election
from holdfast.group.consensus.follower import Follower
from holdfast.group.consensus.leader import Leader
from holdfast.group.core import Core
from holdfast.group.frames import AdminRequest
from holdfast.group.inbound import Inbound
from holdfast.group.log.entries import View
from holdfast.group.log.journal import Journal, Rows
from holdfast.group.log.stability import LogStability
from holdfast.group.log.values import Durable
from holdfast.group.membership.bootstrap import Bootstrap
from holdfast.group.membership.seating import PathRows
from holdfast.group.peers import post
from holdfast.group.ports import (
    AddReplica,
    AppFailed,
    Applied,
    EndIgnoring,
    HandOver,
    LossAnswered,
    OutputsSent,
    RemoveReplica,
    RestartFromSurvivor,
    Restored,
    SnapshotTaken,
)
from holdfast.group.services.status import tables_status
from holdfast.group.streams.relay import Relay
from holdfast.group.transfer.snapshot import SnapshotSender
from holdfast.group.transfer.snapshot_install import SnapshotInstaller
from holdfast.links.ports import PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.types import NEVER, Nanos, NodeId


class ReplicaMachine(Machine):
    """The unit `replica/<group>` of a node."""

    layer: ClassVar[str] = "replica"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(
        self,
        *,
        config: GroupConfig,
        node: NodeId,
        name: str,
        incarnation: int,
        rng: Random,
        stored: Mapping[str, Rows] | None = None,
        paths: PathRows = tuple,
    ) -> None:
        """`stored` is what a durable replica wrote in earlier incarnations (`journal_tables`); `paths` returns the
        known state of all paths of the domain."""
        if name not in config.replicas:
            replicas = ", ".join(config.replicas)
            raise MisuseError(
                f"{name} is not a replica of group {config.name} ({replicas}); nothing was started"
            )
        self._core = core = Core(config, node, name, incarnation)
        self._follower = Follower(core)
        self._leader = Leader(core, paths)
        self._election = Election(core, rng)
        self._bootstrap = Bootstrap(core, rng)
        self._installer = SnapshotInstaller(core, self._follower, rng)
        self._snapshot_sender = SnapshotSender(core)
        self._relay = Relay(core)
        self._inbound = Inbound(
            core,
            self._follower,
            self._leader,
            self._election,
            self._bootstrap,
            self._installer,
            self._snapshot_sender,
            self._relay,
        )
        core.stability = self._stability = LogStability(core)
        if config.is_durable:
            core.journal = Journal(core)
            checkpoint = core.journal.load(stored or {})
            core.follow_view()
            if checkpoint is not None:
                self._installer.begin_with(checkpoint)
            if not core.is_blank:
                self._election.wait(0)
        self._stuck = ""
        """The last reported reason why there can be no leader."""
        self.deadline = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, Outbox], None]] = {
            Received: self._inbound.received,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
            Applied: self._applied,
            SnapshotTaken: self._snapshot_taken,
            Restored: self._restored,
            AppFailed: self._app_failed,
            AddReplica: self._add_replica,
            RemoveReplica: self._remove_replica,
            HandOver: self._hand_over,
            RestartFromSurvivor: self._restart_from_survivor,
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
        if self._core.group_epoch:
            self._decide_at_once(now, out)
            self._core.recovery.wake(now, out)
        self._installer.wake(now, out)
        self._bootstrap.wake(now, out)
        if self._election.wake(now, out):
            self._leader.begin(now, out)
        self._settle(now, out)
        # Due work is done; a part that asks for this very moment again gets the next one.
        self.deadline = max(self.deadline, now + 1)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """The writes of this replica are on disk."""
        journal = self._core.journal
        for item in inputs:
            if journal is not None and isinstance(item, Durable):
                journal.written(item)
        self._settle(now, out)
        self.deadline = max(self.deadline, now + 1)

    def _excuse(self, now: Nanos) -> None:
        """A process that did not run in time has heard nothing, and the others are not to blame."""
        if now - self.deadline > self._core.config.election_ns // 2:
            self._leader.was_late(now)

    def _decide_at_once(self, now: Nanos, out: Outbox) -> None:
        """Gaps for which nothing was tried yet, before the first request."""
        if self._core.leadership.leading:
            for stream, gap in self._core.recovery.gaps.items():
                held = self._core.streams.get(stream)
                for hole in gap.holes if held is not None else ():
                    if hole.due_ns <= now and not hole.tries:
                        assert held is not None
                        if self._leader.decisions.at_once(held, hole.first, hole.last, now, out):
                            hole.due_ns = NEVER

    def _settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        leadership, recovery, streams = core.leadership, core.recovery, core.streams
        if core.pending.diverged or core.log.cut_at:
            self._look_at_cuts(now, out)
        if recovery.leading != leadership.leading:
            recovery.leading = leadership.leading
            recovery.forget()
        recovery.leader = leadership.leader
        if not core.group_epoch and self._bootstrap.found(now, out):
            core.follow_view()
            if self._election.campaign(now, out):
                self._leader.begin(now, out)
        if leadership.leading:
            if not self._leader.settle(now, out):
                self._election.back_off(now)
        elif core.group_epoch:
            self._follower.settle(now, out)
            self._installer.settle(now, out)
            self._free(now, out)
        self._stability.post(out)
        self._relay.settle(now, out)
        if not leadership.leading:
            self._leader.output_sender.end(out)
        if streams.changed and core.group_epoch:
            # While the replica has no state they collect: what was known before the start is a gap afterwards.
            for stream in streams.changed:
                recovery.look(streams.streams[stream], now, out)
            streams.changed.clear()
        if self._snapshot_sender.is_unsure:
            self._snapshot_sender.settle(now, out)
        waits = leadership.leading and core.log.view_index > core.log.commit
        if not leadership.leader or waits or self._stuck:
            self._say_stuck(now, out)
        if core.journal is not None:
            if core.journal.wants_state:
                self._snapshot_sender.for_store(now, out)
            core.journal.settle(out)
        self.deadline = self._next_deadline(now)

    def _free(self, now: Nanos, out: Outbox) -> None:
        """Determine and free what all members have applied. A leader does it in its own turn."""
        self._stability.settle(now, out)
        if self._stability.active:
            self._follower.collector.release(self._stability.index)

    def _next_deadline(self, now: Nanos) -> Nanos:
        core = self._core
        if core.leadership.leading:
            due_ns = self._leader.deadline(now)
        elif core.group_epoch:
            due_ns = min(self._follower.due_ns, self._election.due_ns)
        else:
            due_ns = self._follower.due_ns
        if core.recovery.gaps:
            due_ns = min(due_ns, core.recovery.deadline())
        due_ns = min(due_ns, self._stability.deadline, self._relay.deadline)
        return min(due_ns, self._installer.deadline(), self._bootstrap.deadline())

    def _look_at_cuts(self, now: Nanos, out: Outbox) -> None:
        """Entries were truncated. If they had been delivered (`fast`), or committed by the losing side of a partition
        (`availability`), the application must install a snapshot of another replica (rule 11)."""
        core, log = self._core, self._core.log
        if core.pending.diverged:
            core.pending.diverged = False
            why = "another side of a partition has won: what was committed here is rolled back"
            rollback_index = 0  # the point where the two sides diverged is not known here
            log.restart_empty()
            core.streams.need_all()
            self._follower.restarted()
        # rule: 11z
        elif log.cut_at <= core.delivery.at.index:
            rollback_index = log.cut_at
            why = f"entries from {log.cut_at} on were delivered and are rolled back"
        else:
            log.cut_at = log.cut_at if core.journal is not None else 0
            return
        if core.journal is None:
            log.cut_at = 0
        core.fact("rolled_back", why, now, out, rollback_index)
        delivered = core.delivery.undo(why, log.cursor_at(log.commit))
        self._snapshot_sender.stop()
        self._installer.undone(now, delivered)

    def _say_stuck(self, now: Nanos, out: Outbox) -> None:
        stuck = self._bootstrap.stuck
        if stuck and stuck != self._stuck:
            self._core.fact("halted", stuck, now, out)
        self._stuck = stuck

    # -- inputs --------------------------------------------------------------------------------------------------

    def _peer_up(self, now: Nanos, item: PeerUp, _out: Outbox) -> None:
        peer = self._core.peers.up(item.peer, item.member)
        leadership = self._core.leadership
        # rule: 2e
        if peer.name == leadership.leader and peer.incarnation != leadership.incarnation:
            leadership.leader = (
                ""  # it no longer leads; a replica that cannot vote learns it only here
            )
        self._core.recovery.source_back(item.peer, now)
        self._leader.output_sender.node_up(peer.name)
        if self._core.peers.replica_at(item.peer) is not None:
            self._bootstrap.peer_up(peer, now)
            self._leader.replication.peer_up(peer)

    def _peer_down(self, now: Nanos, item: PeerDown, _out: Outbox) -> None:
        self._core.recovery.source_down(item.peer, item.left, now)
        peer = self._core.peers.down(item.peer)
        self._relay.peer_down(item.peer)
        if peer is not None:
            self._snapshot_sender.peer_down(peer)
            self._installer.peer_down(peer, now)
            self._bootstrap.peer_down(peer)
            if peer.name == self._core.leadership.leader:
                self._election.leader_gone(now)

    def _applied(self, _now: Nanos, item: Applied, _out: Outbox) -> None:
        self._core.delivery.done(item.index, item.outputs)

    def _snapshot_taken(self, now: Nanos, item: SnapshotTaken, out: Outbox) -> None:
        self._snapshot_sender.taken(item, now, out)

    def _restored(self, now: Nanos, item: Restored, out: Outbox) -> None:
        self._installer.restored(item, now, out)

    def _app_failed(self, now: Nanos, item: AppFailed, out: Outbox) -> None:
        why = f"the application failed at entry {item.index}: {item.error}"
        self._installer.failed(now)  # also if it failed at a snapshot: another one may work
        if not self._core.delivery.suspended:
            # rule: 9a
            self._core.delivery.suspend(why, item.index)
        self._snapshot_sender.stop()
        self._core.fact("suspended", why, now, out)

    # -- inputs: membership --------------------------------------------------------------------------------------

    def _add_replica(self, _now: Nanos, item: AddReplica, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leader.membership.add(item.name, item.voter)
        else:
            self._ask_leader(
                AdminRequest(
                    self._core.config.name, self._core.group_epoch, "add", item.name, item.voter
                ),
                out,
            )

    def _remove_replica(self, _now: Nanos, item: RemoveReplica, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leader.membership.remove(item.name)
        else:
            self._ask_leader(
                AdminRequest(self._core.config.name, self._core.group_epoch, "remove", item.name),
                out,
            )

    def _ask_leader(self, frame: AdminRequest, out: Outbox) -> None:
        leader = self._core.peers.named(self._core.leadership.leader)
        if leader is None:
            self._core.ignore("no leader")
        else:
            post(out, [leader.node], frame)

    def _hand_over(self, _now: Nanos, item: HandOver, _out: Outbox) -> None:
        self._core.leadership.hand_over(item.prefer)

    def _restart_from_survivor(self, now: Nanos, item: RestartFromSurvivor, out: Outbox) -> None:
        if not self._bootstrap.restart_from_survivor(item.force, now, out):
            self._core.ignore("refound")
            return
        self._core.follow_view()
        if self._election.campaign(now, out):
            self._leader.begin(now, out)

    def _loss_answered(self, now: Nanos, item: LossAnswered, out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leader.decisions.answered(item, now, out)

    def _outputs_sent(self, _now: Nanos, item: OutputsSent, _out: Outbox) -> None:
        if self._core.leadership.leading:
            self._leader.output_sender.arrived(item.destination, (item.position, item.k))

    def _end_ignoring(self, now: Nanos, item: EndIgnoring, out: Outbox) -> None:
        core = self._core
        if core.leadership.leading:
            self._leader.decisions.end_ignoring(item.criterion, now, out)
        else:
            request = AdminRequest(
                core.config.name, core.group_epoch, "resume", criterion=item.criterion
            )
            self._ask_leader(request, out)

    # -- status --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        core = self._core
        if core.leadership.leading and (self._leader.halted or self._stuck):
            return "halted"
        if core.delivery.suspended:
            return "suspended"
        if core.leadership.leading:
            return "leading"
        if self._installer.is_restoring:
            return "restoring"
        if self._bootstrap.removed:
            return "removed"
        if core.is_blank:
            return "starting"
        return "halted" if self._stuck else "following"

    @property
    def memory(self) -> str:
        """Whether the acknowledgements of this replica count."""
        if self._core.is_blank:
            return "blank"
        me = self._core.member_in(self._core.log.committed_view)
        return "learning" if me is None or me.promote or me.suspended else "whole"

    @property
    def _why(self) -> str:
        """Why this replica does not work normally; empty if it does."""
        delivery = self._core.delivery
        halted = self._leader.halted if self._core.leadership.leading else ""
        return (
            halted or delivery.suspended or self._stuck or self._bootstrap.lacks or delivery.output_buffer.why_full
        )  # fmt: skip

    def inspect(self) -> Core:
        """The parts of this machine, for tests and debuggers."""
        return self._core

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
        progress = self._leader.replication.progress if core.leadership.leading else {}
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
            "lag": max(0, log.last + len(core.pending.entries) - delivery.applied),
            "memory": self.memory,
            "outstanding": delivery.outstanding,
            "no_state": self._snapshot_sender.problem,
            "streams": streams,
            "peers": {
                name: {
                    "match": other.match,
                    "applied": other.applied,
                    "held": other.held_bytes,
                    "heard": core.peers.named(name) is not None,
                }
                for name, other in progress.items()
            },
            "stability": self._stability.status(),
            "relay": self._relay.status(),
            "services": self._services_status(),
            "gaps": len(core.recovery.gaps),
            "nacks": core.recovery.nacks,
            "outputs": {name: len(queue) for name, queue in delivery.output_buffer.queues.items()},
            "questions": self._leader.decisions.asked,
            "decisions": list(delivery.decisions),
            "losses": {
                **{f"from {place}": count for place, count in core.recovery.brought.items()},
                "questions": self._leader.decisions.asked,
                **delivery.skipped,
            },
            "ignoring": [
                {"id": id_, "what": criterion.text(), "left": left}
                for id_, (criterion, left) in log.tail.metadata.criteria.items()
            ],
            "ignored": dict(core.ignored),
        }

    def _services_status(self) -> dict[str, object]:
        """Locks and barriers: on the leader as committed, on other replicas as delivered."""
        core, desk = self._core, self._leader.services
        leads = core.leadership.leading
        tables = desk.tables if leads else core.delivery.at.metadata.services
        names = {**core.peers.names, core.node: core.name}
        return {
            **tables_status(tables, names),
            "grants": desk.grants,
            "expired": desk.expired,
        }


def view_status(view: View | None) -> list[dict[str, object]]:
    """The members, for display."""
    return [
        {
            "name": member.name,
            "part": "voter" if member.voter else "learner",
            "suspended": member.suspended,
            "may_lead": member.may_lead,
        }
        for member in (view.members if view is not None else ())
    ]
