"""The unit `health`: sends heartbeats and probes on every flow, listens, publishes rows, tells links.

All flows share one tick: a basic on each flow every `basic_ns`, every second one with probes of all sizes. Reports
travel by channel: it uses any working path and repeats until confirmed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from holdfast.health.config import HealthConfig
from holdfast.health.listener import Listener
from holdfast.health.table import PathTable
from holdfast.links.config import Self
from holdfast.links.ports import (
    FlowLost,
    FlowReady,
    FlowVerdict,
    PeerDown,
    PeerUp,
    Received,
    SendChannel,
    SendFrame,
    link_unit,
)
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import PathFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Basic, PathRow, PathRows, Probe

HEALTH: Final = "health"
ROWS_PER_FRAME: Final = 200
_NO_FILL: Final = memoryview(b"")


class _Watched:
    """A flow in both directions: what we hear on it, and what the peer says that it hears."""

    __slots__ = (
        "listener",
        "path",
        "probe_n",
        "ready",
        "row",
        "row_at",
        "sampled_at",
        "sizes",
        "unit",
        "verdict",
    )

    def __init__(
        self, ready: FlowReady, sizes: tuple[int, ...], listener: Listener, now: Nanos
    ) -> None:
        self.ready = ready
        self.path = (ready.peer, ready.adapter, ready.remote_adapter, ready.transport)
        self.unit = link_unit(ready.peer)
        self.sizes = sizes
        self.listener = listener
        self.probe_n = 0
        self.row: PathRow | None = None
        self.row_at = now
        self.sampled_at = now
        self.verdict: FlowVerdict | None = None


class HealthMachine(Machine):
    """Unit `health`, layer 2."""

    layer: ClassVar[int] = 2

    def __init__(self, me: Self, config: HealthConfig, mtus: dict[str, int]) -> None:
        self.me = me
        self.config = config
        self.table = PathTable()
        self.names: dict[bytes, str] = {me.node: me.name}
        self._mtus = mtus
        self._flows: dict[FlowId, _Watched] = {}
        self._peers: dict[NodeId, bool] = {}
        self._tick = 0
        self._version = 0
        self._news: list[PathRow] = []

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Received:
                if item.flow is None:
                    self._rows(now, item, out)
                else:
                    self._heard(now, item, out)
            elif kind is FlowReady:
                if not item.use and item.transport != "multicast":
                    self._watch(now, item, out)
            elif kind is FlowLost:
                self._lost(now, item, out)
            elif kind is PeerUp:
                self._peer_up(item, out)
            elif kind is PeerDown:
                self._peers.pop(item.peer, None)
                if item.left:
                    self.table.forget_node(item.peer)
        self._publish(out)

    def _watch(self, now: Nanos, ready: FlowReady, out: Outbox) -> None:
        mtu = self._mtus.get(ready.adapter, 1500)
        probed = ready.transport == "udp" and self.config.probe_every > 0
        sizes = tuple(size for size in self.config.rungs if size <= mtu) if probed else ()
        listener = Listener(now, self.config.basic_ns)
        watched = self._flows[ready.flow] = _Watched(ready, sizes, listener, now)
        if ready.transport != "udp":
            # A new stream on a path whose limits the datagrams have shown already.
            key = (self.me.node, ready.adapter, ready.peer, ready.remote_adapter, "udp")
            row = self.table.rows.get(key)
            if row is not None:
                self._judge(ready.flow, watched, row, out)
        if self.deadline == NEVER:
            self.deadline = now + MILLISECOND

    def _lost(self, now: Nanos, lost: FlowLost, out: Outbox) -> None:
        watched = self._flows.pop(lost.flow, None)
        if watched is None or lost.left:
            return
        if any(other.path == watched.path for other in self._flows.values()):
            return  # another flow has taken its place, and speaks for the path
        watched.listener.alive = False
        self._state(now, watched, out)

    def _peer_up(self, item: PeerUp, out: Outbox) -> None:
        self._peers[item.peer] = True
        self.names[item.peer] = item.member.name
        self.table.forget(item.peer, item.member.incarnation)
        if self.table.rows:
            self._tell_all(item.peer, out)
        else:
            # This node, or this unit, has just begun, and knows nothing: no rows ask for all rows.
            out.down(link_unit(item.peer), SendChannel(SYNC, [encode(PathRows(()))]))

    def _tell_all(self, peer: NodeId, out: Outbox) -> None:
        rows = list(self.table.rows.values())
        for start in range(0, len(rows), ROWS_PER_FRAME):
            frame = PathRows(tuple(rows[start : start + ROWS_PER_FRAME]))
            out.down(link_unit(peer), SendChannel(SYNC, [encode(frame)]))

    # -- listening -----------------------------------------------------------------------------------------------

    def _heard(self, now: Nanos, item: Received, out: Outbox) -> None:
        assert item.flow is not None
        watched = self._flows.get(item.flow)
        if watched is None:
            return
        listener = watched.listener
        changed = False
        for frame in item.frames:
            kind = type(frame)
            if kind is Basic:
                basic: Basic = frame  # type: ignore[assignment]
                changed = listener.basic(basic, item.at) or changed
                if basic.sizes:
                    changed = listener.pair_sent(basic.n, basic.sizes) or changed
            elif kind is Probe:
                listener.probe(frame)  # type: ignore[arg-type]
        if changed:
            self._state(now, watched, out)

    def _state(self, now: Nanos, watched: _Watched, out: Outbox) -> None:
        """What we say of a path has changed: a new version of its row, a fact, and everybody hears of it."""
        watched.row = self._row(now, watched)
        watched.row_at = now
        self.table.put(watched.row, now)
        self._news.append(watched.row)
        self._fact(now, watched, "change", out)

    def _row(self, now: Nanos, watched: _Watched) -> PathRow:
        listener, ready = watched.listener, watched.ready
        # By the clock, so that it grows also when this unit is rebuilt: nobody takes a row with a lower version.
        self._version = max(self._version + 1, now // MICROSECOND)
        return PathRow(
            sender=ready.peer,
            sender_adapter=ready.remote_adapter,
            listener=self.me.node,
            listener_adapter=ready.adapter,
            transport=ready.transport,
            incarnation=self.me.incarnation,
            n=self._version,
            alive=listener.alive,
            size=listener.size,
            size_max=listener.size_max,
            loss_ppm=listener.loss_ppm,
            rtt_us=listener.rtt_us,
        )

    def _fact(self, now: Nanos, watched: _Watched, event: str, out: Outbox) -> None:
        listener, ready = watched.listener, watched.ready
        out.fact(
            PathFact(
                now_ns=now,
                event=event,
                sender=ready.peer.hex(),
                sender_name=self.names.get(ready.peer, ""),
                sender_adapter=ready.remote_adapter,
                listener_adapter=ready.adapter,
                subnet=ready.subnet,
                transport=ready.transport,
                alive=listener.alive,
                size=listener.size,
                size_max=listener.size_max,
                loss_ppm=listener.loss_ppm,
                rtt_us=listener.rtt_us,
                heard=listener.heard,
                expected=listener.expected,
            )
        )
        listener.heard = listener.expected = 0
        watched.sampled_at = now

    # -- the tick ------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        config = self.config
        late = now - self.deadline
        if late > config.basic_ns:
            for watched in self._flows.values():
                watched.listener.excuse(now, min(late, config.pause_ns_max))
        self._tick = (
            self._tick + 1 if self._tick else now // config.basic_ns
        )  # grows when rebuilt, too
        probing = config.probe_every > 0 and self._tick % config.probe_every == 0
        for flow, watched in self._flows.items():
            if watched.listener.silence(now, config.grace):
                self._state(now, watched, out)
            self._send(now, flow, watched, probing, out)
            if now - watched.row_at >= config.rows_ns:
                self._drift(now, watched)
            if now - watched.sampled_at >= config.sample_ns:
                self._fact(now, watched, "sample", out)
        self.deadline = now + config.basic_ns if self._flows else NEVER
        self._publish(out)

    def _send(
        self, now: Nanos, flow: FlowId, watched: _Watched, probing: bool, out: Outbox
    ) -> None:
        listener = watched.listener
        sizes = watched.sizes if probing else ()
        age = now - listener.heard_at if listener.peer_sent_ns else 0
        period = self.config.basic_ns
        basic = Basic(self._tick, now, period, listener.peer_sent_ns, age, sizes)
        out.down(watched.unit, SendFrame(basic, SYNC, flow), True)
        for size in sizes:
            watched.probe_n += 1
            probe = Probe(watched.probe_n, size, self._tick, period, _NO_FILL)
            out.down(watched.unit, SendFrame(probe, SYNC, flow, size), True)

    def _drift(self, now: Nanos, watched: _Watched) -> None:
        """Publish values that moved without a change of state, now and then."""
        watched.row_at = now
        row, listener = watched.row, watched.listener
        if row is not None:
            same_loss = abs(row.loss_ppm - listener.loss_ppm) < 10_000
            same_rtt = abs(row.rtt_us - listener.rtt_us) <= max(200, row.rtt_us // 2)
            if same_loss and same_rtt:
                return
        watched.row = self._row(now, watched)
        self.table.put(watched.row, now)
        self._news.append(watched.row)

    def _publish(self, out: Outbox) -> None:
        if not self._news:
            return
        news, self._news = self._news, []
        for start in range(0, len(news), ROWS_PER_FRAME):
            part = encode(PathRows(tuple(news[start : start + ROWS_PER_FRAME])))
            for peer in self._peers:
                out.down(link_unit(peer), SendChannel(SYNC, [part]))

    # -- what others say -----------------------------------------------------------------------------------------

    def _rows(self, now: Nanos, item: Received, out: Outbox) -> None:
        for frame in item.frames:
            if not isinstance(frame, PathRows):
                continue
            if not frame.rows:
                self._tell_all(item.peer, out)
            for row in frame.rows[: 10 * ROWS_PER_FRAME]:
                if (
                    row.listener != self.me.node
                    and self.table.put(row, now)
                    and row.sender == self.me.node
                ):
                    self._told(row, out)

    def _told(self, row: PathRow, out: Outbox) -> None:
        """A listener tells us what arrives of what we send: the link must know."""
        path = (row.listener, row.sender_adapter, row.listener_adapter)
        for flow, watched in self._flows.items():
            if watched.path[:3] == path:
                self._judge(flow, watched, row, out)

    def _judge(self, flow: FlowId, watched: _Watched, row: PathRow, out: Outbox) -> None:
        """What a row says of sending on one flow of its path."""
        degraded = 0 < row.size < row.size_max
        before = watched.verdict or FlowVerdict(flow, True, 0)
        if watched.ready.transport == row.transport:
            verdict = FlowVerdict(
                flow, row.alive, row.size, degraded if row.size_max else before.degraded
            )
        elif row.size_max:
            # Sizes are probed with datagrams, and a limit of the path hurts its streams as well.
            verdict = FlowVerdict(flow, before.alive, 0, degraded)
        else:
            return
        if verdict != watched.verdict:
            watched.verdict = verdict
            out.down(watched.unit, verdict)

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
