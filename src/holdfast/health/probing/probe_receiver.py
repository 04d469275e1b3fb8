"""The receiving half of one path: what arrives from one adapter of a peer at one of ours.

It combines the liveness of each flow (`liveness`, `silence`) with the sizes and patterns of each lane (`lane`) and the
figures of the path (`figures`), follows the announcements of the sender, reports suspicions and results to it, and
decides what is published: a dead path at once, other values when the sender has confirmed them.
"""

from __future__ import annotations

from typing import Final

from holdfast.health.frames import (
    Confirm,
    Heartbeat,
    Notice,
    Probe,
    Settled,
    Signature,
    SignatureAck,
)
from holdfast.health.probing.attributes import (
    BURST,
    KIND_OF,
    MIXED,
    MORE_HEARTBEATS,
    Plan,
    heard_plan,
)
from holdfast.health.probing.data_evidence import was_silent
from holdfast.health.probing.figures import ASK_NS, Figures
from holdfast.health.probing.lag import BUSY_NS
from holdfast.health.probing.lane import SETTLE_NS_MAX, Lane
from holdfast.health.probing.liveness import PROMISE_MAX, Liveness
from holdfast.health.probing.probe_sender import lane_of, segment_size
from holdfast.health.probing.signature import PAST
from holdfast.health.probing.silence import Silence
from holdfast.health.probing.state import BORROWED, UNKNOWN, Heard, live_of, state_of
from holdfast.health.probing.values import LaneValues, State
from holdfast.links.ports import FlowReady, Received
from holdfast.types import NEVER, SECOND, FlowId, Nanos
from holdfast.wire.frames import Frame

_DATAGRAMS: Final = ("udp", "alt")
STREAMS_ASK_NS: Final = SECOND


