"""The unit `health`: joins what is sent and heard on every path, publishes rows, tells links.

It owns the paths (`path`), wakes each when something of it is due, carries what the two ends of a path say to each
other (by channel: any working path, repeated until confirmed), and spreads what listeners state.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, ClassVar, Final

from holdfast.health.attributes import Plan
from holdfast.health.casting import Caster, group_of
from holdfast.health.config import HealthConfig, Tune
from holdfast.health.evidence import threshold
from holdfast.health.listener import PathListener
from holdfast.health.needs import SetNeeds
from holdfast.health.path import SPOKEN, Path, PathKey, key_of
from holdfast.health.placement import Placement
from holdfast.health.speaker import Speaker
from holdfast.health.table import PathTable
from holdfast.health.throttle import BusyWindow, Interest, QueueDepth, Throttle
from holdfast.health.wishes import Wishes
from holdfast.links.config import Self
from holdfast.links.ports import (
    FlowLost,
    FlowReady,
    FlowUnheard,
    PeerDown,
    PeerUp,
    Received,
    SendChannel,
    link_unit,
    traffic_name,
)
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import PathRow, PathRows, Settled

HEALTH: Final = "health"
ROWS_PER_FRAME: Final = 200
TESTS_PER_PATH: Final = 16
LATE_NS: Final = 100 * MILLISECOND
"""A wake-up that is later than this shows that this node was held up: it may have heard nobody."""


class HealthMachine(Machine):
    """Unit `health`, layer 2."""

    layer: ClassVar[int] = 2

    def __init__(
        self,
        me: Self,
        config: HealthConfig,
        mtus: dict[str, int],
        placement: Placement | None = None,
    ) -> None:
        """`placement` outlives this unit: what traffic needs is not forgotten when it is rebuilt."""
        self.me = me
        self.placement = placement or Placement(me.node, me.sealed)
        self.config = config
        self.table = PathTable()
        self.names: dict[bytes, str] = {me.node: me.name}
        self.throttle = Throttle(config.budget)
        self.wishes = Wishes(config, mtus)
        self._needs_changed = False
        self._paths: dict[PathKey, Path] = {}
        self._flows: dict[tuple[bytes, FlowId], Path] = {}
        self._peers: dict[NodeId, bool] = {}
        self._heap: list[tuple[Nanos, int, Path]] = []
        self._order = 0
        self._caster = Caster(self.throttle)
        self._evidence = threshold(10, TESTS_PER_PATH, config.budget.alarms_per_1000_days)
        self._version = 0
        self._news: list[PathRow] = []
        self._now: Nanos = 0
        self._excused_to: Nanos = 0

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self._clock(now)
        touched: dict[PathKey, Path] = {}
        for item in inputs:
            kind = type(item)
            if kind is Received:
                self._received(now, item, touched, out)
            elif kind is FlowReady:
                self._ready(now, item, touched, out)
            elif kind is FlowLost:
                self._lost(now, item, touched, out)
            elif kind is FlowUnheard:
                path = self._paths.get((item.peer, item.adapter, item.remote_adapter))
                if path is not None:
                    path.listener.unheard(item.use)
                    touched[path.key] = path
            elif kind is PeerUp:
                self._peer_up(item, out)
            elif kind is PeerDown:
                self._peers.pop(item.peer, None)
                if item.left:
                    self.table.forget_node(item.peer)
            elif kind is Tune:
                self._tune(now, item, touched)
            elif kind is SetNeeds:
                self._set_needs(now, item, out)
            elif kind in (Interest, QueueDepth, BusyWindow):
                self._demand(now, item, touched)
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
                self._schedule(path)
        elif self.deadline < NEVER:
            late = now - max(self.deadline, self._excused_to)
            if late > LATE_NS:
                self._excused_to = now
                for path in self._paths.values():
                    path.listener.excuse(now, late)
        self._now = now

    def _received(
        self, now: Nanos, item: Received, touched: dict[PathKey, Path], out: Outbox
    ) -> None:
        if item.flow is not None:
            path = self._flows.get((item.peer, item.flow))
            if path is not None:
                path.heard(now, item)
                touched[path.key] = path
            return
        for frame in item.frames:
            if isinstance(frame, PathRows):
                self._rows(now, item.peer, frame, out)
            elif isinstance(frame, SPOKEN):
                path = self._paths.get(key_of(item.peer, frame))
                if path is not None:
                    path.told(now, frame)
                    touched[path.key] = path
                    if type(frame) is Settled:
                        self._judge(now, path, out)

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
        return self.wishes.plan(ready.adapter, sizes, patterns)

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

    def _tune(self, now: Nanos, tune: Tune, touched: dict[PathKey, Path]) -> None:
        self.wishes.tune(tune)
        for path in self._paths.values():
            if tune.subnet in ("", path.ready.subnet):
                path.speaker.tune(now, self.wishes.signatures(path.ready.subnet))
                touched[path.key] = path

    def _set_needs(self, now: Nanos, item: SetNeeds, out: Outbox) -> None:
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

    def _demand(
        self, now: Nanos, item: Interest | QueueDepth | BusyWindow, touched: dict[PathKey, Path]
    ) -> None:
        self.throttle.demand(now, item)
        for path in self._paths.values():
            path.speaker.respread(now)
            touched[path.key] = path

    # -- the tick ------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._clock(now)
        due: list[Path] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, path = heappop(heap)
            if at == path.armed_at:
                path.armed_at = NEVER
                due.append(path)
        casts = self._caster.cast(now, due, out)
        for path in due:
            path.listener.check(now, self._evidence)
            if path.speaker.due_at <= now:
                sends = path.speaker.tick(now, path.echoes(now), casts.get(group_of(path), []))
                for send in sends:
                    out.down(path.unit, send, True)
                self._sample(now, path, out)
            self._after(now, path, out)
        for flow in self.placement.due(now):
            for path in [path for (_, known), path in self._flows.items() if known == flow]:
                self._judge(now, path, out)
        self._publish(out)
        self._arm()

    def _sample(self, now: Nanos, path: Path, out: Outbox) -> None:
        """Publish values that moved without a change of state, and record some of them, now and then."""
        if now - path.row_at >= self.config.rows_ns:
            path.row_at = now
            for kind in path.rows:
                if path.drifted(kind):
                    self._put(now, path, kind)
        for kind in path.rows:
            if now - path.sampled_at.get(kind, now) >= self.config.sample_ns:
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
        if listener.changed:
            changed, listener.changed = listener.changed, []
            for kind in changed:
                if not path.same(kind):
                    self._state(now, path, kind, out)
        self._schedule(path)

    def _schedule(self, path: Path) -> None:
        at = path.wake_at
        if at < path.armed_at:
            path.armed_at = at
            self._order += 1
            heappush(self._heap, (at, self._order, path))

    def _arm(self) -> None:
        heap = self._heap
        while heap and heap[0][0] != heap[0][2].armed_at:
            heappop(heap)
        self.deadline = min(heap[0][0] if heap else NEVER, self.placement.deadline)

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
        self._news.append(row)

    def _name(self, node: bytes) -> str:
        return self.names.get(node, "")

    def _publish(self, out: Outbox) -> None:
        if not self._news:
            return
        news, self._news = self._news, []
        for part in _frames(news):
            for peer in self._peers:
                out.down(link_unit(peer), SendChannel(SYNC, [part]))

    def _peer_up(self, item: PeerUp, out: Outbox) -> None:
        self._peers[item.peer] = True
        self._count()
        self.names[item.peer] = self.placement.names[item.peer] = item.member.name
        self.table.forget(item.peer, item.member.incarnation)
        if self.table.rows:
            self._tell_all(item.peer, out)
        else:
            # This node, or this unit, has just begun, and knows nothing: no rows ask for all rows.
            out.down(link_unit(item.peer), SendChannel(SYNC, [encode(PathRows(()))]))

    def _tell_all(self, peer: NodeId, out: Outbox) -> None:
        for part in _frames(list(self.table.rows.values())):
            out.down(link_unit(peer), SendChannel(SYNC, [part]))

    def _rows(self, now: Nanos, peer: NodeId, frame: PathRows, out: Outbox) -> None:
        if not frame.rows:
            self._tell_all(peer, out)
        ours: dict[PathKey, Path] = {}
        for row in frame.rows[: 10 * ROWS_PER_FRAME]:
            if row.listener == self.me.node or not self.table.put(row, now):
                continue
            if row.sender == self.me.node:
                path = self._paths.get((row.listener, row.sender_adapter, row.listener_adapter))
                if path is not None:
                    path.speaker.heard(now, row.transport, row.alive)
                    ours[path.key] = path
        for path in ours.values():
            self._schedule(path)
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

    def status(self, now: Nanos, subnets: dict[tuple[bytes, str], str]) -> list[dict[str, Any]]:
        """The table as the page shows it."""
        return [
            {
                "sender": self.names.get(row.sender, row.sender[:4].hex()),
                "sender_adapter": row.sender_adapter,
                "listener": self.names.get(row.listener, row.listener[:4].hex()),
                "listener_adapter": row.listener_adapter,
                "subnet": subnets.get((row.listener, row.listener_adapter), row.listener_adapter),
                "transport": row.transport,
                "alive": row.alive,
                "size": row.size,
                "size_max": row.size_max,
                "loss_ppm": row.loss_ppm,
                "rtt_us": row.rtt_us,
                "since_s": round((now - self.table.since[key]) / SECOND, 1),
            }
            for key, row in sorted(self.table.rows.items())
        ]


def _frames(rows: list[PathRow]) -> list[bytes]:
    """Rows in frames of a bounded size."""
    starts = range(0, len(rows), ROWS_PER_FRAME)
    return [encode(PathRows(tuple(rows[start : start + ROWS_PER_FRAME]))) for start in starts]
