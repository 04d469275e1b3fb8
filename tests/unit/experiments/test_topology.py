"""Random networks and the routes on them (S9)."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.experiments.points import DELAY_NS_MAX, Network
from holdfast.experiments.routes import NO_LINK, next_links, plain_next_link, trace_paths
from holdfast.experiments.topology import Disconnected, components, draw_topology, make_topology


def test_every_pair_has_a_link_with_the_same_probability() -> None:
    """Flat random method: the number of links is binomial, and low and high numbers are alike."""
    topology = draw_topology(Network(400, 0.05, 3))
    pairs = 400 * 399 / 2
    expected, deviation = pairs * 0.05, (pairs * 0.05 * 0.95) ** 0.5
    assert abs(topology.links - expected) < 5 * deviation
    degree = np.diff(topology.start)
    assert abs(degree[:200].mean() - degree[200:].mean()) < 2.0
    assert topology.delay_ns.min() >= 0
    assert topology.delay_ns.max() <= DELAY_NS_MAX
    assert abs(topology.delay_ns.mean() / DELAY_NS_MAX - 0.5) < 0.05


def test_a_topology_has_no_loops_and_no_double_links() -> None:
    topology = draw_topology(Network(60, 0.5, 1))
    for node in range(60):
        near = topology.neighbours(node)
        assert near == sorted(set(near))
        assert node not in near


def test_both_directions_of_a_link_have_the_same_delay() -> None:
    topology = draw_topology(Network(30, 0.2, 5))
    delay = {}
    for node in range(30):
        for link in range(topology.start[node], topology.start[node + 1]):
            delay[node, int(topology.to[link])] = int(topology.delay_ns[link])
    assert all(delay[b, a] == delay[a, b] for a, b in delay)


def test_components_are_joined_and_the_joins_are_counted() -> None:
    """20 nodes at 0.01 are mostly alone: the links that connect them are the topology."""
    topology = draw_topology(Network(20, 0.01, 2))
    assert topology.joins > 10
    assert topology.links == 19 or topology.joins < 19
    source = np.repeat(np.arange(20), np.diff(topology.start))
    assert set(components(20, source, topology.to.astype(np.int64)).tolist()) == {0}


def test_a_disconnected_topology_is_refused_when_it_may_not_be_joined() -> None:
    with pytest.raises(Disconnected, match="components; the point was not run"):
        draw_topology(Network(20, 0.01, 2, joined=False))


def test_the_seed_decides_the_topology() -> None:
    one, same, other = (draw_topology(Network(50, 0.1, seed)) for seed in (1, 1, 2))
    assert one.to.tolist() == same.to.tolist()
    assert one.delay_ns.tolist() == same.delay_ns.tolist()
    assert one.to.tolist() != other.to.tolist()


@pytest.mark.parametrize("nodes", [2, 63, 64, 65, 130])
def test_the_route_table_equals_breadth_first_search(nodes: int) -> None:
    """Both sides of a word of 64 destinations."""
    topology = draw_topology(Network(nodes, min(1.0, 4 / nodes), 7))
    table = next_links(topology)
    for destination in range(nodes):
        assert table[destination].tolist() == plain_next_link(topology, destination)


def test_traced_paths_follow_the_route_table() -> None:
    topology = draw_topology(Network(100, 0.04, 1))
    table = next_links(topology)
    source, target = np.array([5, 99, 0, 7]), np.array([3, 3, 64, 99])
    begin, path = trace_paths(topology, source, target)
    for k in range(4):
        at = source[k]
        for link in path[begin[k] : begin[k + 1]]:
            assert table[target[k], at] == link
            at = topology.to[link]
        assert at == target[k]


def test_nothing_is_routed_through_a_node_that_is_down() -> None:
    """A ring of five: without node 1, node 0 reaches 2 the long way, and node 1 itself is still a destination."""
    low, high = np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 4, 4])
    zeros = np.zeros(5, np.int64)
    ring = make_topology(5, low, high, zeros, zeros)
    assert int(ring.to[next_links(ring)[2, 0]]) == 1
    table = next_links(ring, down=(1,))
    assert int(ring.to[table[2, 0]]) == 4
    assert int(ring.to[table[1, 0]]) == 1
    assert table[2, 2] == NO_LINK


def test_nodes_that_are_cut_off_are_reported() -> None:
    low, high = np.array([0, 1]), np.array([1, 2])
    zeros = np.zeros(2, np.int64)
    line = make_topology(3, low, high, zeros, zeros)
    with pytest.raises(Disconnected, match="2 pairs of nodes have no route"):
        next_links(line, down=(1,))
