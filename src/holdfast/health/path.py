"""One path in both directions: what we send on it, what we hear on it, and what the two sides say to each other."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.health.listener import PathListener
from holdfast.health.placement import Placement
from holdfast.health.signature import BASIC_BYTES
from holdfast.health.speaker import Speaker, lane_of
from holdfast.health.state import State
from holdfast.health.verdicts import of_this_flow
from holdfast.links.ports import FlowReady, FlowVerdict, link_unit
from holdfast.telemetry.facts import PathFact
from holdfast.types import NEVER, FlowId, Nanos, NodeId
from holdfast.wire.frames import (
    AnyFrame,
    Confirm,
    Heeded,
    Notice,
    PathRow,
    Settled,
    Signature,
)

PathKey = tuple[bytes, str, str]
"""The peer, our adapter, its adapter."""
Spoken = Signature | Heeded | Notice | Settled | Confirm
FIRM = ("alive", "size", "size_max", "patterns", "bad_patterns", "holes", "flows", "flows_bad")
"""What of a row is a state; the rest drifts."""
SPOKEN = (Signature, Heeded, Notice, Settled, Confirm)


def key_of(peer: bytes, frame: Spoken) -> PathKey:
    """The path that a frame speaks of; it names the sender's adapter first, and the sender may be either side."""
    if isinstance(frame, (Signature, Confirm)):
        return peer, frame.listener_adapter, frame.adapter
    return peer, frame.adapter, frame.listener_adapter


class Path:
    """From an adapter of this node to one of a peer, and back."""

    __slots__ = (
        "armed_at",
        "flows",
        "key",
        "listener",
        "peer",
        "ready",
        "row_at",
        "rows",
        "said",
        "sample_at",
        "sampled_at",
        "speaker",
        "unit",
        "verdicts",
    )

    def __init__(
        self, now: Nanos, ready: FlowReady, speaker: Speaker, listener: PathListener
    ) -> None:
        self.key: PathKey = (ready.peer, ready.adapter, ready.remote_adapter)
        self.peer: NodeId = ready.peer
        self.ready = ready
        self.unit = link_unit(ready.peer)
        self.speaker = speaker
        self.listener = listener
        self.flows: dict[FlowId, FlowReady] = {}
        self.rows: dict[str, PathRow] = {}
        """What we publish of it, by kind."""
        self.row_at = now
        self.sample_at = now
        """When to look again whether there is something to publish or to record without a change."""
        self.sampled_at: dict[str, Nanos] = {}
        self.said: dict[str, Settled] = {}
        """What the peer says of each lane that we send."""
        self.verdicts: dict[FlowId, FlowVerdict] = {}
        self.armed_at: Nanos = NEVER

    # -- flows ---------------------------------------------------------------------------------------------------

    def flow_ready(self, now: Nanos, ready: FlowReady) -> None:
        self.flows[ready.flow] = ready
        if ready.use in ("", "alt"):
            self.said.pop(lane_of(ready), None)  # that was said of another flow
        self.listener.flow_ready(now, ready)
        self.speaker.flow_ready(now, ready)

    def flow_lost(self, now: Nanos, flow: FlowId) -> str:
        """A flow is gone; the kind that has none left because of that, if any."""
        self.flows.pop(flow, None)
        self.verdicts.pop(flow, None)
        self.speaker.flow_lost(now, flow)
        return self.listener.flow_lost(flow)

    # -- what arrives --------------------------------------------------------------------------------------------

    def told(self, now: Nanos, frame: AnyFrame) -> None:
        """What the peer says of the path, as its listener or as its sender."""
        match frame:
            case Signature():
                self.listener.signature(now, frame)
            case Confirm():
                self.listener.confirm(frame)
            case Heeded():
                self.speaker.heeded(now, frame.n)
            case Notice():
                if frame.plan == self.speaker.plan.id:
                    self.speaker.doubted(now, frame.codes)
                else:
                    self.speaker.stale = True
            case Settled():
                if frame.lane in self.speaker.lanes or frame.lane in BASIC_BYTES:
                    self.said[frame.lane] = frame
                    self.speaker.settled(now, frame)
                    reply = Confirm(frame.adapter, frame.listener_adapter, frame.lane, frame.n)
                    self.listener.replies.append(reply)

    def replies(self) -> list[AnyFrame]:
        """What is to be said to the peer now."""
        listener = self.listener
        replies, listener.replies = listener.replies, []
        if self.speaker.stale and self.flows:
            replies.append(self.speaker.signature())
        return replies

    def judged(self, now: Nanos, rows: list[PathRow], placement: Placement) -> list[FlowVerdict]:
        """What these rows, and what the peer says of single flows, mean for sending here, where that is new."""
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
        """What the peer says of this very flow."""
        if ready.transport == "udp" and self.speaker.pulses.get(ready.flow):
            return self.said.get(lane_of(ready))
        return None

    # -- what is published ---------------------------------------------------------------------------------------

    def row(self, kind: str, me: bytes, incarnation: int, version: int) -> PathRow:
        state = self.listener.state(kind)
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
        """Whether there is nothing new to say of a kind, whatever has moved a little."""
        row, state = self.rows.get(kind), self.listener.state(kind)
        return row is not None and all(getattr(row, name) == getattr(state, name) for name in FIRM)

    def drifted(self, kind: str) -> bool:
        """Whether values have moved without a change of state."""
        row = self.rows.get(kind)
        if row is None:
            return True
        loss_ppm, rtt_us, jitter_us, rate_kbps = self.listener.figures(kind)
        return (
            abs(row.loss_ppm - loss_ppm) >= 10_000
            or abs(row.rtt_us - rtt_us) > max(1000, row.rtt_us // 2)
            or abs(row.jitter_us - jitter_us) > max(1000, row.jitter_us)
            or abs(row.rate_kbps.bit_length() - rate_kbps.bit_length()) > 2
        )

    def fact(self, now: Nanos, kind: str, event: str, name_of: Callable[[bytes], str]) -> PathFact:
        state = self.listener.state(kind)
        heard, expected = self.listener.tally(kind)
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
            worsened=self.listener.turns.get(kind, 0),
        )
