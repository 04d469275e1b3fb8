"""Which links a node keeps, and what a large domain changes."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.health.probing.neighbourhood import Neighbourhood
from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.ids import digest
from holdfast.overlay.mesh import MeshPlan, links_made_by, mesh_neighbours
from holdfast.subsystem import LocalNode
from holdfast.types import NodeId
from holdfast.wire.frames import AdapterInfo, MemberInfo

SPARSE = OverlayConfig(mesh_all_up_to=0)


def nodes(count: int, realms: int = 1) -> dict[bytes, str]:
    return {digest(f"n{k}".encode()): f"r{k % realms}" for k in range(count)}


@pytest.mark.parametrize(("count", "realms"), [(5, 1), (40, 1), (100, 3), (200, 6)])
def test_the_mesh_is_connected_and_both_ends_agree_on_it(count: int, realms: int) -> None:
    members = nodes(count, realms)
    peers = {node: mesh_neighbours(node, members, SPARSE) for node in members}
    for node, around in peers.items():
        assert all(node in peers[peer] for peer in around)
        assert set(links_made_by(node, members, SPARSE)) <= set(around)
    seen = {next(iter(members)): True}
    queue = list(seen)
    while queue:
        fresh = [peer for peer in peers[queue.pop()] if peer not in seen]
        seen.update(dict.fromkeys(fresh, True))
        queue += fresh
    assert len(seen) == count


def test_a_node_links_to_the_next_larger_ids_of_its_realm() -> None:
    members = nodes(50)
    ordered = sorted(members)
    made = links_made_by(ordered[10], members, SPARSE)
    assert set(ordered[11:14]) <= set(made)


def test_realms_are_joined_by_links_of_several_nodes() -> None:
    members = nodes(60, 3)
    across = [
        (node, peer)
        for node in members
        for peer in links_made_by(node, members, SPARSE)
        if members[node] != members[peer]
    ]
    for one, other in (("r0", "r1"), ("r0", "r2"), ("r1", "r2")):
        ends = [pair for pair in across if {members[pair[0]], members[pair[1]]} == {one, other}]
        assert len({node for pair in ends for node in pair if members[node] == one}) >= 3


def test_a_small_domain_links_all_to_all() -> None:
    members = nodes(32)
    me = next(iter(members))
    assert len(links_made_by(me, members, OverlayConfig())) == 31


def test_a_plan_looks_past_nodes_that_cannot_be_reached() -> None:
    members = nodes(50)
    ordered = sorted(members)
    plan = MeshPlan(ordered[0], SPARSE)
    config = msgspec.structs.replace(SPARSE, realm="r0")
    plan = MeshPlan(ordered[0], config)
    plan.follow(ordered, lambda node: "r0", ())
    before = dict(plan.wanted())
    assert ordered[4] in before or ordered[3] in before
    plan.follow(ordered, lambda node: "r0", ordered[1:4])
    after = plan.wanted()
    assert set(ordered[4:7]) <= set(after), "the next that are alive"
    assert set(ordered[1:4]) <= set(after), "those that are gone are tried again"


def member(name: str) -> MemberInfo:
    adapter = AdapterInfo("red", "red", "127.0.0.1", 1, ("tcp",))
    return MemberInfo(digest(name.encode()), name, 1, (adapter,))


def test_health_and_directory_follow_the_plan() -> None:
    adapter = AdapterInfo("red", "red", "127.0.0.1", 1, ("tcp",))
    me = LocalNode(NodeId(digest(b"me")), "me", "d", 1, (adapter,), False)
    neighbourhood = Neighbourhood(me)
    for k in range(5):
        neighbourhood.joined(member(f"n{k}"))
    assert not neighbourhood.sparse
    assert len(neighbourhood.everybody()) == 5
    wanted = {digest(b"n1"): True}
    neighbourhood.plan = lambda: wanted
    neighbourhood.replan()
    assert neighbourhood.sparse
    assert neighbourhood.everybody() == (digest(b"n1"),)
    neighbourhood.plan = lambda: None
    neighbourhood.replan()
    assert not neighbourhood.sparse
