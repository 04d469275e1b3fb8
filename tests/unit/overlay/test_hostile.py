"""Bad input: from applications, from peers that are damaged, and from peers that are hostile.

Members of a domain authenticate each other, but publishes are forwarded, so a link does not prove who published. What a
hostile member can do is therefore bounded and counted; honest nodes go on working with each other.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.support.overlay_world import FAST, PORT, World, count, node_id

from holdfast.links.ports import Received
from holdfast.overlay import frames as f
from holdfast.overlay import tree_id
from holdfast.overlay.checks import COUNT_MAX, TRACE_MAX
from holdfast.overlay.ids import numbered
from holdfast.overlay.ports import (
    AnswerMessage,
    Ended,
    OpenPort,
    Published,
    PublishRole,
    SendToRole,
    Snooped,
    SnoopVerdict,
    UnpublishRole,
)
from holdfast.overlay.topology import NODES_MAX
from holdfast.types import SECOND, NodeId

TREE = tree_id("tree")


def row(config: Any = FAST) -> World:
    world = World(21, config)
    for name in ("a", "b", "c", "d"):
        world.add(name)
    world.line("a", "b", "c", "d")
    world.run(2 * SECOND)
    for name in ("a", "d"):
        world.publish(name)
        world.run(2 * SECOND)
    return world


def hostile(world: World, sender: str, receiver: str, *frames: Any) -> None:
    """Frames that `sender` sends to its neighbour although its machine did not ask for it."""
    host = world.hosts[receiver]
    world.post(host, [Received(node_id(sender), list(frames), world.now)])


def still_works(world: World, data: bytes) -> None:
    end = world.request("d", data, aggregate=True)
    assert end.kind == "done"
    assert world.receivers(data) == {"a": 1, "d": 1}


# -- applications --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "x" * 256},
        {"role": ""},
        {"tree": b"short"},
        {"data": bytes(2 << 20)},
        {"instance": b"short"},
        {"request": b"short"},
        {"protocol": -1},
        {"attempt": -1},
    ],
)
def test_a_send_that_cannot_be_is_refused_with_a_reason(changes: dict[str, Any]) -> None:
    world = row()
    a = world.hosts["a"]
    good = SendToRole(500, TREE, "role", b"x", PORT)
    world.post(a, [msgspec.structs.replace(good, **changes)])
    end = a.end_of(500)
    assert isinstance(end, Ended)
    assert end.kind == "refused"
    assert end.reason
    still_works(world, b"after")


@pytest.mark.parametrize(
    "changes", [{"role": "ü" * 200}, {"role": ""}, {"tree": b""}], ids=["long", "empty", "tree"]
)
def test_a_publish_that_cannot_be_is_refused_with_a_reason(changes: dict[str, Any]) -> None:
    world = row()
    request = msgspec.structs.replace(PublishRole(501, TREE, "other"), **changes)
    world.post(world.hosts["a"], [request])
    answer = world.published("a", 501)
    assert isinstance(answer, Published)
    assert not answer.ok
    assert answer.reason


def test_answers_and_verdicts_without_a_message_are_counted() -> None:
    world = row()
    world.post(world.hosts["a"], [AnswerMessage(12345, b""), SnoopVerdict(12345, 0)])
    assert count(world, "a", "answer_without_message") == 1
    assert count(world, "a", "verdict_without_message") == 1


def test_a_second_last_reply_of_an_application_is_refused() -> None:
    world = row()
    world.hosts["a"].answers = lambda item: None
    op = world.send("d", b"x")
    world.run(SECOND)
    token = world.hosts["a"].delivered[-1].token
    for _ in range(3):
        world.post(world.hosts["a"], [AnswerMessage(token, b"again")])
    world.run(SECOND)
    assert world.hosts["d"].replies(op).count(b"again") == 1
    assert count(world, "a", "answer_without_message") == 2


def test_a_role_that_this_node_does_not_hold_cannot_be_unpublished() -> None:
    world = row()
    world.post(world.hosts["b"], [UnpublishRole(502, TREE, "role")])
    answer = next(e for e in world.hosts["b"].effects if getattr(e, "op", 0) == 502)
    assert not answer.ok


# -- damaged and hostile frames --------------------------------------------------------------------------------------


def test_replies_without_a_request_are_dropped() -> None:
    world = row()
    before = count(world, "b", "reply_without_request")
    hostile(world, "c", "b", f.Reply(bytes(32), 0, f.END, True))
    hostile(world, "c", "b", f.Reply(b"short", 0, f.END, True))
    assert count(world, "b", "reply_without_request") == before + 1
    assert count(world, "b", "bad_reply") == 1
    still_works(world, b"after")


def test_a_second_last_reply_of_a_peer_is_dropped() -> None:
    world = row()
    world.hosts["a"].answers = lambda item: None
    op = world.send("d", b"x")
    world.run(SECOND)
    message = world.hosts["a"].delivered[-1]
    last = f.Reply(message.request, message.attempt, f.END, True)
    hostile(world, "b", "c", last, last, last)
    world.run(SECOND)
    assert world.hosts["d"].end_of(op) is not None
    assert count(world, "c", "reply_without_request") >= 2


def test_frames_of_a_peer_without_a_session_are_dropped() -> None:
    world = row()
    hostile(world, "d", "a", f.Message(bytes(32), 0, TREE, "role", PORT, b"x", 1000))
    assert world.receivers(b"x") == {}
    assert count(world, "a", "frames_without_session") == 1


def test_a_flood_of_publishes_is_bounded() -> None:
    """A hostile neighbour publishes instances of others, again and again, under new names."""
    world = row(
        msgspec.structs.replace(FAST, trees_max=50, roles_per_tree_max=20, instances_max=10)
    )
    rng = Random(1)
    for k in range(3000):
        wave = numbered(node_id("b"), 1, 1 << 30 | k)
        tree = TREE if k % 2 else rng.randbytes(16)
        role = f"r{k % 100}"
        instance = numbered(rng.randbytes(16), 1, k)
        hostile(
            world, "b", "a",
            f.Wave(wave, wave, f.PUBLISH, tree, role, instance=instance, epoch=1, seq=1, hops=1),
        )  # fmt: skip
    a = world.hosts["a"].machine.inspect
    sizes = a.sizes()
    assert sizes["trees"] <= a.bounds()["trees"] == 51, "one tree has a local role"
    assert sizes["routes"] <= 50 * 20 * 10
    assert len(a.routes(TREE, "r1")) <= 10
    world.run(5 * SECOND)
    still_works(world, b"after")


def test_a_forged_exclusive_claim_does_not_outlive_the_holder_of_the_true_role() -> None:
    """b claims a's exclusive role in the name of a node that does not exist. The claim is bounded to the nodes that it
    told: the true holder publishes at a higher epoch and is reached again."""
    world = World(22)
    for name in ("a", "b", "c"):
        world.add(name)
    world.line("a", "b", "c")
    world.run(2 * SECOND)
    world.publish("a", exclusive=True)
    world.run(2 * SECOND)
    world.request("c", b"before")
    ghost = numbered(b"\xff" * 16, 1, 1)
    wave = numbered(node_id("b"), 1, 1 << 30)
    forged = f.Wave(
        wave, wave, f.PUBLISH, TREE, "role", instance=ghost, epoch=50, exclusive=True, seq=1, hops=1
    )
    hostile(world, "b", "c", forged)
    world.run(SECOND)
    assert world.holders() == ["a"], "a itself was not told"
    op = world.publish("c", exclusive=True)
    world.run(3 * SECOND)
    done = world.published("c", op)
    assert done is not None
    assert done.ok
    assert world.holders() == ["c"]
    world.request("b", b"after")
    assert world.receivers(b"after") == {"c": 1}


def claimed(node: bytes) -> tuple[World, bytes]:
    """A hostile b claims a's exclusive role in the name of a node, with the highest epoch that a frame may carry."""
    world = World(22)
    for name in ("a", "b", "c"):
        world.add(name)
    world.line("a", "b", "c")
    world.run(2 * SECOND)
    world.publish("a", exclusive=True)
    world.run(2 * SECOND)
    instance = numbered(node, 1, 1 << 30)
    wave = numbered(node_id("b"), 1, 1 << 30)
    forged = f.Wave(
        wave, wave, f.PUBLISH, TREE, "role", instance=instance, epoch=COUNT_MAX - 1, exclusive=True, seq=1, hops=1
    )  # fmt: skip
    for name in ("a", "c"):
        hostile(world, "b", name, forged)
    world.run(SECOND)
    assert world.holders() == [], "the holder is notified"
    return world, instance


