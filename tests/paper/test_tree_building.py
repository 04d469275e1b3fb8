"""The paper on object replicas: the numbered rules of publish, recovery, and breaking cycles and stale routes.

The docstrings cite the paper's sections. Rules that decide on a node alone are tested on the function that states them;
what they add up to is tested on a small network with `directed` off, so that only the paper's own rules are at work.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support import overlay_world
from tests.support.overlay_world import FAST, World, node_id, publish

from holdfast.links.ports import Received
from holdfast.overlay import tree_id
from holdfast.overlay.frames import (
    EDGE_AGREE,
    EDGE_ASK,
    INFINITE,
    PUBLISH,
    RECOVER,
    SEEN,
    UNPUBLISH,
    Break,
    Edge,
    Found,
    Message,
    Reply,
    Reverse,
    Wave,
    WaveAnswer,
)
from holdfast.overlay.hoptimes import HopTimes, averaged
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import (
    OverlayEvent,
    PublishMany,
    PublishRole,
    RoleLost,
    UnpublishRole,
)
from holdfast.overlay.rules import UNTIL_OUTSIDE, Situation, forward, spew_over
from holdfast.types import MILLISECOND, SECOND, NodeId

TREE = tree_id("tree")
world_of = partial(overlay_world.world_of, seed=7)
SEED_ONLY = msgspec.structs.replace(FAST, directed=False)
R1, R2, E1, L1 = (NodeId(bytes([k]) * 16) for k in range(1, 5))

USUAL = Situation(
    kind=PUBLISH,
    spew=0,
    spew_hops=3,
    holder=False,
    role_built=True,
    tree_built=True,
    broken=False,
    outside_lost=False,
    routes=[R1, R2],
    edges=[R1, R2, E1],
    links=[R1, R2, E1, L1],
)


def situation(**changes: Any) -> Situation:
    return msgspec.structs.replace(USUAL, **changes)


def seen_frames(world: World, kind: type | tuple[type, ...]) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, kind):
            found.append((sender.name, receiver.name, frame))

    world.watch = watch
    return found


# -- Forwarding a Publish Message --------------------------------------------------------------------------------


def test_publish_rule_1_a_message_that_was_seen_is_not_processed_again() -> None:
    """'If the node has already received the same publish message ... the publish message is discarded.' Here it is also
    answered, or its sender would wait (rule 6 of the design)."""
    world = world_of("a", "b", "c", links="a-b b-c c-a")
    waves = seen_frames(world, Wave)
    publish(world, "a", extent=5)
    copies = [
        (wave.root, sender, receiver) for sender, receiver, wave in waves if wave.kind == PUBLISH
    ]
    received = [(root, receiver) for root, _, receiver in copies]
    assert len(set(received)) < len(received), "no node got it twice"
    passed_on = [(root, sender) for root, sender, _ in copies if sender != "a"]
    assert len(set(passed_on)) == len(passed_on), "a node sent it on twice"
    for name in ("b", "c"):
        assert len(world.hosts[name].machine.inspect.routes(TREE, "role")) == 1
    assert all(host.machine.inspect.sizes()["waves"] == 0 for host in world.hosts.values())


def test_publish_rule_2_another_instance_stops_the_message_when_spew_hops_is_0() -> None:
    """'If the node has another instance of the same role, the publish message is not forwarded any further provided
    that Spew Hops is 0, but it is processed.'"""
    assert forward(situation(holder=True)).links == []
    assert forward(situation(holder=True, spew=2)).links == USUAL.links
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d", config=SEED_ONLY)
    publish(world, "a")
    publish(world, "b")
    publish(world, "d")
    b = world.hosts["b"].machine.inspect.routes(TREE, "role")
    assert node_id("d") in [node_of(i) for i in b], "it is processed"


def test_publish_rule_2_the_registered_instance_does_not_pass_a_publish_on() -> None:
    """The instances behind it have routes to it already, and reach the new one through it."""
    world = world_of("l", "m", "r", links="l-m m-r")
    publish(world, "m", "l")
    waves = seen_frames(world, Wave)
    publish(world, "r")
    assert [(s, r) for s, r, wave in waves if wave.kind == PUBLISH] == [("r", "m")]
    world.request("l", b"x")
    assert world.receivers(b"x") == {"l": 1, "m": 1, "r": 1}


def test_publish_rule_3_spew_hops_are_reset_where_role_and_tree_are_not_built() -> None:
    """'If the local Role Route is not fully built and the local Tree is also not fully built, reset Spew Hops to 3.'"""
    broken = situation(role_built=False, tree_built=False, broken=True)
    assert forward(broken).spew == 3
    assert forward(msgspec.structs.replace(broken, tree_built=True)).spew == 0


