"""Placement on the cube by path quality, compared with random placement, in networks with bad links (S8).

The paper leaves this open. A share of the links loses packets and is slow. Routes have the fewest hops and do not avoid
these links, so some pairs of members have bad paths. The production placement code receives the quality of every path,
as health would measure it, and swaps members until no swap helps. The same round then runs twice on the same network:
with members in the order of their numbers, which is a random order on a random topology, and as placed.
"""

from __future__ import annotations

from time import process_time_ns
from typing import Any, Final

import msgspec
import numpy as np

from holdfast.errors import MisuseError
from holdfast.experiments.network import CompiledNetwork
from holdfast.experiments.points import Network, Point
from holdfast.experiments.rounds import Round, check_result, make_members, outcome_of
from holdfast.experiments.routes import next_links
from holdfast.experiments.topology import Ints, Topology, draw_topology, parts_of
from holdfast.stability.placement import PathQuality, arrangement_cost, costs_of, improve
from holdfast.types import MILLISECOND, NodeId

SWAPS_MAX: Final = 2_000
NODES_MAX: Final = 1_000
"""The placement examines every pair of members."""


class PlacementPoint(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="placement",
    tag_field="kind",
):
    """A round of the cube on a topology with bad links."""

    nodes: int
    mean_degree: float
    seed: int
    placed: bool
    bad_share: float = 0.1
    bad_loss: float = 0.2
    bad_delay_ms: int = 10

    @property
    def key(self) -> str:
        return msgspec.json.encode(self).decode()

    def check(self) -> None:
        if not 2 <= self.nodes <= NODES_MAX:
            raise MisuseError(f"{self.nodes} nodes: placement is tried with 2 to {NODES_MAX}")
        if not 0 <= self.bad_share <= 1 or not 0 <= self.bad_loss < 1 or self.mean_degree <= 0:
            raise MisuseError("bad links are a share of 0 to 1, and lose a share below 1")


def spoil(topology: Topology, point: PlacementPoint) -> Topology:
    """The topology with a share of bad links, in both directions."""
    random = np.random.default_rng([point.seed, 7])
    source = np.repeat(np.arange(topology.nodes), np.diff(topology.start))
    pair = np.minimum(source, topology.to) * topology.nodes + np.maximum(source, topology.to)
    names = np.unique(pair)
    bad = random.choice(names, round(point.bad_share * len(names)), replace=False)
    is_bad = np.isin(pair, bad)
    return msgspec.structs.replace(
        topology,
        delay_ns=topology.delay_ns + is_bad * point.bad_delay_ms * MILLISECOND,
        lossy=np.where(is_bad, parts_of(point.bad_loss), topology.lossy),
    )


def path_qualities(topology: Topology, table: Ints) -> dict[tuple[NodeId, NodeId], PathQuality]:
    """What probes between all members would measure: round-trip time and loss along the routes."""
    n = topology.nodes
    delay = np.zeros((n, n))
    passed = np.ones((n, n))
    at = np.tile(np.arange(n), (n, 1))  # at[d, v]: where a packet from v to d is
    for _ in range(n):
        link = np.take_along_axis(table, at, axis=1)
        moving = link >= 0
        if not moving.any():
            break
        delay += np.where(moving, topology.delay_ns[link], 0)
        passed *= np.where(moving, 1 - topology.lossy[link] / 2**32, 1.0)
        at = np.where(moving, topology.to[link], at)
    rtt, lost = delay + delay.T, 1 - np.minimum(passed, passed.T)
    return {
        (node_id(a), node_id(b)): PathQuality(int(rtt[a, b]), round(lost[a, b] * 1e6))
        for a in range(n)
        for b in range(a + 1, n)
    }


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(16, "big"))


def run_placement(point: PlacementPoint) -> dict[str, Any]:
    """One round: the indices, and the cost of all edges of the cube."""
    point.check()
    began = process_time_ns()
    density = min(1.0, point.mean_degree / (point.nodes - 1))
    topology = spoil(draw_topology(Network(point.nodes, density, point.seed)), point)
    table = next_links(topology)
    nodes = [node_id(number) for number in range(point.nodes)]
    costs = costs_of(nodes, path_qualities(topology, table))
    order = improve(costs, SWAPS_MAX) if point.placed else list(range(point.nodes))
    # A loss above zero makes the round use the production timers; the links have their own loss.
    inner = Point(nodes=point.nodes, mean_degree=point.mean_degree, seed=point.seed, loss=1e-9)
    network = CompiledNetwork(topology, table, point.seed)
    members = make_members(inner, ())
    round_ = Round(inner, network, members, order=order)
    round_.run()
    check_result(members)
    done_ns = list(round_.done_ns.values())
    outcome = outcome_of(network.traffic(), done_ns, topology, process_time_ns() - began)
    found: dict[str, Any] = msgspec.to_builtins(outcome)
    return found | {"edge_cost": arrangement_cost(costs, order)}
