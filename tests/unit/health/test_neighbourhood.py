"""Neighbourhoods: all agree on who is whose neighbour, few are, and everybody is reached."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.health.hamlet import node_id

from holdfast.health.probing.neighbourhood import Neighbourhood, ShapeName, cube_of, ring_of
from holdfast.subsystem import LocalNode
from holdfast.types import NodeId
from holdfast.wire.frames import AdapterInfo, MemberInfo


def cube(n: int) -> set[tuple[int, int]]:
    """The construction of the paper, section 3.3, as it is written there."""
    m = (n - 1).bit_length()
    edges = {(v, v ^ 1 << k) for v in range(n) for k in range(m) if v < v ^ 1 << k < n}
    for z in range(n, 1 << m):
        g = sorted(z ^ 1 << k for k in range(m) if z ^ 1 << k < n)
        if len(g) < 2:
            continue
        g = g[len(g) % 2 :]
        h = len(g) // 2
        edges |= set(zip(g[:h], g[h:], strict=True))
    return edges


def member(number: int, *subnets: str) -> MemberInfo:
    adapters = tuple(AdapterInfo(s, s, "127.0.0.1", number + 1, ("udp",)) for s in subnets)
    return MemberInfo(node_id(number), f"n{number}", 1, adapters)


def hood(
    number: int, count: int, shapes: dict[str, ShapeName], subnets: tuple[str, ...] = ("red",)
) -> Neighbourhood:
    info = member(number, *subnets)
    me = LocalNode(NodeId(info.node), info.name, "d", 1, info.adapters, sealed=False)
    made = Neighbourhood(me, shapes)
    for other in range(count):
        made.joined(member(other, *subnets))
    return made


def reached(edges: dict[NodeId, tuple[NodeId, ...]]) -> int:
    seen = {next(iter(edges))}
    waiting = list(seen)
    while waiting:
        for peer in edges[waiting.pop()]:
            if peer not in seen and peer in edges:
                seen.add(peer)
                waiting.append(peer)
    return len(seen)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 14, 33, 100, 255])
def test_the_cube_is_the_one_of_the_paper(count: int) -> None:
    """S1: members 0 to n-1, missing corners replaced by edges between their neighbours."""
    mine = {(min(v, w), max(v, w)) for v in range(count) for w in cube_of(count, v)}
    assert mine == {(min(e), max(e)) for e in cube(count)}


@pytest.mark.parametrize("count", [3, 9, 100, 1000])
def test_no_node_has_more_neighbours_than_the_cube_has_dimensions(count: int) -> None:
    dimensions = (count - 1).bit_length()
    degrees = {len(cube_of(count, place)) for place in range(count)}
    assert degrees <= {dimensions - 1, dimensions}


def test_a_ring_has_successors_and_predecessors() -> None:
    assert ring_of(10, 9, 2) == [0, 1, 7, 8]
    assert ring_of(3, 0, 2) == [1, 2]
    assert ring_of(2, 1, 2) == [0]
    assert ring_of(1, 0, 2) == []


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from(["all", "ring", "hypercube"]),
    count=st.integers(2, 40),
    dead=st.sets(st.integers(1, 39), max_size=6),
)
def test_neighbours_are_mutual_and_the_living_are_connected(
    shape: ShapeName, count: int, dead: set[int]
) -> None:
    """H19. Whatever died, news still reaches everybody who lives, once all know who is dead."""
    living = [k for k in range(count) if k not in dead]
    edges: dict[NodeId, tuple[NodeId, ...]] = {}
    for number in living:
        made = hood(number, count, {"red": shape})
        made.died(node_id(k) for k in dead if k < count)
        edges[node_id(number)] = made.peers("red")
    for node, peers in edges.items():
        assert peers == tuple(sorted(peers))
        for peer in peers:
            assert peer not in edges or node in edges[peer]
    assert reached(edges) == len(living)


def test_neighbours_follow_the_membership() -> None:
    made = hood(0, 20, {"red": "ring"})
    before, version = made.peers("red"), made.version
    made.left(before[0])
    assert before[0] not in made.peers("red")
    assert len(made.peers("red")) == 4
    assert made.version > version
    made.joined(member(99, "blue"))
    assert node_id(99) not in made.peers("red"), "it is not on this subnet"


def test_one_that_died_stays_a_neighbour_and_others_stand_in_for_it() -> None:
    """It is tried again, and what went by way of it goes another way."""
    made = hood(0, 20, {"red": "ring"})
    before = made.peers("red")
    made.died([before[0]])
    assert set(before) < set(made.peers("red"))
    made.died([])
    assert made.peers("red") == before


def test_each_subnet_has_its_own_shape() -> None:
    made = hood(0, 50, {"red": "hypercube"}, ("red", "blue"))
    assert len(made.peers("red")) in (5, 6)
    assert len(made.peers("blue")) == len(made.everybody()) == 49
    assert made.sparse
    far = next(peer for peer in made.peers("blue") if peer not in made.peers("red"))
    assert made.probes("blue", far)
    assert not made.probes("red", far)
    made.need(far)
    assert made.probes("red", far), "any path in use is probed whatever the neighbourhood"
    assert made.peers("green") == ()