def exhausted(world: World, name: str) -> None:
    """No epoch is left to publish with. That is said at once."""
    op = world.publish(name, exclusive=True)
    world.run(SECOND)
    done = world.published(name, op)
    assert done is not None
    assert not done.ok
    assert "highest epoch" in done.reason
    assert count(world, name, "epoch_exhausted") == 1


def held_by(world: World, name: str) -> None:
    op = world.publish(name, exclusive=True)
    world.run(3 * SECOND)
    done = world.published(name, op)
    assert done is not None
    assert done.ok
    assert world.holders() == [name]
    for sender in world.hosts:
        data = f"{name} {sender}".encode()
        assert world.request(sender, data).kind == "done"
        assert world.receivers(data) == {name: 1}


def test_the_highest_epoch_in_the_name_of_an_unknown_node_is_forgotten() -> None:
    world, _ = claimed(b"\xff" * 16)
    exhausted(world, "a")
    world.run(70 * SECOND)
    held_by(world, "a")
    held_by(world, "c")


def test_the_highest_epoch_in_the_name_of_a_member_is_forgotten_with_its_instance() -> None:
    world, instance = claimed(node_id("b"))
    world.run(70 * SECOND)
    exhausted(world, "c")
    world.post(world.hosts["c"], [UnpublishRole(503, TREE, "role", instance, COUNT_MAX - 1)])
    world.run(2 * SECOND)
    held_by(world, "c")
    held_by(world, "a")


