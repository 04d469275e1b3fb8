"""Loss, delay, congestion and the fate of application data on one path, as its listener sees them.

They are looked at twice a second, more often while loss is suspected, and at once when probes of a round that waited in
a queue are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.health.probing.attributes import KIND_OF
from holdfast.health.probing.congestion import Congestion
from holdfast.health.probing.data_evidence import DataEvidence
from holdfast.health.probing.lane import Lane
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.metrics import BUCKET_NS, LossWindow
from holdfast.health.probing.signature import PAST
from holdfast.health.probing.silence import CROWDED_SILENCE_NS, Silence
from holdfast.health.probing.state import Heard
from holdfast.health.probing.values import State
from holdfast.health.verdict import LOSSY_PPM
from holdfast.types import MILLISECOND, FlowId, Nanos

ASK_NS: Final = 500 * MILLISECOND
LOOK_NS: Final = 100 * MILLISECOND
"""How often loss is judged while it is suspected."""


class Figures:
    """The figures of one path that can become a verdict."""

    __slots__ = (
        "_hurried_at",
        "at",
        "congestion",
        "crowding",
        "data",
        "datagrams",
        "doubtful",
        "narrow",
    )

    def __init__(self, now: Nanos) -> None:
        self.congestion = Congestion(now)
        self.data = DataEvidence()
        self.at: Nanos = PAST
        """When they are looked at again."""
        self.crowding = False
        """Probes of a crowded round are missing, and that was not looked at yet."""
        self.datagrams: Liveness | None = None
        """The heartbeats of the flow that carries datagrams."""
        self.doubtful = False
        """Heartbeats are missing on some flow, and it is not settled whether that is loss."""
        self.narrow = False
        """A limit of the rate is known."""
        self._hurried_at = now - ASK_NS

    def look(
        self,
        now: Nanos,
        flows: Mapping[FlowId, Heard],
        lanes: Mapping[str, Lane],
        silence: Silence,
    ) -> list[tuple[str, bool]]:
        """Judge loss, delay and congestion. Returns the packet kinds with another verdict, and whether it is worse."""
        self.at = now + BUCKET_NS
        self.crowding = False
        self.doubtful = False
        changed = []
        congestion = self.congestion
        if lanes and self._look_at_congestion(now, flows, lanes, silence):
            self.narrow = congestion.limit_kbps > 0
            changed.append(("udp", self.narrow))
        excused = bool(lanes) and congestion.full(now)
        for heard in flows.values():
            live = heard.live
            window = live.window
            outages = window.outages
            before, flapped = window.lossy, outages.lasting_ns > 0
            lane = lanes.get(heard.lane)
            if lane is not None and not lane.stream and (lane.small[0] or lane.small[1]):
                _sample(lane, window)
            held = live is self.datagrams and not before and bool(lanes)
            window.roll(now, excused, held and congestion.holds_loss(now))
            if window.suspected or window.lossy:
                self.doubtful = self.doubtful or window.unsettled
                if window.suspected:
                    self.at = now + LOOK_NS
            slow = live.trip.delay.delay_us > 0
            flaps = outages.lasting_ns > 0
            if window.lossy != before or flaps != flapped or slow != heard.slow:
                heard.slow = slow
                worse = window.lossy > before or flaps > flapped
                changed.append((KIND_OF[heard.lane], worse))
        return changed

    def _look_at_congestion(
        self,
        now: Nanos,
        flows: Mapping[FlowId, Heard],
        lanes: Mapping[str, Lane],
        silence: Silence,
    ) -> bool:
        missed = calmly = burst = False
        for name, lane in lanes.items():
            if lane.crowd_misses:
                lane.crowd_misses, missed = 0, True
            if lane.calm_misses:
                lane.calm_misses, calmly = 0, calmly or name == "udp"
            if lane.bursts:
                lane.bursts, burst = 0, burst or name == "udp"
        datagrams = self.datagrams
        if (
            datagrams is not None
            and now - datagrams.heard_at > datagrams.promise_ns
            and datagrams.overdue(now)
        ):
            missed = (
                missed
                or (not _retransmits(datagrams) and _starved(now, flows))
                or silence.filled(now, flows.values(), self.congestion)
                or self.congestion.outlives(now, datagrams)
            )
        if missed and not self.congestion.limit_kbps:
            silence.ask(now)
        return self.congestion.look(now, datagrams, missed, calmly, burst)

    def needs_heartbeats(self, now: Nanos) -> bool:
        """Whether some are missing, and more of them would settle soon whether that is significant, and how much it is;
        or whether none are missing any more, and they would settle that."""
        live, congestion = self.datagrams, self.congestion
        if live is None or not live.window.unsettled or now - self._hurried_at < ASK_NS:
            return False
        if congestion.full(now):
            return False  # they are missing because more is sent than the path carries
        self._hurried_at = now
        return True

    def look_at_data(
        self, now: Nanos, flows: Mapping[FlowId, Heard], lane: Lane | None, state: State
    ) -> bool:
        """Whether application data does not pass, and no probe says why; True when that has changed. `state`: what is
        said of datagrams now."""
        limited = state.size < state.size_max or state.holes or state.bad_patterns
        poor = state.flows_bad or state.loss_ppm >= LOSSY_PPM or state.rate_limit_kbps
        if limited or poor or not state.alive:
            self.data.explained()
        heard_at = {flow: h.live.heard_at for flow, h in flows.items() if h.live.alive}
        return self.data.look(now, heard_at, lane is not None and bool(lane.doubts))


def _sample(lane: Lane, window: LossWindow) -> None:
    """Probes show the loss of a flow as heartbeats do, and are more while a suspicion is settled."""
    came, missing = lane.small
    lane.small = [0, 0]
    if came:
        window.sampled(came, missing)


def _retransmits(datagrams: Liveness) -> bool:
    """Whether streams are late because they had to retransmit, as far as datagrams show."""
    window = datagrams.window
    return window.lossy or (window.interrupted and not datagrams.trip.delay.crowded)


def _starved(now: Nanos, flows: Mapping[FlowId, Heard]) -> bool:
    """Whether a stream is heard, but late, while datagrams are missing: it fills the queue, and they are dropped. A
    filter of datagrams does not delay streams."""
    lives = [heard.live for heard in flows.values() if heard.live.stream]
    return any(
        live.trip.delay.crowded and now - live.heard_at < CROWDED_SILENCE_NS for live in lives
    )