def test_publish_rule_3_spew_hops_are_decremented_where_the_role_is_built() -> None:
    """'Otherwise, if the local Role Route is fully built and Spew Hops is non-zero, decrement Spew Hops by 1.'"""
    assert forward(situation(spew=3)).spew == 2
    assert forward(situation(spew=1)).spew == 0
    assert forward(situation(spew=INFINITE)).spew == INFINITE


def test_rule_3_a_node_that_never_had_the_role_does_not_reset_the_spew_hops() -> None:
    """The paper resets them wherever the role is not built, so a recovery would reach every node. Here only a failure
    resets them (rule 20 of the design); elsewhere they run out."""
    fresh = situation(kind=RECOVER, role_built=False, tree_built=False, routes=[], edges=[])
    spew, hops = 3, 0
    while hops < 9 and (plan := forward(msgspec.structs.replace(fresh, spew=spew))).links:
        spew, hops = plan.spew, hops + 1
    assert hops == 2, "and no link at the third node"


def test_publish_rule_4_a_built_role_is_published_along_its_routes() -> None:
    """'the publish message is only forwarded on links that are the routes to existing instances of the role.'"""
    plan = forward(situation())
    assert (plan.rule, plan.links) == (4, [R1, R2])


def test_publish_rule_5_an_unbuilt_role_of_a_built_tree_is_published_along_its_edges() -> None:
    plan = forward(situation(role_built=False))
    assert (plan.rule, plan.links) == (5, [R1, R2, E1])


def test_publish_rule_6_otherwise_it_goes_on_all_links() -> None:
    """'This tends to search for local repairs to the tree for a few hops.'"""
    plan = forward(situation(role_built=False, tree_built=False, broken=True))
    assert (plan.rule, plan.links) == (6, USUAL.links)
    assert forward(situation(spew=2)).rule == 6


def test_a_publish_leaves_a_route_at_every_node_that_it_passes() -> None:
    """'the publish message is processed by adding a Role Route Instance, with an Edge over the Link that the publish
    message is received.'"""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    publish(world, "a", "d")
    routes = {n: world.hosts[n].machine.inspect.routes(TREE, "role") for n in "abcd"}
    assert [node_of(i) for i in routes["a"]] == [node_id("d")]
    assert sorted(routes["b"].values()) == sorted([node_id("a"), node_id("c")])
    assert sorted(routes["c"].values()) == sorted([node_id("b"), node_id("d")])


# -- Forwarding a Recovery Request Message -----------------------------------------------------------------------


def test_recovery_rule_1_a_request_that_was_seen_is_answered_seen() -> None:
    """'the recovery request message is discarded, with no processing': b and c get it from a and from each other."""
    world = world_of("a", "b", "c", links="a-b b-c c-a", config=SEED_ONLY)
    frames = seen_frames(world, (Wave, WaveAnswer))
    end = world.request("a", b"x")
    requests = [(s, f.root) for s, _, f in frames if isinstance(f, Wave) and f.kind == RECOVER]
    passed_on = [(s, root) for s, root in requests if s != "a"]
    assert passed_on
    assert len(set(passed_on)) == len(passed_on), "a node sent it on twice"
    assert SEEN in [f.status for _, _, f in frames if isinstance(f, WaveAnswer)]
    assert end.kind == "not_found"
    assert all(host.machine.inspect.sizes()["waves"] == 0 for host in world.hosts.values())
    assert all(h.machine.hub.counters.get("wave_timeout", 0) == 0 for h in world.hosts.values())


def test_recovery_rule_2_an_instance_answers_and_the_request_goes_no_further() -> None:
    """'If the recovery message were to be forwarded further, it would cause routes to be recovered for nodes to
    which the current node already has routes.'"""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    publish(world, "c", "d")
    waves = seen_frames(world, Wave)
    world.request("a", b"x")
    recover = [(s, r) for s, r, wave in waves if wave.kind == RECOVER]
    assert ("c", "d") not in recover
    assert world.receivers(b"x") == {"c": 1, "d": 1}


def test_recovery_rule_3_spew_hops_are_reset_where_the_role_is_not_built() -> None:
    """A publish also needs an unbuilt tree for that; a recovery does not."""
    at = situation(kind=RECOVER, role_built=False, tree_built=True, broken=True)
    assert forward(at).spew == 3
    assert forward(msgspec.structs.replace(at, kind=PUBLISH)).spew == 0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, 4),
        ({"role_built": False}, 5),
        ({"role_built": False, "broken": True}, 6),
        ({"spew": 2}, 6),
    ],
)
def test_recovery_rules_4_to_6(changes: dict[str, Any], rule: int) -> None:
    plan = forward(situation(kind=RECOVER, **changes))
    assert plan.rule == rule
    assert plan.links == {4: USUAL.routes, 5: USUAL.edges, 6: USUAL.links}[rule]


