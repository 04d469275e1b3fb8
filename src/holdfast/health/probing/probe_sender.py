"""The sending half of one path: when basic heartbeats and probes are sent, and what heartbeats announce.

A tick sends the heartbeats and the probes of the lanes that are due, as far as the budget allows; each heartbeat names
the probes sent with it. A longer period is used only when the listener has confirmed it; a shorter one at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.health.config import SIGNATURES, Signatures, Tunables
from holdfast.health.frames import Heartbeat, Probe, Settled, Signature, TunablesInfo
from holdfast.health.probing.attributes import (
    ANNOUNCED_MAX,
    BURST,
    MIXED,
    MORE_HEARTBEATS,
    NEUTRAL,
    Plan,
    bytes_on_wire,
    fill_of,
    in_order,
)
from holdfast.health.probing.lag import OwnLag
from holdfast.health.probing.signature import (
    ALT_EVERY,
    BASIC_BYTES,
    BEGIN,
    DOUBT,
    PAST,
    STABLE,
    LaneSender,
    Pulse,
    basics_per_second,
    lanes_of,
)
from holdfast.health.probing.state import Heard
from holdfast.health.probing.throttle import NORMAL, Throttle
from holdfast.links.config import aligned
from holdfast.links.measuring import IP_TCP, mss_of
from holdfast.links.ports import FlowReady, SendFrame
from holdfast.types import MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos

SPREAD_NS: Final = 1 * SECOND
HURRY_FACTOR: Final = 2
HURRY_NS: Final = 1 * SECOND
"""When some heartbeats are missing, they are sent so much more often than in a suspicion, and for this time; the
listener asks again."""
_SHARED: Final = ("frag", "tcp", "multicast")
"""Lanes without their own heartbeats: every flow that carries data announces their probes."""

Sent = list[tuple[LaneSender, list[int]]]
"""What was sent of each lane, by index."""


class ProbeSender:
    """Sends on one path to one listener."""

    def __init__(
        self,
        now: Nanos,
        ready: FlowReady,
        plan: Plan,
        signatures: Signatures,
        throttle: Throttle,
        mtu: int,
        lag: OwnLag | None = None,
    ) -> None:
        """`lag`: how late this node runs, which heartbeats state."""
        self.adapter = ready.adapter
        self.remote = ready.remote_adapter
        self.subnet = ready.subnet
        self.plan = plan
        self.mtu = mtu
        self.signatures = signatures
        self.lanes = lanes_of(plan, now)
        self.pulses: dict[FlowId, Pulse] = {}
        self.due_at: Nanos = NEVER
        self.stale = True
        """The listener has not been informed of the current signature."""
        self._throttle = throttle
        self._lag = lag or OwnLag()
        self._buckets = throttle.buckets(now, throttle.path_bucket(now, mtu), ready.adapter)
        self._n = now // MILLISECOND
        self._heeded = 0
        self._period_ns = signatures.basic_active.period_ns
        self._spread_at = now
        self._speed = 0
        self.calm_until: Nanos = PAST
        """Until then no lane has anything to send, and there is no suspicion: heartbeats are sent alone."""
        self._turn = 0
        self._foremost = ""
        """The lane that waits until the budget does for its round; those that share its turn let it go first, or small
        rounds would always take what a large one needs."""
        self._rate_kbps = 0
        self._path_budget = 0
        self._burst = False
        """The next round over UDP must be sent, whatever the budget is."""
        self._owed = 0
        """Bytes of heartbeats that were sent and not charged yet: they are many and small."""

    # -- flows ---------------------------------------------------------------------------------------------------

    def flow_ready(self, now: Nanos, ready: FlowReady) -> None:
        lane = lane_of(ready)
        if lane in BASIC_BYTES and not ready.use.startswith("mss:"):
            if lane == "alt":
                self._drop_pulse("alt")
            self.calm_until = PAST
            self.pulses[ready.flow] = Pulse(ready.flow, lane, now)
            self._pace()
            self.due_at = min(self.due_at, now + MILLISECOND)
        sender = self.lanes.get(lane)
        if sender is None or (lane == "tcp" and not ready.use):
            return
        size = segment_size(ready)
        renewed = size in sender.known
        sender.flows[size] = ready.flow
        sender.known[size] = True
        if not (renewed and lane == "tcp"):
            sender.event(BEGIN)
        # A stalled connection was replaced: that is no news about the path, but a suspicion can be settled now.
        if sender.state != STABLE:
            sender.next_at = now
            self.due_at = min(self.due_at, now + MILLISECOND)
        self.respread(now)

    def _drop_pulse(self, lane: str) -> None:
        for flow in [f for f, pulse in self.pulses.items() if pulse.lane == lane]:
            del self.pulses[flow]

    def flow_lost(self, now: Nanos, flow: FlowId) -> None:
        self.pulses.pop(flow, None)
        for lane in self.lanes.values():
            for size in [size for size, f in lane.flows.items() if f == flow]:
                del lane.flows[size]
        self.respread(now)

    def flow_of(self, lane: LaneSender, size: int) -> FlowId | None:
        return lane.flows.get(size if lane.name == "tcp" else 0)

    # -- what the listener says ----------------------------------------------------------------------------------

    def settled(self, now: Nanos, frame: Settled) -> None:
        for pulse in self.pulses.values():
            if pulse.lane == frame.lane and pulse.alive != frame.alive:
                self._revive(now, pulse, frame.alive)
        lane = self.lanes.get(frame.lane)
        if lane is not None:
            lane.take(frame, now, self.signatures.diag_retry.period_ns)
            self.respread(now)

    def heard(self, now: Nanos, kind: str, alive: bool) -> None:
        """A row shows whether the listener receives flows of this kind."""
        for pulse in self.pulses.values():
            if pulse.lane == kind and alive and not pulse.alive:
                self._revive(now, pulse, alive)

    def _revive(self, now: Nanos, pulse: Pulse, alive: bool) -> None:
        pulse.alive = alive
        self._speed = 0  # heartbeats have another cost now
        main = all(p.alive for p in self.pulses.values() if p.lane == "udp")
        for other in self.pulses.values():
            if other is pulse if alive else other.lane == "alt":
                other.next_at = now
            if other.lane == "alt":
                other.every = ALT_EVERY if main else 1  # it may have to carry the data now
        self._pace()
        self.due_at = min(self.due_at, now + MILLISECOND)

    def _pace(self) -> None:
        """How often each flow sends heartbeats."""
        for pulse in self.pulses.values():
            period_ns = self._period_ns if pulse.alive else self.signatures.basic_retry.period_ns
            pulse.period_ns = period_ns * pulse.every

    def doubted(self, now: Nanos, codes: bytes) -> tuple[str, ...]:
        """The listener misses combinations, or receives unexpected ones: send everything separately, now. Returns the
        names of these lanes."""
        names: dict[str, bool] = {}
        for code in codes:
            if code == MORE_HEARTBEATS:
                self._hurry(now)
            elif code == BURST:
                self._burst = self._rate_kbps > 0
            elif code < len(self.plan.codes):
                lane = self.lanes[self.plan.codes[code][0].name]
                names[lane.name] = True
                lane.event(DOUBT)
                lane.next_at = min(lane.next_at, now)
                self.calm_until = PAST
                self.due_at = min(self.due_at, now + MILLISECOND)
        return tuple(names)

    def _hurry(self, now: Nanos) -> None:
        """Send more heartbeats over UDP than announced, for a moment."""
        for pulse in self.pulses.values():
            if pulse.lane == "udp" and pulse.alive:
                pulse.hurried_until = now + HURRY_NS
                pulse.next_at = now
                self.due_at = min(self.due_at, now + MILLISECOND)

    def signature_acked(self, now: Nanos, n: int) -> None:
        """The listener uses the announced periods: a longer one may start."""
        if n == self._n and n > self._heeded:
            self._heeded = n
            self._period_ns = self.signatures.basic_active.period_ns
            self.respread(now)

    def clock_set_back(self, now: Nanos) -> None:
        """Our clock went backwards: everything is due again soon."""
        self.calm_until = PAST
        for pulse in self.pulses.values():
            pulse.next_at = min(pulse.next_at, now)
        for lane in self.lanes.values():
            lane.next_at = min(lane.next_at, now)
            self._spread_at = now
            if lane.retry_at < NEVER:
                lane.retry_at = min(lane.retry_at, now)
        if self.pulses:
            self.due_at = min(self.due_at, now + MILLISECOND)

    # -- tunables ------------------------------------------------------------------------------------------------

    def tune(self, now: Nanos, signatures: Signatures) -> None:
        """New tunables: shorter periods at once, a longer heartbeat period when it is confirmed."""
        self.signatures = signatures
        period_ns = signatures.basic_active.period_ns
        if period_ns <= self._period_ns:
            self._period_ns = period_ns
            for pulse in self.pulses.values():
                pulse.next_at = min(pulse.next_at, aligned(now, period_ns))
            self.due_at = min(self.due_at, now + MILLISECOND)
        for lane in self.lanes.values():
            lane.next_at = min(lane.next_at, now + signatures.diag_active.period_ns)
        self._n += 1
        self.respread(now)

    def replan(self, now: Nanos, plan: Plan) -> None:
        """Other sizes or patterns are needed."""
        if plan.id == self.plan.id:
            return
        self.plan = plan
        for name, lane_plan in plan.lanes.items():
            lane = self.lanes.get(name)
            if lane is None:
                self.lanes[name] = LaneSender(lane_plan, plan.patterns, now)
            else:
                lane.adopt(lane_plan, plan.patterns)
                lane.next_at = now
        for name in [name for name in self.lanes if name not in plan.lanes]:
            del self.lanes[name]
        self._n += 1
        self.respread(now)

    def respread(self, now: Nanos) -> None:
        """What is sent has changed: distribute it over the budget, and inform the listener."""
        self.spread(now)
        self.stale = True

    def spread(self, now: Nanos) -> None:
        """How often each lane is sent, given the current budget and demand."""
        self._spread_at = now + SPREAD_NS
        self.calm_until = PAST
        self._settle_debts()
        self._pace()
        basics = basics_per_second(self.pulses.values())
        costs = {name: lane.round_cost(self.mtu) for name, lane in self.lanes.items() if lane.flows}
        wish = self.signatures.diag_active.period_ns
        self._speed = self._throttle.speed(now, self.subnet, self.adapter)
        wish = wish * NORMAL // self._speed
        budget = self._path_budget
        for name, period in self._throttle.spread(costs, wish, basics, budget).items():
            self.lanes[name].period_ns = period

    def narrow(self, now: Nanos, rate_kbps: int) -> None:
        """The listener says that the path carries only so much (0: that it carries more again)."""
        if rate_kbps == self._rate_kbps:
            return
        self._rate_kbps = rate_kbps
        self._path_budget = self._throttle.limit(self._buckets[0], rate_kbps)
        self.spread(now)

    def _look_at_demand(self, now: Nanos) -> None:
        """A busy window may have started or ended."""
        if self._throttle.speed(now, self.subnet, self.adapter) != self._speed:
            self.spread(now)
            return
        self._spread_at = now + SPREAD_NS
        self._settle_debts()
        self._look_ahead()

    def signature(self) -> Signature:
        self.stale = False
        return Signature(
            adapter=self.adapter,
            listener_adapter=self.remote,
            n=self._n,
            plan=self.plan.id,
            patterns=self.plan.patterns,
            lanes=self.plan.spoken(),
            tunables=tuple(_info(name, getattr(self.signatures, name)) for name in SIGNATURES),
            active=self._codes((lane, lane.active()) for lane in self.lanes.values() if lane.flows),
            retry=self._codes((lane, lane.retry()) for lane in self.lanes.values() if lane.flows),
        )

    @staticmethod
    def _codes(sent: Iterable[tuple[LaneSender, list[int]]]) -> bytes:
        return bytes(lane.plan.base + index for lane, indexes in sent for index in indexes)

    # -- the tick ------------------------------------------------------------------------------------------------

    @property
    def hears_casts(self) -> bool:
        lane = self.lanes.get("multicast")
        return lane is not None and bool(lane.flows)

    def casts(self, now: Nanos) -> list[int]:
        """Combinations of the multicast lane that are due to this listener; they are sent once for all."""
        lane = self.lanes.get("multicast")
        if lane is None or not lane.flows or now < self.calm_until or self._is_busy():
            return []
        chosen = lane.choose(now, self.signatures)
        if chosen:
            lane.sent()
        return chosen

    def tick(self, now: Nanos, heard: dict[FlowId, Heard], casts: list[int]) -> list[SendFrame]:
        """Everything that is due. `heard` is what arrives on each flow, to be echoed; `casts` were just sent by
        multicast and must be announced."""
        if now >= self._spread_at:
            self._look_at_demand(now)
        if now < self.calm_until and not casts:
            return self.basics(now, heard)
        due = {pulse.lane for pulse in self.pulses.values() if now >= pulse.next_at}
        hurried = self._hurried()
        sends: list[SendFrame] = []
        if due or hurried:
            pair = pair_at(now)
            announced = {
                lane.name: indexes
                for lane, indexes in self._probes(now, due | hurried, pair, sends)
            }
            if casts and "multicast" in self.lanes:
                announced["multicast"] = casts
            # Between its times, a heartbeat is sent only to announce something.
            for pulse in self.pulses.values():
                codes = self._announce(pulse, announced) if announced else b""
                if codes or pulse.lane in due:
                    sends.append(self._basic(now, pulse, heard.get(pulse.flow), pair, codes))
        self._look_ahead()
        self._next(now)
        return sends

    def basics(self, now: Nanos, heard: dict[FlowId, Heard]) -> list[SendFrame]:
        """What is due before `calm_until`, when there is nothing to announce."""
        sends = []
        due_at = NEVER
        for pulse in self.pulses.values():
            next_at = pulse.next_at
            if now >= next_at:
                sends.append(self._basic(now, pulse, heard.get(pulse.flow)))
                next_at = pulse.next_at
            if next_at < due_at:
                due_at = next_at
        self.due_at = due_at
        return sends

    def _look_ahead(self) -> None:
        """When something besides heartbeats may have to be sent."""
        at = self._spread_at
        for lane in self.lanes.values():
            if lane.flows:
                at = min(at, lane.next_at, lane.retry_at) if lane.state == STABLE else PAST
        self.calm_until = at

    def _hurried(self) -> set[str]:
        """The lanes whose heartbeats must announce probes of a suspicion ahead of time."""
        found: set[str] = set()
        for name, lane in self.lanes.items():
            if lane.state != STABLE and lane.flows:
                found.update(("alt",) if name == "alt" else ("udp", "tcp"))
        return found & {pulse.lane for pulse in self.pulses.values()} if found else found

    def _probes(self, now: Nanos, lanes: set[str], pair: int, sends: list[SendFrame]) -> Sent:
        """Probes of the lanes that a heartbeat can announce now, as far as the budget and the heartbeat have room."""
        if not self.lanes or now < self._throttle.hushed_until:
            return []
        self._turn += 1
        shared = _SHARED[self._turn % 3 :] + _SHARED[: self._turn % 3]
        if self._foremost:
            shared = (self._foremost, *(name for name in shared if name != self._foremost))
        room = ANNOUNCED_MAX - 4
        sent: Sent = []
        for name in ("udp", "alt", *shared):
            lane = self.lanes.get(name)
            if lane is None or name == "multicast" or (name not in _SHARED and name not in lanes):
                continue
            if name in _SHARED and not lanes & {"udp", "tcp"}:
                continue
            if name not in ("udp", "alt") and room <= 0:
                continue
            if self._foremost and name in _SHARED and name != self._foremost:
                continue
            busy = name == "frag" and self._is_busy()
            chosen = [] if busy else lane.choose(now, self.signatures)
            if not chosen:
                if name == self._foremost:
                    self._foremost = ""
                continue
            went = self._send_lane(now, lane, chosen[:ANNOUNCED_MAX], pair, sends)
            if went:
                lane.sent()
                room -= 0 if name == "alt" else len(went)
                sent.append((lane, went))
        return sent

    def _is_busy(self) -> bool:
        """Whether the rest of the budget is reserved for suspicions about data flows: fragments are expensive and can
        wait."""
        bucket = self._buckets[0]
        if 2 * bucket.tokens >= bucket.cap:
            return False
        lanes = [self.lanes.get(name) for name in ("udp", "tcp")]
        return any(lane is not None and lane.flows and lane.state != STABLE for lane in lanes)

    def _send_lane(
        self, now: Nanos, lane: LaneSender, chosen: list[int], pair: int, sends: list[SendFrame]
    ) -> list[int]:
        """Send these probes, all or none: half a round would be charged and settle nothing."""
        found = []
        cost = 0
        if lane.name == "tcp":
            order = in_order(lane.plan.fills, pair)
            chosen = sorted(chosen, key=lambda index: order.index(index % lane.plan.fills))
        for index in chosen:
            rung, fill = divmod(index, lane.plan.fills)
            size = lane.plan.sizes[rung]
            flow = self.flow_of(lane, size)
            if flow is not None:
                found.append((index, fill, size, flow))
                cost += bytes_on_wire(lane.name, size, self.mtu)
        self._settle_debts()
        paid = bool(found) and self._throttle.take(now, self._buckets, cost)
        if self._burst and not paid and found and lane.name == "udp":
            # Once in a while, to find out whether the path is still so narrow.
            self._throttle.pay(self._buckets, cost)
            paid = True
        if lane.name == "udp":
            self._burst = False
        if lane.name in _SHARED:
            self._foremost = "" if paid or not found else lane.name
        if not found:
            return []
        if not paid:
            # As soon as it can be paid for, and not before, to avoid useless wake-ups.
            lane.postpone(now + max(self._throttle.wait_ns(self._buckets, cost), MILLISECOND))
            return []
        for index, fill, size, flow in found:
            sends.append(SendFrame(self.probe(lane, index, fill, size, pair), SYNC, flow, size))
        return [index for index, _, _, _ in found]

    def _settle_debts(self) -> None:
        owed, self._owed = self._owed, 0
        self._throttle.pay(self._buckets, owed)

    def pay(self, size: int) -> None:
        """A multicast was sent on this path, too."""
        self._throttle.pay(self._buckets, size)

    def probe(
        self,
        lane: LaneSender,
        index: int,
        fill: int,
        size: int,
        pair: int,
        bad: tuple[str, ...] = (),
    ) -> Probe:
        """`bad`: patterns that other listeners do not receive."""
        patterns = lane.patterns
        if fill == MIXED:
            patterns = tuple(name for name in lane.good_patterns() if name not in bad)
        octets = fill_of(patterns, fill if patterns else NEUTRAL, lane.turn % 8)
        return Probe(lane.plan.base + index, size, pair, self.plan.id, octets)

    def _basic(
        self, now: Nanos, pulse: Pulse, heard: Heard | None, pair: int = 0, codes: bytes = b""
    ) -> SendFrame:
        """A basic heartbeat: what it announces about its successor, what it echoes, and (`pair`, `codes`) its
        probes."""
        period_ns = pulse.period_ns
        pulse.n += 1
        step_ns = period_ns
        if now < pulse.hurried_until:
            retry_ns = self.signatures.basic_active.retry_ns
            step_ns = max(1, min(period_ns, retry_ns) // HURRY_FACTOR)
        pulse.next_at = (
            now // step_ns + 1
        ) * step_ns  # `aligned`, inlined in the most frequent place
        self._owed += pulse.cost
        echo_ns = echo_age_ns = 0
        if heard is not None:
            live = heard.live
            echo_ns = live.peer_sent_ns
            if echo_ns and now > live.heard_at:
                echo_age_ns = now - live.heard_at
        grace, lag = self.signatures.basic_active.grace, self._lag.steps
        if not codes and not lag:
            basic = Heartbeat(pulse.n, now, period_ns, echo_ns, echo_age_ns, grace)
        else:
            head = (pulse.n, now, period_ns, echo_ns, echo_age_ns, grace)
            basic = Heartbeat(*head, self.plan.id if codes else 0, pair, codes, lag)
        return SendFrame(basic, SYNC, pulse.flow)

    def _announce(self, pulse: Pulse, announced: dict[str, list[int]]) -> bytes:
        codes = [
            self.lanes[name].plan.base + index
            for name in announces(pulse.lane)
            for index in announced.get(name, ())
        ]
        return bytes(codes[:ANNOUNCED_MAX])

    def _next(self, now: Nanos) -> None:
        due = min((pulse.next_at for pulse in self.pulses.values()), default=NEVER)
        for lane in self.lanes.values():
            if lane.state != STABLE and lane.flows and self.pulses:
                begin = max(now, lane.next_at - 1)
                due = min(due, aligned(begin, lane.focus_ns(self.signatures)))
        self.due_at = max(due, now + MILLISECOND) if due < NEVER else NEVER


def announces(lane: str) -> tuple[str, ...]:
    """The lanes whose probes the heartbeats of this one announce."""
    return ("alt",) if lane == "alt" else _SHARED if lane == "tcp" else ("udp", *_SHARED)


def pair_at(now: Nanos) -> int:
    """The number of the current round; the same for all paths, because a multicast probe belongs to all of them."""
    return now // MILLISECOND & 0xFFFF_FFFF


def segment_size(ready: FlowReady) -> int:
    """The packet size that a connection measures; 0 for other flows."""
    return mss + IP_TCP if (mss := mss_of(ready.use)) else 0


def lane_of(ready: FlowReady) -> str:
    """The lane of a flow."""
    if ready.transport == "udp" and ready.use in ("alt", "frag"):
        return ready.use
    return ready.transport


def _info(name: str, tunables: Tunables) -> TunablesInfo:
    return TunablesInfo(name, tunables.period_ns, tunables.grace, tunables.retry_ns)
