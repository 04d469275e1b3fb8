"""One path in both directions: the sending side, the receiving side, and the messages between the two ends."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.health.frames import Confirm, Notice, PathRow, Settled, Signature, SignatureAck
from holdfast.health.placement.fitness import Placement
from holdfast.health.placement.flow_rows import of_this_flow
from holdfast.health.probing.probe_receiver import ProbeReceiver
from holdfast.health.probing.probe_sender import ProbeSender, lane_of
from holdfast.health.probing.signature import BASIC_BYTES
from holdfast.health.probing.values import State
from holdfast.health.verdict import LOSSY_PPM
from holdfast.links.ports import FlowReady, FlowVerdict, link_unit
from holdfast.telemetry.facts import PathFact
from holdfast.types import NEVER, FlowId, Nanos, NodeId
from holdfast.wire.frames import Frame

PathKey = tuple[bytes, str, str]
"""The peer, our adapter, its adapter."""
Spoken = Signature | SignatureAck | Notice | Settled | Confirm
FIRM = (
    "alive",
    "size",
    "size_max",
    "patterns",
    "bad_patterns",
    "holes",
    "flows",
    "flows_bad",
    "data_lost",
)
"""What of a row is a state; the rest drifts."""


def _flags(values: PathRow | State) -> tuple[bool, ...]:
    """Verdicts on figures that drift: those are states again."""
    return (
        values.loss_ppm >= LOSSY_PPM,
        values.delay_us > 0,
        values.rate_limit_kbps > 0,
        values.outage_ms > 0,
    )


SPOKEN = (Signature, SignatureAck, Notice, Settled, Confirm)


def key_of(peer: bytes, frame: Spoken) -> PathKey:
    """The path of a frame, which names the adapter of the sender first; the sender may be either end."""
    if isinstance(frame, (Signature, Confirm)):
        return peer, frame.listener_adapter, frame.adapter
    return peer, frame.adapter, frame.listener_adapter


class Path:
    """From an adapter of this node to one of a peer, and back."""

    __slots__ = (
        "armed_at",
        "flows",
        "key",
        "peer",
        "probe_receiver",
        "probe_sender",
        "ready",
        "row_at",
        "rows",
        "said",
        "sample_at",
        "sampled_at",
        "unit",
        "verdicts",
    )

    def __init__(
        self, now: Nanos, ready: FlowReady, probe_sender: ProbeSender, listener: ProbeReceiver
    ) -> None:
        self.key: PathKey = (ready.peer, ready.adapter, ready.remote_adapter)
        self.peer: NodeId = ready.peer
        self.ready = ready
        self.unit = link_unit(ready.peer)
        self.probe_sender = probe_sender
        self.probe_receiver = listener
        self.flows: dict[FlowId, FlowReady] = {}
        self.rows: dict[str, PathRow] = {}
        """What we publish about it, by kind."""
        self.row_at = now
        self.sample_at = now
        """When to check again whether there is something to publish or to record without a change."""
        self.sampled_at: dict[str, Nanos] = {}
        self.said: dict[str, Settled] = {}
        """The reports of the peer about each lane that we send."""
        self.verdicts: dict[FlowId, FlowVerdict] = {}
        self.armed_at: Nanos = NEVER

    # -- flows ---------------------------------------------------------------------------------------------------

    def flow_ready(self, now: Nanos, ready: FlowReady) -> None:
        self.flows[ready.flow] = ready
        if ready.use in ("", "alt"):
            self.said.pop(lane_of(ready), None)  # that report was about another flow
        self.probe_receiver.flow_ready(now, ready)
        self.probe_sender.flow_ready(now, ready)

    def flow_lost(self, now: Nanos, flow: FlowId) -> str:
        """A flow is gone; returns the kind that has none left, if any."""
        self.flows.pop(flow, None)
        self.verdicts.pop(flow, None)
        self.probe_sender.flow_lost(now, flow)
        return self.probe_receiver.flow_lost(now, flow)

    # -- what arrives --------------------------------------------------------------------------------------------

    def told(self, now: Nanos, frame: Frame) -> None:
        """Messages of the peer about the path, as its listener or as its sender."""
        match frame:
            case Signature():
                self.probe_receiver.signature(now, frame)
            case Confirm():
                self.probe_receiver.confirm(frame)
            case SignatureAck():
                self.probe_sender.signature_acked(now, frame.n)
            case Notice():
                if frame.plan == self.probe_sender.plan.id:
                    if "tcp" in self.probe_sender.doubted(now, frame.codes):
                        self.probe_receiver.streams_doubted(now)
                else:
                    self.probe_sender.stale = True
            case Settled():
                if frame.lane in self.probe_sender.lanes or frame.lane in BASIC_BYTES:
                    self.said[frame.lane] = frame
                    if frame.lane == "tcp":
                        self.probe_receiver.streams_unheard(not frame.alive)
                    self.probe_sender.settled(now, frame)
                    reply = Confirm(frame.adapter, frame.listener_adapter, frame.lane, frame.n)
                    self.probe_receiver.replies.append(reply)

    def replies(self) -> list[Frame]:
        """Messages for the peer now."""
        listener = self.probe_receiver
        replies, listener.replies = listener.replies, []
        if self.probe_sender.stale and self.flows:
            replies.append(self.probe_sender.signature())
        return replies

    def judged(self, now: Nanos, rows: list[PathRow], placement: Placement) -> list[FlowVerdict]:
        """What these rows, and the reports of the peer about single flows, mean for sending here, if that is new."""
        news = []
        for flow, ready in self.flows.items():
            if ready.use not in ("", "alt") or ready.transport == "multicast":
                continue
            said = self.said_of(ready)
            own = [of_this_flow(row, said) if row.transport == "udp" else row for row in rows]
            found = placement.verdict(now, ready, own)
            if found != self.verdicts.get(flow):
                self.verdicts[flow] = found
                news.append(found)
        return news

    def said_of(self, ready: FlowReady) -> Settled | None:
        """The report of the peer about this flow."""
        if ready.transport == "udp" and self.probe_sender.pulses.get(ready.flow):
            return self.said.get(lane_of(ready))
        return None

    # -- what is published ---------------------------------------------------------------------------------------

    def row(self, kind: str, me: bytes, incarnation: int, version: int) -> PathRow:
        state = self.probe_receiver.state(kind)
        row = self.rows[kind] = PathRow(
            sender=self.peer,
            sender_adapter=self.key[2],
            listener=me,
            listener_adapter=self.key[1],
            transport=kind,
            incarnation=incarnation,
            n=version,
            **{name: getattr(state, name) for name in State.__struct_fields__},
        )
        return row

    def same(self, kind: str) -> bool:
        """Whether there is nothing new to report about a kind, apart from small changes."""
        row, state = self.rows.get(kind), self.probe_receiver.state(kind)
        if row is None or any(getattr(row, name) != getattr(state, name) for name in FIRM):
            return False
        return _flags(row) == _flags(state)

    def unknown(self, kind: str) -> bool:
        """Whether nothing was ever known of a kind: a connection that ends before anything was heard on it is replaced
        by another, and says nothing of the path."""
        return kind not in self.rows and not self.probe_receiver.speaks(kind)

    def drifted(self, kind: str) -> bool:
        """Whether values have changed without a change of state."""
        row = self.rows.get(kind)
        if row is None:
            return True
        loss_ppm, rtt_us, jitter_us, rate_kbps = self.probe_receiver.figures(kind)
        return (
            abs(row.loss_ppm - loss_ppm) >= 10_000
            or abs(row.rtt_us - rtt_us) > max(1000, row.rtt_us // 2)
            or abs(row.jitter_us - jitter_us) > max(1000, row.jitter_us)
            or abs(row.rate_kbps.bit_length() - rate_kbps.bit_length()) > 2
        )

    def fact(self, now: Nanos, kind: str, event: str, name_of: Callable[[bytes], str]) -> PathFact:
        state = self.probe_receiver.state(kind)
        heard, expected = self.probe_receiver.tally(kind)
        self.sampled_at[kind] = now
        return PathFact(
            now_ns=now,
            event=event,
            sender=self.peer.hex(),
            sender_name=name_of(self.peer),
            sender_adapter=self.key[2],
            listener_adapter=self.key[1],
            subnet=self.ready.subnet,
            transport=kind,
            alive=state.alive,
            size=state.size,
            size_max=state.size_max,
            loss_ppm=state.loss_ppm,
            rtt_us=state.rtt_us,
            heard=heard,
            expected=expected,
            patterns=",".join(state.patterns),
            bad_patterns=",".join(state.bad_patterns),
            holes=",".join(map(str, state.holes)),
            jitter_us=state.jitter_us,
            rate_kbps=state.rate_kbps,
            flows=state.flows,
            flows_bad=state.flows_bad,
            loss_window_ms=state.loss_window_ms,
            delay_us=state.delay_us,
            rate_limit_kbps=state.rate_limit_kbps,
            data_lost=state.data_lost,
            outage_ms=state.outage_ms,
            outage_every_ms=state.outage_every_ms,
            worsened=self.probe_receiver.turns.get(kind, 0),
        )