def test_a_recovery_by_the_seeds_rules_alone_finds_a_way_around_a_failure() -> None:
    """'Recovery Algorithm': requests spread where the role is not built, answers make routes on the way back."""
    world = world_of("s", "a", "b", "c", "t", links="s-a a-t s-b b-c c-t", config=SEED_ONLY)
    publish(world, "t")
    world.request("s", b"before")
    world.cut("a", "t")
    world.run(SECOND)
    end = world.request("s", b"after")
    assert end.kind == "done"
    assert world.receivers(b"after") == {"t": 1}


def test_instances_on_the_exclude_list_do_not_answer() -> None:
    """'Routes to role instances in the exclude list do not need to be recovered.' Here the request also reaches r, to
    which b has a route already."""
    world = world_of("l", "b", "r", links="l-b b-r")
    publish(world, "l", "r")
    world.cut("b", "l")
    world.run(SECOND)
    world.link("b", "l")
    world.run(SECOND)
    b, r = world.hosts["b"].machine, world.hosts["r"].machine
    left, right = (world.hosts[name].machine.local.get(TREE, "role") for name in "lr")
    assert left is not None
    assert right is not None
    answers = seen_frames(world, WaveAnswer)
    for excluded in ((right.instance,), ()):
        frame = b.waves.wave(RECOVER, TREE, "role", exclude=excluded)
        b.waves.begin(frame, [(peer, frame) for peer in b.hub.open_peers], lambda _: None)
        world.post(world.hosts["b"], [])
        world.run(SECOND)
    found = [(s, [one.instance for one in answer.found]) for s, _, answer in answers]
    assert found.count(("l", [left.instance])) == 2
    assert [instances for s, instances in found if s == "r"] == [[], [right.instance]]
    assert r.inspect.sizes()["waves"] == 0
    requests = seen_frames(world, Wave)
    world.request("b", b"x")
    excludes = [wave.exclude for _, _, wave in requests if wave.kind == RECOVER]
    assert excludes
    assert all(right.instance in exclude for exclude in excludes), "b names what it has"


def test_a_link_that_fails_during_a_recovery_makes_it_start_again() -> None:
    """'if the node that originated recovery gets any recovery failure responses during the recovery, it simply
    re-initiates the recovery.'"""
    world = world_of("s", "a", "b", "t", links="s-a a-t s-b b-t")
    publish(world, "t")
    world.request("s", b"before")
    via = world.hosts["s"].machine.inspect.routes(TREE, "role")
    first = world.by_id[next(iter(via.values()))].name
    other = "b" if first == "a" else "a"
    world.cut("s", first)
    world.run(200 * MILLISECOND)
    op = world.send("s", b"after")
    world.run(2 * MILLISECOND)
    world.cut(other, "t")
    world.run(300 * MILLISECOND)
    world.link(other, "t")
    world.run(8 * SECOND)
    end = world.hosts["s"].end_of(op)
    assert end is not None
    assert end.kind == "done"
    assert world.receivers(b"after") == {"t": 1}


# -- Exclusive Roles, Unpublish, Bulk, Restricted Publish --------------------------------------------------------


def test_the_higher_of_two_exclusive_publishes_wins_everywhere() -> None:
    """'comparing instance IDs for the (prospective) role instances and letting the highest instance ID win.' The design
    compares (epoch, instance id); two that are published at the same time have the same epoch."""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    ops = {name: world.publish(name, exclusive=True) for name in ("a", "d")}
    world.run(5 * SECOND)
    winner = max(("a", "d"), key=node_id)
    assert world.holders() == [winner]
    results = {name: world.published(name, op) for name, op in ops.items()}
    lost = "d" if winner == "a" else "a"
    told = results[lost]
    assert (told is not None and not told.ok) or world.hosts[lost].told(RoleLost)


def test_an_exclusive_publish_removes_a_shared_role_of_the_same_name() -> None:
    """'publishing an exclusive role wipes out any shared role by the same name that had been published on the tree.'"""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    publish(world, "a", "b", "d")
    publish(world, "c", exclusive=True)
    world.run(2 * SECOND)
    assert world.holders() == ["c"]
    assert all(world.hosts[name].told(RoleLost) for name in ("a", "b", "d"))
    for sender in "abd":
        world.request(sender, sender.encode())
        assert world.receivers(sender.encode()) == {"c": 1}


def test_an_unpublish_removes_the_routes() -> None:
    """'Instead of adding a Role Route Instance when the Unpublish request message is processed on each node, the
    specified Role Route Instance is removed.'"""
    world = world_of("a", "b", "c", links="a-b b-c")
    publish(world, "a", "c")
    gone = world.hosts["c"].machine.local.get(TREE, "role")
    assert gone is not None
    waves = seen_frames(world, Wave)
    world.post(world.hosts["c"], [UnpublishRole(9, TREE, "role")])
    world.run(SECOND)
    assert [(s, r) for s, r, w in waves if w.kind == UNPUBLISH] == [("c", "b"), ("b", "a")]
    for name in "ab":
        assert gone.instance not in world.hosts[name].machine.inspect.routes(TREE, "role")