def test_a_message_that_loops_dies_by_its_hops() -> None:
    world = row()
    request = numbered(node_id("c"), 1, 1 << 30)
    hostile(world, "c", "b", f.Message(request, 0, TREE, "role", PORT, b"x", 1000, hops=60))
    hostile(world, "c", "b", f.Message(request, 1, TREE, "role", PORT, b"x", 1000, hops=61))
    hostile(world, "c", "b", f.Message(request, 2, TREE, "role", PORT, b"x", 1000, hops=9999))
    world.run(SECOND)
    assert world.receivers(b"x") == {}
    assert count(world, "b", "bad_message") == 1
    still_works(world, b"after")


def test_a_wave_that_loops_dies_by_its_hops() -> None:
    world = row()
    wave = numbered(node_id("c"), 1, 1 << 30)
    hostile(world, "c", "b", f.Wave(wave, wave, f.RECOVER, TREE, "role", hops=65))
    assert count(world, "b", "wave_refused") + count(world, "b", "bad_wave") == 1


def test_a_flood_of_messages_that_cannot_go_on_is_refused() -> None:
    """a takes nothing for a while. b queues a few messages for it and gives c no credit back; c ignores that."""
    world = row(msgspec.structs.replace(FAST, credit=8, queue_max=4))
    b = world.hosts["b"]
    world.stall("a", 4 * SECOND)
    for k in range(500):
        request = numbered(node_id("c"), 1, 1 << 30 | k)
        hostile(world, "c", "b", f.Message(request, 0, TREE, "role", PORT, b"x", 5000))
    assert b.machine.flow.queued == 4
    assert b.machine.inspect.sizes()["records"] == 8 + 4, "a window and a queue of them wait"
    assert count(world, "b", "window_ignored") >= 450
    world.run(30 * SECOND)
    assert b.machine.inspect.sizes()["records"] == 0
    assert b.machine.flow.queued == 0
    still_works(world, b"after")


