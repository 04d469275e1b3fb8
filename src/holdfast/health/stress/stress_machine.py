"""The unit `stress`: sends all combinations of attributes between nodes (H18).

It has three parts: the node of the *client*, which orders jobs from the senders and collects their reports; a *sender*,
which processes one job at a time; and a *listener*, which counts. It has its own frames and its own rate, so a run is
outside the budget of the heartbeats, and bounded in time.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Final

import msgspec

from holdfast.health.config import HealthConfig
from holdfast.health.frames import StressCell, StressCounts, StressOrder, StressProbe, StressReport
from holdfast.health.ports import HEALTH
from holdfast.health.probing.values import Hush
from holdfast.health.stress.job import (
    FILLS_MAX,
    LANES_MAX,
    NEUTRAL_FILL,
    OVER,
    RATE_MAX,
    ROUNDS_MAX,
    SIZES_MAX,
    TICK_NS,
    Job,
    key_of,
    make_lanes,
)
from holdfast.health.stress.values import StressRequest
from holdfast.links.ports import (
    FlowLost,
    FlowReady,
    PeerDown,
    PeerUp,
    Received,
    RenewFlow,
    SendChannel,
    SendFrame,
    link_unit,
)
from holdfast.machine import Machine, Outbox
from holdfast.types import MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode

STRESS: Final = "stress"
SIZE_MAX: Final = 65_535
CODES_MAX: Final = SIZES_MAX * FILLS_MAX
CELLS_MAX: Final = 20_000
JOBS_MAX: Final = 256
RUNS_KEPT: Final = 4
PAIRS_MAX: Final = 1000
LISTENED_MAX: Final = 16
FLOWS_KNOWN_MAX: Final = 256
QUIET_NS: Final = 500 * MILLISECOND
"""By then, heartbeats in flight have arrived or are stuck, and connections are new."""
_REPORT_NS: Final = 250 * MILLISECOND
_SILENT_NS: Final = 30 * SECOND


class Pair:
    """One sender and one listener of a run, as known to the node of the client."""

    __slots__ = ("cells", "done", "failure", "heard_at", "listener", "over", "sender", "total")

    def __init__(self, sender: NodeId, listener: NodeId, now: Nanos) -> None:
        self.sender = sender
        self.listener = listener
        self.done = 0
        self.total = 0
        self.over = False
        self.failure = ""
        self.cells: tuple[StressCell, ...] = ()
        self.heard_at = now


class _Counting:
    """What a listener has received of the run of one sender."""

    __slots__ = ("lanes", "run")

    def __init__(self, run: int) -> None:
        self.run = run
        self.lanes: list[bytearray] = []

    def hear(self, lane: int, code: int) -> None:
        if not (0 <= lane < LANES_MAX and 0 <= code < CODES_MAX):
            return
        while len(self.lanes) <= lane:
            self.lanes.append(bytearray())
        counts = self.lanes[lane]
        if code >= len(counts):
            counts.extend(bytes(code + 1 - len(counts)))
        counts[code] = min(255, counts[code] + 1)


class StressMachine(Machine):
    """Unit `stress`."""

    layer: ClassVar[str] = "probing"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown, FlowReady, FlowLost)

    def __init__(self, me: NodeId, config: HealthConfig, mtus: dict[str, int]) -> None:
        self.me = me
        self._config = config
        self._mtus = mtus
        self._flows: dict[FlowId, FlowReady] = {}
        self._known: dict[NodeId, dict[tuple[str, ...], FlowReady]] = {}
        """The last flow for each purpose to each peer, including lost ones, which will be replaced."""
        self._peers: dict[NodeId, bool] = {}
        self._jobs: deque[Job | tuple[StressOrder, NodeId]] = deque()
        """The first may be running; the others wait in order."""
        self._told_at = 0
        self._quiet_at: Nanos = NEVER
        """From when on no heartbeats are left on the measuring connections."""
        self._heard: dict[NodeId, _Counting] = {}
        self.runs: dict[int, list[Pair]] = {}

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Received:
                for frame in item.frames:
                    self._frame(now, item.peer, frame, out)
            elif kind is FlowReady:
                self._flows[item.flow] = item
                known = self._known.setdefault(item.peer, {})
                if len(known) < FLOWS_KNOWN_MAX or key_of(item) in known:
                    known[key_of(item)] = item
                if (job := self._job()) is not None and job.target == item.peer:
                    job.ready(item)
            elif kind is FlowLost:
                self._flows.pop(item.flow, None)
                if (job := self._job()) is not None:
                    job.lost(item.flow)
            elif kind is PeerUp:
                self._peers[item.peer] = True
            elif kind is PeerDown:
                self._gone(item.peer)
            elif kind is StressRequest:
                self._begin(now, item, out)
        self._schedule(now)

    def _frame(self, now: Nanos, peer: NodeId, frame: Any, out: Outbox) -> None:
        kind = type(frame)
        if kind is StressProbe:
            self._count(peer, frame.plan).hear(frame.pair, frame.code)
        elif kind is StressCounts:
            self._counts(now, peer, frame, out)
        elif kind is StressOrder:
            self._order(now, peer, frame, out)
        elif kind is StressReport:
            self._report(now, peer, frame)

    def _gone(self, peer: NodeId) -> None:
        self._peers.pop(peer, None)
        self._known.pop(peer, None)
        self._heard.pop(peer, None)
        if (job := self._job()) is not None and job.target == peer:
            job.fail("the session with the listener ended")
        for pairs in self.runs.values():
            for pair in pairs:
                if pair.sender == peer and not pair.over:
                    pair.over, pair.failure = True, "the session with the sender ended"

    # -- the client's node ---------------------------------------------------------------------------------------

    def _begin(self, now: Nanos, request: StressRequest, out: Outbox) -> None:
        """Order a job from every sender for every listener; each sender processes its jobs one after the other."""
        while len(self.runs) >= RUNS_KEPT:
            del self.runs[next(iter(self.runs))]
        pairs = self.runs[request.run] = [
            Pair(sender, listener, now)
            for sender in request.nodes
            for listener in request.nodes
            if sender != listener
        ][:PAIRS_MAX]
        for pair in pairs:
            order = StressOrder(
                request.run,
                pair.listener,
                request.rounds,
                request.bytes_per_s,
                request.sizes,
                request.patterns,
            )
            if pair.sender == self.me:
                self._order(now, self.me, order, out)
            elif pair.sender in self._peers:
                self._tell(pair.sender, order, out)
            else:
                pair.over, pair.failure = True, "there is no session with the sender"

    def _report(self, now: Nanos, sender: NodeId, report: StressReport) -> None:
        for pair in self.runs.get(report.run, ()):
            if (pair.sender, pair.listener) == (sender, report.target) and not pair.over:
                pair.done, pair.total = report.done, report.total
                pair.over, pair.failure = report.over, report.failure[:200]
                pair.cells = report.cells[:CELLS_MAX]
            if pair.sender == sender:
                pair.heard_at = now  # it processes its jobs: waiting ones are not lost

    def _expire(self, now: Nanos) -> None:
        for pairs in self.runs.values():
            for pair in pairs:
                if not pair.over and pair.sender != self.me and now - pair.heard_at > _SILENT_NS:
                    pair.over, pair.failure = True, "the sender does not report"

    # -- the sender ----------------------------------------------------------------------------------------------

    def _job(self) -> Job | None:
        first = self._jobs[0] if self._jobs else None
        return first if isinstance(first, Job) else None

    def _order(self, now: Nanos, client: NodeId, order: StressOrder, out: Outbox) -> None:
        why = _refusal(order)
        if not why and len(self._jobs) >= JOBS_MAX:
            why = f"the sender already has {JOBS_MAX} jobs"
        if why:
            self._answer(now, client, StressReport(order.run, order.target, 0, 0, True, why), out)
            return
        self._jobs.append((order, client))

    def _start(self, now: Nanos, out: Outbox) -> None:
        """Start the first order of the queue, once the heartbeats are silent: one that does not pass blocks everything
        behind it on its connection."""
        if not self._jobs:
            self._quiet_at = NEVER
            return
        if self._quiet_at == NEVER:
            streams = any(ready.use.startswith("mss:") for ready in self._flows.values())
            self._quiet_at = now + (QUIET_NS if streams else 0)
        if now < self._quiet_at:
            return
        self._prepare(out)
        while self._jobs and not isinstance(self._jobs[0], Job):
            order, client = self._jobs[0]
            known = self._known.get(NodeId(order.target), {})
            flows = [(ready, ready.flow in self._flows) for ready in known.values()]
            fills = ["", *order.patterns]
            lanes = make_lanes(flows, order, self._mtus, self._config.rungs, len(fills))
            self._jobs[0] = Job(now, order, client, lanes, fills)

    def _prepare(self, out: Outbox) -> None:
        """Start on connections that are not blocked. One of the two ends replaces them, or it would happen twice."""
        if not self._jobs or isinstance(self._jobs[0], Job):
            return
        target = NodeId(self._jobs[0][0].target)
        if self.me < target:
            flows = [ready for ready in self._flows.values() if ready.peer == target]
            self._renew(target, [f.flow for f in flows if f.use.startswith("mss:")], out)

    @staticmethod
    def _renew(target: NodeId, flows: list[FlowId], out: Outbox) -> None:
        for flow in flows:
            out.down(link_unit(target), RenewFlow(flow))

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._expire(now)
        self._start(now, out)
        job = self._job()
        if self._jobs:
            out.up(HEALTH, Hush(now + SECOND))
        if job is not None:
            self._send(now, job, out)
            if job.passed(now):
                self._tell(job.target, StressCounts(job.order.run), out)
            if job.state == OVER:
                self._finish(now, job, out)
            elif now - self._told_at >= _REPORT_NS:
                self._told_at = now
                order = job.order
                self._answer(
                    now,
                    job.client,
                    StressReport(order.run, order.target, job.done, job.total),
                    out,
                )
        self.deadline = NEVER
        self._schedule(now)

    def _send(self, now: Nanos, job: Job, out: Outbox) -> None:
        fill = memoryview(bytes.fromhex(job.fills[job.fill]) or NEUTRAL_FILL)
        for number, (lane, index) in enumerate(job.shots(now)):
            size = lane.sizes[index]
            # The number distinguishes equal packets: what is the same for several listeners is multicast once.
            probe = StressProbe(job.code(index), number, lane.number, job.order.run, fill)
            multicast = lane.kind == "multicast"
            unit = f"multicast/{lane.ready.adapter}" if multicast else link_unit(job.target)
            out.down(unit, SendFrame(probe, SYNC, lane.flow, size), True)

    def _counts(self, now: Nanos, peer: NodeId, frame: StressCounts, out: Outbox) -> None:
        if not frame.counts:
            counting = self._heard.get(peer)
            lanes = counting.lanes if counting is not None and counting.run == frame.run else []
            # At least one lane, or it would be a request again.
            self._tell(peer, StressCounts(frame.run, tuple(map(bytes, lanes)) or (b"",)), out)
            return
        job = self._job()
        if job is not None and (job.target, job.order.run) == (peer, frame.run):
            job.counts(now, frame.counts[:LANES_MAX])
            self._renew(job.target, job.take_stuck(), out)

    def _finish(self, now: Nanos, job: Job, out: Outbox) -> None:
        order = job.order
        self._jobs.popleft()
        report = StressReport(
            order.run, order.target, job.total, job.total, True, job.failure, job.cells()
        )
        self._answer(now, job.client, report, out)

    def _answer(self, now: Nanos, client: NodeId, report: StressReport, out: Outbox) -> None:
        if client == self.me:
            self._report(now, self.me, report)
        elif client in self._peers:
            self._tell(client, report, out)

    # -- the listener --------------------------------------------------------------------------------------------

    def _count(self, peer: NodeId, run: int) -> _Counting:
        counting = self._heard.get(peer)
        if counting is None or counting.run != run:
            self._heard.pop(peer, None)
            while len(self._heard) >= LISTENED_MAX:
                del self._heard[next(iter(self._heard))]
            counting = self._heard[peer] = _Counting(run)
        return counting

    # -- both ----------------------------------------------------------------------------------------------------

    def _tell(self, peer: NodeId, frame: Any, out: Outbox) -> None:
        out.down(link_unit(peer), SendChannel(SYNC, [encode(frame)]))

    def _schedule(self, now: Nanos) -> None:
        if self._jobs:
            self.deadline = min(self.deadline, now + TICK_NS)
        elif any(not pair.over for pairs in self.runs.values() for pair in pairs):
            self.deadline = min(self.deadline, now + SECOND)

    def status(self, run: int, names: dict[bytes, str]) -> dict[str, Any] | None:
        """A run for display; None if there is no such run."""
        pairs = self.runs.get(run)
        if pairs is None:
            return None
        return {
            "run": run,
            "over": all(pair.over for pair in pairs),
            "pairs": [
                {
                    "sender": names.get(pair.sender, pair.sender.hex()),
                    "listener": names.get(pair.listener, pair.listener.hex()),
                    "done": pair.done,
                    "total": pair.total,
                    "over": pair.over,
                    "failure": pair.failure,
                    "cells": [msgspec.structs.asdict(cell) for cell in pair.cells],
                }
                for pair in pairs
            ],
        }


def _refusal(order: StressOrder) -> str:
    """What is wrong with an order; empty if it is valid."""
    if not 1 <= order.rounds <= ROUNDS_MAX or not 1000 <= order.bytes_per_s <= RATE_MAX:
        return f"rounds must be 1 to {ROUNDS_MAX}, bytes per second 1000 to {RATE_MAX}"
    if len(order.sizes) > SIZES_MAX or any(not 100 <= size <= SIZE_MAX for size in order.sizes):
        return f"there can be at most {SIZES_MAX} sizes, from 100 to {SIZE_MAX}"
    if len(order.patterns) >= FILLS_MAX or not all(map(_is_pattern, order.patterns)):
        return f"there can be fewer than {FILLS_MAX} patterns, each 1 to 32 bytes in hex"
    return ""


def _is_pattern(pattern: str) -> bool:
    try:
        return 0 < len(bytes.fromhex(pattern)) <= 32
    except ValueError:
        return False