def test_an_instance_behind_one_that_is_unpublished_is_still_reached() -> None:
    """The paper removes the route to the instance only. What was reached through it would be cut off: c is known to a
    only through b."""
    world = world_of("a", "b", "c", links="a-b b-c", config=SEED_ONLY)
    for name in "abc":
        op = world.publish(name)
        world.run(2 * SECOND)
        done = world.published(name, op)
        assert done is not None
    world.post(world.hosts["b"], [UnpublishRole(9, TREE, "role")])
    world.run(SECOND)
    world.request("a", b"x")
    assert world.receivers(b"x") == {"a": 1, "c": 1}


def test_a_bulk_publish_travels_as_one_message_per_link() -> None:
    """'Bulk Publish': several builder messages for one link are sent in one bulk message."""
    world = world_of("a", "b", links="a-b")
    for k in range(20):
        publish(world, "a", role=f"r{k}")
    world.by_type.clear()
    ops = [world.op() for _ in range(20)]
    many = PublishMany(tuple(PublishRole(op, TREE, f"r{k}") for k, op in enumerate(ops)))
    world.post(world.hosts["b"], [many])
    world.run(3 * SECOND)
    results = [world.published("b", op) for op in ops]
    assert all(done is not None and done.ok for done in results)
    assert world.by_type.get("Bulk", 0) >= 1
    assert world.by_type.get("Wave", 0) < 20


def test_a_restricted_publish_stays_within_its_hops() -> None:
    """'Restricted Publish'."""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    publish(world, "a", extent=2)
    knows = [n for n in "bcd" if world.hosts[n].machine.inspect.routes(TREE, "role")]
    assert knows == ["b", "c"]


def test_a_role_for_the_realm_is_not_found_from_outside() -> None:
    world = World(7)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.line("a", "b", "x")
    world.run(2 * SECOND)
    publish(world, "a", realm_only=True)
    assert world.request("b", b"in", realm_only=True).kind == "done"
    entries = world.hosts["x"].machine.inspect.sizes()["entries"]
    assert entries == 0, "registered with the local search only"


# -- Creating and Destroying Tree Edges --------------------------------------------------------------------------


def test_an_edge_is_known_at_both_ends() -> None:
    """'Since the tree needs to be bi-directional, whenever an Edge object is created, the local node sends an edge
    create request message over the link.'"""
    world = world_of("a", "b", links="a-b")
    publish(world, "a")
    world.request("b", b"x")
    assert world.hosts["b"].machine.inspect.neighbours(TREE) == [node_id("a")]
    a = world.hosts["a"].machine.inspect
    assert a.routes(TREE, "role") == {}, "a has no route over it"
    assert a.neighbours(TREE) == [node_id("b")]


def test_an_edge_without_routes_is_removed_when_both_ends_agree() -> None:
    """'Edge removal: unforced, ask the peer, who agrees only without routes, check again, remove.'"""
    world = world_of("a", "b", links="a-b")
    publish(world, "a", "b")
    a, b = world.hosts["a"], world.hosts["b"]
    tree = a.machine.cache.peek(TREE)
    assert tree is not None
    tree.roles["role"].routes.clear()
    a.machine.builder.edges.tidy(tree)
    world.post(a, [])
    world.run(SECOND)
    assert node_id("b") in tree.edges, "b has a route over it and keeps the edge"
    other = b.machine.cache.peek(TREE)
    assert other is not None
    other.roles["role"].routes.clear()
    a.machine.builder.edges.tidy(tree)
    world.post(a, [])
    world.run(SECOND)
    assert node_id("b") not in tree.edges
    assert node_id("a") not in other.edges


def test_an_edge_stays_when_a_route_was_found_while_the_peer_agreed_to_remove_it() -> None:
    """'check again': the peer has removed its end when it agrees, so it is told to make it again."""
    world = world_of("a", "b", links="a-b")
    publish(world, "a", "b")
    a, b = world.hosts["a"].machine, world.hosts["b"].machine
    tree = b.cache.peek(TREE)
    assert tree is not None
    del tree.edges[NodeId(node_id("a"))]
    agreed = Received(node_id("b"), [Edge(TREE, EDGE_AGREE)], world.now)
    world.post(world.hosts["a"], [agreed])
    world.run(SECOND)
    assert a.inspect.neighbours(TREE) == [node_id("b")]
    assert b.inspect.neighbours(TREE) == [node_id("a")]


# -- Ensuring Efficient Routing to All Roles in a Local Realm ----------------------------------------------------


