"""The paper on object replicas: roles, sessions, listeners, router, search, partitions, direct connections.

The docstrings cite the paper's sections. The numbered rules of the builder are in `test_tree_building`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support import overlay_world
from tests.support.overlay_world import FAST, PORT, World, node_id, publish

from holdfast.overlay import tree_id
from holdfast.overlay.frames import GET, NOT_FOUND, PUT, Message, Reply, Unpartition, Wave
from holdfast.overlay.ids import node_of, owner_of, owners_of, realm_id, role_key, swapped
from holdfast.overlay.ports import (
    CHANGE,
    CONTINUE,
    SUSPEND,
    AnswerMessage,
    CancelSend,
    Connected,
    ConnectTo,
    Delivered,
    FindInstances,
    FoundInstances,
    Location,
    OpenPort,
    OverlayEvent,
    RoleGained,
    SearchResult,
    SearchRole,
    SetJoinable,
    Snooped,
    SnoopVerdict,
    UnpublishRole,
    Withdrawn,
)
from holdfast.types import MILLISECOND, SECOND

TREE = tree_id("tree")
world_of = partial(overlay_world.world_of, seed=11)


def holder(world: World, name: str, role: str = "role") -> bytes:
    local = world.hosts[name].machine.local.get(TREE, role)
    assert local is not None
    return local.instance


def messages(world: World) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Message):
            found.append((sender.name, receiver.name))

    world.watch = watch
    return found


# -- Role-Based Addressing -----------------------------------------------------------------------------------------


def test_a_role_is_an_address_that_says_nothing_about_the_place() -> None:
    """'a location-independent address': the same send works after the role has moved to another node."""
    world = world_of("a", "b", "c", "d")
    publish(world, "d")
    assert world.request("a", b"one").kind == "done"
    world.post(world.hosts["d"], [UnpublishRole(90, TREE, "role")])
    world.run(SECOND)
    publish(world, "b")
    assert world.request("a", b"two").kind == "done"
    assert world.receivers(b"two") == {"b": 1}


def test_a_message_reaches_each_node_that_has_the_role() -> None:
    world = world_of("a", "b", "c", "d", "e")
    publish(world, "a", "c", "e")
    for sender in "abcde":
        world.request(sender, sender.encode())
        assert world.receivers(sender.encode()) == {"a": 1, "c": 1, "e": 1}


def test_a_node_without_the_role_needs_to_know_one_instance_only() -> None:
    """'each node that does not host an instance of the role must know how to reach only one node that has the role'."""
    world = world_of("s", "a", "b", "c", "d", links="s-a a-b b-c c-d")
    publish(world, "a", "b", "c", "d")
    world.request("s", b"x")
    assert len(world.hosts["s"].machine.inspect.routes(TREE, "role")) == 1
    assert world.receivers(b"x") == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_the_same_role_name_on_two_trees_is_two_addresses() -> None:
    world = world_of("a", "b", "c")
    publish(world, "a", tree="one")
    publish(world, "c", tree="two")
    world.request("b", b"1", tree="one")
    world.request("b", b"2", tree="two")
    assert world.receivers(b"1") == {"a": 1}
    assert world.receivers(b"2") == {"c": 1}


def test_only_nodes_on_the_tree_see_a_message() -> None:
    world = world_of("a", "b", "c", "x", "y", links="a-b b-c b-x x-y")
    publish(world, "c")
    world.request("a", b"warm")
    seen = messages(world)
    world.request("a", b"x")
    assert seen == [("a", "b"), ("b", "c")]


# -- Sessions ------------------------------------------------------------------------------------------------------


def test_replies_travel_back_over_the_way_of_the_message() -> None:
    world = world_of("a", "b", "c", "d", links="a-b b-d a-c c-d")
    publish(world, "d")
    way: list[tuple[str, str, str]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        name = type(frame).__name__
        if name in ("Message", "Reply"):
            way.append((name, sender.name, receiver.name))

    world.watch = watch
    world.request("a", b"x")
    there = [(s, r) for name, s, r in way if name == "Message"]
    back = [(r, s) for name, s, r in way if name == "Reply"]
    assert set(back) == set(there)


def test_several_replies_arrive_as_they_are_given_and_one_is_the_last() -> None:
    """The paper's example: four responses; 'In the fourth response message, "last reply" is indicated.'"""
    world = world_of("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    c.answers = lambda *_: None
    op = world.send("a", b"x")
    world.run(SECOND)
    token = c.delivered[0].token
    for k in range(4):
        world.post(c, [AnswerMessage(token, f"{k}".encode(), last=k == 3)])
        world.run(100 * MILLISECOND)
        assert len(world.hosts["a"].replies(op)) == k + 1, "'not held by nodes along the way'"
        assert (world.hosts["a"].end_of(op) is None) == (k < 3)
    assert world.hosts["a"].replies(op) == [b"0", b"1", b"2", b"3"]


def test_a_sender_gets_one_last_for_many_receivers() -> None:
    """'This ensures that the sender receives only one response with the "last reply" parameter set to True'."""
    world = world_of("a", "b", "c", "d")
    publish(world, "b", "c", "d")
    op = world.send("a", b"x")
    world.run(5 * SECOND)
    assert sorted(world.hosts["a"].replies(op)) == [b"b", b"c", b"d"]
    assert len([e for e in world.hosts["a"].ends if e.op == op]) == 1


def test_an_aggregated_reply_comes_once_and_complete() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "b", "c", "d")
    c = world.hosts["c"]
    c.answers = lambda *_: None
    op = world.send("a", b"x", aggregate=True)
    world.run(SECOND)
    assert world.hosts["a"].replies(op) == []
    assert world.hosts["a"].end_of(op) is None
    world.post(c, [AnswerMessage(c.delivered[0].token, b"c")])
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert sorted(data for _, data in end.replies) == [b"b", b"c", b"d"]
    assert sorted(end.expected) == sorted(end.answered)


