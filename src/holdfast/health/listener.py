"""The listening half of one path: what arrives from one adapter of a peer at one of ours, and what it means.

It joins the liveness of each flow (`liveness`) with the sizes and patterns of each lane (`lane`), follows what the
sender announces, tells it of doubts and of what passes, and says what is to be published: a death at once, other values
when the sender has confirmed them.
"""

from __future__ import annotations

from typing import Final

from holdfast.health.attributes import KIND_OF, MIXED, Plan, heard_plan
from holdfast.health.lane import SETTLE_NS_MAX, Lane, Values
from holdfast.health.liveness import PROMISE_MAX, Liveness
from holdfast.health.metrics import Throughput
from holdfast.health.signature import PAST
from holdfast.health.speaker import lane_of, segment_size
from holdfast.health.state import BORROWED, UNKNOWN, Heard, State, live_of, state_of
from holdfast.links.ports import FlowReady, Received
from holdfast.types import MILLISECOND, NEVER, FlowId, Nanos
from holdfast.wire.frames import AnyFrame, Basic, Confirm, Heeded, Notice, Probe, Settled, Signature

ASK_NS: Final = 500 * MILLISECOND
STREAMS_SILENT_NS: Final = 1000 * MILLISECOND
_DATAGRAMS: Final = ("udp", "alt")