def test_a_duplicate_from_outside_the_realm_is_processed_again_from_inside() -> None:
    """A publish leaves the realm and comes back to b before it arrives from a. The realm must not be on two
    fragments."""
    world = World(7)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.link("a", "b", delay=300 * MILLISECOND)
    world.link("a", "x", delay=MILLISECOND)
    world.link("x", "b", delay=MILLISECOND)
    world.run(5 * SECOND)
    publish(world, "a", extent=3)
    world.run(3 * SECOND)
    route = world.hosts["b"].machine.inspect.routes(TREE, "role")
    assert list(route.values()) == [node_id("a")], "the route inside the realm"
    assert world.request("b", b"x", realm_only=True).kind == "done"


def test_after_losing_a_link_between_realms_spew_hops_are_infinite_until_outside() -> None:
    """'Loss of Link Connecting to Another Realm': 'keep Spew Hops set to infinite until the message leaves the
    realm.'"""
    at = situation(kind=RECOVER, role_built=False, tree_built=False, broken=True, outside_lost=True)
    plan = forward(at)
    assert plan.spew == UNTIL_OUTSIDE
    assert spew_over(plan.spew, inside=True) == UNTIL_OUTSIDE
    assert spew_over(plan.spew, inside=False) == 0
    assert forward(msgspec.structs.replace(at, outside_lost=False)).spew == 3


def test_a_recovery_after_the_loss_of_a_link_between_realms_crosses_the_whole_realm() -> None:
    """The other link between the realms is seven hops away. On the way the role seems built, so that three spew hops
    would run out at e3, whose route leads back. Outside, they end at once."""
    world = World(7, SEED_ONLY)
    inner = [f"e{k}" for k in range(8)]
    for name in inner:
        world.add(name, "east")
    for name in ("w", "v"):
        world.add(name, "west")
    world.line(*inner)
    world.line("e0", "w", "e7")
    world.link("w", "v")
    world.run(3 * SECOND)
    publish(world, "w")
    for name in inner:
        world.request(name, name.encode())
    world.cut("e0", "w")
    world.run(SECOND)
    waves = seen_frames(world, Wave)
    assert world.request("e0", b"after").kind == "done"
    spread = [(s, r, w.spew) for s, r, w in waves if w.kind == RECOVER and not w.target]
    assert ("e7", "w", 0) in spread
    assert world.receivers(b"after") == {"w": 1}


# -- Determining Recovery Timeout --------------------------------------------------------------------------------


def test_hop_times_are_averages_of_nine_tenths_old_and_one_tenth_new() -> None:
    assert averaged(1000, 2000) == 1100
    assert averaged(0, 2000) == 2000, "the first one counts whole"


def test_a_hop_takes_half_of_a_round_trip_to_a_neighbour() -> None:
    times = HopTimes(FAST)
    assert times.pinged(0, 8 * MILLISECOND) == 4 * MILLISECOND
    assert times.local_ns == 4 * MILLISECOND
    assert times.pinged(4 * MILLISECOND, 28 * MILLISECOND) == 5 * MILLISECOND


def test_the_time_out_is_three_times_the_largest_recent_round_trip() -> None:
    """For the own realm by its own list, otherwise by all."""
    times = HopTimes(msgspec.structs.replace(FAST, wave_ns_min=1, wave_ns_max=10**18))
    for took in (5, 40, 20):
        times.round_trip(True, took * MILLISECOND)
    times.round_trip(False, 500 * MILLISECOND)
    assert times.timeout(True, 10) == 120 * MILLISECOND
    assert times.timeout(False, 10) == 1500 * MILLISECOND


def test_hop_times_travel_on_builder_messages() -> None:
    times = HopTimes(FAST)
    before = times.global_ns
    for _ in range(50):
        times.heard(20_000)
    assert before < times.global_ns <= 20 * MILLISECOND
    world = world_of("a", "b", "c", links="a-b b-c")
    world.run(30 * SECOND)
    waves = seen_frames(world, Wave)
    publish(world, "c")
    assert world.request("a", b"x").kind == "done"
    pinged = world.hosts["a"].machine.times.local_us()
    assert pinged > 0, "from pings"
    assert pinged in [wave.hop_us for s, _, wave in waves if s == "a"]


def test_round_trips_are_measured_apart_for_the_realm() -> None:
    """'the maximum value in List A' for the local realm, 'List B' for all."""
    world = World(7, msgspec.structs.replace(FAST, wave_ns_min=1))
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.link("a", "b", delay=20 * MILLISECOND)
    world.link("b", "x", delay=300 * MILLISECOND)
    world.run(9 * SECOND)
    publish(world, "b", role="near", realm_only=True)
    publish(world, "x", role="far")
    world.request("a", b"near", role="near", realm_only=True)
    world.request("a", b"far", role="far")
    times = world.hosts["a"].machine.times
    near, far = times.timeout(True, 3), times.timeout(False, 3)
    assert 3 * 40 * MILLISECOND <= near < 3 * 100 * MILLISECOND
    assert far >= 3 * 600 * MILLISECOND


