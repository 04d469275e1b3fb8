"""What a node does at the limits of its tables, with entries that are out of date, and when answers are missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from tests.support.overlay_world import FAST, PORT, World, count, node_id, publish, world_of

from holdfast.links.ports import Received
from holdfast.overlay import tree_id
from holdfast.overlay.frames import REGISTER, Entry, Found, Message, Reply, WaveAnswer
from holdfast.overlay.ids import node_of, numbered, owner_of, role_key
from holdfast.overlay.ports import (
    AnswerMessage,
    CancelSend,
    FindInstances,
    FoundInstances,
    SearchResult,
    SearchRole,
)
from holdfast.overlay.search import LOCAL, Search
from holdfast.overlay.trees import BEATEN
from holdfast.overlay.walk import TreeWalk
from holdfast.types import MILLISECOND, SECOND, NodeId

TREE = tree_id("tree")
SLOW = msgspec.structs.replace(FAST, refresh_ns=3600 * SECOND)


def line(*names: str, seed: int = 11, **changes: Any) -> World:
    config = msgspec.structs.replace(SLOW, **changes)
    return world_of(*names, seed=seed, config=config, settle_ns=3 * SECOND)


def do(world: World, name: str, call: Callable[[], object]) -> None:
    """Call a part of a node's machine, now, and send what comes of it."""
    host = world.hosts[name]
    host.machine.hub.now = world.now
    call()
    world.post(host, [])


def owned_by(search: Search, role: str) -> bytes | None:
    return search.owner(role_key(TREE, role), LOCAL)


def test_a_full_table_of_routes_lets_a_publish_pass_over_a_link_that_is_in_use() -> None:
    """m keeps two routes. The instance of r gets none there, but m sends over its link for p anyway."""
    world = World(3, SLOW)
    for name in "zpr":
        world.add(name)
    world.add("m", instances_max=2)
    world.line("z", "m", "p", "r")
    world.run(3 * SECOND)
    publish(world, "z", "p", "r")
    assert count(world, "m", "routes_full")
    world.request("z", b"x", aggregate=True)
    assert world.receivers(b"x") == {"z": 1, "p": 1, "r": 1}


def test_an_exclusive_holder_takes_no_route_to_a_lower_instance() -> None:
    world = line("a", "b")
    publish(world, "b", exclusive=True)
    builder = world.hosts["b"].machine.builder
    shared = Found(numbered(node_id("a"), 1, 99), 0, False, 1, 1)
    assert builder.add_route(TREE, "role", shared, node_id("a")) == BEATEN
    assert not world.hosts["b"].machine.inspect.routes(TREE, "role")


def test_an_instance_that_loses_its_last_edge_to_a_neighbour_links_again_by_itself() -> None:
    world = line("a", "b", "c")
    publish(world, "a", "c")
    b, c = world.hosts["b"].machine, world.hosts["c"].machine
    tree = b.cache.peek(TREE)
    assert tree is not None
    do(world, "b", lambda: b.builder.edges.force(tree, node_id("c")))
    world.run(10 * MILLISECOND)
    assert not c.inspect.routes(TREE, "role")
    world.run(2 * SECOND)
    assert list(c.inspect.routes(TREE, "role").values()) == [node_id("b")]


def test_a_node_that_has_lost_routes_is_no_leaf() -> None:
    """If it leaves, the others must ask beyond it."""
    world = line("a", "b", "c", "d")
    publish(world, "a", "c", "d")
    builder = world.hosts["c"].machine.builder
    assert not builder.is_leaf(TREE, "role")
    assert world.hosts["d"].machine.builder.is_leaf(TREE, "role")
    world.cut("c", "d")
    world.run(SECOND)
    assert not builder.is_leaf(TREE, "role")


def test_a_role_that_was_not_found_is_not_searched_for_again_at_once() -> None:
    world = line("a", "b", "c")
    assert world.request("a", b"x", run_ns=200 * MILLISECOND).kind == "not_found"
    floods = count(world, "a", "recovery_floods")
    assert floods
    assert world.request("a", b"y", run_ns=100 * MILLISECOND).kind == "not_found"
    assert count(world, "a", "recovery_floods") == floods
    world.run(SECOND)
    assert world.request("a", b"z", run_ns=200 * MILLISECOND).kind == "not_found"
    assert count(world, "a", "recovery_floods") > floods


def without_answers(world: World) -> None:
    """From now on no builder message is answered."""
    world.filter = lambda sender, receiver, frame: [] if isinstance(frame, WaveAnswer) else [frame]


