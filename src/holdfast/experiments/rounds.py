"""One round on the packet network, driven by the production protocol code.

Members are instances of `holdfast.stability.protocol.Protocol`, one per node. Everything that they append to their
list of frames becomes packets; every packet that arrives is passed to `take`. Without loss no timer runs, as with the
reliable channels of the paper. With loss, the production timers are used.
"""

from __future__ import annotations

import heapq
from random import Random
from time import process_time_ns
from typing import Final

import numpy as np

from holdfast.errors import HoldfastError
from holdfast.experiments.compiling import HAVE_NUMBA
from holdfast.experiments.network import CompiledNetwork
from holdfast.experiments.plain_network import PlainNetwork
from holdfast.experiments.points import (
    HEADER_BYTES,
    NUMBER_BYTES,
    Outcome,
    Point,
    transmission_ns,
)
from holdfast.experiments.routes import next_links
from holdfast.experiments.topology import Topology, draw_topology
from holdfast.experiments.traffic import Network, Send, Traffic
from holdfast.experiments.wires import SAMPLE_NS
from holdfast.stability.config import CUBE, StabilityConfig
from holdfast.stability.detector import PROTOCOL_CLASSES
from holdfast.stability.frames import ResultAck, StabilityFrame
from holdfast.stability.hypercube import neighbours
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import Carry, Protocol, Sends
from holdfast.stability.vectors import as_holders
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos

PATIENCE_NS: Final = 60 * SECOND
"""A round that takes longer is aborted."""
FINE: Final = MILLISECOND // SAMPLE_NS
"""Samples per millisecond."""


class RoundFailed(HoldfastError):
    """A round did not end, or ended with a wrong result. The message states at how many members."""


def failed_nodes(point: Point) -> tuple[int, ...]:
    """Random neighbours of node 0 on the cube."""
    near = neighbours(point.nodes, 0)
    return tuple(sorted(Random(point.seed).sample(near, point.failed)))


def report_of(place: int, slots: int) -> list[int]:
    """The report of a member: each member holds the minimum of some slot."""
    values = [1000 + place + 3 * slot for slot in range(slots)]
    values[place % slots] = 500 + place
    return values


def make_members(point: Point, failed: tuple[int, ...]) -> list[Protocol]:
    """All members of one view, in the order of their places."""
    wait_ns = 20 * MILLISECOND if point.loss else 3600 * SECOND
    config = StabilityConfig(
        protocol=point.protocol, gap_ns=3600 * SECOND, period_ns=3600 * SECOND,
        period_max_ns=3600 * SECOND, repeat_ns=wait_ns, repeat_max_ns=max(wait_ns, SECOND),
    )  # fmt: skip
    excused = sum(1 << place for place in failed)
    members: list[Protocol] = []
    for place in range(point.nodes):
        seat = Seat(config, "x", 1, 1, 1, 1, place, point.nodes, point.senders)
        mine = np.array(report_of(place, point.senders), np.int64)
        member = PROTOCOL_CLASSES[point.protocol](seat, mine)
        if failed:
            # Excused in G, as if their reports had arrived before.
            holders = as_holders(np.full(point.senders, place), point.nodes)
            member.adopt(Carry(excused | 1 << place, mine.copy(), holders, {}, 0))
            member.suspected = excused
        members.append(member)
    return members