# -- Handling Cycles ---------------------------------------------------------------------------------------------


def cycle() -> tuple[World, list[tuple[str, str, Any]]]:
    """p and q hold the role and know each other; s knows both: its message arrives twice at one of them."""
    world = world_of("s", "p", "q", links="s-p s-q p-q")
    publish(world, "p", "q")
    world.request("s", b"warm")
    for name in ("p", "q"):
        local = world.hosts[name].machine.local.get(TREE, "role")
        assert local is not None
        world.request("s", b"named " + name.encode(), instance=local.instance)
    frames: list[tuple[str, str, Any]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Message | Reply | Break | Reverse | Edge):
            frames.append((sender.name, receiver.name, frame))

    world.watch = watch
    return world, frames


def test_cycle_steps_1_to_4_the_node_that_gets_a_message_twice_breaks_the_route() -> None:
    world, frames = cycle()
    end = world.request("s", b"x", aggregate=True)
    assert world.receivers(b"x") == {"p": 1, "q": 1}
    assert sorted(data for _, data in end.replies) == [b"p", b"q"]
    breaks = [(s, r) for s, r, f in frames if isinstance(f, Break)]
    assert breaks, "both ends may notice at the same time"
    copies = [(s, r) for s, r, f in frames if isinstance(f, Message)]
    assert all((r, s) in copies for s, r in breaks), "the copy that closed the circle"


def test_cycle_step_5_the_null_reply_of_a_broken_route_is_hidden_from_the_sender() -> None:
    world, _ = cycle()
    end = world.request("s", b"x", aggregate=True)
    assert end.kind == "done"
    assert end.failed == ()
    assert not end.incomplete


def test_cycle_steps_6_to_9_the_edge_is_removed_and_reverse_routes_replace_it() -> None:
    world, frames = cycle()
    world.request("s", b"x")
    a, b = next((r, s) for s, r, f in frames if isinstance(f, Break))
    for near, far in ((a, b), (b, a)):
        machine = world.hosts[near].machine
        assert node_id(far) not in machine.inspect.route_links(TREE, "role")
        assert node_id(far) not in machine.inspect.neighbours(TREE)
        assert machine.inspect.built(TREE, "role"), "the role of the message stays built"
    for sender in ("s", "p", "q"):
        world.request(sender, b"again " + sender.encode())
        assert world.receivers(b"again " + sender.encode()) == {"p": 1, "q": 1}


def test_cycle_step_8_other_roles_on_the_edge_are_not_built() -> None:
    world, frames = cycle()
    publish(world, "p", "q", role="other")
    world.request("s", b"x")
    breaks = [(r, s) for s, r, f in frames if isinstance(f, Break)]
    if not breaks or "s" in breaks[0]:
        a, b = world.hosts["p"].machine, world.hosts["q"].machine
        a.router.cycles._reroute(TREE, "role", bytes(32), 0, b.hub.me, _trace())
        assert not a.inspect.built(TREE, "other")
    else:
        for name in breaks[0]:
            assert not world.hosts[name].machine.inspect.built(TREE, "other")
    world.request("s", b"other", role="other")
    assert world.receivers(b"other") == {"p": 1, "q": 1}


def _trace() -> Any:
    from holdfast.overlay.records import Trace

    return Trace(None)


def test_cycle_step_7_reverse_routes_lead_back_to_the_sender_of_the_message() -> None:
    """Steps 7a to 7d: from node to node along the links that the message came over; the sender has none."""
    world, frames = cycle()
    world.request("s", b"x")
    reverse = [(s, r, f) for s, r, f in frames if isinstance(f, Reverse)]
    copies = [(s, r) for s, r, f in frames if isinstance(f, Message)]
    assert reverse
    assert all((r, s) in copies for s, r, _ in reverse)
    assert all(s != "s" for s, _, _ in reverse)