class PathListener:
    """Hears one path from its sender."""

    def __init__(
        self, now: Nanos, ready: FlowReady, start_ns: Nanos, confirm_ns: Nanos, mtu: int
    ) -> None:
        self.adapter = ready.remote_adapter
        """The sender's; ours is `listener_adapter` in what the two say to each other."""
        self.local = ready.adapter
        self.flows: dict[FlowId, Heard] = {}
        self.lanes: dict[str, Lane] = {}
        self.segments: dict[int, FlowId] = {}
        """The connection that measures each size of segments."""
        self.stuck: list[FlowId] = []
        """Connections that let nothing pass any more: others must take their place."""
        self.stated: dict[str, Values] = {}
        """What was acknowledged and confirmed of each lane, and so is published."""
        self.replies: list[AnyFrame] = []
        self.changed: list[str] = []
        """Kinds of which something new is to be published."""
        self.check_at: Nanos = NEVER
        self.lives_at: Nanos = PAST
        """When a flow may have been silent for too long; then they are looked at."""
        self._some_dead = False
        self.rhythm_ns: Nanos = NEVER
        """How often this node must be awake to hear what is promised."""
        self._open: dict[str, Lane] = {}
        """Lanes of which rounds may wait for probes."""
        self.waits = False
        """Something waits for its time: for probes, or for the sender's confirmation."""
        self.diag_grace = 1
        self.turns: dict[str, int] = {}
        """How often what is said of a kind has changed for the worse: a path that flaps."""
        self.plan: Plan | None = None
        self._mute = False
        """The other port that was tried last was not heard."""
        self._mtu = mtu
        self._evidence = 1 << 30
        self._start_ns = start_ns
        self._confirm_ns = confirm_ns
        self._waiting: dict[str, tuple[int, Values, Nanos]] = {}
        self._n = 0
        self._signature_n = 0
        self._asked_at = now - ASK_NS
        self._announced_ns = 0
        self._segments_known: dict[int, bool] = {}
        self._excused_to: Nanos = -1
        self._rate = Throughput()

    # -- flows ---------------------------------------------------------------------------------------------------

    def flow_ready(self, now: Nanos, ready: FlowReady) -> None:
        """Another flow that carries data; one from another port is listened to when it is heard."""
        if ready.use == "" and ready.transport in ("udp", "tcp"):
            live = Liveness(now, self._start_ns, stream=ready.transport == "tcp")
            live.announced_ns = self._announced_ns
            self.flows[ready.flow] = Heard(lane_of(ready), live)
            self._lives_changed()
        elif ready.use == "alt" and self._mute:
            self._mute = False
            self._changed("udp", worse=False)
        lane = self.lanes.get(lane_of(ready))
        size = segment_size(ready)
        known = size in self._segments_known
        if size:
            self._segments_known[size] = True
            self.segments[size] = ready.flow
            if lane is not None:
                lane.renewed(size)
        if lane is not None and not known:
            lane.begin(now)

    def unheard(self, use: str) -> None:
        """A flow from another port could not be agreed on: it is one that does not carry what others do."""
        if use == "alt" and not self._mute:
            self._mute = True
            self._changed("udp", worse=True)

    def flow_lost(self, flow: FlowId) -> str:
        """The flow is gone; the kind that has no flow left because of that, if any."""
        for size in [size for size, known in self.segments.items() if known == flow]:
            del self.segments[size]
            if (lane := self.lanes.get("tcp")) is not None:
                lane.renewed(size)
        heard = self.flows.pop(flow, None)
        if heard is None:
            return ""
        self._lives_changed()
        self._forget(heard.lane)
        kind = KIND_OF[heard.lane]
        self._changed(kind, worse=False)
        return kind if all(KIND_OF[other.lane] != kind for other in self.flows.values()) else ""

    def _forget(self, name: str) -> None:
        lane = self.lanes.get(name)
        if lane is not None:
            lane.forget()

    # -- what arrives --------------------------------------------------------------------------------------------

    def hear(self, now: Nanos, item: Received, ready: dict[FlowId, FlowReady]) -> None:
        """Heartbeats that came in on one of these flows of the path."""
        flow, at = item.flow, item.at
        assert flow is not None
        for frame in item.frames:
            if type(frame) is Basic:
                heard = self.flows.get(flow)
                if heard is None:
                    if ready[flow].use != "alt":
                        continue
                    heard = self._other_port(now, flow)
                dead = not heard.live.alive
                if heard.live.basic(frame, at):
                    self.lives_at = PAST
                if dead:
                    self._lives_changed()
                    self._forget(heard.lane)
                    self._life(heard)
                elif self._some_dead and heard.lane in _DATAGRAMS:
                    self._changed("udp", worse=False)  # one port lives where another does not
                if frame.sent and at > self._excused_to:
                    self._announced(now, frame, at)
            elif type(frame) is Probe:
                self._probe(frame, at)

    def _other_port(self, now: Nanos, flow: FlowId) -> Heard:
        """The sender has moved its other flow to another port: the lane begins anew."""
        for old in [f for f, heard in self.flows.items() if heard.lane == "alt"]:
            del self.flows[old]
        self.lanes.pop("alt", None)
        self.stated.pop("alt", None)
        self._waiting.pop("alt", None)
        self._lanes()
        heard = self.flows[flow] = Heard("alt", Liveness(now, self._start_ns))
        self._lives_changed()
        return heard

    def _lives_changed(self) -> None:
        self._some_dead = any(not heard.live.alive for heard in self.flows.values())
        self.lives_at = PAST

    def _announced(self, now: Nanos, frame: Basic, at: Nanos) -> None:
        plan = self.plan
        if plan is None or plan.id != frame.plan:
            self._ask(now)
            return
        for name, announced in plan.masks(frame.sent):
            lane = self.lanes[name]
            mask = self._on_connections(lane, announced) if name == "tcp" else announced
            if not mask or not lane.announced(frame.pair, mask, at):
                continue
            if lane.complete(frame.pair):
                if not lane.pass_calmly(frame.pair):
                    self._judge(now, name, lane, self._evidence)
            else:
                self._open[name] = lane
                self.waits = True
                self.check_at = min(self.check_at, now + lane.settle_ns)

    def _on_connections(self, lane: Lane, mask: int) -> int:
        """What of a round did not go out on a connection that is gone."""
        fills = lane.plan.fills
        for number, size in enumerate(lane.plan.sizes):
            if size not in self.segments:
                mask &= ~(((1 << fills) - 1) << number * fills)
        return mask

    def _ask(self, now: Nanos) -> None:
        """What the numbers mean was said before we could hear it: please say it again."""
        if now - self._asked_at >= ASK_NS:
            self._asked_at = now
            self.replies.append(Notice(self.adapter, self.local, 0, b""))

    def _probe(self, frame: Probe, at: Nanos) -> None:
        """A probe arrived: its combination passes, at least this once."""
        plan = self.plan
        if plan is None or plan.id != frame.plan or not 0 <= frame.code < len(plan.codes):
            return
        lane, index = plan.codes[frame.code]
        self.lanes[lane.name].arrived(frame.pair, index, at)
        if lane.name == "udp":
            self._rate.arrived(frame.pair, lane.sizes[index // lane.fills], at)

    # -- what the sender says ------------------------------------------------------------------------------------

    def signature(self, now: Nanos, frame: Signature) -> None:
        """The sender tells what it sends: follow it, and say so."""
        plan = heard_plan(frame.patterns, frame.lanes)
        if plan is not None and plan.id == frame.plan:
            known, self.plan = self.plan, plan
            if known is None or known.id != plan.id:
                self._lanes()
        for tunables in frame.tunables[:8]:
            if tunables.signature == "basic_active":
                self._announced_ns = min(max(tunables.period_ns, 0), PROMISE_MAX)
            elif tunables.signature == "diag_active":
                self.diag_grace = min(max(tunables.grace, 1), 100)
        for heard in self.flows.values():
            if heard.lane != "alt":
                heard.live.announced_ns = self._announced_ns
        if frame.n != self._signature_n:
            self._signature_n = frame.n
            for lane in self.lanes.values():
                lane.begin(now)
        self.replies.append(Heeded(self.adapter, self.local, frame.n))

    def _lanes(self) -> None:
        """Have a lane for each that the sender's plan has; what is known of values stays."""
        if self.plan is None:
            return
        for name, lane_plan in self.plan.lanes.items():
            lane = self.lanes.get(name)
            if lane is None:
                self.lanes[name] = Lane(lane_plan, self.plan.patterns, self._mtu)
            else:
                lane.adopt(lane_plan, self.plan.patterns, self._mtu)
        for name in [name for name in self.lanes if name not in self.plan.lanes]:
            del self.lanes[name]

    def confirm(self, frame: Confirm) -> None:
        """The sender has taken in what we told: now everybody may know."""
        waiting = self._waiting.get(frame.lane)
        if waiting is not None and waiting[0] == frame.n:
            self._state(frame.lane)

    def _state(self, name: str) -> None:
        _, values, _ = self._waiting.pop(name)
        before = self.stated.get(name)
        self.stated[name] = values
        if before != values:
            self._changed(KIND_OF[name], before is not None and _worse(values, before))

    def _changed(self, kind: str, worse: bool) -> None:
        if worse:
            self.turns[kind] = self.turns.get(kind, 0) + 1
        if kind not in self.changed:
            self.changed.append(kind)

    # -- judging -------------------------------------------------------------------------------------------------

    def check(self, now: Nanos, evidence: int) -> None:
        """Judge what had time enough. `evidence` is what a verdict needs in this domain.

        However rarely this node sends, it looks as often as it should hear something: only who is awake can tell
        its own pauses from a peer's silence.
        """
        self._evidence = evidence
        if now >= self.lives_at:
            self._look_at_lives(now, evidence)
        self.check_at = now + self.rhythm_ns
        self.waits = False
        if self._open:
            waiting, self._open = self._open, {}
            for name, lane in waiting.items():
                if lane.waits and self.lanes.get(name) is lane:
                    self._judge(now, name, lane, evidence)
        if self._waiting:
            for name in [n for n, (_, _, until) in self._waiting.items() if until <= now]:
                self._state(name)
            for _, _, until in self._waiting.values():
                self.check_at = min(self.check_at, until)
                self.waits = True

    def _look_at_lives(self, now: Nanos, evidence: int) -> None:
        if any(heard.live.quiet_at() <= now for heard in self.flows.values()):
            self._check_lives(now, evidence)
        periods = [heard.live.promise_ns for heard in self.flows.values() if heard.live.alive]
        self.rhythm_ns = 3 * min(periods) // 2 if periods else NEVER
        self.lives_at = min((h.live.quiet_at() for h in self.flows.values()), default=NEVER)

    def _check_lives(self, now: Nanos, evidence: int) -> None:
        loss_ppm = max((h.live.loss.judged_ppm for h in self.flows.values()), default=0)
        datagrams = [h for h in self.flows.values() if not h.live.stream]
        streams = [h for h in self.flows.values() if h.live.stream]
        for heard in (*datagrams, *streams):
            # One that sends rarely may be as dead as the others, and not be missed yet: it must have been heard lately.
            alone = any(h.live.alive and h.live.punctual(now) for h in datagrams)
            if heard.live.silent(now, evidence, loss_ppm if heard.live.stream else 0, alone):
                self._lives_changed()
                self._forget(heard.lane)
                self._life(heard)

    def _judge(self, now: Nanos, name: str, lane: Lane, evidence: int) -> None:
        live = self._live(name)
        if lane.stream and live is not None and self._streams_silent(now, live, lane):
            lane.forget()
            return
        if live is not None:
            patient_ns = min(4000 * live.trip.jitter_us, SETTLE_NS_MAX)
            lane.settle_ns = max(lane.settle_ns, patient_ns)
        loss_ppm = self._loss(name)
        if lane.judge(now, loss_ppm, evidence):
            self._tell(now, name, lane)
        if lane.stuck:
            sizes, lane.stuck = lane.stuck, []
            self.stuck += [self.segments[size] for size in sizes if size in self.segments]
        if lane.waits:
            self._open[name] = lane
            self.waits = True
            self.check_at = min(self.check_at, now + lane.settle_ns)

    @staticmethod
    def _streams_silent(now: Nanos, live: Liveness, lane: Lane) -> bool:
        """Whether nothing at all comes on streams: that is no question of size. The one that carries data says less
        than those that measure: it may itself be stuck behind a message that is too large."""
        silent = now - live.heard_at > 3 * live.promise_ns // 2
        return silent and now - lane.heard_at > STREAMS_SILENT_NS

    def _tell(self, now: Nanos, name: str, lane: Lane) -> None:
        if lane.calm:
            return
        doubts = lane.doubt(now, self.diag_grace)
        if doubts:
            self._notice(now, name, lane, doubts)
        done = lane.done()
        if lane.ignored and now - self._asked_at >= ASK_NS:
            self._asked_at = now
            done = True
        if lane.news or done:
            lane.news = lane.ignored = False
            self._settled(now, name, lane.values(), done)

    def _notice(self, now: Nanos, name: str, lane: Lane, doubts: int) -> None:
        assert self.plan is not None
        base = lane.plan.base
        codes = [base + index for index in range(lane.plan.count) if doubts >> index & 1]
        sibling = self.lanes.get({"udp": "alt", "alt": "udp"}.get(name, ""))
        if sibling is not None and self._live(sibling.name) is not None and sibling.trial is None:
            # A limit of the path hits all its flows: find out about both at once, or one looks worse for a moment.
            sibling.begin(now)
            codes.append(sibling.plan.base + sibling.plan.index(len(sibling.rungs) - 1, MIXED))
        self.replies.append(Notice(self.adapter, self.local, self.plan.id, bytes(codes)))

    def _settled(self, now: Nanos, name: str, values: Values, done: bool) -> None:
        live = self._live(name) if name in ("udp", "alt", "tcp") else None
        alive = live.alive if live is not None else values.alive
        self._n += 1
        self.replies.append(
            Settled(
                adapter=self.adapter,
                listener_adapter=self.local,
                lane=name,
                n=self._n,
                alive=alive,
                size=values.size,
                size_max=values.size_max,
                holes=values.holes,
                bad_patterns=values.bad_patterns,
                done=done,
            )
        )
        if self._tellable(name, values, done) and (
            values != self.stated.get(name) or name in self._waiting
        ):
            self._waiting[name] = (self._n, values, now + self._confirm_ns)
            self.waits = True
            self.check_at = min(self.check_at, now + self._confirm_ns)

    def _tellable(self, name: str, values: Values, done: bool) -> bool:
        """Whether it is known well enough to be published: not while the first sizes come in one by one."""
        if not values.size and values.alive:
            return False
        sizes = self.lanes[name].plan.sizes
        failed = (
            values.holes
            or values.bad_patterns
            or any(r.passes is False for r in self.lanes[name].rungs)
        )
        return bool(done or failed or name in self.stated or values.size == sizes[-1])

    def _life(self, heard: Heard) -> None:
        """A flow died, or came to life: everybody hears of that at once."""
        if sum(other.live.alive for other in self.flows.values()) <= heard.live.alive:
            for kind in BORROWED:  # the first to live, or the last to die
                if kind in self.stated:
                    self._changed(kind, worse=False)
        lane = self.lanes.get(heard.lane)
        values = lane.values() if lane is not None else UNKNOWN
        self._settled(heard.live.since, heard.lane, values, False)
        self._changed(KIND_OF[heard.lane], not heard.live.alive)

    def _live(self, name: str) -> Liveness | None:
        """The basics that a lane is held against: its own, or the best of the path."""
        best: Liveness | None = None
        for heard in self.flows.values():
            if heard.lane == name:
                return heard.live
            if heard.lane == "udp" or best is None:
                best = heard.live
        return None if name in ("udp", "alt") else best

    def _loss(self, name: str) -> int:
        """The loss that a lane's misses are held against: of its own flow, or the worst on the path."""
        own = [h.live.loss.judged_ppm for h in self.flows.values() if h.lane == name]
        if own and name != "tcp":
            return own[0]
        return max((h.live.loss.judged_ppm for h in self.flows.values()), default=10_000)

    # -- pauses --------------------------------------------------------------------------------------------------

    def excuse(self, now: Nanos, pause_ns: Nanos) -> None:
        """This node did not run: what it missed says nothing, and what waited for it may be incomplete."""
        self._excused_to = now
        for heard in self.flows.values():
            heard.live.excuse(now, pause_ns)
        for lane in self.lanes.values():
            lane.forget()

    def clock_set_back(self, now: Nanos) -> None:
        self._excused_to = min(self._excused_to, now)
        self.lives_at = PAST
        for heard in self.flows.values():
            heard.live.clock_set_back(now)
        for lane in self.lanes.values():
            lane.forget()

    # -- what is said --------------------------------------------------------------------------------------------

    def state(self, kind: str) -> State:
        """What is to be said of a kind now."""
        rate = self._rate.rate_kbps
        return state_of(kind, self.flows, self.lanes.get(kind), self.stated, rate, self._mute)

    def figures(self, kind: str) -> tuple[int, int, int, int]:
        """Of that what drifts: loss (millionths), round trip and jitter (microseconds), rate (kbit/s)."""
        live = live_of(kind, self.flows)
        rate = self._rate.rate_kbps if kind == "udp" else 0
        if live is None:
            return 0, 0, 0, rate
        return live.loss.ppm, live.trip.rtt_us, live.trip.jitter_us, rate

    def tally(self, kind: str) -> tuple[int, int]:
        """Basics heard and expected since the last time, and begin to count anew."""
        heard = expected = 0
        for item in self.flows.values():
            if KIND_OF[item.lane] == kind:
                live = item.live
                heard, expected = heard + live.heard, expected + live.heard + live.missed
                live.heard = live.missed = 0
        return heard, expected


def _worse(values: Values, before: Values) -> bool:
    return (
        0 < values.size < before.size
        or len(values.holes) > len(before.holes)
        or len(values.bad_patterns) > len(before.bad_patterns)
        or (before.alive and not values.alive)
    )