class Round:
    """Members, the network between them, and the time at which each of them was done."""

    def __init__(
        self,
        point: Point,
        network: Network,
        members: list[Protocol],
        failed: tuple[int, ...] = (),
        order: list[int] | None = None,
    ) -> None:
        """`order[place]` is the node of the member at that place; without it, place and node are the same."""
        self._point = point
        self._network = network
        self._members = members
        self._failed = dict.fromkeys(failed)
        self._node_of = list(range(len(members))) if order is None else order
        self._place_of = [0] * len(members)
        for place, node in enumerate(self._node_of):
            self._place_of[node] = place
        self._moved = order is not None
        self._frames: list[StabilityFrame] = []
        self._sends: list[Send] = []
        self._out: Sends = []
        self._timers: list[tuple[Nanos, int]] = []
        self._timed = point.loss > 0 or point.confirm
        self._set: list[Nanos] = [NEVER] * len(members)
        self.done_ns: dict[int, Nanos] = {}

    @property
    def is_over(self) -> bool:
        return len(self.done_ns) == len(self._members) - len(self._failed)

    def run(self) -> None:
        """Run until all members are done and, without loss, until the last packet has arrived."""
        self._begin()
        while not (self.is_over and (self._timed or self._network.is_empty)):
            until_ns = self._next_timer()
            if self._network.is_empty and until_ns >= PATIENCE_NS:
                break
            arrivals = self._network.open_slot(until_ns)
            self._slot(arrivals, self._network.slot_end_ns(until_ns))
            self._network.close_slot(self._sends)
            self._sends = []
        if not self.is_over:
            raise RoundFailed(
                f"the round ended at {len(self.done_ns)} of {len(self._members)} members; "
                "the point has no result"
            )

    def _begin(self) -> None:
        for place, member in enumerate(self._members):
            if place in self._failed or not member.initiates:
                continue
            if place == 0 or not self._point.one_starts:
                member.want(0, self._out)
                self._post(place, member, 0, 0)
        self._network.open_slot(-1)
        self._network.close_slot(self._sends)
        self._sends = []

    def _slot(self, arrivals: list[list[int]], end_ns: Nanos) -> None:
        """Everything that happens in one slot, in order of time. A timer goes before an arrival of the same time."""
        members, frames, failed = self._members, self._frames, self._failed
        for position, now, source, target, tag in arrivals:
            if self._timed:
                self._wake_until(now)
            place = self._place_of[target] if self._moved else target
            if place in failed:
                continue
            sender = self._place_of[source] if self._moved else source
            member = members[place]
            member.take(sender, frames[tag], now, self._out)
            if self._out or self._timed or member.rounds:
                self._post(place, member, now, position + 1)
        if self._timed:
            self._wake_until(end_ns - 1)

    def _wake_until(self, now: Nanos) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, place = heapq.heappop(self._timers)
            member = self._members[place]
            if self._set[place] != at:
                continue
            self._set[place] = NEVER
            if member.deadline <= at:
                member.wake(at, self._out)
            self._post(place, member, at, self._network.position(at))

    def _post(self, place: int, member: Protocol, now: Nanos, position: int) -> None:
        """After every call of a member: send its frames, note that it is done, set its timer."""
        if self._out:
            for places, frame in self._out:
                if isinstance(frame, ResultAck) and not self._timed:
                    continue
                targets = places
                if self._moved:
                    targets = tuple([self._node_of[there] for there in places])
                node = self._node_of[place]
                size = self._transmit_ns(frame)
                self._sends.append(Send(position, now, node, targets, size, len(self._frames)))
                self._frames.append(frame)
            self._out.clear()
        if member.rounds and place not in self.done_ns:
            self.done_ns[place] = now
        if self._timed and member.deadline != self._set[place] and member.deadline < NEVER:
            self._set[place] = member.deadline
            heapq.heappush(self._timers, (member.deadline, place))

    def _transmit_ns(self, frame: StabilityFrame) -> Nanos:
        size = HEADER_BYTES
        if hasattr(frame, "values"):
            size += NUMBER_BYTES * self._point.senders
        if self._point.bitmap and hasattr(frame, "bits"):
            size += len(frame.bits)
        return transmission_ns(size)

    def _next_timer(self) -> Nanos:
        while self._timers and self._set[self._timers[0][1]] != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else PATIENCE_NS


def check_result(members: list[Protocol], failed: tuple[int, ...] = ()) -> None:
    """Every member found the minimum over all reports, computed here directly."""
    alive = [member for member in members if member.seat.place not in failed]
    right = np.min([member.mine for member in alive], axis=0)
    wrong = [member.seat.place for member in alive if (member.stable != right).any()]
    if wrong:
        raise RoundFailed(f"{len(wrong)} members have a wrong result, the first at {wrong[0]}")


def outcome_of(
    traffic: Traffic, done_ns: list[Nanos], topology: Topology, cpu_ns: Nanos
) -> Outcome:
    last_ns = max(done_ns)
    fine = traffic.samples[1 : last_ns // SAMPLE_NS + 1]
    coarse = traffic.samples[FINE : last_ns // SAMPLE_NS + 1 : FINE]
    mean = lambda found: sum(found) / len(found) if found else 0.0
    return Outcome(
        first_ns=min(done_ns),
        last_ns=last_ns,
        load=round(mean(coarse or fine), 3),
        load_fine=round(mean(fine), 3),
        longest_queue=traffic.longest_queue,
        hops=traffic.hops,
        messages=traffic.sent,
        lost=traffic.lost,
        links=topology.links,
        joins=topology.joins,
        mean_hops=round(traffic.hops / max(1, traffic.sent), 3),
        seconds=round(cpu_ns / 1e9, 3),
    )


def run_round(point: Point, plain: bool = not HAVE_NUMBA) -> Outcome:
    """Measure one point with the protocol machines. `plain` uses the simple version of the network."""
    point.check()
    began = process_time_ns()
    topology = draw_topology(point.network())
    failed = failed_nodes(point) if point.protocol == CUBE else ()
    table = next_links(topology, failed if point.routers_down else ())
    network = (PlainNetwork if plain else CompiledNetwork)(topology, table, point.seed)
    members = make_members(point, failed)
    round_ = Round(point, network, members, failed)
    round_.run()
    check_result(members, failed)
    done_ns = list(round_.done_ns.values())
    return outcome_of(network.traffic(), done_ns, topology, process_time_ns() - began)