def test_cycle_step_7d_a_reverse_route_goes_on_to_the_next_node_on_the_way_back() -> None:
    """The message came from t by s: s gets a reverse route to t, and t, which sent it, none."""
    world = World(7)
    for name in ("t", "s", "p", "q"):
        world.add(name)
    for pair in (("t", "s"), ("s", "p"), ("s", "q")):
        world.link(*pair, delay=MILLISECOND)
    world.link("p", "q", delay=50 * MILLISECOND)  # the copies meet between p and q
    world.run(2 * SECOND)
    publish(world, "p", "q")
    world.request("t", b"warm")
    for name in ("p", "q"):
        local = world.hosts[name].machine.local.get(TREE, "role")
        assert local is not None
        world.request("s", b"named " + name.encode(), instance=local.instance)
    reverse = seen_frames(world, Reverse)
    world.request("t", b"x")
    assert world.receivers(b"x") == {"p": 1, "q": 1}
    assert {(s, r) for s, r, _ in reverse if s == "s"} == {("s", "t")}
    assert "s" in [r for _, r, _ in reverse]
    assert node_id("t") in world.hosts["s"].machine.inspect.route_links(TREE, "role")
    assert world.hosts["t"].machine.inspect.route_links(TREE, "role") == [node_id("s")]


def test_only_the_link_between_realms_is_broken_when_a_circle_leaves_the_realm() -> None:
    """'It is important not to break that cycle in such a way that realm R becomes fragmented on the tree.'"""
    world = World(7)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.link("a", "b", delay=200 * MILLISECOND)
    world.link("a", "x", delay=MILLISECOND)
    world.link("x", "b", delay=MILLISECOND)
    world.run(5 * SECOND)
    publish(world, "b", "x", "a")
    world.run(3 * SECOND)
    outside = world.hosts["x"].machine.local.get(TREE, "role")
    assert outside is not None
    world.request("a", b"named", instance=outside.instance)
    copies = seen_frames(world, Message)
    for k in range(3):
        copies.clear()
        world.request("a", f"{k}".encode())
        assert world.receivers(f"{k}".encode()) == {"a": 1, "b": 1, "x": 1}
        ways = [(s, r) for s, r, _ in copies]
        assert ("b", "a") in ways, "a gets back what went out by x and came in again"
        assert world.request("a", f"near {k}".encode(), realm_only=True).kind == "done"
        assert world.receivers(f"near {k}".encode()) == {"a": 1, "b": 1}


def test_a_circle_that_leaves_the_realm_is_broken_outside_when_the_way_inside_is_faster() -> None:
    """'due to the fact that latency within a realm is significantly lower than outside a realm, ... it is favorable to
    break the route.'"""
    world = World(7)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.link("a", "b", delay=MILLISECOND)
    world.link("a", "x", delay=50 * MILLISECOND)
    world.link("x", "b", delay=50 * MILLISECOND)
    world.run(5 * SECOND)
    publish(world, "b", "x", "a")
    outside = world.hosts["x"].machine.local.get(TREE, "role")
    assert outside is not None
    world.request("a", b"named", instance=outside.instance)
    broken = seen_frames(world, Break)
    world.request("a", b"all")
    assert world.receivers(b"all") == {"a": 1, "b": 1, "x": 1}
    assert broken
    assert all("x" in (s, r) for s, r, _ in broken)
    copies = seen_frames(world, Message)
    world.request("a", b"again")
    assert world.receivers(b"again") == {"a": 1, "b": 1, "x": 1}
    assert len(copies) == 2, "no circle is left"


# -- Removing Stale Routes ---------------------------------------------------------------------------------------


def test_stale_steps_1_to_6_the_node_that_sent_over_a_stale_route_removes_it() -> None:
    """Step 6 of the paper names node B's builder. Only A has routes over A-B, so A's builder removes them."""
    world = world_of("a", "b", "c", "d", links="a-b b-c c-d")
    publish(world, "d", "a")
    world.request("b", b"warm")
    world.kill("d")
    world.run(SECOND)
    frames = seen_frames(world, Break)
    end = world.request("b", b"x", aggregate=True)
    assert world.receivers(b"x") == {"a": 1}
    assert [data for _, data in end.replies] == [b"a"]
    stale = [(s, r) for s, r, f in frames if f.stale]
    assert ("c", "b") in stale
    assert node_id("c") not in world.hosts["b"].machine.inspect.route_links(TREE, "role")
    assert world.hosts["b"].machine.inspect.built(TREE, "role"), "'fully built is not changed'"


def test_stale_step_6_the_edge_goes_when_neither_end_has_a_route_over_it() -> None:
    """'The edge is only removed if it has no more routes. The removal is not forced.'"""
    world = world_of("a", "b", "c", links="a-b b-c")
    publish(world, "c")
    world.request("a", b"warm")
    holder = world.hosts["c"].machine
    local = holder.local.get(TREE, "role")
    assert local is not None
    holder.local.remove(local)  # gone without a word, as after a fault
    frames = seen_frames(world, Edge)
    world.request("a", b"x")
    ops = [(s, r, f.op) for s, r, f in frames]
    assert ("b", "c", EDGE_ASK) in ops
    assert ("c", "b", EDGE_AGREE) in ops
    assert node_id("c") not in world.hosts["b"].machine.inspect.neighbours(TREE)
    assert node_id("b") not in holder.inspect.neighbours(TREE)