class ProbeReceiver:
    """Receives one path from its sender."""

    def __init__(
        self, now: Nanos, ready: FlowReady, start_ns: Nanos, confirm_ns: Nanos, mtu: int
    ) -> None:
        self.adapter = ready.remote_adapter
        """The adapter of the sender; ours is `listener_adapter` in the frames of both."""
        self.local = ready.adapter
        self.flows: dict[FlowId, Heard] = {}
        self.lanes: dict[str, Lane] = {}
        self.segments: dict[int, FlowId] = {}
        """The measuring connection of each segment size."""
        self.stuck: list[FlowId] = []
        """Blocked connections, which must be replaced."""
        self.stated: dict[str, LaneValues] = {}
        """The acknowledged and confirmed state of each lane, which is published."""
        self.replies: list[Frame] = []
        self.changed: list[str] = []
        """Packet kinds with something new to publish."""
        self.check_at: Nanos = NEVER
        self.lives_at: Nanos = PAST
        """When a flow may have been silent for too long; checked then."""
        self._some_dead = False
        self.rhythm_ns: Nanos = NEVER
        """How often this node must be awake to receive what is announced."""
        self._open: dict[str, Lane] = {}
        """Lanes with rounds that may wait for probes."""
        self.waits = False
        """Something waits for its time: for probes, or for the confirmation of the sender."""
        self.lag_ns: Nanos = 0
        """How late this node ran lately: what arrived in that time may still wait to be read."""
        self.diag_grace = 1
        self.turns: dict[str, int] = {}
        """How often a kind has become worse: shows a flapping path."""
        self.plan: Plan | None = None
        self._mute = False
        """The last alternate port that was tried was not heard."""
        self._mtu = mtu
        self._evidence = 1 << 30
        self._start_ns = start_ns
        self._confirm_ns = confirm_ns
        self._waiting: dict[str, tuple[int, LaneValues, Nanos]] = {}
        self._n = 0
        self._signature_n = 0
        self._asked_at = now - ASK_NS
        self._announced_ns = 0
        self._segments_known: dict[int, bool] = {}
        self._excused_to: Nanos = -1
        self._streams_at: Nanos = PAST
        """When the measuring connections may be asked for again."""
        self.looks = Figures(now)
        """Loss, delay, congestion and the fate of application data."""
        self.silence = Silence()

    # -- flows ---------------------------------------------------------------------------------------------------

    def flow_ready(self, now: Nanos, ready: FlowReady) -> None:
        """Another flow that carries data; one with an alternate port counts once it is heard."""
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
        if ready.transport == "tcp":
            self.silence.connected(now, carries_data=not ready.use)
        known = size in self._segments_known
        if size:
            self._segments_known[size] = True
            self.segments[size] = ready.flow
            if lane is not None:
                lane.renewed(size, now)
        if lane is not None and not known:
            lane.begin(now)

    def unheard(self, use: str) -> None:
        """A flow with an alternate port could not be established: it carries less than the others."""
        if use == "alt" and not self._mute:
            self._mute = True
            self._changed("udp", worse=True)

    def flow_lost(self, now: Nanos, flow: FlowId) -> str:
        """The flow is gone; returns the kind that has no flow left, if any."""
        for size in [size for size, known in self.segments.items() if known == flow]:
            del self.segments[size]
            self.silence.segments_silent([size])
            if (lane := self.lanes.get("tcp")) is not None:
                lane.renewed(size, now)
        heard = self.flows.pop(flow, None)
        if heard is None:
            return ""
        if heard.live.stream and not any(other.live.stream for other in self.flows.values()):
            self.silence.disconnected(now, heard.live)
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

    def hear(
        self, now: Nanos, item: Received, ready: dict[FlowId, FlowReady], lag_ns: Nanos = 0
    ) -> None:
        """Heartbeats received on one of the flows of the path. `lag_ns`: how late this node ran lately."""
        flow, at = item.flow, item.at
        assert flow is not None
        for frame in item.frames:
            if type(frame) is Heartbeat:
                heard = self.flows.get(flow)
                if heard is None:
                    if ready[flow].use != "alt":
                        continue
                    heard = self._other_port(now, flow)
                dead = not heard.live.alive
                if heard.live.basic(frame, at, lag_ns):
                    self.lives_at = PAST
                    self._look_by(heard.live.window.counts_at)
                if dead:
                    self._lives_changed()
                    self._forget(heard.lane)
                    self._life(heard)
                elif self._some_dead and heard.lane in _DATAGRAMS:
                    self._changed("udp", worse=False)  # one port is alive where another is not
                live = heard.live
                if live.stream and live.trip.delay.crowded:
                    continue  # repeated: the probes that it announces may have met what stopped it
                if frame.sent and live is self.looks.datagrams:
                    self.looks.congestion.heartbeat(frame.pair)
                if frame.sent and at > self._excused_to:
                    self._announced(now, frame, at, live.trip.delay.crowded)
            elif type(frame) is Probe:
                self._probe(frame, at)

    def _other_port(self, now: Nanos, flow: FlowId) -> Heard:
        """The sender has moved its alternate flow to another port: the lane starts again."""
        for old in [f for f, heard in self.flows.items() if heard.lane == "alt"]:
            del self.flows[old]
        self.lanes.pop("alt", None)
        self.stated.pop("alt", None)
        self._waiting.pop("alt", None)
        self._lanes()
        heard = self.flows[flow] = Heard("alt", Liveness(now, self._start_ns))
        heard.live.announced_ns = self._announced_ns
        self._lives_changed()
        return heard

    def _lives_changed(self) -> None:
        lives = (heard.live for heard in self.flows.values() if heard.lane == "udp")
        self.looks.datagrams = next(lives, None)
        self._some_dead = any(not heard.live.alive for heard in self.flows.values())
        self.lives_at = PAST

    def _announced(self, now: Nanos, frame: Heartbeat, at: Nanos, crowded: bool) -> None:
        plan = self.plan
        if plan is None or plan.id != frame.plan:
            self._ask(now)
            return
        for name, announced in plan.masks(frame.sent):
            lane = self.lanes[name]
            mask = self._on_connections(lane, announced) if name == "tcp" else announced
            if not mask or not lane.announced(frame.pair, mask, at, crowded):
                continue
            if lane.complete(frame.pair):
                if not lane.pass_calmly(frame.pair):
                    self._judge(now, name, lane, self._evidence)
            else:
                self._open[name] = lane
                self.waits = True
                self.check_at = min(self.check_at, now + lane.settle_ns)

    def _on_connections(self, lane: Lane, mask: int) -> int:
        """The part of a round that was not sent on a connection that is gone."""
        fills = lane.plan.fills
        for number, size in enumerate(lane.plan.sizes):
            if size not in self.segments:
                mask &= ~(((1 << fills) - 1) << number * fills)
        return mask

    def _ask(self, now: Nanos) -> None:
        """The plan was announced before we could receive it: request it again."""
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
        size = lane.sizes[index // lane.fills]
        looks = self.looks
        looks.congestion.arrived(size)
        if lane.name == "tcp":
            self.silence.segments.clear()
        elif lane.name == "udp":
            looks.congestion.datagram(frame.pair, size, at, looks.datagrams)

    def path_heard(self, now: Nanos, at: Nanos, size: int) -> None:
        """The link says when something arrived last on the path, and how many bytes so far."""
        self.silence.heard_at = at
        self.looks.congestion.carried(now, size)

    def streams_unheard(self, unheard: bool) -> None:
        """Whether the peer hears nothing of TCP, on the way back."""
        self.silence.unheard_streams = unheard

    def _measure_streams(self, now: Nanos) -> None:
        """The connection with data is silent or gone: the measuring ones show at once whether TCP passes."""
        if now >= self._streams_at:
            self._streams_at = now + STREAMS_ASK_NS
            self.streams_doubted(now)

    def streams_doubted(self, now: Nanos) -> None:
        """The peer misses something on the connections of this path, on the way back: check this way too, or the
        connections that it replaces would take the evidence with them."""
        codes = bytes(self._check_too(now, "tcp"))
        if codes and self.plan is not None:
            self.replies.append(Notice(self.adapter, self.local, self.plan.id, codes))

    # -- what the sender says ------------------------------------------------------------------------------------

    def signature(self, now: Nanos, frame: Signature) -> None:
        """The sender announces what it sends: follow it and acknowledge."""
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
            heard.live.announced_ns = self._announced_ns
        if frame.n != self._signature_n:
            self._signature_n = frame.n
            for lane in self.lanes.values():
                lane.begin(now)
        self.replies.append(SignatureAck(self.adapter, self.local, frame.n))

    def _lanes(self) -> None:
        """Create a lane for each lane in the plan of the sender; the state of values is kept."""
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
        """The sender has applied our report: it can be published now."""
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
        """Judge what had enough time. `evidence` is the threshold of a verdict in this domain.

        However rarely this node sends, it checks as often as it expects to receive something: only then can it
        distinguish its own pauses from the silence of a peer.
        """
        self._evidence = evidence
        if now >= self.lives_at:
            self._look_at_lives(now, evidence)
        if self.silence.orphaned_at != NEVER:
            lane = self.lanes.get("tcp")
            self._measure_streams(now)
            if self.silence.orphan_dies(now, self.flows.values(), lane, self.segments):
                self._changed("tcp", worse=True)
        if self.lag_ns >= BUSY_NS:
            self._stand_back(now)
        elif now >= self.looks.at or self.looks.crowding:
            self._look_at_figures(now)
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

    def _stand_back(self, now: Nanos) -> None:
        """This node is too late to judge: what is missing now may have overflowed its own sockets."""
        for heard in self.flows.values():
            heard.live.excuse(now, 0)
        for lane in self.lanes.values():
            lane.forget()
        self._excused_to = now
        self._open.clear()

    def _look_at_figures(self, now: Nanos) -> None:
        """Loss, delay and congestion: a verdict on any of them is news."""
        looks = self.looks
        for kind, worse in looks.look(now, self.flows, self.lanes, self.silence):
            self._changed(kind, worse)
        if looks.data.open:
            lane = self.lanes.get("udp")
            if looks.look_at_data(now, self.flows, lane, self.state("udp")):
                self._changed("udp", worse=looks.data.lost)
        if looks.narrow and looks.congestion.wants_burst(now) and self.plan is not None:
            codes = bytes([BURST, *self._check_too(now, "udp")])
            if len(codes) > 1:
                self.replies.append(Notice(self.adapter, self.local, self.plan.id, codes))
        if looks.doubtful and self.plan is not None and looks.needs_heartbeats(now):
            codes = bytes([MORE_HEARTBEATS])
            self.replies.append(Notice(self.adapter, self.local, self.plan.id, codes))

    def _look_by(self, at: Nanos) -> None:
        """Look at loss, delay and congestion by this time."""
        if at < self.looks.at:
            self.looks.at = at
            self.check_at = min(self.check_at, at)

    def data_missing(self, now: Nanos, flow: FlowId, missing: bool, still: bool = False) -> None:
        """The link says that nothing of the data of applications arrives on a flow (`still`: it said so before), or
        that something does again."""
        heard = self.flows.get(flow)
        if missing and heard is not None and was_silent(now, heard.live):
            return  # nothing arrived there at all
        at = self.looks.data.take(now, flow, missing, still)
        self.looks.at = min(self.looks.at, at)
        self.check_at = min(self.check_at, at)
        self.waits = True

    def _look_at_lives(self, now: Nanos, evidence: int) -> None:
        # Plain loops: it runs for every few heartbeats.
        read_to = now - self.lag_ns
        for heard in self.flows.values():
            if heard.live.quiet_at() <= read_to:
                self._check_lives(read_to, evidence)
                break
        shortest = lives_at = NEVER
        for heard in self.flows.values():
            live = heard.live
            if live.alive and live.promise_ns < shortest:
                shortest = live.promise_ns
            quiet_at = live.quiet_at()
            if quiet_at < lives_at:
                lives_at = quiet_at
        self.rhythm_ns = 3 * shortest // 2 if shortest < NEVER else NEVER
        self.lives_at = lives_at

    def _check_lives(self, now: Nanos, evidence: int) -> None:
        """Flows that are silent for too long are dead."""
        lane = self.lanes.get("tcp")
        if self.silence.stream_is_late(now, self.flows.values()):
            self._measure_streams(now)
        busy = self.lag_ns >= BUSY_NS
        congestion = self.looks.congestion
        dead = self.silence.check(now, evidence, self.flows.values(), lane, congestion, busy)
        if not dead:
            return
        self._died(dead)
        if not any(heard.live.alive for heard in self.flows.values()):
            since = max(heard.live.fell_at for heard in dead)
            if self.silence.orphan_dies_too(since, self.lanes.get("tcp"), self.segments):
                self._changed("tcp", worse=True)

    def _died(self, dead: list[Heard]) -> None:
        self._lives_changed()
        for heard in dead:
            self._forget(heard.lane)
            self._life(heard)

    def _judge(self, now: Nanos, name: str, lane: Lane, evidence: int) -> None:
        live = self._live(name)
        if lane.stream and live is not None and self.silence.streams_silent(now, live, lane):
            if sizes := lane.overdue(now - self.lag_ns):
                self.silence.segments_silent(sizes)
                lane.forget()
            if lane.waits:
                self._wait_for_probes(now, name, lane)
            return
        if name in BORROWED and self.looks.congestion.holds_loss(now):
            lane.forget()  # they end large bursts, which a policer cuts
            return
        if live is not None:
            patient_ns = min(4000 * live.trip.jitter_us, SETTLE_NS_MAX)
            lane.settle_ns = max(lane.settle_ns, patient_ns)
        loss_ppm = self._loss(name)
        if lane.judge(now, loss_ppm, evidence, self.lag_ns):
            self._tell(now, name, lane)
        if lane.crowd_misses:
            self.looks.crowding = True
        if lane.stuck:
            sizes, lane.stuck = lane.stuck, []
            self.silence.segments_silent(sizes)
            self.stuck += [self.segments[size] for size in sizes if size in self.segments]
        if lane.waits:
            self._wait_for_probes(now, name, lane)

    def _wait_for_probes(self, now: Nanos, name: str, lane: Lane) -> None:
        self._open[name] = lane
        self.waits = True
        self.check_at = min(self.check_at, now + lane.settle_ns)

    def _tell(self, now: Nanos, name: str, lane: Lane) -> None:
        if lane.calm:
            return
        doubts = lane.doubt(now, self.diag_grace)
        if doubts:
            self._notice(now, name, lane, doubts)
        done = lane.done()
        again = lane.ignored and now - self._asked_at >= ASK_NS
        if again:
            self._asked_at = now
        if lane.news and name == "udp" and lane.size < lane.size_max:
            assert self.plan is not None
            codes = bytes(self._check_too(now, "tcp"))  # a limit rarely affects datagrams only
            if codes:
                self.replies.append(Notice(self.adapter, self.local, self.plan.id, codes))
        if lane.news or done or again:
            lane.news = lane.ignored = False
            self._settled(now, name, lane.values(), done, again)

    def _notice(self, now: Nanos, name: str, lane: Lane, doubts: int) -> None:
        assert self.plan is not None
        base = lane.plan.base
        codes = [base + index for index in range(lane.plan.count) if doubts >> index & 1]
        codes += self._check_too(now, {"udp": "alt", "alt": "udp"}.get(name, ""))
        self.replies.append(Notice(self.adapter, self.local, self.plan.id, bytes(codes)))

    def _check_too(self, now: Nanos, name: str) -> list[int]:
        """A limit of the path affects all its flows: check another lane at once, or one looks worse for a moment.
        Returns the codes for the sender."""
        other = self.lanes.get(name)
        if other is None or self._live(name) is None or other.trial is not None:
            return []
        other.begin(now)
        return [other.plan.base + other.plan.index(len(other.rungs) - 1, MIXED)]

    def _settled(
        self, now: Nanos, name: str, values: LaneValues, done: bool, again: bool = False
    ) -> None:
        """Report to the sender. `done`: the suspicion is settled. `again`: the sender does not seem to know that."""
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
                done=done or again,
            )
        )
        if self._tellable(name, values, done) and (
            values != self.stated.get(name) or name in self._waiting
        ):
            self._waiting[name] = (self._n, values, now + self._confirm_ns)
            self.waits = True
            self.check_at = min(self.check_at, now + self._confirm_ns)

    def _tellable(self, name: str, values: LaneValues, done: bool) -> bool:
        """Whether it is known well enough to be published: not while the first sizes arrive one by one."""
        if not values.size and values.alive:
            return False
        before = self.stated.get(name)
        settling = self.lanes[name].trial is not None
        if name == "multicast" and before is not None and not done and values.alive and settling:
            return False  # its sizes fail one by one when all are filtered: what lies between was no limit
        falls = before is not None and name == "tcp" and not done and values.size < before.size
        if falls and self.lanes[name].wavers(values.size):
            return False  # sizes fail one after the other: the limit may be a lower one
        if before is not None and name == "tcp" and limit_became_hole(values, before):
            return (
                False  # the connection of that size got stuck while larger ones did not pass either
            )
        if before is not None and not done and values.size < values.size_max:
            better = values.size > before.size or (values.alive and not before.alive)
            if (
                better
            ):  # sizes come back one by one when a fault ends: what lies between was no limit
                return False
        sizes = self.lanes[name].plan.sizes
        failed = (
            values.holes
            or values.bad_patterns
            or any(r.passes is False for r in self.lanes[name].rungs)
        )
        return bool(done or failed or name in self.stated or values.size == sizes[-1])

    def _life(self, heard: Heard) -> None:
        """A flow died or came to life: publish it at once."""
        if sum(other.live.alive for other in self.flows.values()) <= heard.live.alive:
            for kind in BORROWED:  # the first to live, or the last to die
                if kind in self.stated:
                    self._changed(kind, worse=False)
        lane = self.lanes.get(heard.lane)
        values = lane.values() if lane is not None else UNKNOWN
        self._settled(heard.live.since, heard.lane, values, False)
        self._changed(KIND_OF[heard.lane], not heard.live.alive)

    def _live(self, name: str) -> Liveness | None:
        """The heartbeats with which a lane is compared: its own, or the best of the path."""
        best: Liveness | None = None
        for heard in self.flows.values():
            if heard.lane == name:
                return heard.live
            if heard.lane == "udp" or best is None:
                best = heard.live
        return None if name in ("udp", "alt") else best

    def _loss(self, name: str) -> int:
        """The background loss of a lane: that of its own flow, or the worst on the path."""
        own = [h.live.loss.judged_ppm for h in self.flows.values() if h.lane == name]
        if own and name != "tcp":
            return own[0]
        return max((h.live.loss.judged_ppm for h in self.flows.values()), default=10_000)

    # -- pauses --------------------------------------------------------------------------------------------------

    def excuse(self, now: Nanos, pause_ns: Nanos) -> None:
        """This node did not run: what it missed does not count, and what waited may be incomplete."""
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
        """What is published about a kind now."""
        congestion = self.looks.congestion
        orphan = kind == "tcp" and self.silence.orphaned_at != NEVER
        lane, lost = self.lanes.get(kind), self.looks.data.lost
        more = (congestion.rate_kbps, self._mute, orphan, congestion.limit_kbps, lost)
        return state_of(kind, self.flows, lane, self.stated, *more)

    def speaks(self, kind: str) -> bool:
        """Whether there is a flow of this kind, or of one that carries it, alive or dead."""
        kinds = ("udp", "tcp") if kind in BORROWED else (kind,)
        return any(KIND_OF[heard.lane] in kinds for heard in self.flows.values())

    def figures(self, kind: str) -> tuple[int, int, int, int]:
        """The slowly changing values: loss (parts per million), round trip and jitter (microseconds), rate (kbit/s)."""
        live = live_of(kind, self.flows)
        rate = self.looks.congestion.rate_kbps if kind == "udp" else 0
        if live is None:
            return 0, 0, 0, rate
        return live.window.stated_ppm, live.trip.rtt_us, live.trip.jitter_us, rate

    def tally(self, kind: str) -> tuple[int, int]:
        """Basic heartbeats received and expected since the last call; resets the counts."""
        heard = expected = 0
        for item in self.flows.values():
            if KIND_OF[item.lane] == kind:
                live = item.live
                heard, expected = heard + live.heard, expected + live.heard + live.missed
                live.heard = live.missed = 0
        return heard, expected


def limit_became_hole(values: LaneValues, before: LaneValues) -> bool:
    """Whether larger sizes pass again above one that does not."""
    limited = before.alive and before.size < before.size_max and not before.holes
    return limited and bool(values.holes) and values.size >= before.size


def _worse(values: LaneValues, before: LaneValues) -> bool:
    return (
        0 < values.size < before.size
        or len(values.holes) > len(before.holes)
        or len(values.bad_patterns) > len(before.bad_patterns)
        or (before.alive and not values.alive)
    )