def test_a_recovery_that_failed_is_repeated_by_the_next_message() -> None:
    """It says nothing about whether the role exists."""
    world = line("a", "b", "c")
    publish(world, "c")
    without_answers(world)
    op = world.send("a", b"x", lifetime_ns=120 * SECOND)
    end = None
    while end is None:
        world.run(SECOND)
        end = world.hosts["a"].end_of(op)
    assert end.incomplete
    world.filter = None
    assert world.request("a", b"y", run_ns=400 * MILLISECOND).kind == "done"


def test_a_message_does_not_wait_without_limit_for_its_own_instance_to_link() -> None:
    world = line("a", "b")
    publish(world, "b", "a")
    a = world.hosts["a"].machine
    local = a.local.get(TREE, "role")
    assert local is not None
    without_answers(world)
    do(world, "a", lambda: a.registrar.again(local))
    world.run(MILLISECOND)
    op = world.send("a", b"x", lifetime_ns=300 * SECOND)
    world.run(90 * SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.incomplete


def test_a_publish_waits_for_the_epoch_of_the_role_when_the_search_does_not_answer() -> None:
    """With an epoch of its own choice it would lose to the holder instead of taking the role."""
    world = line("a", "b", "c", "d")
    search = world.hosts["a"].machine.search
    role = next(f"role {k}" for k in range(99) if owned_by(search, f"role {k}") == node_id("b"))
    for name in "cdc":
        publish(world, name, role=role, exclusive=True)
    without_answers(world)
    op = world.publish("a", role=role, exclusive=True)
    world.run(7 * SECOND)
    world.filter = None
    world.run(20 * SECOND)
    done = world.published("a", op)
    assert done is not None
    assert done.ok, done
    assert world.holders(role) == ["a"]


def test_an_entry_does_not_go_back_to_an_older_epoch_and_is_removed_by_its_own_instance_only() -> (
    None
):
    world = line("a", "b")
    a = world.hosts["a"].machine

    def entry(number: int, epoch: int) -> Entry:
        return Entry(TREE, "role", numbered(node_id("a"), 1, number), epoch, True, FAST.realm)

    def registered() -> Entry | None:
        op = world.op()
        world.post(world.hosts["b"], [SearchRole(op, TREE, "role")])
        world.run(SECOND)
        [found] = [e for e in world.hosts["b"].told(SearchResult) if e.op == op]
        known: Entry | None = found.entry
        return known

    for epoch in (5, 3):
        put = partial(a.search.put, LOCAL, entry(1, epoch), REGISTER, lambda _: None)
        do(world, "a", put)
        world.run(SECOND)
    assert registered() == entry(1, 5)
    do(world, "a", lambda: a.search.remove(entry(2, 9)))
    world.run(SECOND)
    assert registered() == entry(1, 5)
    do(world, "a", lambda: a.search.remove(entry(1, 5)))
    world.run(SECOND)
    assert registered() is None


def test_an_entry_stays_until_its_new_owner_has_it() -> None:
    world = line("a", "b")
    publish(world, "a")
    key, known = role_key(TREE, "role"), sorted(node_id(name) for name in "ab")
    old = world.by_id[NodeId(owner_of(key, known) or b"")].machine
    names = [f"n{k}" for k in range(99)]
    new = next(n for n in names if owner_of(key, sorted([*known, node_id(n)])) == node_id(n))
    without_answers(world)
    world.add(new)
    world.link("b", new)
    world.run(10 * SECOND)
    assert old.hub.counters["entries_moved"]
    assert old.search.entries() == 2, "in the table of the realm and in that of the domain"
    world.filter = None
    world.add("another")
    world.link("b", "another")
    world.run(5 * SECOND)
    assert old.search.entries() == 0
    assert world.hosts[new].machine.search.entries() == 2


def test_a_refresh_that_links_again_repairs_routes_that_are_lost_without_a_trace() -> None:
    world = line("a", "b", "c")
    publish(world, "a", "c")
    b, c = world.hosts["b"].machine, world.hosts["c"].machine
    state, local = b.cache.role(TREE, "role"), c.local.get(TREE, "role")
    assert state is not None
    assert local is not None
    state.remove(local.instance)
    do(world, "c", lambda: c.registrar.ensure(local))
    world.run(SECOND)
    assert local.instance not in state.routes, "registered again; the routes are taken for good"
    local.relink = True
    do(world, "c", lambda: c.registrar.ensure(local))
    world.run(SECOND)
    assert local.instance in state.routes


def test_an_instance_that_links_to_one_that_is_gone_becomes_the_first() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    local = world.hosts["c"].machine.local.get(TREE, "role")
    assert local is not None
    world.hosts["c"].machine.local.remove(local)
    publish(world, "a")
    made = world.hosts["a"].machine.local.get(TREE, "role")
    assert made is not None
    assert made.first
    assert made.is_anchor
    world.request("b", b"x", aggregate=True)
    assert world.receivers(b"x") == {"a": 1}


def test_an_entry_whose_instance_is_gone_is_removed_by_the_message_that_finds_out() -> None:
    """The node is alive, so only a message can tell that the instance is not there."""
    world = line("a", "b", "c")
    publish(world, "c")
    local = world.hosts["c"].machine.local.get(TREE, "role")
    assert local is not None
    world.hosts["c"].machine.local.remove(local)
    assert world.request("a", b"x").kind == "not_found"
    op = world.op()
    world.post(world.hosts["a"], [SearchRole(op, TREE, "role")])
    world.run(SECOND)
    [found] = [e for e in world.hosts["a"].told(SearchResult) if e.op == op]
    assert found.ok
    assert found.entry is None


def test_an_answer_from_before_a_node_was_met_does_not_say_that_there_is_no_entry() -> None:
    """The nodes that were asked then did not know of this owner together with the new node."""
    world = line("a", "b")
    a = world.hosts["a"].machine
    handover, met_at = a.search._handover, a.topology.met_at
    one, other = role_key(TREE, "one"), role_key(TREE, "other")
    assert handover.former_owners(one, False)
    world.add("c")
    world.link("a", "c")
    world.run(SECOND)
    assert handover.former_owners(other, False)
    handover.found_none(one, False, met_at)
    assert handover.former_owners(one, False)
    handover.found_none(one, False, a.topology.met_at)
    assert not handover.former_owners(one, False)


def test_a_message_for_the_realm_does_not_take_a_route_out_of_it_that_is_found_behind_it() -> None:
    world = World(5, SLOW)
    for name, realm in (("a", "east"), ("b", "east"), ("c", "west")):
        world.add(name, realm)
    world.line("b", "a", "c")
    world.run(3 * SECOND)
    publish(world, "b")
    world.hosts["b"].answers = lambda item: None
    near = world.send("a", b"near", realm_only=True, aggregate=True)
    far = world.send("a", b"far", aggregate=True)
    world.run(SECOND)
    publish(world, "c")
    assert world.hosts["a"].end_of(near) is None, "still under way"
    assert world.hosts["a"].end_of(far) is None
    assert world.receivers(b"far") == {"b": 1, "c": 1}
    assert world.receivers(b"near") == {"b": 1}


def test_an_instance_that_died_long_ago_is_not_expected() -> None:
    """a keeps the route to d, because b never said that it is gone."""
    world = line("z", "a", "b", "c", "d")
    publish(world, "z", "b", "d")
    world.kill("d")
    world.run(3 * SECOND)
    routes = world.hosts["a"].machine.inspect.routes(TREE, "role")
    assert node_id("d") in [node_of(i) for i in routes]
    end = world.request("a", b"y", aggregate=True)
    assert sorted(node_of(i) for i in end.expected) == sorted(node_id(name) for name in "bz")
    assert not end.unknown
    assert end.kind == "done"


def test_a_neighbour_that_comes_back_gets_the_message_that_is_still_under_way() -> None:
    """Its new life has not seen it."""
    world = line("b", "a", "c")
    publish(world, "c", "b")
    world.hosts["c"].answers = lambda item: None
    op = world.send("a", b"x", aggregate=True)
    world.run(SECOND)
    world.kill("b")
    world.run(SECOND)
    world.restart("b")
    world.link("a", "b")
    world.run(SECOND)
    assert world.receivers(b"x") == {"b": 1, "c": 1}
    publish(world, "b")
    assert world.hosts["a"].end_of(op) is None, "still under way"
    assert world.receivers(b"x") == {"b": 2, "c": 1}


def test_a_partition_that_heals_on_many_links_at_once_is_told_a_few_times() -> None:
    world = World(9, msgspec.structs.replace(SLOW, mesh_all_up_to=32))
    names = [f"n{k}" for k in range(12)]
    for name in names:
        world.add(name)
    world.mesh()
    world.run(3 * SECOND)
    publish(world, "n1")
    cut = world.partition(names[:6], names[6:])
    world.run(3 * SECOND)
    for a, b in cut:
        world.link(a, b)
    world.run(3 * SECOND)
    assert len(cut) == 36
    told = [world.hosts[name].machine.partition.status()["unpartitions"] for name in names]
    assert all(1 <= int(str(events)) <= 12 for events in told), told


def test_the_border_of_a_failure_is_beyond_all_nodes_that_died_with_it() -> None:
    """b and c die together. d, which was linked to a through them, is asked over the other way."""
    world = line("a", "b", "c", "d")
    publish(world, "a", "d")
    for name in "ef":
        world.add(name)
    world.line("a", "e", "f", "d")
    world.run(3 * SECOND)
    world.kill("b")
    world.kill("c")
    world.run(3 * SECOND)
    assert world.hosts["a"].machine.topology.border_of(node_id("b")) == [node_id("d")]
    end = world.request("a", b"x", aggregate=True)
    assert world.receivers(b"x") == {"a": 1, "d": 1}
    assert end.kind == "done"


def test_a_role_stays_when_the_node_that_it_is_moved_to_dies() -> None:
    world = line("a", "b", "c")
    publish(world, "b")
    b = world.hosts["b"]
    b.answers = lambda item: AnswerMessage(item.token, b"yours", grant=True, give_up=True)
    world.filter = lambda sender, receiver, frame: (
        [] if receiver.name == "a" and isinstance(frame, Reply) else [frame]
    )
    world.send("a", b"give", aggregate=True)
    world.run(SECOND)
    local = b.machine.local.get(TREE, "role")
    assert local is not None
    assert local.moving_to
    world.kill("a")
    world.filter = None
    b.answers = None
    waiting = world.send("c", b"x", lifetime_ns=60 * SECOND, aggregate=True)
    world.run(20 * SECOND)
    end = world.hosts["c"].end_of(waiting)
    assert end is not None
    assert [data for _, data in end.replies] == [b"b"]
    assert not local.moving_to


def test_what_is_found_is_not_complete_when_parts_did_not_answer() -> None:
    world = line("a", "b", lifetime_ns=100 * SECOND)
    publish(world, "b", "a")
    a = world.hosts["a"].machine
    local = a.local.get(TREE, "role")
    assert local is not None
    without_answers(world)
    do(world, "a", lambda: a.registrar.again(local))
    op = world.op()
    world.post(world.hosts["a"], [FindInstances(op, TREE, "role")])
    world.run(90 * SECOND)
    [found] = [e for e in world.hosts["a"].told(FoundInstances) if e.op == op]
    assert not found.complete
    world.filter = None
    world.run(60 * SECOND)
    op = world.op()
    world.post(world.hosts["a"], [FindInstances(op, TREE, "role")])
    world.run(2 * SECOND)
    [found] = [e for e in world.hosts["a"].told(FoundInstances) if e.op == op]
    assert found.complete
    assert len(found.locations) == 2


def test_a_neighbour_that_ignores_its_window_is_refused() -> None:
    """While messages wait for others, b gives no credit back."""
    world = line("a", "b", "c", credit=4, queue_max=2)
    publish(world, "c")
    b = world.hosts["b"].machine
    b.flow.queued = 2
    request = [numbered(node_id("a"), 1, 1 << 30 | k) for k in range(12)]
    frames: list[Any] = [Message(one, 0, TREE, "role", PORT, b"x", 1000) for one in request]
    refused: list[bytes] = []
    world.watch = lambda sender, receiver, frame: (
        refused.append(frame.request)
        if isinstance(frame, Reply) and frame.reason == "window ignored"
        else None
    )
    world.post(world.hosts["b"], [Received(node_id("a"), frames, world.now)])
    world.run(SECOND)
    assert refused == request[8:], "twice the window is let in: credit may be under way"
    assert count(world, "b", "window_ignored") == 4


def test_an_answer_after_the_request_was_cancelled_serves_a_later_attempt() -> None:
    world = line("a", "b")
    publish(world, "b")
    world.hosts["b"].answers = lambda item: None
    request = numbered(node_id("a"), 1, 1 << 30)
    op = world.send("a", b"x", request=request, lifetime_ns=60 * SECOND)
    world.run(SECOND)
    world.post(world.hosts["a"], [CancelSend(op)])
    world.run(SECOND)
    [delivered] = world.hosts["b"].delivered
    world.post(world.hosts["b"], [AnswerMessage(delivered.token, b"done")])
    end = world.request("a", b"x", request=request, attempt=1, aggregate=True)
    assert [data for _, data in end.replies] == [b"done"]
    assert world.receivers(b"x") == {"b": 1}, "performed once"


def test_a_walk_over_a_tree_says_that_a_node_cannot_be_reached() -> None:
    world = line("a", "b")
    a = world.hosts["a"].machine
    told: list[tuple[int, bool]] = []
    walk = TreeWalk(a.hub, a.waves, a.topology, TREE)
    walk.start([NodeId(bytes(16))], lambda nodes, complete: told.append((len(nodes), complete)))
    assert told == [(1, False)]
