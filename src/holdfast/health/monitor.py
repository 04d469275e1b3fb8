"""The unit `health`: joins what is sent and heard on every path, publishes rows, tells links.

It owns the paths (`path`), wakes each when something of it is due, and carries what the two ends of a path say to
each other (by channel: any working path, repeated until confirmed). What it finds it puts into the table, and the
keeper tells everybody; what listeners say of our own sending comes from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from holdfast.health.attributes import Plan
from holdfast.health.casting import Caster, group_of
from holdfast.health.config import HealthConfig, Signatures, Tune
from holdfast.health.evidence import threshold
from holdfast.health.listener import PathListener
from holdfast.health.needs import SetNeeds
from holdfast.health.neighbourhood import Neighbourhood
from holdfast.health.path import SPOKEN, Path, PathKey, key_of
from holdfast.health.placement import Placement
from holdfast.health.ports import HEALTH, KEEPER, Fresh, ResetHistory, RowsHeard
from holdfast.health.speaker import Speaker
from holdfast.health.table import PathTable
from holdfast.health.throttle import BusyWindow, Hush, Interest, QueueDepth, Throttle
from holdfast.health.wheel import Wheel
from holdfast.health.wishes import Wishes
from holdfast.links.config import Self
from holdfast.links.ports import (
    FlowLost,
    FlowReady,
    FlowUnheard,
    LinkQueue,
    PeerDown,
    PeerUp,
    Received,
    RenewFlow,
    SendChannel,
    traffic_name,
)
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Settled

__all__ = ["HEALTH", "HealthMachine"]

TESTS_PER_PATH: Final = 16
LATE_NS: Final = 100 * MILLISECOND
"""A wake-up that is later than this shows that this node was held up: it may have heard nobody."""
SAMPLE_EARLY_NS: Final = 10 * MILLISECOND
"""A tick may come a little before its time on the clock of the one before: that must not cost a whole period."""


class HealthMachine(Machine):
    """Unit `health`, layer 2."""

    layer: ClassVar[int] = 2

    def __init__(
        self,
        me: Self,
        config: HealthConfig,
        mtus: dict[str, int],
        placement: Placement | None = None,
        table: PathTable | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> None:
        """`placement`, `table` and `neighbourhood` outlive this unit: what they know is not forgotten when it is
        rebuilt."""
        self.me = me
        self.placement = placement or Placement(me.node, me.sealed)
        self.config = config
        self.table = table or PathTable(me.node, me.incarnation)
        self._neighbourhood = neighbourhood or Neighbourhood(me)
        self.names: dict[bytes, str] = {me.node: me.name}
        self.throttle = Throttle(config.budget)
        self.wishes = Wishes(config, mtus)
        self._needs_changed = False
        self._paths: dict[PathKey, Path] = {}
        self._flows: dict[tuple[bytes, FlowId], Path] = {}
        self._peers: dict[NodeId, bool] = {}
        self._wheel = Wheel()
        self._caster = Caster(self.throttle)
        self._queues: dict[tuple[NodeId, str], int] = {}
        """Bytes that wait in links, by peer and adapter, where they are many."""
        self._evidence = threshold(10, TESTS_PER_PATH, config.budget.alarms_per_1000_days)
        self._version = 0
        self._now: Nanos = 0
        self._late_at: Nanos = NEVER
        """A call after this shows that this node was held up."""
        self._excused_to: Nanos = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, dict[PathKey, Path], Outbox], None]] = {
            Received: self._received,
            FlowReady: self._ready,
            FlowLost: self._lost,
            FlowUnheard: self._unheard,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
            RowsHeard: self._rows,
            Tune: self._tune,
            SetNeeds: self._set_needs,
            Hush: self._hush,
            ResetHistory: self._trust_again,
            LinkQueue: self._queue,
            Interest: self._demand,
            QueueDepth: self._demand,
            BusyWindow: self._demand,
        }

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        calm = self._now <= now <= self._late_at
        if not calm:
            self._clock(now)
        self._now = now
        touched: dict[PathKey, Path] = {}
        flows = self._flows
        for item in inputs:
            if type(item) is Received and item.flow is not None:
                # Heartbeats: there are many, and almost all only say that nothing has changed.
                path = flows.get((item.peer, item.flow))
                if path is not None:
                    listener = path.listener
                    listener.hear(now, item, path.flows)
                    if listener.check_at < path.armed_at or listener.replies or listener.changed:
                        touched[path.key] = path
                continue
            calm = False
            take = self._inputs.get(type(item))
            if take is not None:
                take(now, item, touched, out)
        if calm and not touched:
            return
        self._heed_needs(now, touched, out)
        for path in touched.values():
            self._after(now, path, out)
        self._publish(out)
        self._arm()

    def _clock(self, now: Nanos) -> None:
        """Credit our own lateness: what was not heard in that time says nothing. A clock may also be set back."""
        if now < self._now:
            for path in self._paths.values():
                path.listener.clock_set_back(now)
                path.speaker.clock_set_back(now)
                path.armed_at = NEVER
                path.sample_at = min(path.sample_at, now)
                path.row_at = min(path.row_at, now)
                self._wheel.arm(path)
        elif self.deadline < NEVER:
            late = now - max(self.deadline, self._excused_to)
            if late > LATE_NS:
                self._excused_to = now
                for path in self._paths.values():
                    path.listener.excuse(now, late)
            self._late_at = max(self.deadline, self._excused_to) + LATE_NS

    def _received(
        self, now: Nanos, item: Received, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """What a peer says of a path, by channel."""
        for frame in item.frames:
            if isinstance(frame, SPOKEN):
                path = self._paths.get(key_of(item.peer, frame))
                if path is not None:
                    path.told(now, frame)
                    touched[path.key] = path
                    if type(frame) is Settled:
                        self._judge(now, path, out)

    def _unheard(
        self, now: Nanos, item: FlowUnheard, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        path = self._paths.get((item.peer, item.adapter, item.remote_adapter))
        if path is not None:
            path.listener.unheard(item.use)
            touched[path.key] = path

    def _peer_up(self, now: Nanos, item: PeerUp, touched: dict[PathKey, Path], out: Outbox) -> None:
        self._peers[item.peer] = True
        self._count()
        self.names[item.peer] = self.placement.names[item.peer] = item.member.name

    def _peer_down(
        self, now: Nanos, item: PeerDown, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        self._peers.pop(item.peer, None)
        for _, adapter in [key for key in self._queues if key[0] == item.peer]:
            self._queue(now, LinkQueue(item.peer, adapter, 0), touched, out)

    # -- flows ---------------------------------------------------------------------------------------------------

    def _ready(
        self, now: Nanos, ready: FlowReady, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        key = (ready.peer, ready.adapter, ready.remote_adapter)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self._new_path(now, ready)
            self._count()
        path.flow_ready(now, ready)
        self._flows[ready.peer, ready.flow] = path
        touched[key] = path
        self._judge(now, path, out)

    def _new_path(self, now: Nanos, ready: FlowReady) -> Path:
        wishes = self.wishes
        mtu, signatures = wishes.mtu(ready.adapter), wishes.signatures(ready.subnet)
        speaker = Speaker(now, ready, self._plan(ready), signatures, self.throttle, mtu)
        start_ns = signatures.basic_active.period_ns
        listener = PathListener(now, ready, start_ns, self.config.confirm_ns, mtu)
        return Path(now, ready, speaker, listener)

    def _plan(self, ready: FlowReady) -> Plan:
        """What is probed on a path: what the configuration says, and what traffic needs beyond it."""
        sizes, patterns, _ = self.placement.wanted_values(ready.peer)
        # In a sparse neighbourhood only some paths are probed; the others have basics, which links live by.
        probed = self._neighbourhood.probes(ready.subnet, ready.peer)
        return self.wishes.plan(ready.adapter, sizes, patterns, probed)

    def _lost(self, now: Nanos, lost: FlowLost, touched: dict[PathKey, Path], out: Outbox) -> None:
        path = self._flows.pop((lost.peer, lost.flow), None)
        self.placement.forget(lost.flow)
        if path is None:
            return
        kind = path.flow_lost(now, lost.flow)
        if not path.flows:
            del self._paths[path.key]
            touched.pop(path.key, None)
            path.armed_at = NEVER
            self._count()
        else:
            touched[path.key] = path
        if kind and not lost.left:
            self._state(now, path, kind, out)

    def _count(self) -> None:
        """How many tests the domain makes follows from what this node sees of it; thresholds follow from that."""
        tests = len(self._paths) * TESTS_PER_PATH * (len(self._peers) + 2)
        self._evidence = threshold(10, tests, self.config.budget.alarms_per_1000_days)

    # -- what clients want ---------------------------------------------------------------------------------------

    def _tune(self, now: Nanos, tune: Tune, touched: dict[PathKey, Path], out: Outbox) -> None:
        self.wishes.tune(tune)
        for path in self._paths.values():
            if tune.subnet in ("", path.ready.subnet):
                path.speaker.tune(now, self.wishes.signatures(path.ready.subnet))
                touched[path.key] = path

    def _set_needs(
        self, now: Nanos, item: SetNeeds, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        self._needs_changed = True
        if not self.placement.set(item):
            what = f"needs of {traffic_name(item.traffic)}: this node has too many; not taken"
            out.fact(NodeFact(now, "refused", what))

    def _heed_needs(self, now: Nanos, touched: dict[PathKey, Path], out: Outbox) -> None:
        """Traffic needs something else now: other values are probed, and every flow is judged again."""
        if not self._needs_changed:
            return
        self._needs_changed = False
        for path in self._paths.values():
            path.speaker.replan(now, self._plan(path.ready))
            touched[path.key] = path
            self._judge(now, path, out)

    def _hush(self, now: Nanos, item: Hush, touched: dict[PathKey, Path], out: Outbox) -> None:
        self.throttle.hushed_until = max(self.throttle.hushed_until, item.until_ns)

    def _trust_again(
        self, now: Nanos, item: ResetHistory, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """An operator vouches for a path that we send on."""
        sender, adapter, listener, remote = item.path
        if sender == self.me.node:
            self.placement.reset(NodeId(listener), adapter, remote)
            path = self._paths.get((listener, adapter, remote))
            if path is not None:
                self._judge(now, path, out)

    def _queue(
        self, now: Nanos, item: LinkQueue, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """Traffic waits at an adapter: all links that use it count together."""
        if item.waiting:
            self._queues[item.peer, item.adapter] = item.waiting
        else:
            self._queues.pop((item.peer, item.adapter), None)
        waiting = sum(size for (_, name), size in self._queues.items() if name == item.adapter)
        self._demand(now, QueueDepth(item.adapter, waiting), touched, out)

    def _demand(
        self,
        now: Nanos,
        item: Interest | QueueDepth | BusyWindow,
        touched: dict[PathKey, Path],
        out: Outbox,
    ) -> None:
        self.throttle.demand(now, item)
        for path in self._paths.values():
            path.speaker.spread(now)
            touched[path.key] = path

    # -- the tick ------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        if not self._now <= now <= self._late_at:
            self._clock(now)
        self._now = now
        due = self._wheel.due(now)
        casts = self._caster.cast(now, due, out)
        evidence, arm = self._evidence, self._wheel.arm
        for path in due:
            listener, speaker = path.listener, path.speaker
            if now < listener.lives_at and not listener.waits:
                listener.check_at = now + listener.rhythm_ns
            else:
                listener.check(now, evidence)
            if speaker.due_at <= now:
                if casts:
                    sends = speaker.tick(now, listener.flows, casts.get(group_of(path), []))
                elif now < speaker.calm_until:
                    sends = speaker.basics(now, listener.flows)
                else:
                    sends = speaker.tick(now, listener.flows, [])
                for send in sends:
                    out.down(path.unit, send, True)
                if now >= path.sample_at:
                    self._sample(now, path, out)
            if listener.replies or listener.changed or speaker.stale:
                self._after(now, path, out)
            else:
                arm(path)
        if now >= self.placement.deadline:
            for flow in self.placement.due(now):
                for path in [path for (_, known), path in self._flows.items() if known == flow]:
                    self._judge(now, path, out)
        self._publish(out)
        self._arm()

    def _sample(self, now: Nanos, path: Path, out: Outbox) -> None:
        """Publish values that moved without a change of state, and record some of them, now and then."""
        config = self.config
        path.sample_at = now + min(config.rows_ns, config.sample_ns) - SAMPLE_EARLY_NS
        if now - path.row_at >= config.rows_ns - SAMPLE_EARLY_NS:
            path.row_at = now
            for kind in path.rows:
                if path.drifted(kind):
                    self._put(now, path, kind)
        for kind in path.rows:
            if now - path.sampled_at.get(kind, now) >= config.sample_ns - SAMPLE_EARLY_NS:
                out.fact(path.fact(now, kind, "sample", self._name))

    def _after(self, now: Nanos, path: Path, out: Outbox) -> None:
        """Say what is to be said of a path, publish what changed, and see when it must be looked at again."""
        listener = path.listener
        if listener.check_at <= now:
            listener.check(now, self._evidence)
        if listener.replies or path.speaker.stale:
            replies = [encode(frame) for frame in path.replies()]
            if replies:
                out.down(path.unit, SendChannel(SYNC, replies))
        if listener.stuck:
            stuck, listener.stuck = listener.stuck, []
            for flow in stuck:
                out.down(path.unit, RenewFlow(flow))
        if listener.changed:
            changed, listener.changed = listener.changed, []
            for kind in changed:
                if not path.same(kind):
                    self._state(now, path, kind, out)
        self._wheel.arm(path)

    def _arm(self) -> None:
        self.deadline = deadline = min(self._wheel.next(), self.placement.deadline)
        self._late_at = max(deadline, self._excused_to) + LATE_NS

    # -- rows ----------------------------------------------------------------------------------------------------

    def _state(self, now: Nanos, path: Path, kind: str, out: Outbox) -> None:
        """What we say of a path has changed: a new version of its row, a fact, and everybody hears of it."""
        self._put(now, path, kind)
        out.fact(path.fact(now, kind, "change", self._name))

    def _put(self, now: Nanos, path: Path, kind: str) -> None:
        # By the clock, so that it grows also when this unit is rebuilt: nobody takes a row with a lower version.
        self._version = max(self._version + 1, now // MICROSECOND)
        row = path.row(kind, self.me.node, self.me.incarnation, self._version)
        self.table.put(row, now)

    def _name(self, node: bytes) -> str:
        return self.names.get(node, "")

    def _publish(self, out: Outbox) -> None:
        if self.table.fresh:
            out.up(KEEPER, Fresh())

    def _rows(self, now: Nanos, item: RowsHeard, touched: dict[PathKey, Path], out: Outbox) -> None:
        """Listeners have said something new of what we send."""
        ours: dict[PathKey, Path] = {}
        for row in item.rows:
            path = self._paths.get((NodeId(row.listener), row.sender_adapter, row.listener_adapter))
            if path is not None:
                path.speaker.heard(now, row.transport, row.alive)
                ours[path.key] = path
        for path in ours.values():
            self._wheel.arm(path)
            self._judge(now, path, out)

    # -- what links are told -------------------------------------------------------------------------------------

    def _judge(self, now: Nanos, path: Path, out: Outbox) -> None:
        """What listeners say of what we send on a path: its link must know."""
        peer, adapter, remote = path.key
        rows = [
            row
            for kind in ("udp", "tcp", "frag", "multicast")
            if (row := self.table.rows.get((self.me.node, adapter, peer, remote, kind)))
        ]
        for verdict in path.judged(now, rows, self.placement):
            out.down(path.unit, verdict)

    def signatures(self, subnet: str) -> Signatures:
        """What is sent on a subnet, and how often."""
        return self.wishes.signatures(subnet)
