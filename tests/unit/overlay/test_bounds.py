"""Every table has a limit; what exceeds it is refused by name and counted, and what came before goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.overlay_world import FAST, PORT, World, count, node_id, world_of

from holdfast.links.ports import Received
from holdfast.overlay import frames as f
from holdfast.overlay import tree_id
from holdfast.overlay.direct import DIRECT_TREES_MAX
from holdfast.overlay.ids import numbered
from holdfast.overlay.listeners import PORTS_MAX
from holdfast.overlay.ports import (
    CONTINUE,
    Connected,
    ConnectTo,
    FindInstances,
    FoundInstances,
    OpenPort,
    OverlayEvent,
    Published,
    Snooped,
    SnoopVerdict,
)
from holdfast.overlay.trees import RoleState
from holdfast.types import SECOND

TREE = tree_id("tree")


def line(*names: str, **changes: Any) -> World:
    world = world_of(*names, seed=31, config=msgspec.structs.replace(FAST, **changes))
    world.publish(names[-1])
    world.run(2 * SECOND)
    return world


def hostile(world: World, sender: str, receiver: str, *frames: Any) -> None:
    world.post(world.hosts[receiver], [Received(node_id(sender), list(frames), world.now)])


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_sender_with_too_many_requests_under_way_is_refused() -> None:
    world = line("a", "b", pending_max=3)
    world.hosts["b"].answers = lambda item: None
    ops = [world.send("a", b"%d" % k) for k in range(5)]
    ends = [world.hosts["a"].end_of(op) for op in ops]
    assert [end.kind if end else "" for end in ends] == ["", "", "", "refused", "refused"]
    world.run(15 * SECOND)
    world.hosts["b"].answers = None
    assert world.request("a", b"later").kind == "done"


def test_a_full_node_refuses_what_others_send_through_it() -> None:
    world = line("a", "b", "c", pending_per_peer_max=2)
    world.hosts["c"].answers = lambda item: None
    for k in range(4):
        world.send("a", b"%d" % k)
    world.run(SECOND)
    assert count(world, "b", "pending_full") == 2
    assert sorted(end.kind for end in world.hosts["a"].ends) == ["null", "null"]


def test_messages_that_wait_for_one_recovery_are_bounded() -> None:
    world = line("a", "b", "c", waiting_max=3)
    ops = [world.send("a", b"%d" % k) for k in range(5)]
    ends = [world.hosts["a"].end_of(op) for op in ops]
    assert [end.kind if end else "" for end in ends] == ["", "", "", "null", "null"]
    assert "wait for the recovery" in (ends[3].reason if ends[3] else "")
    world.run(8 * SECOND)
    assert world.receivers(b"2") == {"c": 1}
    assert world.receivers(b"3") == {}


def test_a_full_queue_refuses_by_name_and_a_one_way_message_raises_an_event() -> None:
    world = line("a", "b", credit=2, queue_max=2)
    world.request("a", b"warm")
    world.filter = lambda s, r, frame: [] if isinstance(frame, f.Credit) else [frame]
    asked = [world.send("a", b"%d" % k) for k in range(6)]
    world.send("a", b"lost", one_way=True)
    world.run(SECOND)
    refused = [end for op in asked if (end := world.hosts["a"].end_of(op)) and end.kind == "null"]
    assert refused
    assert all(end.reason == "queue full" for end in refused)
    assert count(world, "a", "queue_full") == len(refused) + 1
    dropped = [e for e in world.hosts["a"].told(OverlayEvent) if e.event == "dropped"]
    assert [(event.role, event.detail) for event in dropped] == [("role", "queue full")]
    world.filter = None
    world.cut("a", "b")
    world.run(SECOND)
    assert world.hosts["a"].machine.flow.queued == 0, "a queue ends with its session"


def test_a_window_that_is_ignored_ends_the_copies_by_name() -> None:
    world = line("a", "b", "c", credit=4, queue_max=2)
    world.request("a", b"warm")
    world.hosts["c"].answers = lambda item: None
    world.filter = lambda s, r, frame: [] if isinstance(frame, f.Credit) else [frame]
    for k in range(100):
        request = numbered(node_id("a"), 1, 1 << 30 | k)
        hostile(world, "a", "b", f.Message(request, 0, TREE, "role", PORT, b"x", 5000))
    assert count(world, "b", "window_ignored") + count(world, "b", "queue_full") >= 90


# -- ports and snoopers ----------------------------------------------------------------------------------------------


def test_too_many_suspended_messages_pass_unseen() -> None:
    """A snooper that never resumes does not fill the node, and does not stop those that pass."""
    world = line("a", "b", "c", suspended_max=2)
    world.post(world.hosts["b"], [OpenPort(PORT, snoop=True)])
    for k in range(4):
        world.send("a", b"%d" % k)
    world.run(SECOND)
    assert len(world.hosts["b"].told(Snooped)) == 2
    assert count(world, "b", "suspended_full") >= 2
    assert [data for data in (b"0", b"1", b"2", b"3") if world.receivers(data)] == [b"2", b"3"]


def test_a_snooper_sees_its_trees_and_its_protocol_only() -> None:
    world = line("a", "b", "c")
    world.publish("c", tree="other")
    world.post(world.hosts["c"], [OpenPort(PORT + 1)])
    world.run(2 * SECOND)
    other = tree_id("other")
    world.post(world.hosts["b"], [OpenPort(PORT, snoop=True, snoop_trees=(other,))])
    assert world.request("a", b"tree").kind == "done"
    assert world.request("a", b"protocol", tree="other", protocol=PORT + 1).kind == "done"
    assert world.hosts["b"].told(Snooped) == []
    world.send("a", b"mine", tree="other")
    world.run(SECOND)
    (seen,) = world.hosts["b"].told(Snooped)
    assert seen.data == b"mine"
    world.post(world.hosts["b"], [SnoopVerdict(seen.token, 99)])
    assert count(world, "b", "bad_verdict") == 1
    world.post(world.hosts["b"], [SnoopVerdict(seen.token, CONTINUE)])
    world.run(SECOND)
    assert world.receivers(b"mine") == {"c": 1}


def test_ports_are_bounded() -> None:
    world = line("a", "b")
    world.post(world.hosts["a"], [OpenPort(1000 + k) for k in range(PORTS_MAX + 10)])
    assert count(world, "a", "ports_full") == 11, "one port was open"
    assert world.request("a", b"x").kind == "done"


# -- roles, trees, direct connections --------------------------------------------------------------------------------


def test_roles_of_a_node_are_bounded() -> None:
    world = line("a", "b", local_roles_max=2)
    ops = [world.publish("a", role=f"r{k}") for k in range(3)]
    world.run(3 * SECOND)
    answers = [world.published("a", op) for op in ops]
    assert [isinstance(a, Published) and a.ok for a in answers] == [True, True, False]
    assert "too many roles" in (answers[2].reason if answers[2] else "")


def test_tombstones_of_a_role_are_bounded() -> None:
    state = RoleState("role", 0)
    for k in range(100):
        state.bury(numbered(node_id("a"), 1, k), 1, 300 * SECOND, 10)
    assert len(state.tombs) == 10
    assert numbered(node_id("a"), 1, 99) in state.tombs, "the oldest leave"


def found(world: World, name: str) -> FoundInstances:
    op = world.op()
    world.post(world.hosts[name], [FindInstances(op, TREE, "role")])
    world.run(2 * SECOND)
    return next(e for e in world.hosts[name].told(FoundInstances) if e.op == op)


def connected(world: World, name: str, op: int) -> Connected:
    return next(e for e in world.hosts[name].told(Connected) if e.op == op)


def test_direct_trees_are_bounded() -> None:
    world = line("a", "b")
    places = found(world, "a").locations
    ops = [world.op() for _ in range(DIRECT_TREES_MAX + 1)]
    world.post(world.hosts["a"], [ConnectTo(op, places) for op in ops])
    world.run(SECOND)
    assert connected(world, "a", ops[0]).tree
    last = connected(world, "a", ops[-1])
    assert last.tree == b""
    assert [why for _, why in last.multi_hop] == ["too many direct trees"]
    assert count(world, "a", "direct_trees_full") == 1


def test_an_instance_whose_link_does_not_come_up_stays_multi_hop() -> None:
    world = line("a", "b", "c")
    places = found(world, "a").locations
    world.kill("c")
    op = world.op()
    world.post(world.hosts["a"], [ConnectTo(op, places)])
    world.run(30 * SECOND)
    direct = connected(world, "a", op)
    assert direct.one_hop == ()
    assert [why for _, why in direct.multi_hop] == ["no link could be made"]
    sent = world.send_raw("a", direct.tree, b"x", aggregate=True)
    world.run(15 * SECOND)
    end = world.hosts["a"].end_of(sent)
    assert end is not None
    assert end.kind != "done"
    assert end.expected == tuple(place.instance for place in places)
    assert end.answered == ()


def test_only_the_role_that_is_asked_for_is_reached_on_a_direct_tree() -> None:
    world = line("a", "b", "c")
    world.publish("b", role="other")
    world.run(2 * SECOND)
    op = world.op()
    world.post(world.hosts["a"], [FindInstances(op, TREE, "other")])
    world.run(2 * SECOND)
    other = next(e for e in world.hosts["a"].told(FoundInstances) if e.op == op).locations
    op = world.op()
    world.post(world.hosts["a"], [ConnectTo(op, found(world, "a").locations + other)])
    world.run(5 * SECOND)
    tree = connected(world, "a", op).tree
    world.send_raw("a", tree, b"x", role="other")
    world.run(SECOND)
    assert world.receivers(b"x") == {"b": 1}


def test_a_location_that_names_another_instance_is_not_used() -> None:
    world = line("a", "b")
    forged = msgspec.msgpack.encode([TREE, "role", numbered(node_id("z"), 1, 1), node_id("z"), "x"])

    def change(_s: Any, _r: Any, frame: Any) -> list[Any]:
        if not isinstance(frame, f.Reply):
            return [frame]
        parts = tuple(msgspec.structs.replace(part, data=forged) for part in frame.parts)
        return [msgspec.structs.replace(frame, parts=parts)]

    world.filter = change
    assert found(world, "a").locations == ()


# -- damaged frames --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "counter"),
    [
        (f.Cancel(bytes(32), 0), "cancel_without_request"),
        (f.Break(b"short", "role", bytes(32), 0, True), "bad_break"),
        (f.Break(TREE, "role", bytes(32), 0, True), "break_without_message"),
        (f.Reverse(TREE, "", bytes(32), 0, (bytes(16), bytes(16))), "bad_reverse"),
        (f.Reverse(TREE, "role", bytes(32), 0, (bytes(16), b"")), "bad_reverse"),
        (f.Edge(b"short", f.EDGE_CREATE), "bad_edge"),
        (f.Edge(TREE, f.EDGE_EVICTED, (b"short",)), "bad_edge"),
        (f.Edge(TREE, 99), "bad_edge"),
        (f.Credit(0), "bad_credit"),
        (f.Credit(1 << 40), "bad_credit"),
        (f.Colour(b"short", 1), "bad_colour"),
        (f.Colour(bytes(16), 1 << 62), "bad_colour"),
        (f.Colour(bytes(16), 1, gone=(b"short",)), "bad_colour"),
        (f.Unpartition(f.CutHealed(b"short", "r", bytes(16), 1)), "bad_unpartition"),
        (f.WaveAnswer(b"short", 0), "bad_wave_answer"),
        (f.WaveAnswer(bytes(32), 0), "wave_answer_without_wave"),
        (f.OverlayHello(0, 0, "default", 1), "bad_hello"),
        (f.OverlayHello(1, 0, "x" * 300, 1), "bad_hello"),
    ],
)
def test_a_frame_that_cannot_be_used_is_counted_and_changes_nothing(
    frame: Any, counter: str
) -> None:
    world = line("a", "b", "c")
    world.request("a", b"warm")
    before = count(world, "b", counter)
    hostile(world, "a", "b", frame)
    assert count(world, "b", counter) == before + 1
    assert world.request("a", b"after").kind == "done"
    assert world.receivers(b"after") == {"c": 1}


def test_a_cancel_of_another_neighbour_is_ignored() -> None:
    world = line("a", "b", "c")
    world.hosts["c"].answers = lambda item: None
    op = world.send("a", b"x")
    world.run(SECOND)
    message = world.hosts["c"].delivered[-1]
    hostile(world, "c", "b", f.Cancel(message.request, message.attempt))
    assert count(world, "b", "cancel_without_request") == 1
    record = world.hosts["b"].machine.router.record(message.request, message.attempt)
    assert record is not None
    assert world.hosts["a"].end_of(op) is None


def test_trees_that_a_node_has_not_asked_for_make_no_routes() -> None:
    world = line("a", "b", "c")
    instance = numbered(node_id("z"), 1, 1)
    info = f.TreeInfo(TREE, "made up", True, (f.Found(instance, 0, False, 1, 0),))
    for name in ("a", "c"):
        hostile(
            world, name, "b", f.Trees(())
        )  # one of them was asked when the first session opened
    hostile(world, "a", "b", f.Trees((info,)))
    assert count(world, "b", "trees_unasked") == 2
    assert world.hosts["b"].machine.inspect.routes(TREE, "made up") == {}
