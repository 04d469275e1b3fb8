"""The unit `health`: sends heartbeats and probes on every flow, listens, publishes rows, tells links.

All flows share one tick: a basic on each flow every `basic_ns`, every second one with probes of all sizes. What it
finds it puts into the table, and the keeper tells everybody; what listeners say of our own sending comes from there.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from holdfast.health.config import HealthConfig, Signatures, Tunables
from holdfast.health.listener import Listener
from holdfast.health.neighbourhood import Neighbourhood
from holdfast.health.ports import HEALTH, KEEPER, Fresh, RowsHeard
from holdfast.health.table import PathTable
from holdfast.links.config import Self
from holdfast.links.ports import (
    FlowLost,
    FlowReady,
    FlowVerdict,
    PeerUp,
    Received,
    SendFrame,
    link_unit,
)
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import PathFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SYNC, FlowId, Nanos
from holdfast.wire.frames import Basic, PathRow, Probe

__all__ = ["HEALTH", "HealthMachine"]

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

    def __init__(
        self,
        me: Self,
        config: HealthConfig,
        mtus: dict[str, int],
        table: PathTable | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> None:
        self.me = me
        self.config = config
        self.table = table or PathTable(me.node, me.incarnation)
        self._neighbourhood = neighbourhood or Neighbourhood(me)
        self.names: dict[bytes, str] = {me.node: me.name}
        self._mtus = mtus
        self._flows: dict[FlowId, _Watched] = {}
        self._tick = 0
        self._version = 0

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Received:
                if item.flow is not None:
                    self._heard(now, item, out)
            elif kind is RowsHeard:
                for row in item.rows:
                    self._told(row, out)
            elif kind is FlowReady:
                self._watch(now, item, out)
            elif kind is FlowLost:
                self._lost(now, item, out)
            elif kind is PeerUp:
                self.names[item.peer] = item.member.name
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
        hood = self._neighbourhood
        for flow, watched in self._flows.items():
            if watched.listener.silence(now, config.grace):
                self._state(now, watched, out)
            probed = probing and hood.probes(watched.ready.subnet, watched.ready.peer)
            self._send(now, flow, watched, probed, out)
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

    def _publish(self, out: Outbox) -> None:
        if self.table.fresh:
            out.up(KEEPER, Fresh())

    # -- what others say -----------------------------------------------------------------------------------------

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

    def signatures(self, subnet: str) -> Signatures:
        """What is sent on a subnet, and how often."""
        config = self.config
        diag_ns = config.basic_ns * max(1, config.probe_every)
        basic, diag = Tunables(config.basic_ns, config.grace), Tunables(diag_ns)
        return Signatures(basic, basic, diag, diag)
