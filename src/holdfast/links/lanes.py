"""Which flow carries which traffic, and why.

Traffic stays where it is while that suits it: suitable is not best. It is placed anew when its flow is lost, when
health says that the flow does not suit it any more, or when acknowledgements stop coming; and it moves back when
health gives a better flow back to it. Synchronisation is always placed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from holdfast.links.cipher import Cipher
from holdfast.links.flow import FlowState
from holdfast.links.ports import BARRED, class_of
from holdfast.types import FlowId, Nanos

_STATE: Final = 3
"""The bits of the first cost that hold the state of a `Fitness`."""


class Placed(Protocol):
    """Traffic that has a place: a channel, or the datagrams of one port."""

    flow: FlowId | None
    moves: int
    reason: str
    home: str
    """The path that it had to leave, and goes back to when that is given back; empty when it had not."""

    @property
    def traffic(self) -> int: ...

    @property
    def datagrams(self) -> bool: ...


class Lane:
    """The place of traffic that has no channel: datagrams, and acknowledgements."""

    __slots__ = ("datagrams", "flow", "home", "moves", "reason", "traffic")

    def __init__(self, traffic: int, datagrams: bool) -> None:
        self.traffic = traffic
        self.datagrams = datagrams
        self.flow: FlowId | None = None
        self.moves = 0
        self.reason = ""
        self.home = ""


def by_class(placed: Iterable[Placed]) -> list[Placed]:
    """In the order in which traffic is served, and moved: synchronisation first."""
    return sorted(placed, key=lambda lane: (class_of(lane.traffic), lane.traffic))


class Lanes:
    """The choice of a flow for each kind of traffic of one link."""

    def __init__(self, flows: dict[FlowId, FlowState], cipher: Cipher) -> None:
        self._flows = flows
        self._cipher = cipher

    def flow_of(self, lane: Placed) -> FlowState | None:
        return self._flows.get(lane.flow) if lane.flow is not None else None

    def usable(self, flow: FlowState) -> bool:
        """Whether anything can be placed on it now."""
        return flow.ready and flow.carries and not flow.closing and self._cipher.usable(flow)

    def best(self, now: Nanos, traffic: int, datagrams: bool = False) -> FlowState | None:
        """The flow that suits this traffic best now; None when there is none that it may use."""
        best: FlowState | None = None
        best_cost: tuple[int, ...] | None = None
        for flow in self._flows.values():
            if not self.usable(flow):
                continue
            cost = flow.cost(now, traffic, datagrams)
            if cost[0] & _STATE != BARRED and (best_cost is None or cost < best_cost):
                best, best_cost = flow, cost
        return best

    def place(self, now: Nanos, lane: Placed) -> FlowState | None:
        """Where this traffic goes now: where it went before, while that suits it."""
        flow = self.flow_of(lane)
        if flow is not None and self.usable(flow) and flow.suits(lane.traffic, now):
            return flow
        better = self.better(now, lane)
        if better is None:
            return flow if flow is not None and self.may_use(flow, lane) else None
        why = flow.why_not(lane.traffic, now) if flow is not None else lane.reason
        self.assign(now, lane, better, why)
        return better

    def may_use(self, flow: FlowState, lane: Placed) -> bool:
        return self.usable(flow) and flow.fitness_for(lane.traffic).state != BARRED

    def better(self, now: Nanos, lane: Placed) -> FlowState | None:
        """The flow that traffic moves to that does not suit where it is; None when nothing is better."""
        flow = self.flow_of(lane)
        best = self.best(now, lane.traffic, lane.datagrams)
        if best is None or best is flow:
            return None
        if flow is None or not self.may_use(flow, lane):
            return best
        # Among flows that are equally bad it stays, or it would go to and fro.
        cost = flow.cost(now, lane.traffic, lane.datagrams)
        return best if best.cost(now, lane.traffic, lane.datagrams)[:2] < cost[:2] else None

    def given_back(self, now: Nanos, lane: Placed, flow: FlowState) -> bool:
        """Whether traffic moves to a flow that health has just given back: it is better than where it is, or as good
        and where it was before."""
        here = self.flow_of(lane)
        if here is None or here is flow or not self.usable(flow):
            return False
        if not flow.good_for(lane.traffic) or flow.shunned_until > now:
            return False
        cost = flow.cost(now, lane.traffic, lane.datagrams)
        cost_here = here.cost(now, lane.traffic, lane.datagrams)
        return cost < cost_here or (flow.path == lane.home and cost[:-1] == cost_here[:-1])

    def assign(self, now: Nanos, lane: Placed, flow: FlowState, why: str) -> None:
        """Put traffic on a flow, and remember why, and where it was."""
        before = self.flow_of(lane)
        if before is not None and not lane.home and not before.suits(lane.traffic, now):
            lane.home = before.path
        if flow.path == lane.home:
            lane.home = ""
        lane.reason = why or "the best when it was placed"
        if not flow.suits(lane.traffic, now):
            lane.reason += (
                f"; nothing suits, the least bad is used ({flow.why_not(lane.traffic, now)})"
            )
        lane.flow = flow.flow
