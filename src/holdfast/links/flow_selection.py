"""The choice of a flow for each kind of traffic.

Traffic stays on its flow while that meets its needs. It is placed again when its flow is lost, when health reports that
the flow no longer fits, or when acknowledgements stop; and it moves back when health clears a better flow for it.
Synchronisation is always placed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from holdfast.links.cipher import Cipher
from holdfast.links.doubt import CARRIERS_MAX
from holdfast.links.flow import FlowState
from holdfast.links.ports import BARRED, class_of
from holdfast.types import FlowId, Nanos

_STATE: Final = 7
"""The bits of the first cost that hold the state of a `Fitness`."""


class FlowChoice(Protocol):
    """Traffic with a flow: a channel, or the datagrams of one port."""

    flow: FlowId | None
    moves: int
    reason: str
    home: str
    """The path that it had to leave, and to which it returns when it is cleared; empty if there is none."""

    @property
    def traffic(self) -> int: ...

    @property
    def datagrams(self) -> bool: ...


class PlainFlowChoice:
    """The lane of traffic without a channel: datagrams, and acknowledgements."""

    __slots__ = ("datagrams", "flow", "home", "moves", "reason", "traffic")

    def __init__(self, traffic: int, datagrams: bool) -> None:
        self.traffic = traffic
        self.datagrams = datagrams
        self.flow: FlowId | None = None
        self.moves = 0
        self.reason = ""
        self.home = ""


def by_class(placed: Iterable[FlowChoice]) -> list[FlowChoice]:
    """The order in which traffic is served and moved: synchronisation first."""
    return sorted(placed, key=lambda choice: (class_of(choice.traffic), choice.traffic))


class FlowSelection:
    """The choice of a flow for each kind of traffic of one link."""

    def __init__(self, flows: dict[FlowId, FlowState], cipher: Cipher) -> None:
        self._flows = flows
        self._cipher = cipher

    def flow_of(self, choice: FlowChoice) -> FlowState | None:
        return self._flows.get(choice.flow) if choice.flow is not None else None

    def usable(self, flow: FlowState) -> bool:
        """Whether anything can be placed on it now."""
        # The key of the peer comes first: behind a large segment that does not pass it would never arrive.
        return flow.ready and flow.carries and not flow.closing and self._cipher.has_key

    def best(self, now: Nanos, traffic: int, datagrams: bool = False) -> FlowState | None:
        """The best flow for this traffic now; None if there is none that it may use."""
        best: FlowState | None = None
        best_cost: tuple[int, ...] | None = None
        for flow in self._flows.values():
            if not self.usable(flow):
                continue
            cost = flow.cost(now, traffic, datagrams)
            if cost[0] & _STATE != BARRED and (best_cost is None or cost < best_cost):
                best, best_cost = flow, cost
        return best

    def another(self, now: Nanos, choice: FlowChoice, flow: FlowState) -> FlowState | None:
        """The flow that replaces one in doubt: on another path if there is one, and not known to be broken."""
        best: FlowState | None = None
        best_cost: tuple[int, ...] | None = None
        for other in self._flows.values():
            if other is flow or not self.usable(other) or not other.alive or not other.credit:
                continue
            cost = (other.same_path(flow), *other.cost(now, choice.traffic, choice.datagrams))
            if other.shunned_until > now or other.fitness_for(choice.traffic).state == BARRED:
                continue
            if best_cost is None or cost < best_cost:
                best, best_cost = other, cost
        return best

    def small_carriers(self, traffic: int) -> list[FlowState]:
        """Flows for small copies of data that no other flow delivers: datagrams, because a size limit does not block
        what follows; one for each path."""
        found: dict[tuple[str, str], FlowState] = {}
        for flow in self._flows.values():
            if flow.stream or flow.use or not (self.usable(flow) and flow.alive and flow.credit):
                continue
            if flow.fitness_for(traffic).state != BARRED:
                found.setdefault((flow.adapter, flow.remote_adapter), flow)
        return list(found.values())[:CARRIERS_MAX]

    def place(self, now: Nanos, choice: FlowChoice) -> FlowState | None:
        """The flow for this traffic now: the previous one while it fits."""
        flow = self.flow_of(choice)
        if flow is not None and self.usable(flow) and flow.suits(choice.traffic, now):
            return flow
        better = self.better(now, choice)
        if better is None:
            return flow if flow is not None and self.may_use(flow, choice) else None
        why = flow.why_not(choice.traffic, now) if flow is not None else choice.reason
        self.assign(now, choice, better, why)
        return better

    def may_use(self, flow: FlowState, choice: FlowChoice) -> bool:
        return self.usable(flow) and flow.fitness_for(choice.traffic).state != BARRED

    def better(self, now: Nanos, choice: FlowChoice) -> FlowState | None:
        """The flow for traffic whose current flow does not fit; None if nothing is better."""
        flow = self.flow_of(choice)
        best = self.best(now, choice.traffic, choice.datagrams)
        if best is None or best is flow:
            return None
        if flow is None or not self.may_use(flow, choice):
            return best
        # Among equally bad flows it stays, or it would oscillate.
        cost = flow.cost(now, choice.traffic, choice.datagrams)
        return best if best.cost(now, choice.traffic, choice.datagrams)[:2] < cost[:2] else None

    def given_back(self, now: Nanos, choice: FlowChoice, flow: FlowState) -> bool:
        """Whether traffic moves to a flow that was just cleared: it is better than the current one, or as good and the
        former one."""
        here = self.flow_of(choice)
        if here is None or here is flow or not self.usable(flow):
            return False
        if not flow.good_for(choice.traffic) or flow.shunned_until > now:
            return False
        cost = flow.cost(now, choice.traffic, choice.datagrams)
        cost_here = here.cost(now, choice.traffic, choice.datagrams)
        return cost < cost_here or (flow.path == choice.home and cost[:-1] == cost_here[:-1])

    def assign(self, now: Nanos, choice: FlowChoice, flow: FlowState, why: str) -> None:
        """Put traffic on a flow, and record the reason and the previous path."""
        before = self.flow_of(choice)
        if before is not None and not choice.home and not before.suits(choice.traffic, now):
            choice.home = before.path
        if flow.path == choice.home:
            choice.home = ""
        choice.reason = why or "the best when it was placed"
        if not flow.suits(choice.traffic, now):
            choice.reason += (
                f"; nothing suits, the least bad is used ({flow.why_not(choice.traffic, now)})"
            )
        choice.flow = flow.flow
