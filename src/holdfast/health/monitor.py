"""The unit `health`: sends and receives on every path, publishes rows, informs links.

It owns the paths (`path`), wakes each one when it is due, and carries the messages between the two ends of a path (by
channel: any working path, repeated until confirmed). Results go into the table and are distributed from there; reports
of listeners about our own sending come from there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from holdfast.health.config import HealthConfig, Signatures, Tune
from holdfast.health.frames import Settled
from holdfast.health.placement.fitness import Placement
from holdfast.health.placement.needs import SetNeeds
from holdfast.health.ports import (
    HEALTH,
    PATH_GOSSIP,
    AdviceNews,
    Fresh,
    ResetHistory,
    RowsHeard,
)
from holdfast.health.probing.attributes import Plan
from holdfast.health.probing.evidence import threshold
from holdfast.health.probing.lag import OwnLag
from holdfast.health.probing.multicast_probing import MulticastProber, group_of
from holdfast.health.probing.neighbourhood import Neighbourhood
from holdfast.health.probing.path import SPOKEN, Path, PathKey, key_of
from holdfast.health.probing.probe_receiver import ProbeReceiver
from holdfast.health.probing.probe_sender import ProbeSender
from holdfast.health.probing.probe_settings import ProbeSettings
from holdfast.health.probing.throttle import Throttle
from holdfast.health.probing.timer_wheel import TimerWheel
from holdfast.health.probing.values import BusyWindow, Hush, Interest, QueueDepth
from holdfast.health.table.path_table import PathTable
from holdfast.links.ports import (
    AskHeard,
    DataMissing,
    FlowLost,
    FlowReady,
    FlowUnheard,
    LinkQueue,
    PathHeard,
    PeerDown,
    PeerUp,
    Received,
    RenewFlow,
    SendChannel,
    traffic_name,
)
from holdfast.machine import LAG_NS_MIN, Lagged, Machine, Outbox
from holdfast.subsystem import LocalNode
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode

__all__ = ["HEALTH", "HealthMachine"]

TESTS_PER_PATH: Final = 16
LATE_NS: Final = 100 * MILLISECOND
"""A later wake-up shows that this node was delayed and may have heard nothing."""
ESTIMATE_NS: Final = 250 * MILLISECOND
"""How often a loss that was found a moment ago is published: its first estimates are rough."""
SAMPLE_EARLY_NS: Final = 10 * MILLISECOND
"""A tick may come slightly before its time on the clock of the previous one: that must not cost a whole period."""


class HealthMachine(Machine):
    """Unit `health`."""

    layer: ClassVar[str] = "probing"
    hears: ClassVar[tuple[type, ...]] = (
        PeerUp,
        PeerDown,
        FlowReady,
        FlowLost,
        FlowUnheard,
        LinkQueue,
        DataMissing,
        PathHeard,
        Lagged,
    )

    def __init__(
        self,
        me: LocalNode,
        config: HealthConfig,
        mtus: dict[str, int],
        placement: Placement | None = None,
        table: PathTable | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> None:
        """`placement`, `table` and `neighbourhood` outlive this unit, so that they survive a rebuild."""
        self.me = me
        self.placement = placement or Placement(me.node, me.sealed)
        self.config = config
        self.table = table or PathTable(me.node, me.incarnation)
        self._neighbourhood = neighbourhood or Neighbourhood(me)
        self.names: dict[bytes, str] = {me.node: me.name}
        self.throttle = Throttle(config.budget, self.placement.advised.permille)
        self.probe_settings = ProbeSettings(config, mtus)
        self._needs_changed = False
        self._paths: dict[PathKey, Path] = {}
        self._flows: dict[tuple[bytes, FlowId], Path] = {}
        self._peers: dict[NodeId, bool] = {}
        self._wheel = TimerWheel()
        self._multicast_prober = MulticastProber(self.throttle)
        self._lag = OwnLag()
        self._queues: dict[tuple[NodeId, str], int] = {}
        """Bytes that wait in links, by peer and adapter, if they are many."""
        self._evidence = threshold(10, TESTS_PER_PATH, config.budget.alarms_per_1000_days)
        self._version = 0
        self._now: Nanos = 0
        self._late_at: Nanos = NEVER
        """A later call shows that this node was delayed."""
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
            DataMissing: self._data_missing,
            PathHeard: self._path_heard,
            Lagged: self._lagged,
            Interest: self._demand,
            QueueDepth: self._demand,
            BusyWindow: self._demand,
            AdviceNews: self._advice,
        }

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        calm = self._now <= now <= self._late_at
        if not calm:
            self._clock(now)
        self._now = now
        touched: dict[PathKey, Path] = {}
        flows, lag = self._flows, self._lag
        for item in inputs:
            if type(item) is Received and item.flow is not None:
                # Heartbeats: they are many, and almost all report no change.
                path = flows.get((item.peer, item.flow))
                if path is not None:
                    if now - item.at >= LAG_NS_MIN:
                        lag.seen(now, now - item.at)
                    listener = path.probe_receiver
                    listener.hear(now, item, path.flows, lag.ns)
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
        """Credit our own delay: what was not received in that time does not count. A clock may also be set back."""
        if now < self._now:
            for path in self._paths.values():
                path.probe_receiver.clock_set_back(now)
                path.probe_sender.clock_set_back(now)
                path.armed_at = NEVER
                path.sample_at = min(path.sample_at, now)
                path.row_at = min(path.row_at, now)
                self._wheel.arm(path)
        elif self.deadline < NEVER:
            late = now - max(self.deadline, self._excused_to)
            if late > LATE_NS:
                self._excused_to = now
                for path in self._paths.values():
                    path.probe_receiver.excuse(now, late)
            self._late_at = max(self.deadline, self._excused_to) + LATE_NS

    def _received(
        self, now: Nanos, item: Received, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """What a peer reports about a path, by channel."""
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
            path.probe_receiver.unheard(item.use)
            touched[path.key] = path

    def _data_missing(
        self, now: Nanos, item: DataMissing, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        path = self._flows.get((item.peer, item.flow))
        if path is not None:
            path.probe_receiver.data_missing(now, item.flow, item.missing, item.still)
            touched[path.key] = path

    def _path_heard(
        self, now: Nanos, item: PathHeard, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        path = self._paths.get((item.peer, item.adapter, item.remote_adapter))
        if path is not None:
            path.probe_receiver.path_heard(now, item.at, item.size)

    def _lagged(self, now: Nanos, item: Lagged, touched: dict[PathKey, Path], out: Outbox) -> None:
        self._lag.seen(now, item.lag_ns)

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
        probe_settings = self.probe_settings
        mtu, signatures = probe_settings.mtu(ready.adapter), probe_settings.signatures(ready.subnet)
        probe_sender = ProbeSender(
            now, ready, self._plan(ready), signatures, self.throttle, mtu, self._lag
        )
        start_ns = signatures.basic_active.period_ns
        listener = ProbeReceiver(now, ready, start_ns, self.config.confirm_ns, mtu)
        return Path(now, ready, probe_sender, listener)

    def _plan(self, ready: FlowReady) -> Plan:
        """What is probed on a path: the configuration, and additional needs of traffic."""
        sizes, patterns, _ = self.placement.wanted_values(ready.peer)
        # In a sparse neighbourhood only some paths are probed; the others have basic heartbeats, which links need.
        probed = self._neighbourhood.probes(ready.subnet, ready.peer)
        return self.probe_settings.plan(ready.adapter, sizes, patterns, probed)

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
        """The number of tests in the domain is estimated from what this node sees; thresholds follow from it."""
        tests = len(self._paths) * TESTS_PER_PATH * (len(self._peers) + 2)
        self._evidence = threshold(10, tests, self.config.budget.alarms_per_1000_days)

    # -- what clients want ---------------------------------------------------------------------------------------

    def _tune(self, now: Nanos, tune: Tune, touched: dict[PathKey, Path], out: Outbox) -> None:
        self.probe_settings.tune(tune)
        for path in self._paths.values():
            if tune.subnet in ("", path.ready.subnet):
                path.probe_sender.tune(now, self.probe_settings.signatures(path.ready.subnet))
                touched[path.key] = path

    def _set_needs(
        self, now: Nanos, item: SetNeeds, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        self._needs_changed = True
        if not self.placement.set(item):
            what = f"needs of {traffic_name(item.traffic)}: this node has too many; refused"
            out.fact(NodeFact(now, "refused", what))

    def _heed_needs(self, now: Nanos, touched: dict[PathKey, Path], out: Outbox) -> None:
        """The needs of traffic changed: other values are probed, and every flow is judged again."""
        if not self._needs_changed:
            return
        self._needs_changed = False
        for path in self._paths.values():
            path.probe_sender.replan(now, self._plan(path.ready))
            touched[path.key] = path
            self._judge(now, path, out)

    def _hush(self, now: Nanos, item: Hush, touched: dict[PathKey, Path], out: Outbox) -> None:
        self.throttle.hushed_until = max(self.throttle.hushed_until, item.until_ns)

    def _trust_again(
        self, now: Nanos, item: ResetHistory, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """An operator reset a path that we send on."""
        sender, adapter, listener, remote = item.path
        if sender == self.me.node:
            self.placement.reset(NodeId(listener), adapter, remote)
            path = self._paths.get((listener, adapter, remote))
            if path is not None:
                self._judge(now, path, out)

    def _queue(
        self, now: Nanos, item: LinkQueue, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """Traffic waits at an adapter: the queues of all links that use it are added."""
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
            path.probe_sender.spread(now)
            touched[path.key] = path

    def _advice(
        self, now: Nanos, item: AdviceNews, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        """A new edition of advice. Busy windows need nothing here: each path looks at its demand by itself."""
        self._obey(now, self.placement.advised.take(now, item), out)

    def _obey(self, now: Nanos, changed: bool, out: Outbox) -> None:
        """Judge all flows again if advice avoids others than before."""
        said = self.placement.advised.news()
        if said:
            out.fact(NodeFact(now, "advice", said))
        if changed:
            for path in self._paths.values():
                self._judge(now, path, out)

    # -- the tick ------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        if not self._now <= now <= self._late_at:
            self._clock(now)
        self._now = now
        if self._lag.ns:
            self._lag.pass_time(now)
        due = self._wheel.due(now)
        casts = self._multicast_prober.cast(now, due, out)
        evidence, arm = self._evidence, self._wheel.arm
        for path in due:
            listener, probe_sender = path.probe_receiver, path.probe_sender
            if now < listener.lives_at and not listener.waits and now < listener.looks.at:
                listener.check_at = now + listener.rhythm_ns
            else:
                listener.lag_ns = self._lag.ns
                listener.check(now, evidence)
            if probe_sender.due_at <= now:
                if casts:
                    sends = probe_sender.tick(now, listener.flows, casts.get(group_of(path), []))
                elif now < probe_sender.calm_until:
                    sends = probe_sender.basics(now, listener.flows)
                else:
                    sends = probe_sender.tick(now, listener.flows, [])
                for send in sends:
                    out.down(path.unit, send, True)
                if now >= path.sample_at:
                    self._sample(now, path, out)
            if listener.replies or listener.changed or probe_sender.stale or listener.silence.asks:
                self._after(now, path, out)
            else:
                arm(path)
        if now >= self.placement.deadline:
            for flow in self.placement.due(now):
                for path in [path for (_, known), path in self._flows.items() if known == flow]:
                    self._judge(now, path, out)
        advised = self.placement.advised
        if now >= advised.deadline:
            self._obey(now, advised.refresh(now), out)
        self._publish(out)
        self._arm()

    def _sample(self, now: Nanos, path: Path, out: Outbox) -> None:
        """Publish values that changed slowly, and record samples, periodically."""
        config = self.config
        rows_ns = config.rows_ns
        if path.probe_receiver.looks.doubtful:
            rows_ns = min(rows_ns, ESTIMATE_NS)
        path.sample_at = now + min(rows_ns, config.sample_ns) - SAMPLE_EARLY_NS
        if now - path.row_at >= rows_ns - SAMPLE_EARLY_NS:
            path.row_at = now
            for kind in path.rows:
                if path.drifted(kind):
                    self._put(now, path, kind)
        for kind in path.rows:
            if now - path.sampled_at.get(kind, now) >= config.sample_ns - SAMPLE_EARLY_NS:
                out.fact(path.fact(now, kind, "sample", self._name))

    def _after(self, now: Nanos, path: Path, out: Outbox) -> None:
        """Send the reports of a path, publish what changed, and schedule its next check."""
        listener = path.probe_receiver
        if listener.check_at <= now:
            listener.lag_ns = self._lag.ns
            listener.check(now, self._evidence)
        if listener.replies or path.probe_sender.stale:
            replies = [encode(frame) for frame in path.replies()]
            if replies:
                out.down(path.unit, SendChannel(SYNC, replies))
        if listener.silence.asks:
            listener.silence.asks = False
            out.down(path.unit, AskHeard(path.key[1], path.key[2]))
        if listener.stuck:
            stuck, listener.stuck = listener.stuck, []
            for flow in stuck:
                out.down(path.unit, RenewFlow(flow))
        if listener.changed:
            changed, listener.changed = listener.changed, []
            if listener.looks.doubtful:
                path.sample_at = min(path.sample_at, now + ESTIMATE_NS)
            for kind in changed:
                if not path.same(kind):
                    self._state(now, path, kind, out)
        self._wheel.arm(path)

    def _arm(self) -> None:
        placement = self.placement
        deadline = min(self._wheel.next(), placement.deadline, placement.advised.deadline)
        self.deadline = deadline
        self._late_at = max(deadline, self._excused_to) + LATE_NS

    # -- rows ----------------------------------------------------------------------------------------------------

    def _state(self, now: Nanos, path: Path, kind: str, out: Outbox) -> None:
        """Our report about a path has changed: a new version of its row, a fact, and distribution."""
        if path.unknown(kind):
            return
        self._put(now, path, kind)
        out.fact(path.fact(now, kind, "change", self._name))

    def _put(self, now: Nanos, path: Path, kind: str) -> None:
        # From the clock, so that it also increases when this unit is rebuilt: rows with a lower version are ignored.
        self._version = max(self._version + 1, now // MICROSECOND)
        row = path.row(kind, self.me.node, self.me.incarnation, self._version)
        self.table.put(row, now)

    def _name(self, node: bytes) -> str:
        return self.names.get(node, "")

    def _publish(self, out: Outbox) -> None:
        if self.table.fresh:
            out.up(PATH_GOSSIP, Fresh())

    def _rows(self, now: Nanos, item: RowsHeard, touched: dict[PathKey, Path], out: Outbox) -> None:
        """Listeners have reported something new about what we send."""
        ours: dict[PathKey, Path] = {}
        for row in item.rows:
            path = self._paths.get((NodeId(row.listener), row.sender_adapter, row.listener_adapter))
            if path is not None:
                path.probe_sender.heard(now, row.transport, row.alive)
                if row.transport == "udp":
                    path.probe_sender.narrow(now, row.rate_limit_kbps)
                ours[path.key] = path
        for path in ours.values():
            self._wheel.arm(path)
            self._judge(now, path, out)

    # -- reports to links --------------------------------------------------------------------------------------

    def _judge(self, now: Nanos, path: Path, out: Outbox) -> None:
        """The reports of listeners about a path, for its link."""
        peer, adapter, remote = path.key
        rows = [
            row
            for kind in ("udp", "tcp", "frag", "multicast")
            if (row := self.table.rows.get((self.me.node, adapter, peer, remote, kind)))
        ]
        for verdict in path.judged(now, rows, self.placement):
            out.down(path.unit, verdict)

    @property
    def lag_ms(self) -> int:
        """How late this node ran lately."""
        return self._lag.ns // MILLISECOND

    def signatures(self, subnet: str) -> Signatures:
        """What is sent on a subnet, and how often."""
        return self.probe_settings.signatures(subnet)