def test_a_failed_link_gives_a_null_reply_that_names_it() -> None:
    """'if a null reply comes back, the sender knows it has not received all replies, and thus may re-send'."""
    world = world_of("a", "b", "c", "d")
    publish(world, "d")
    world.hosts["d"].answers = lambda *_: None
    op = world.send("a", b"x")
    world.run(SECOND)
    world.cut("b", "c")
    world.run(200 * MILLISECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "null"
    assert node_id("c")[:4].hex() in end.reason
    assert end.failed == ((holder(world, "d"), "link_failed"),)


def test_role_not_found_is_returned_only_if_no_way_led_anywhere() -> None:
    """'if node A forwards a message to nodes B and C, and node B returns a role not found message to node A, and node C
    returns a response ... then the role not found message ... may be ignored.'"""
    world = world_of("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")
    left = world.hosts["l"].machine
    local = left.local.get(TREE, "role")
    assert local is not None
    left.local.remove(local)  # gone without a word, as after a fault
    state = left.cache.role(TREE, "role")
    assert state is not None
    state.routes.clear()
    end = world.request("b", b"x")
    assert end.kind == "done"
    assert world.receivers(b"x") == {"r": 1}


def test_role_not_found_reaches_the_sending_application_only() -> None:
    world = world_of("a", "b", "c")
    end = world.request("a", b"x", role="absent")
    assert end.kind == "not_found"
    told = {
        name: [e for e in host.told(OverlayEvent) if e.event == "role_not_found"]
        for name, host in world.hosts.items()
    }
    assert [name for name, events in told.items() if events] == ["a"]


def test_a_one_way_message_needs_no_reply_and_leaves_no_breadcrumbs() -> None:
    world = world_of("a", "b", "c")
    publish(world, "c")
    end = world.request("a", b"x", one_way=True)
    assert end.kind == "done"
    assert world.receivers(b"x") == {"c": 1}
    assert all(h.machine.inspect.sizes()["records"] == 0 for h in world.hosts.values())


def test_one_way_with_one_instance_or_one_reply_is_an_error() -> None:
    """'If the "one-way" option is set to true while at least one of the "oneInstance" or "oneResponse" options are
    true, an error condition may be raised and the message may not be sent.'"""
    world = world_of("a", "b")
    publish(world, "b")
    for options in ({"one": True}, {"aggregate": True}):
        end = world.request("a", b"x", one_way=True, **options)
        assert end.kind == "refused"
    assert world.receivers(b"x") == {}


# -- Sending to one instance -----------------------------------------------------------------------------------------


def test_one_instance_takes_the_local_one_first() -> None:
    world = world_of("a", "b", "c")
    publish(world, "a", "c")
    world.request("a", b"x", one=True)
    assert world.receivers(b"x") == {"a": 1}


def test_one_instance_reaches_exactly_one() -> None:
    world = world_of("a", "b", "c", "d", "e")
    publish(world, "a", "c", "e")
    for sender in "bd":
        world.request(sender, sender.encode(), one=True)
        assert sum(world.receivers(sender.encode()).values()) == 1


def test_one_instance_prefers_the_own_realm() -> None:
    world = World(11)
    for name, realm in (("a", "east"), ("b", "east"), ("c", "east"), ("x", "west")):
        world.add(name, realm)
    world.line("c", "b", "a")
    world.link("a", "x", delay=MILLISECOND // 10)  # nearer, but outside
    world.run(2 * SECOND)
    publish(world, "x", "c")
    world.request("a", b"warm")
    world.request("a", b"x", one=True)
    assert world.receivers(b"x") == {"c": 1}


def test_one_instance_takes_the_lowest_hop_time_and_of_equal_ones_the_lowest_id() -> None:
    world = World(11)
    for name in ("p", "s", "q"):
        world.add(name)
    near, far = sorted(("p", "q"), key=node_id, reverse=True)
    world.link("s", near, delay=MILLISECOND)
    world.link("s", far, delay=20 * MILLISECOND)
    world.run(2 * SECOND)
    publish(world, far, near)
    world.request("s", b"warm")
    world.request("s", b"x", one=True)
    assert world.receivers(b"x") == {near: 1}
    for neighbour in world.hosts["s"].machine.hub.neighbours.values():
        neighbour.hop_ns = MILLISECOND
    world.request("s", b"y", one=True)
    assert world.receivers(b"y") == {far: 1}


def test_one_instance_tries_the_next_candidate_after_role_not_found() -> None:
    """'Single Instance Role Not Found Reply Processing': 'all possible instances may be tried until one can be
    reached.'"""
    world = world_of("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")
    state = world.hosts["b"].machine.cache.role(TREE, "role")
    assert state is not None
    near = min(state.routes.values(), key=lambda r: (r.hops, r.instance))
    name = world.by_id[near.link].name
    machine = world.hosts[name].machine
    local = machine.local.get(TREE, "role")
    assert local is not None
    machine.local.remove(local)
    gone = machine.cache.role(TREE, "role")
    assert gone is not None
    gone.routes.clear()
    end = world.request("b", b"x", one=True)
    other = "r" if name == "l" else "l"
    assert end.kind == "done"
    assert world.receivers(b"x") == {other: 1}


def test_one_instance_goes_on_when_a_neighbour_says_that_it_has_not_found_the_role() -> None:
    """'If there are more candidates to try, the message may be re-sent by invoking the forward logic again.'"""
    world = world_of("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")

    def not_found(sender: Any, _receiver: Any, frame: Any) -> list[Any]:
        """The first node that is asked has lost the role."""
        if isinstance(frame, Reply) and len(asked) == 1:
            return [Reply(frame.request, frame.attempt, NOT_FOUND, True)]
        return [frame]

    asked = messages(world)
    world.filter = not_found
    assert world.request("b", b"x", one=True).kind == "done"
    assert sorted(asked) == [("b", "l"), ("b", "r")]


def test_a_named_instance_is_reached_alone() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "b", "d")
    world.request("a", b"x", instance=holder(world, "d"))
    assert world.receivers(b"x") == {"d": 1}
    end = world.request("a", b"y", instance=bytes(32))
    assert end.kind == "not_found"


# -- New Routes Built Behind Path of Routing -------------------------------------------------------------------------


def test_a_route_found_while_replies_are_pending_gets_the_message_too() -> None:
    """A message waits for d's reply. Meanwhile another instance appears behind the sender."""
    world = world_of("x", "a", "b", "d")
    publish(world, "d")
    d = world.hosts["d"]
    d.answers = lambda *_: None
    op = world.send("a", b"m", lifetime_ns=60 * SECOND)
    world.run(SECOND)
    publish(world, "x")
    assert world.receivers(b"m") == {"d": 1, "x": 1}
    world.post(d, [AnswerMessage(d.delivered[0].token, b"d")])
    world.run(SECOND)
    assert sorted(world.hosts["a"].replies(op)) == [b"d", b"x"]


# -- Granting --------------------------------------------------------------------------------------------------------


def granting(world: World, name: str, give_up: bool) -> None:
    def answer(item: Delivered) -> AnswerMessage:
        return AnswerMessage(item.token, b"", grant=item.data == b"ask", give_up=give_up)

    world.hosts[name].answers = answer


def test_grant_without_give_up_shares_the_role() -> None:
    """'The T/F combination grants the role, but does not give the role up.'"""
    world = world_of("a", "b", "c")
    publish(world, "c")
    granting(world, "c", False)
    world.request("a", b"ask")
    assert world.holders() == ["a", "c"]
    world.request("b", b"x")
    assert world.receivers(b"x") == {"a": 1, "c": 1}


def test_grant_with_give_up_moves_the_role() -> None:
    """'The T/T combination grants the role to the sender and also gives up its own local role.'"""
    world = world_of("a", "b", "c")
    publish(world, "c", exclusive=True)
    granting(world, "c", True)
    world.request("a", b"ask")
    assert world.holders() == ["a"]
    assert world.hosts["a"].told(RoleGained)[0].moved


def test_no_grant_refuses() -> None:
    """'The F/x combination is used to indicate that a request role was denied.'"""
    world = world_of("a", "b", "c")
    publish(world, "c", exclusive=True)
    granting(world, "c", True)
    world.request("a", b"something else")
    assert world.holders() == ["c"]


def test_granting_an_exclusive_role_requires_giving_it_up() -> None:
    world = world_of("a", "b", "c")
    publish(world, "c", exclusive=True)
    granting(world, "c", False)
    world.send("a", b"ask", lifetime_ns=2 * SECOND)
    world.run(4 * SECOND)
    assert world.holders() == ["c"]
    refused = [e for e in world.hosts["c"].told(OverlayEvent) if e.event == "answer_refused"]
    assert refused
    assert "giving it up" in refused[0].detail


def test_only_the_nodes_on_the_way_of_the_reply_change_their_routes() -> None:
    """'edge updates may be localized to just those nodes along the message path'."""
    world = world_of("x", "y", "c", "b", "a", links="x-y y-c c-b b-a")
    publish(world, "c", exclusive=True)
    world.request("x", b"warm")
    before = {n: world.hosts[n].machine.inspect.routes(TREE, "role") for n in "xy"}
    granting(world, "c", True)
    world.send("a", b"ask")
    while not world.hosts["a"].told(RoleGained):
        world.run(MILLISECOND // 10)
    for name, link in (("c", "b"), ("b", "a")):
        links = world.hosts[name].machine.inspect.route_links(TREE, "role")
        assert links == [node_id(link)], "re-pointed before the taker could publish"
    world.run(300 * MILLISECOND)
    assert {n: world.hosts[n].machine.inspect.routes(TREE, "role") for n in "xy"} == before
    assert world.holders() == ["a"]
    assert world.request("x", b"follow").kind == "done"
    assert world.receivers(b"follow") == {"a": 1}


# -- Listeners, Snooping ---------------------------------------------------------------------------------------------


def test_a_protocol_id_chooses_the_listener_and_without_one_all_ports_of_the_tree_get_it() -> None:
    world = world_of("a", "b")
    publish(world, "b")
    b = world.hosts["b"]
    world.post(b, [OpenPort(20, trees=(TREE,)), OpenPort(21, trees=(TREE,))])
    world.request("a", b"one", protocol=20)
    assert [d.port for d in b.delivered] == [20]
    op = world.send("a", b"all", protocol=0)
    world.run(SECOND)
    assert [d.port for d in b.delivered[1:]] == [20, 21]
    assert world.hosts["a"].replies(op) == [b"b", b"b"]
    assert world.hosts["a"].end_of(op) is not None


def test_a_receiver_is_told_whether_it_is_the_end_of_the_way() -> None:
    """'An Endpoint value of True indicates that the local node is an endpoint for the message (no more roles to
    reach).'"""
    world = world_of("a", "b", "c")
    publish(world, "b", "c")
    world.request("a", b"x")
    ends = {name: world.hosts[name].delivered[0].endpoint for name in "bc"}
    assert ends == {"b": False, "c": True}


def snooping() -> World:
    world = world_of("a", "b", "c")
    publish(world, "c")
    world.post(world.hosts["b"], [OpenPort(PORT, snoop=True)])
    return world


def test_a_snooper_sees_messages_and_replies_and_lets_them_pass() -> None:
    world = snooping()
    op = world.send("a", b"x")
    shown = []
    for _ in range(2):
        world.run(SECOND)
        last = world.hosts["b"].told(Snooped)[-1]
        shown.append((last.reply, last.data, last.has_role))
        world.post(world.hosts["b"], [SnoopVerdict(last.token, CONTINUE)])
    world.run(SECOND)
    assert shown == [(False, b"x", False), (True, b"c", False)]
    assert world.hosts["a"].replies(op) == [b"c"]


def test_a_snooper_changes_a_message_and_a_reply() -> None:
    world = snooping()
    op = world.send("a", b"x")
    for data in (b"changed", b"other"):
        world.run(SECOND)
        token = world.hosts["b"].told(Snooped)[-1].token
        world.post(world.hosts["b"], [SnoopVerdict(token, CHANGE, data)])
    world.run(SECOND)
    assert world.receivers(b"changed") == {"c": 1}
    assert world.hosts["a"].replies(op) == [b"other"]


def test_a_snooper_suspends_and_resumes_later() -> None:
    world = snooping()
    op = world.send("a", b"x", lifetime_ns=60 * SECOND)
    world.run(SECOND)
    token = world.hosts["b"].told(Snooped)[-1].token
    world.post(world.hosts["b"], [SnoopVerdict(token, SUSPEND)])
    world.run(4 * SECOND)
    assert world.receivers(b"x") == {}
    assert "bad_verdict" not in world.hosts["b"].machine.hub.counters
    world.post(world.hosts["b"], [SnoopVerdict(token, CONTINUE)])
    world.run(SECOND)
    assert world.receivers(b"x") == {"c": 1}
    reply = world.hosts["b"].told(Snooped)[-1]
    world.post(world.hosts["b"], [SnoopVerdict(reply.token, CONTINUE)])
    world.run(SECOND)
    assert world.hosts["a"].replies(op) == [b"c"]


def test_a_snooper_is_shown_every_reply_and_they_keep_their_order() -> None:
    """'A snooper may intercept each message or response': also a second reply that comes while the first is held."""
    world = snooping()
    c = world.hosts["c"]
    c.answers = lambda item: None
    op = world.send("a", b"x")
    world.run(SECOND)
    world.post(world.hosts["b"], [SnoopVerdict(world.hosts["b"].told(Snooped)[-1].token, CONTINUE)])
    world.run(SECOND)
    token = c.delivered[0].token
    answers = [AnswerMessage(token, b"one", False), AnswerMessage(token, b"two", False)]
    world.post(c, [*answers, AnswerMessage(token, b"three")])
    seen = []
    for _ in range(3):
        world.run(SECOND)
        shown = world.hosts["b"].told(Snooped)[-1]
        seen.append(shown.data)
        changed = shown.data.upper()
        world.post(world.hosts["b"], [SnoopVerdict(shown.token, CHANGE, changed)])
    world.run(SECOND)
    assert seen == [b"one", b"two", b"three"]
    assert world.hosts["a"].replies(op) == [b"ONE", b"TWO", b"THREE"]
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "done"


def test_a_snooper_on_the_receivers_node_sees_its_reply() -> None:
    """'any node between (and including) the sender node and receiver node'."""
    world = world_of("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    world.post(c, [OpenPort(PORT, snoop=True)])
    op = world.send("a", b"x")
    for verdict in (CONTINUE, CHANGE):
        world.run(SECOND)
        world.post(c, [SnoopVerdict(c.told(Snooped)[-1].token, verdict, b"changed")])
    world.run(SECOND)
    assert [(one.reply, one.has_role) for one in c.told(Snooped)] == [(False, True), (True, True)]
    assert world.hosts["a"].replies(op) == [b"changed"]


def test_a_grant_that_is_refused_leaves_the_reply() -> None:
    """A node that grants a role that it does not hold must not leave the sender waiting."""
    world = world_of("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    c.answers = lambda item: AnswerMessage(item.token, b"sorry", True, True, True, "another")
    op = world.send("a", b"x")
    world.run(SECOND)
    assert world.hosts["a"].replies(op) == [b"sorry"]
    assert world.hosts["a"].told(RoleGained) == []
    assert [e.event for e in c.told(OverlayEvent)].count("answer_refused") == 1


def test_search_recovery_steps_1_and_2_go_to_the_realm_and_then_to_the_node() -> None:
    """'Step 1: ... the recovery request message is first routed towards ... the Realm ID portion of the location
    returned by the search facility. Step 2: Once in the destination realm, ... routed to ... the node where the role
    instance is located.' Nodes beside that way see nothing of it."""
    world = World(11)
    realms = {"a": "east", "b": "east", "x": "west", "y": "west", "z": "west", "k": "east"}
    for name, realm in realms.items():
        world.add(name, realm)
    world.line("k", "a", "b", "x", "y", "z")
    world.run(2 * SECOND)
    publish(world, "y")
    way: list[str] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Wave) and frame.kind == 0:
            way.append(sender.name + receiver.name)

    world.watch = watch
    assert world.request("a", b"to y").kind == "done"
    assert way == ["ab", "bx", "xy"]


def test_cancelling_travels_downstream() -> None:
    world = world_of("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    c.answers = lambda *_: None
    op = world.send("a", b"x")
    world.run(SECOND)
    world.post(world.hosts["a"], [CancelSend(op)])
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "cancelled"
    assert c.told(Withdrawn)
    assert all(h.machine.inspect.sizes()["records"] == 0 for h in world.hosts.values())


# -- Stopping a Node -------------------------------------------------------------------------------------------------


def test_requests_through_a_node_that_stops_end_with_a_null() -> None:
    world = world_of("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = lambda *_: None
    op = world.send("a", b"x")
    world.run(SECOND)
    world.kill("b")
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "null"


# -- Search ----------------------------------------------------------------------------------------------------------


def test_the_owner_of_a_key_is_the_highest_id_below_it_or_the_highest_of_all() -> None:
    """'the node whose UUID is the highest UUID less than the UUID of the first storage object may be selected'."""
    nodes = [bytes([k]) * 16 for k in (10, 20, 30)]
    assert owner_of(bytes([25]) * 16, nodes) == nodes[1]
    assert owner_of(bytes([20]) * 16, nodes) == nodes[0]
    assert owner_of(bytes([5]) * 16, nodes) == nodes[2]
    assert owner_of(bytes([99]) * 16, nodes) == nodes[2]
    assert owners_of(bytes([25]) * 16, nodes, 2) == [nodes[1], nodes[0]]
    assert owner_of(b"x", []) is None


def test_the_realm_of_a_key_is_chosen_by_the_key_with_its_halves_swapped() -> None:
    """'swapping the most significant and least significant longs in the UUID'."""
    assert swapped(b"A" * 8 + b"B" * 8) == b"B" * 8 + b"A" * 8
    world = World(11)
    for k in range(6):
        world.add(f"n{k}", f"r{k % 3}")
    world.mesh()
    world.run(2 * SECOND)
    key = role_key(TREE, "role")
    realms = sorted(realm_id(f"r{k}") for k in range(3))
    expected = owner_of(swapped(key), realms)
    owner = world.hosts["n0"].machine.search.owner(key, 1)
    assert owner is not None
    realm = world.by_id[owner].realm  # type: ignore[index]
    assert realm_id(realm) == expected


def test_the_first_instance_is_not_published() -> None:
    """'for greater efficiency, in one embodiment the first instance of a role may not be published.'"""
    world = World(11)
    for k in range(20):
        world.add(f"n{k}")
    world.mesh()
    world.run(6 * SECOND)  # longer than entries may be on their way to a new owner
    world.by_type.clear()
    publish(world, "n7")
    assert sum(world.by_type.get(name, 0) for name in ("Wave", "Bulk")) <= 12
    knows = [n for n, h in world.hosts.items() if h.machine.inspect.routes(TREE, "role")]
    assert knows == []


def test_entries_move_when_a_better_owner_joins() -> None:
    """'the second node may communicate with the new node to transfer location information'."""
    world = World(11)
    names = [f"n{k}" for k in range(8)]
    key = role_key(TREE, "role")
    best = owner_of(key, sorted(node_id(name) for name in names))
    late = next(name for name in names if node_id(name) == best)
    rest = [name for name in names if name != late]
    for name in rest:
        world.add(name)
    world.mesh()
    world.run(2 * SECOND)
    before = owner_of(key, sorted(node_id(name) for name in rest))
    publisher = next(name for name in rest if node_id(name) != before)
    publish(world, publisher)

    def not_registered_again(_sender: Any, _receiver: Any, frame: Any) -> list[Any]:
        """Only the former owner hands the entry over; the instance itself is not heard."""
        puts = isinstance(frame, Wave) and frame.op == PUT
        return [] if puts and node_of(frame.wave) == node_id(publisher) else [frame]

    world.filter = not_registered_again
    world.add(late)
    world.mesh()
    world.run(3 * SECOND)
    assert world.hosts[late].machine.inspect.sizes()["entries"] >= 1
    world.filter = None
    end = world.request(late, b"x")
    assert end.kind == "done"


def test_entries_come_back_after_their_owner_died() -> None:
    """'each node which previously stored location information on a node that is subsequently removed ... may store the
    location information on a new node'."""
    world = World(11)
    for k in range(8):
        world.add(f"n{k}")
    world.mesh()
    world.run(2 * SECOND)
    key = role_key(TREE, "role")
    owner = world.hosts["n0"].machine.search.owner(key, 0)
    assert owner is not None
    dead = world.by_id[owner].name  # type: ignore[index]
    publisher = next(name for name in world.hosts if name != dead)
    publish(world, publisher)
    world.kill(dead)
    world.run(3 * SECOND)
    asker = world.hosts[next(n for n in world.hosts if n not in (dead, publisher))]
    world.post(asker, [SearchRole(5, TREE, "role")])
    world.run(SECOND)
    result = asker.told(SearchResult)[0]
    assert result.entry is not None
    assert result.entry.instance == holder(world, publisher)


def test_entries_of_dead_nodes_are_not_returned() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "d")
    world.kill("d")
    world.run(3 * SECOND)
    world.post(world.hosts["a"], [SearchRole(5, TREE, "role")])
    world.run(SECOND)
    assert world.hosts["a"].told(SearchResult)[0].entry is None


def test_a_new_first_is_registered_after_the_first_died() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "d", "a")
    world.kill("d")
    world.run(5 * SECOND)
    world.post(world.hosts["b"], [SearchRole(5, TREE, "role")])
    world.run(SECOND)
    result = world.hosts["b"].told(SearchResult)[0]
    assert result.entry is not None
    assert result.entry.instance == holder(world, "a")


def test_another_instance_is_registered_when_the_first_is_unpublished() -> None:
    """'the location information of that first instance may be specified to the search facility in a remove operation';
    one that is left takes its place at once."""
    world = world_of("a", "b", "c", config=msgspec.structs.replace(FAST, refresh_ns=600 * SECOND))
    publish(world, "a", "b")
    world.post(world.hosts["a"], [UnpublishRole(9, TREE, "role")])
    world.run(2 * SECOND)
    world.post(world.hosts["c"], [SearchRole(5, TREE, "role")])
    world.run(SECOND)
    found = world.hosts["c"].told(SearchResult)[0].entry
    assert found is not None
    assert found.instance == holder(world, "b")


def test_nodes_can_be_excluded_from_storing_locations() -> None:
    world = World(11)
    world.add("a", stores_locations=False)
    world.add("b")
    world.link("a", "b")
    world.run(2 * SECOND)
    for k in range(10):
        publish(world, "a", role=f"r{k}")
    assert world.hosts["a"].machine.inspect.sizes()["entries"] == 0
    assert world.hosts["b"].machine.inspect.sizes()["entries"] >= 10


def test_the_local_realm_is_asked_first() -> None:
    world = World(11)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west"), ("y", "west")):
        world.add(name, realm)
    world.line("a", "b", "x", "y")
    world.run(2 * SECOND)
    publish(world, "a", "y")
    world.post(world.hosts["b"], [SearchRole(5, TREE, "role")])
    world.post(world.hosts["x"], [SearchRole(6, TREE, "role")])
    world.run(SECOND)
    assert world.hosts["b"].told(SearchResult)[0].entry.instance == holder(world, "a")
    assert world.hosts["x"].told(SearchResult)[0].entry.instance == holder(world, "y")


def test_another_realm_serves_the_entry_when_the_first_one_does_not_answer() -> None:
    """The domain's entry is kept in several remote realms, for availability."""
    world = World(11)
    for k in range(6):
        world.add(f"n{k}", f"r{k % 3}")
    world.mesh()
    world.run(6 * SECOND)
    key, search = role_key(TREE, "role"), world.hosts["n0"].machine.search
    first, second = (world.by_id[search.owner(key, 1, place)] for place in (0, 1))  # type: ignore[index]
    assert first.realm != second.realm
    hosts = world.hosts.values()
    publisher = next(h for h in hosts if h.realm not in (first.realm, second.realm))
    asker = next(h for h in hosts if h.realm == first.realm and h is not first)
    publish(world, publisher.name)

    def deaf(_sender: Any, receiver: Any, frame: Any) -> list[Any]:
        asked = isinstance(frame, Wave) and frame.op == GET and frame.target == first.id
        return [] if asked and receiver is first else [frame]

    world.filter = deaf
    world.post(asker, [SearchRole(5, TREE, "role")])
    world.run(60 * SECOND)
    found = asker.told(SearchResult)[0]
    assert found.entry is not None
    assert found.entry.instance == holder(world, publisher.name)


def test_a_broadcast_is_the_last_resort_when_the_search_has_lost_the_entry() -> None:
    world = world_of("a", "b", "c", "d", "e", "f")
    publish(world, "f")
    for host in world.hosts.values():
        for table in host.machine.search._tables:
            table.clear()
    end = world.request("a", b"x")
    assert end.kind == "done"
    assert world.hosts["a"].machine.hub.counters["recovery_floods"] == 2, "nearby, then everywhere"
    world.run(2 * SECOND)
    world.post(world.hosts["b"], [SearchRole(5, TREE, "role")])
    world.run(SECOND)
    found = world.hosts["b"].told(SearchResult)[0].entry
    assert found is not None, "one instance has registered as first"


# -- Handling Network Partitioning -----------------------------------------------------------------------------------


def test_an_unpartition_event_names_both_ends_and_reaches_all_of_the_side() -> None:
    """'node X may issue an un-partition event, specified by <Dx, Rx, Dy> to all nodes that node X can reach ... except
    for nodes now reachable over the newly added link.'"""
    world = world_of("a", "b", "c", "d")
    publish(world, "a", "d")
    world.cut("b", "c")
    world.run(2 * SECOND)
    events: list[tuple[str, str, Any]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Unpartition):
            events.append((sender.name, receiver.name, frame.event))

    world.watch = watch
    world.link("b", "c")
    world.run(2 * SECOND)
    told = {(s, r, world.by_id[e.near].name, world.by_id[e.far].name) for s, r, e in events}
    assert told == {("b", "a", "b", "c"), ("c", "d", "c", "b")}


def test_an_unpartition_event_is_not_sent_to_the_far_end_of_its_link() -> None:
    """'except for nodes now reachable over the newly added link': here a also has a link to the far end of b's."""
    world = world_of("a", "b", "c", links="a-b b-c c-a")
    publish(world, "a", "c")
    world.cut("b", "c")
    world.cut("a", "c")
    world.run(2 * SECOND)
    events: list[tuple[str, str, Any]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Unpartition):
            events.append((sender.name, receiver.name, frame.event))

    world.watch = watch
    world.link("b", "c")
    world.link("a", "c")
    world.run(2 * SECOND)
    assert events
    assert [(s, r) for s, r, e in events if node_id(r) == e.far] == []


def test_directed_recovery_crosses_the_new_link() -> None:
    """'the directed recovery request may be sent from Node X to Node Y. The normal recovery algorithm as described
    above may then take over from Node Y.'"""
    world = world_of("a", "b", "c", "d", config=msgspec.structs.replace(FAST, retry_ns=20 * SECOND))
    publish(world, "a")
    world.request("b", b"warm")
    world.cut("b", "c")
    world.run(2 * SECOND)
    world.publish("d")
    world.run(8 * SECOND)
    world.link("b", "c")
    world.run(SECOND)
    waves: list[tuple[str, str, Any]] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if isinstance(frame, Wave) and frame.kind == 0:
            waves.append((sender.name, receiver.name, frame))

    world.watch = watch
    world.request("a", b"x")
    assert ("b", "c") in [(s, r) for s, r, _ in waves]


def healed_between_realms() -> World:
    """a and b in one realm, c and d in another, with an instance at each end; the link between the realms came back."""
    world = World(3, msgspec.structs.replace(FAST, refresh_ns=3600 * SECOND))
    for name, realm in (("a", "east"), ("b", "east"), ("c", "west"), ("d", "west")):
        world.add(name, realm)
    world.line("a", "b", "c", "d")
    world.run(2 * SECOND)
    publish(world, "a")
    publish(world, "d")
    world.cut("b", "c")
    world.run(3 * SECOND)
    world.link("b", "c")
    world.run(8 * SECOND)
    assert world.hosts["b"].machine.partition.status()["unpartitions"]
    return world


def test_a_recovery_for_the_realm_does_not_cross_a_new_link_to_another_one() -> None:
    """'When doing recovery for just the local realm, ... recovery request messages are only forwarded over links that
    go to other nodes in the local realm.'"""
    world = healed_between_realms()
    left: list[Any] = []

    def watch(sender: Any, receiver: Any, frame: Any) -> None:
        if sender.realm != receiver.realm and getattr(frame, "realm_only", False):
            left.append(frame)

    world.watch = watch
    assert world.request("b", b"here", realm_only=True).kind == "done"
    assert world.receivers(b"here") == {"a": 1}
    assert left == []


def test_the_realm_recovers_from_a_healed_partition_once() -> None:
    """Messages that stay in the realm do not wait for a recovery each time; those to all cross the new link later."""
    world = healed_between_realms()
    counters = world.hosts["b"].machine.hub.counters
    before = counters.get("recoveries", 0)
    for k in range(5):
        world.request("b", b"here %d" % k, realm_only=True)
    assert counters["recoveries"] == before + 1
    assert world.request("b", b"all", aggregate=True).kind == "done"
    assert world.receivers(b"all") == {"a": 1, "d": 1}


def test_a_lost_link_makes_no_new_colour_while_there_is_another_way() -> None:
    """'confirm colours after a settling time': a ring that loses one link is not partitioned."""
    world = world_of("a", "b", "c", links="a-b b-c c-a")
    publish(world, "a")
    before = world.hosts["a"].machine.partition.colour
    world.cut("a", "b")
    world.run(2 * SECOND)
    assert all(h.machine.partition.colour == before for h in world.hosts.values())
    assert not [
        e for h in world.hosts.values() for e in h.told(OverlayEvent) if e.event == "partition"
    ]


def test_colours_converge_when_many_links_fail_at_once() -> None:
    """'this partition-coloring algorithm causes the nodes in the partition to converge on the same color
    eventually.'"""
    world = World(11)
    names = [f"n{k}" for k in range(20)]
    for name in names:
        world.add(name)
    world.mesh()
    world.run(3 * SECOND)
    publish(world, "n0")
    half = names[:10]
    world.partition(half, names[10:])
    world.run(3 * SECOND)
    sides = [{world.hosts[n].machine.partition.colour for n in side} for side in (half, names[10:])]
    components = [components_of(world, side) for side in (half, names[10:])]
    for colours, count in zip(sides, components, strict=True):
        assert len(colours) == count
    assert not sides[0] & sides[1]


def components_of(world: World, side: list[str]) -> int:
    left = dict.fromkeys(side, True)
    count = 0
    while left:
        count += 1
        queue = [left.popitem()[0]]
        while queue:
            queue += [peer for peer in world.links_of(queue.pop()) if left.pop(peer, None)]
    return count


# -- Direct Connection Trees -----------------------------------------------------------------------------------------


def find(world: World, name: str, **options: Any) -> FoundInstances:
    op = world.op()
    world.post(world.hosts[name], [FindInstances(op, TREE, "role", **options)])
    world.run(2 * SECOND)
    return next(e for e in world.hosts[name].told(FoundInstances) if e.op == op)


def connect(world: World, name: str, locations: tuple[Location, ...], **options: Any) -> Connected:
    op = world.op()
    world.post(world.hosts[name], [ConnectTo(op, locations, **options)])
    world.run(8 * SECOND)
    return next(e for e in world.hosts[name].told(Connected) if e.op == op)


def test_find_returns_where_all_instances_are() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "b", "d")
    found = find(world, "a")
    assert found.complete
    assert sorted(place.node for place in found.locations) == sorted((node_id("b"), node_id("d")))


def test_an_instance_may_decline_to_join() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "b", "d")
    world.post(world.hosts["d"], [SetJoinable(TREE, "role", False)])
    assert [place.node for place in find(world, "a").locations] == [node_id("b")]


def test_a_direct_tree_is_used_through_the_same_send_in_one_hop() -> None:
    """'The message may be sent to each of the target role instances in a single hop'."""
    world = world_of("a", "b", "c", "d")
    publish(world, "c", "d")
    tree = connect(world, "a", find(world, "a").locations)
    assert len(tree.one_hop) == 2
    seen = messages(world)
    op = world.send_raw("a", tree.tree, b"x", aggregate=True)
    world.run(SECOND)
    assert sorted(seen) == [("a", "c"), ("a", "d")]
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert sorted(data for _, data in end.replies) == [b"c", b"d"]


def test_one_instance_on_a_direct_tree_is_a_near_one_that_is_there() -> None:
    """RECONSTRUCTED: 'a one-instance send takes the local instance, then the route with the lowest hop time in the own
    realm, then any other.' A direct tree is used through the same send call."""
    world = World(17)
    for name, realm in (("a", "east"), ("b", "west"), ("c", "east"), ("d", "east")):
        world.add(name, realm)
    world.line("a", "b", "c", "d")
    world.run(2 * SECOND)
    publish(world, "b", "c", "d")
    places = find(world, "a").locations
    order = {place.node: place for place in places}
    listed = tuple(order[node_id(name)] for name in ("b", "c", "d"))
    tree = connect(world, "a", listed)
    world.link("a", "c", delay=MILLISECOND)
    world.send_raw("a", tree.tree, b"near", one=True)
    world.run(SECOND)
    assert set(world.receivers(b"near")) <= {"c", "d"}, "b is in another realm"
    world.kill(*world.receivers(b"near"))
    world.run(2 * SECOND)
    world.send_raw("a", tree.tree, b"left", one=True)
    world.run(SECOND)
    assert len(world.receivers(b"left")) == 1


def test_a_direct_tree_is_a_snapshot() -> None:
    world = world_of("a", "b", "c", "d")
    publish(world, "c")
    tree = connect(world, "a", find(world, "a").locations)
    publish(world, "d")
    world.send_raw("a", tree.tree, b"x")
    world.run(SECOND)
    assert world.receivers(b"x") == {"c": 1}


def test_a_direct_tree_may_be_the_union_of_several_trees() -> None:
    """'a direct connection tree may represent the "OR" of any number of existing trees as a snapshot in time.'"""
    world = world_of("a", "b", "c", "d")
    publish(world, "c")
    publish(world, "d", tree="other")
    first = find(world, "a").locations
    op = world.op()
    world.post(world.hosts["a"], [FindInstances(op, tree_id("other"), "role")])
    world.run(2 * SECOND)
    second = next(e for e in world.hosts["a"].told(FoundInstances) if e.op == op).locations
    tree = connect(world, "a", first + second)
    world.send_raw("a", tree.tree, b"x")
    world.run(SECOND)
    assert world.receivers(b"x") == {"c": 1, "d": 1}


def test_the_result_of_a_find_can_be_used_by_another_node() -> None:
    """'results from one or more find operations performed by a source node may be sent to another node.'"""
    world = world_of("a", "b", "c", "d")
    publish(world, "d")
    tree = connect(world, "b", find(world, "a").locations)
    world.send_raw("b", tree.tree, b"x")
    world.run(SECOND)
    assert world.receivers(b"x") == {"d": 1}


def test_a_find_can_be_limited_to_the_realm() -> None:
    world = World(11)
    for name, realm in (("a", "east"), ("b", "east"), ("x", "west")):
        world.add(name, realm)
    world.line("a", "b", "x")
    world.run(2 * SECOND)
    publish(world, "b", "x")
    assert [p.node for p in find(world, "a", realm_only=True).locations] == [node_id("b")]
    assert len(find(world, "a").locations) == 2


def test_without_a_common_subnet_the_instance_stays_multi_hop_and_is_reached() -> None:
    world = world_of("a", "b", "c")
    publish(world, "c")
    world.blocked[world._pair("a", "c")] = "no common subnet"
    tree = connect(world, "a", find(world, "a").locations)
    assert tree.one_hop == ()
    assert [why for _, why in tree.multi_hop] == ["no common subnet"]
    world.send_raw("a", tree.tree, b"x")
    world.run(SECOND)
    assert world.receivers(b"x") == {"c": 1}


def test_each_neighbourhood_has_its_own_bounded_cache_of_links() -> None:
    """'The link cache may close existing links when the maximum number of links for that neighborhood ... is
    exceeded, on the basis of a Least Recently Used (LRU) policy'."""
    config = msgspec.structs.replace(FAST, neighbourhood_links=2)
    names = ["a", "b", "c", "d", "e", "f"]
    world = world_of(*names, config=config)
    publish(world, "c", "d", "e", "f")
    places = {world.by_id[p.node].name: p for p in find(world, "a").locations}  # type: ignore[index]
    connect(world, "a", (places["c"], places["d"]), neighbourhood=2)
    assert world.linked("a", "c")
    assert world.linked("a", "d")
    connect(world, "a", (places["e"],), neighbourhood=2)
    assert not world.linked("a", "c"), "the least recently used link of the neighbourhood"
    assert world.linked("a", "d")
    connect(world, "a", (places["f"],), neighbourhood=3)
    assert world.linked("a", "d"), "another neighbourhood"
    assert world.linked("a", "e")


def test_a_link_that_was_used_is_not_the_least_recently_used_one() -> None:
    config = msgspec.structs.replace(FAST, neighbourhood_links=2)
    world = world_of("a", "b", "c", "d", "e", config=config)
    publish(world, "c", "d", "e")
    places = {world.by_id[p.node].name: p for p in find(world, "a").locations}  # type: ignore[index]
    tree = connect(world, "a", (places["c"], places["d"]), neighbourhood=2)
    world.send_raw("a", tree.tree, b"x", instance=places["c"].instance)
    world.run(SECOND)
    connect(world, "a", (places["e"],), neighbourhood=2)
    assert world.linked("a", "c")
    assert not world.linked("a", "d")


def test_two_neighbourhoods_share_one_link() -> None:
    """'a second DCN may re-use the TCP/IP link created by a first DCN.'"""
    config = msgspec.structs.replace(FAST, neighbourhood_links=1)
    world = world_of("a", "b", "c", "d", config=config)
    publish(world, "c", "d")
    places = {world.by_id[p.node].name: p for p in find(world, "a").locations}  # type: ignore[index]
    connect(world, "a", (places["c"],), neighbourhood=2)
    session = world.sessions[world._pair("a", "c")]
    connect(world, "a", (places["c"],), neighbourhood=3)
    assert world.sessions[world._pair("a", "c")] is session
    connect(world, "a", (places["d"],), neighbourhood=2)
    assert world.linked("a", "c"), "the other neighbourhood still needs it"


def test_a_cap_on_all_links_together() -> None:
    config = msgspec.structs.replace(FAST, direct_links_max=1)
    world = world_of("a", "b", "c", "d", config=config)
    publish(world, "c", "d")
    tree = connect(world, "a", find(world, "a").locations)
    assert len(tree.one_hop) == 1
    assert [why for _, why in tree.multi_hop] == ["too many direct links"]
    world.send_raw("a", tree.tree, b"x")
    world.run(SECOND)
    assert world.receivers(b"x") == {"c": 1, "d": 1}


# -- Instrumentation -------------------------------------------------------------------------------------------------


def test_instrumentation_shows_trees_roles_neighbours_and_remote_nodes() -> None:
    world = world_of("a", "b", "c")
    publish(world, "a", "c")
    inspect = world.hosts["b"].machine.inspect
    assert inspect.contains_tree(TREE)
    assert inspect.trees() == [TREE]
    assert sorted(inspect.neighbours(TREE)) == sorted((node_id("a"), node_id("c")))
    assert sorted(inspect.remote_nodes(TREE)) == sorted((node_id("a"), node_id("c")))
    assert [r.role for r in world.hosts["a"].machine.inspect.local_roles(TREE)] == ["role"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_status_of_a_node_is_plain_data(name: str) -> None:
    world = world_of("a", "b", "c")
    publish(world, "a", "c")
    status = world.hosts[name].machine.status()
    assert msgspec.json.decode(msgspec.json.encode(status)) == status
    assert status["mesh"]["reachable"] == 3


def test_a_find_says_when_instances_may_be_missing() -> None:
    """An answer with three of four instances and no word about the fourth would pass for all of them."""
    world = world_of("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")
    world.filter = lambda s, r, frame: (
        [] if r.name == "l" and isinstance(frame, Message) else [frame]
    )
    op = world.op()
    world.post(world.hosts["b"], [FindInstances(op, TREE, "role")])
    world.run(15 * SECOND)
    found = next(e for e in world.hosts["b"].told(FoundInstances) if e.op == op)
    assert [place.node for place in found.locations] == [node_id("r")]
    assert not found.complete
    assert found.reason