# -- Fully-Built Roles and Trees ---------------------------------------------------------------------------------


def test_a_failed_link_unbuilds_the_roles_that_have_routes_over_it_and_no_others() -> None:
    """'When a link fails at a node, all roles that have edges over the failed link may be marked as not fully
    built.'"""
    world = world_of("l", "b", "r", links="l-b b-r")
    publish(world, "l", role="left")
    publish(world, "r", role="right")
    for role in ("left", "right"):
        world.request("b", role.encode(), role=role)
    inspect = world.hosts["b"].machine.inspect
    assert inspect.built(TREE, "left")
    world.cut("b", "l")
    world.run(SECOND)
    assert not inspect.built(TREE, "left")
    assert inspect.built(TREE, "right")
    assert not inspect.tree_built(TREE), "a tree is built if all of its roles are"


def test_nothing_is_repaired_before_a_message_needs_it() -> None:
    """'Otherwise, the system could become overwhelmed repairing many trees at once.'"""
    world = world_of("s", "a", "b", "t", links="s-a a-t s-b b-t")
    for k in range(10):
        publish(world, "t", role=f"r{k}")
        world.request("s", f"r{k}".encode(), role=f"r{k}", run_ns=SECOND)
    waves = seen_frames(world, Wave)
    via = next(iter(world.hosts["s"].machine.inspect.routes(TREE, "r0").values()))
    world.cut("s", world.by_id[via].name)
    world.run(2 * SECOND)
    assert [w for _, _, w in waves if w.kind == RECOVER] == []
    world.request("s", b"one", role="r3")
    assert {w.role for _, _, w in waves if w.kind == RECOVER} == {"r3"}


def test_the_local_realm_has_a_built_state_of_its_own() -> None:
    """'For that reason, a fully built realm Boolean may also be maintained for each Role Route object.'"""
    world = World(7)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.line("a", "b", "x")
    world.run(2 * SECOND)
    publish(world, "a", "x")
    world.request("b", b"warm")
    world.cut("b", "x")
    world.run(SECOND)
    inspect = world.hosts["b"].machine.inspect
    assert not inspect.built(TREE, "role")
    assert inspect.built(TREE, "role", realm_only=True)


# -- Getting on All Trees, Tree Cache ----------------------------------------------------------------------------


def test_a_node_that_joins_gets_on_the_trees_of_its_neighbour() -> None:
    world = world_of("a", "b", "c", links="a-b b-c")
    publish(world, "a", "c")
    world.add("n")
    world.link("n", "b")
    world.run(2 * SECOND)
    n = world.hosts["n"].machine
    assert n.inspect.built(TREE, "role")
    world.request("n", b"x")
    assert world.receivers(b"x") == {"a": 1, "c": 1}
    assert n.hub.counters.get("recoveries", 0) == 0


def test_an_evicted_tree_is_rebuilt_and_senders_do_not_notice() -> None:
    """'If a Tree object is removed from the Tree Cache and later accessed, the T&R layer may re-compute the routing
    information.'"""
    world = world_of(
        "a", "b", "c", links="a-b b-c", config=msgspec.structs.replace(FAST, trees_max=3)
    )
    for k in range(8):
        publish(world, "a", tree=f"t{k}")
        publish(world, "c", tree=f"t{k}")
    b = world.hosts["b"].machine
    assert len(b.inspect.trees()) <= 3
    assert len(world.hosts["a"].machine.inspect.local_roles()) == 8, "local roles are never evicted"
    for k in range(8):
        data = f"x{k}".encode()
        end = world.request("b", data, tree=f"t{k}", aggregate=True)
        assert world.receivers(data) == {"a": 1, "c": 1}, k
        assert end.kind == "done"
    for k in range(8):
        data = f"y{k}".encode()
        world.request("a", data, tree=f"t{k}", aggregate=True)
        assert world.receivers(data) == {"a": 1, "c": 1}, k


def test_a_tree_that_is_routed_through_a_node_is_announced() -> None:
    """'Tree Built event'."""
    world = world_of("a", "b", "c", links="a-b b-c")
    publish(world, "a", "c")
    told = [e for e in world.hosts["b"].told(OverlayEvent) if e.event == "tree_built"]
    assert [e.tree for e in told] == [TREE]


def test_a_route_is_only_made_by_the_instance_itself() -> None:
    """An intermediate node does not answer for an instance: a stale route cannot be copied."""
    world = world_of("a", "b", "c", links="a-b b-c")
    publish(world, "c")
    world.request("b", b"warm")
    world.kill("c")
    world.run(SECOND)
    end = world.request("a", b"x")
    assert end.kind == "not_found"
    assert world.hosts["a"].machine.inspect.routes(TREE, "role") == {}
    assert Found(bytes(32), 0, False, 0, 0).hops == 0
