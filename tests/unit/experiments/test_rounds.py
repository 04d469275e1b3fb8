"""Rounds of the protocol machines on the packet network, against sums, formulas and the plain model (S9)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from holdfast.errors import MisuseError
from holdfast.experiments.large import run_large
from holdfast.experiments.network import CompiledNetwork, NetworkOverrun
from holdfast.experiments.plain_network import PlainNetwork
from holdfast.experiments.points import Outcome, Point, transmission_ns
from holdfast.experiments.rounds import (
    Round,
    RoundFailed,
    check_result,
    failed_nodes,
    make_members,
    outcome_of,
    run_round,
)
from holdfast.experiments.routes import next_links
from holdfast.experiments.topology import Topology, draw_topology, make_topology
from holdfast.experiments.traffic import Network, Send
from holdfast.stability.hypercube import dimensions, neighbours
from holdfast.types import MILLISECOND

FULL_NS = transmission_ns(232)
START_NS = transmission_ns(32)

MIXED = [
    Point(nodes=20, edge_probability=0.04),
    Point(nodes=64, edge_probability=0.04, seed=2),
    Point(nodes=40, edge_probability=0.04, protocol="full"),
    Point(nodes=50, mean_degree=4, protocol="coord"),
    Point(nodes=50, mean_degree=4, protocol="tree"),
    Point(nodes=50, mean_degree=4, protocol="tree", bitmap=True, confirm=True),
    Point(nodes=40, edge_probability=0.25, failed=3, routers_down=True, seed=4),
    Point(nodes=33, mean_degree=4, one_starts=True),
    Point(nodes=40, mean_degree=4, loss=0.05),
    Point(nodes=20, mean_degree=4, loss=0.05, protocol="coord", confirm=True),
]


def pair(delay_ns: int = 300_000) -> Topology:
    """Two nodes and a link."""
    zero = np.zeros(1, np.int64)
    return make_topology(2, zero, zero + 1, zero + delay_ns, zero)


@pytest.mark.parametrize("point", MIXED, ids=lambda point: point.key)
def test_the_compiled_network_equals_the_plain_one(point: Point) -> None:
    assert (
        run_round(point, plain=False).without_time() == run_round(point, plain=True).without_time()
    )


@pytest.mark.parametrize(
    "point",
    [
        Point(nodes=2, edge_probability=0.5),
        Point(nodes=100, edge_probability=0.02, seed=3),
        Point(nodes=128, mean_degree=4),
        Point(nodes=90, edge_probability=0.04, failed=4, bitmap=True),
        Point(nodes=60, edge_probability=0.2, failed=2, routers_down=True),
        Point(nodes=150, mean_degree=4, protocol="tree"),
        Point(nodes=300, mean_degree=4, protocol="coord"),
    ],
    ids=lambda point: point.key,
)
def test_compiled_members_equal_the_protocol_machines(point: Point) -> None:
    """The model for large networks differs in no index, to the last packet."""
    fast = msgspec.structs.replace(point, model="compiled")
    assert run_large(fast).without_time() == run_round(point, plain=False).without_time()


@pytest.mark.parametrize("kind", [CompiledNetwork, PlainNetwork])
def test_packets_wait_for_each_other_on_a_link(kind: type) -> None:
    """Three packets at once: one is transmitted, two wait; each takes 18.56 µs after the one before."""
    topology = pair()
    network: Network = kind(topology, next_links(topology), 1)
    network.open_slot(-1)
    network.close_slot([Send(0, 0, 0, (1, 1, 1), FULL_NS, 9)])
    times = []
    while not network.is_empty:
        times += [found[1] for found in network.open_slot(10 * MILLISECOND)]
        network.close_slot([])
    assert times == [300_000 + k * FULL_NS for k in (1, 2, 3)]
    assert FULL_NS == 18_560
    traffic = network.traffic()
    assert (traffic.sent, traffic.hops, traffic.longest_queue) == (3, 3, 2)


def test_a_round_of_two_nodes_takes_what_the_links_take() -> None:
    """CubeFullDist with two members: both send at time 0 and know all when the frame of the other comes."""
    point = Point(nodes=2, edge_probability=0.5)
    topology = pair()
    network = CompiledNetwork(topology, next_links(topology), 1)
    members = make_members(point, ())
    round_ = Round(point, network, members)
    round_.run()
    # Two senders: 32 bytes and two numbers.
    once = transmission_ns(40) + 300_000
    assert list(round_.done_ns.values()) == [once, once]
    outcome = outcome_of(network.traffic(), [once, once], topology, 0)
    assert (outcome.messages, outcome.hops, outcome.longest_queue) == (4, 4, 0)
    assert outcome.load == 2.0


def test_a_coordinator_of_two_takes_three_messages_one_after_the_other() -> None:
    point = Point(nodes=2, edge_probability=0.5, protocol="coord")
    topology = pair()
    network = CompiledNetwork(topology, next_links(topology), 1)
    round_ = Round(point, network, make_members(point, ()))
    round_.run()
    report = transmission_ns(40) + 300_000
    first = START_NS + 300_000 + report
    assert round_.done_ns == {0: first, 1: first + report}


@pytest.mark.parametrize("nodes", [16, 64])
def test_a_complete_cube_sends_what_the_formula_says_in_step(nodes: int) -> None:
    """On one link delay for all, every member goes through m iterations and a last frame: n m (m+1) messages."""
    m = dimensions(nodes)
    point = Point(nodes=nodes, edge_probability=1.0)
    drawn = draw_topology(point.network())
    topology = msgspec.structs.replace(drawn, delay_ns=np.full(len(drawn.to), 500_000))
    network = CompiledNetwork(topology, next_links(topology), 1)
    round_ = Round(point, network, make_members(point, ()))
    round_.run()
    assert network.traffic().sent == nodes * m * (m + 1)


@pytest.mark.parametrize(
    ("protocol", "messages"), [("full", 30 * 29), ("coord", 3 * 29), ("tree", 3 * 29)]
)
def test_the_others_send_what_the_formula_says(protocol: str, messages: int) -> None:
    outcome = run_round(Point(nodes=30, edge_probability=0.2, protocol=protocol))
    # A member of the tree that is complete before START comes reports twice.
    assert messages <= outcome.messages <= messages * 1.1


def test_confirmations_are_sent_only_where_they_are_asked_for() -> None:
    point = Point(nodes=30, edge_probability=0.2, protocol="coord")
    confirmed = msgspec.structs.replace(point, confirm=True)
    assert run_round(confirmed).messages > run_round(point).messages


def test_a_bitmap_makes_packets_longer() -> None:
    point = Point(nodes=100, mean_degree=4)
    with_bitmap = msgspec.structs.replace(point, bitmap=True)
    assert run_round(with_bitmap).last_ns > run_round(point).last_ns


def test_failed_neighbours_are_excused_and_the_round_ends() -> None:
    """The worst case of the paper: all but one neighbour of node 0."""
    degree = len(neighbours(64, 0))
    point = Point(nodes=64, edge_probability=0.1, failed=degree - 1, seed=5)
    failed = failed_nodes(point)
    assert set(failed) < set(neighbours(64, 0))
    assert run_round(point).messages > 0


def test_lost_packets_are_repeated_until_the_round_ends() -> None:
    point = Point(nodes=32, mean_degree=4, loss=0.1)
    outcome = run_round(point)
    assert outcome.lost > 0
    assert (
        outcome.last_ns
        > 20 * MILLISECOND
        > run_round(msgspec.structs.replace(point, loss=0.0)).last_ns
    )


def test_members_can_live_at_other_nodes_than_their_place() -> None:
    point = Point(nodes=24, edge_probability=0.2)
    topology = draw_topology(point.network())
    table = next_links(topology)

    def run(order: list[int] | None) -> tuple[int, int]:
        network = CompiledNetwork(topology, table, 1)
        members = make_members(point, ())
        round_ = Round(point, network, members, order=order)
        round_.run()
        check_result(members)
        return max(round_.done_ns.values()), network.traffic().hops

    assert run(list(range(24))) == run(None)
    assert run(list(reversed(range(24)))) != run(None)


def test_a_wrong_result_does_not_pass() -> None:
    """The check of every round can fail."""
    members = make_members(Point(nodes=4, edge_probability=0.5), ())
    with pytest.raises(RoundFailed, match="4 members have a wrong result"):
        check_result(members)


def test_a_queue_beyond_the_model_ends_the_round_with_a_reason() -> None:
    topology = pair()
    network = CompiledNetwork(topology, next_links(topology), 1)
    network.open_slot(-1)
    with pytest.raises(NetworkOverrun, match="the round was aborted"):
        network.close_slot([Send(0, 0, 0, (1,) * 80_000, FULL_NS, 0)])


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(nodes=1, edge_probability=0.1), "needs 2 to"),
        (Point(nodes=10, edge_probability=0.1, protocol="cub"), "did you mean 'cube'"),
        (Point(nodes=10), "either an edge probability or a mean degree"),
        (Point(nodes=10, edge_probability=1.5), "edge probability is in"),
        (Point(nodes=10, edge_probability=0.1, failed=4), "at least one must be left"),
        (Point(nodes=10, edge_probability=0.1, failed=1, protocol="tree"), "only the cube"),
        (Point(nodes=10, edge_probability=0.1, model="quick"), "is not a model"),
        (Point(nodes=10, edge_probability=0.1, protocol="full", model="compiled"), "compiled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_point_that_makes_no_sense_is_refused(point: Point, words: str) -> None:
    with pytest.raises(MisuseError, match=words):
        point.check()


def test_two_runs_of_a_point_give_the_same_outcome() -> None:
    point = Point(nodes=50, mean_degree=4, loss=0.02)
    first: Outcome = run_round(point)
    assert run_round(point).without_time() == first.without_time()