def test_a_forged_row_of_the_map_does_not_move_us() -> None:
    world = row()
    b = world.hosts["b"]
    forged = f.MapRow(b.id, b.incarnation, 1 << 40, "elsewhere", True, ())
    bad = f.MapRow(b"x", 1, 1, "r", True, ())
    hostile(world, "c", "b", f.MapUpdate((forged, bad)))
    world.run(2 * SECOND)
    assert b.machine.topology.realm_of(b.id) == "default"
    assert world.hosts["d"].machine.topology.realm_of(b.id) == "default"
    assert count(world, "b", "bad_map_row") == 1
    still_works(world, b"after")


def test_random_frames_never_raise() -> None:  # noqa: C901 one generator for all types
    """Every field of every frame, filled at random within its type."""
    world = row()
    rng = Random(7)

    def value(kind: Any) -> Any:
        text = str(kind)
        if kind is int:
            return rng.choice([0, 1, -1, 3, 1 << 40, -(1 << 40)])
        if kind is bool:
            return bool(rng.randrange(2))
        if kind is str:
            return rng.choice(["", "role", "x" * 300, "ü"])
        if kind is bytes:
            known = (b"", TREE, node_id("a"), numbered(node_id("a"), 1, 1), rng.randbytes(32), b"x")
            return rng.choice(known)
        if text.startswith("tuple"):
            return value_of_tuple(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return make(kind)
        return None

    def value_of_tuple(kind: Any) -> tuple[Any, ...]:
        inner = kind.__args__
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(value(inner[0]) for _ in range(rng.randrange(4)))
        return tuple(value(one) for one in inner)

    def make(kind: Any) -> Any:
        hints = msgspec.structs.fields(kind)
        made = {}
        for field in hints:
            field_kind = field.type
            options = getattr(field_kind, "__args__", ())
            if type(None) in options:
                made[field.name] = rng.choice([None, value(options[0])])
            else:
                made[field.name] = value(field_kind)
        return kind(**made)

    for k in range(4000):
        kind = f.OVERLAY_FRAMES[k % len(f.OVERLAY_FRAMES)]
        if kind is f.OverlayHello:
            continue
        hostile(world, rng.choice(["a", "c"]), "b", make(kind))
        if k % 50 == 0:
            world.run(SECOND // 10)
    world.run(60 * SECOND)
    assert world.hosts["b"].machine.inspect.sizes()["waves"] == 0
    assert NodeId(node_id("b")) in world.hosts["a"].machine.hub.neighbours


def test_a_flood_of_entries_is_bounded() -> None:
    world = row(msgspec.structs.replace(FAST, entries_max=100))
    b = world.hosts["b"]
    rng = Random(3)
    for k in range(1000):
        wave = numbered(node_id("c"), 1, 1 << 30 | k)
        tree = rng.randbytes(16)
        entry = f.Entry(tree, "r", numbered(node_id("c"), 1, k), 0, False, "default")
        put = f.Wave(wave, wave, f.SEARCH, tree, "r", op=f.PUT, entry=entry, target=b.id, hops=1)
        hostile(world, "c", "b", put)
    world.run(SECOND)
    assert b.machine.inspect.sizes()["entries"] <= 2 * 100
    still_works(world, b"after")


def test_a_neighbour_that_keeps_leaving_an_edge_causes_little_traffic() -> None:
    """Each such word makes instances link again: it is heard once in two seconds."""
    world = row()
    world.run(2 * SECOND)
    before = world.frames
    for _ in range(1000):
        hostile(world, "c", "b", f.Edge(tree_id("tree"), f.EDGE_UNUSED))
    world.run(SECOND)
    assert count(world, "b", "edge_unused_ignored") >= 999
    assert world.frames - before < 100
    still_works(world, b"after")


def test_unanswered_waves_of_one_neighbour_are_bounded() -> None:
    world = row(msgspec.structs.replace(FAST, waves_per_peer_max=50))
    world.filter = lambda s, r, frame: [] if isinstance(frame, f.WaveAnswer) else [frame]
    for k in range(500):
        wave = numbered(node_id("c"), 1, 1 << 30 | k)
        hostile(world, "c", "b", f.Wave(wave, wave, f.RECOVER, TREE, "role", target=node_id("a")))
    b = world.hosts["b"].machine
    assert b.inspect.sizes()["waves"] <= 60
    assert count(world, "b", "wave_refused") >= 400


def test_the_trace_context_of_a_sender_reaches_the_receiver_over_several_hops() -> None:
    world = row()
    world.request("c", b"x", aggregate=True, trace="00-0af7-b7ad-01")
    for name in ("a", "d"):
        (message,) = [m for m in world.hosts[name].delivered if m.data == b"x"]
        assert message.trace == "00-0af7-b7ad-01"


def test_a_trace_context_is_bounded() -> None:
    world = row()
    request = numbered(node_id("c"), 1, 1 << 30)
    for attempt, size in enumerate((TRACE_MAX, TRACE_MAX + 1)):
        trace = "0" * size
        message = f.Message(request, attempt, TREE, "role", PORT, b"x", 1000, trace=trace)
        hostile(world, "c", "b", message)
    world.run(SECOND)
    assert count(world, "b", "bad_message") == 1


def test_a_peer_that_publishes_for_another_node_misleads_for_one_message_at_most() -> None:
    """c says that a's instance is behind it, under a number that a never gave. A message that takes the wrong way names
    the instance as unknown; the route is removed, and the next message asks a's node."""
    world = row()
    local = world.hosts["a"].machine.local.get(TREE, "role")
    assert local is not None
    wave = numbered(node_id("c"), 1, 1 << 30)
    forged = f.Wave(
        wave, wave, f.PUBLISH, TREE, "role", instance=local.instance, seq=1 << 40, hops=1
    )
    hostile(world, "c", "b", forged)
    assert world.hosts["b"].machine.inspect.routes(TREE, "role")[local.instance] == node_id("c")
    hostile(world, "b", "a", forged)
    world.run(SECOND)
    assert world.hosts["a"].machine.inspect.routes(TREE, "role").get(local.instance) is None
    world.run(3 * SECOND)  # until then messages also take the old way
    misled = world.request("b", b"first", aggregate=True)
    assert misled.unknown == (local.instance,)
    assert count(world, "b", "routes_unheard") == 1
    end = world.request("b", b"second", aggregate=True)
    assert sorted(end.answered) == sorted(end.expected)
    assert world.receivers(b"second") == {"a": 1, "d": 1}
    still_works(world, b"after")


@pytest.mark.parametrize("leaf", [False, True])
def test_a_shared_instance_is_removed_by_its_own_node_only(leaf: bool) -> None:
    """A peer unpublishes the instance of another node. The instance stays, and is reached again above the tombstones
    that nodes on the way have put up."""
    world = row()
    local = world.hosts["a"].machine.local.get(TREE, "role")
    assert local is not None
    wave = numbered(node_id("c"), 1, 1 << 30)
    forged = f.Wave(
        wave, wave, f.UNPUBLISH, TREE, "role", instance=local.instance, epoch=5, leaf=leaf, hops=1
    )
    hostile(world, "c", "b", forged)
    world.run(3 * SECOND)
    assert world.holders() == ["a", "d"]
    assert count(world, "a", "unpublish_refused") == 1
    assert local.epoch == 6
    still_works(world, b"after")


def test_a_peer_that_keeps_removing_an_instance_of_another_node_causes_little_traffic() -> None:
    """The instance publishes again over its whole tree, but not once for each such word. The last one is outranked."""
    world = row()
    local = world.hosts["a"].machine.local.get(TREE, "role")
    assert local is not None
    before = world.frames
    for k in range(1000):
        wave = numbered(node_id("b"), 1, 1 << 30 | k)
        forged = f.Wave(
            wave, wave, f.UNPUBLISH, TREE, "role", instance=local.instance, epoch=5 + k, hops=1
        )
        hostile(world, "b", "a", forged)
    world.run(3 * SECOND)
    assert count(world, "a", "unpublish_refused") == 1000
    assert world.frames - before < 1200, "each forged wave has an answer"
    assert local.epoch == 1005
    routes = world.hosts["d"].machine.inspect.routes(TREE, "role")
    assert list(routes) == [local.instance]
    still_works(world, b"after")


def test_replies_without_end_to_an_aggregated_request_are_bounded() -> None:
    world = row(msgspec.structs.replace(FAST, aggregate_bytes_max=1 << 20))
    world.hosts["a"].answers = lambda item: None
    op = world.send("d", b"x", aggregate=True)
    world.run(SECOND)
    message = world.hosts["a"].delivered[-1]
    part = f.Part(message.instance, bytes(10_000))
    more = f.Reply(message.request, message.attempt, f.DATA_REPLY, False, (part,))
    hostile(world, "b", "c", *[more] * 1000)
    record = world.hosts["c"].machine.router.record(message.request, message.attempt)
    assert record is not None
    assert sum(len(part.data) for part in record.parts) <= 1 << 20
    assert count(world, "c", "replies_full") >= 890
    last = f.Reply(message.request, message.attempt, f.END, True)
    hostile(world, "b", "c", last)
    world.run(SECOND)
    end = world.hosts["d"].end_of(op)
    assert end is not None
    assert end.kind == "null", "replies are missing"
    assert "too many replies" in end.reason


def test_replies_without_end_behind_a_snooper_are_bounded() -> None:
    world = row()
    world.post(world.hosts["c"], [OpenPort(PORT, snoop=True)])
    world.hosts["a"].answers = lambda item: None
    world.send("d", b"x")
    world.run(SECOND // 10)
    (passing,) = world.hosts["c"].told(Snooped)
    world.post(world.hosts["c"], [SnoopVerdict(passing.token, 0)])
    world.run(SECOND // 10)
    message = world.hosts["a"].delivered[-1]
    part = f.Part(message.instance, b"again")
    more = f.Reply(message.request, message.attempt, f.DATA_REPLY, False, (part,))
    hostile(world, "b", "c", *[more] * 5000)
    record = world.hosts["c"].machine.router.record(message.request, message.attempt)
    assert record is not None
    assert len(record.held) <= 1024
    assert count(world, "c", "replies_full") >= 5000 - 1024


def test_a_peer_that_keeps_asking_for_trees_gets_them_once() -> None:
    world = row()
    world.run(SECOND)
    world.by_type.clear()
    hostile(world, "c", "b", *[f.AskTrees(256)] * 1000)
    world.run(SECOND)
    assert world.by_type.get("Trees", 0) <= 1
    assert count(world, "b", "trees_given_already") >= 999
    still_works(world, b"after")


def test_a_map_that_is_full_of_nodes_that_are_gone_has_room_for_new_ones() -> None:
    """A peer makes up as many nodes as the map may have; or so many have come and gone in the life of a domain."""
    world = World(21, codec=False)
    for name in ("a", "b", "c"):
        world.add(name)
    world.line("a", "b", "c")
    world.run(2 * SECOND)
    ghosts = [f.MapRow(b"%016d" % k, 1, 1, "default", True, ()) for k in range(2 * NODES_MAX)]
    for k in range(0, len(ghosts), 200):
        hostile(world, "c", "b", f.MapUpdate(tuple(ghosts[k : k + 200])))
    world.run(SECOND)
    machines = [host.machine for host in world.hosts.values()]
    assert all(machine.topology.status()["known"] <= NODES_MAX for machine in machines)
    world.add("d")
    world.link("c", "d")
    world.run(2 * SECOND)
    assert world.hosts["a"].machine.topology.reaches(node_id("d"))
    world.publish("d")
    world.run(3 * SECOND)
    assert world.request("a", b"x").kind == "done"
    assert world.receivers(b"x") == {"d": 1}
