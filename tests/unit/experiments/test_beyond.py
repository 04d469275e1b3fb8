"""Beyond the paper: placement on networks with bad links (S8), joins (S6), riding (S7)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from holdfast.errors import MisuseError
from holdfast.experiments.bad_links import (
    PlacementPoint,
    node_id,
    path_qualities,
    run_placement,
    spoil,
)
from holdfast.experiments.joining import JoinPoint, RidePoint, run_joins, run_ride
from holdfast.experiments.points import Network
from holdfast.experiments.routes import next_links
from holdfast.experiments.topology import draw_topology, make_topology
from holdfast.types import MILLISECOND


def test_placement_by_path_quality_makes_edges_cheaper() -> None:
    """Same network, same round: members that are placed have cheaper edges and finish earlier."""
    point = PlacementPoint(nodes=32, mean_degree=6, seed=3, placed=False, bad_share=0.15)
    random = run_placement(point)
    placed = run_placement(msgspec.structs.replace(point, placed=True))
    assert placed["edge_cost"] < random["edge_cost"] * 0.8
    assert placed["last_ns"] < random["last_ns"]


def test_bad_links_are_bad_in_both_directions() -> None:
    topology = draw_topology(Network(40, 0.1, 1))
    point = PlacementPoint(nodes=40, mean_degree=4, seed=1, placed=True, bad_share=0.25)
    spoiled = spoil(topology, point)
    bad = spoiled.lossy > 0
    assert bad.sum() == 2 * round(0.25 * topology.links)
    assert (spoiled.delay_ns[bad] >= 10 * MILLISECOND).all()
    assert (spoiled.delay_ns[~bad] == topology.delay_ns[~bad]).all()


def test_the_quality_of_a_path_adds_up_along_its_route() -> None:
    """A line of three nodes: 0.4 ms and 0.6 ms, and the second link loses a half."""
    low, high = np.array([0, 1]), np.array([1, 2])
    delay, loss = np.array([400_000, 600_000]), np.array([0, 2**31])
    line = make_topology(3, low, high, delay, loss)
    found = path_qualities(line, next_links(line))
    assert found[node_id(0), node_id(2)].rtt_ns == 2_000_000
    assert found[node_id(0), node_id(2)].loss_ppm == 500_000
    assert found[node_id(0), node_id(1)].loss_ppm == 0


def test_a_round_ends_while_members_join_every_millisecond() -> None:
    """S6: bits of surviving members are carried over, so joins delay a round and do not prevent it."""
    calm = run_joins(JoinPoint(nodes=32, joins=0, every_us=1000))
    busy = run_joins(JoinPoint(nodes=32, joins=6, every_us=1000))
    assert busy["last_ns"] < calm["last_ns"] + 30 * MILLISECOND
    assert busy["packets"] > calm["packets"]


def test_frames_ride_on_traffic_that_flows_anyway() -> None:
    point = RidePoint(nodes=16, every_us=500, ride=False)
    alone = run_ride(point)
    riding = run_ride(msgspec.structs.replace(point, ride=True))
    assert alone["rode"] == 0
    assert riding["rode"] > 0
    assert riding["packets"] < alone["packets"] / 2


@pytest.mark.parametrize(
    "point",
    [
        PlacementPoint(nodes=1, mean_degree=4, seed=1, placed=True),
        PlacementPoint(nodes=10, mean_degree=4, seed=1, placed=True, bad_share=2),
        JoinPoint(nodes=1, joins=1, every_us=1),
        JoinPoint(nodes=4, joins=1, every_us=1, protocol="ring"),
        RidePoint(nodes=4, every_us=0, ride=True),
    ],
)
def test_a_point_that_makes_no_sense_is_refused(
    point: PlacementPoint | JoinPoint | RidePoint,
) -> None:
    with pytest.raises(MisuseError):
        point.check()
