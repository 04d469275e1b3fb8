"""Operations on objects in the small world: streaming, resuming, watching, bad input."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.objects import created, no_failures, register, stored, world_of

from holdfast.links.ports import Received
from holdfast.objects import ports
from holdfast.objects.frames import (
    OBJECT_FRAMES,
    Accept,
    Piece,
    Prepare,
    StageChunk,
    Summary,
)
from holdfast.objects.values import CHUNK, Ballot, Content, Value, chunk_digest
from holdfast.sim.objects_world import FAST, ObjectHost, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND, NodeId

BIG = bytes(range(256)) * (CHUNK // 32)  # eight chunks


def tell(world: ObjectWorld, node: str, *frames: Any, sender: str = "a") -> None:
    world.hosts[node].give(Received(NodeId(node_id(sender)), list(frames), world.now))


# -- content ---------------------------------------------------------------------------------------


def test_content_is_streamed_with_a_window_of_chunks() -> None:
    world = world_of()
    most = [0]

    def watch(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        for host in world.hosts.values():
            for task in host.machine.tasks.running:
                most[0] = max(most[0], len(task.calls))
        return frame

    world.filter = watch
    made = world.create("a", "/big", BIG * 4)
    assert made.ok, made.text
    read = world.read("e", "/big")
    assert bytes(read.read) == BIG * 4
    assert most[0] <= 3 * world.hosts["a"].config.window


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_content_of_any_size_comes_back(size: int) -> None:
    world = world_of()
    data = (b"abcdefg" * (size // 7 + 1))[:size]
    assert world.create("a", "/x", data).ok
    read = world.read("e", "/x")
    assert bytes(read.read) == data, read.text


def test_a_write_that_was_interrupted_is_resumed() -> None:
    """The second attempt sends only what the replicas do not have."""
    world = world_of()
    created(world)
    data = BIG * 2
    write = world.start("a", ports.Write, data, path="/x", size=len(data), write=b"i" * 16)
    world.until(lambda: world.frames.get("StageChunk", 0) >= 12)
    world.cancel("a", write)
    world.run(100 * MILLISECOND)
    world.frames.clear()
    again = world.write("a", "/x", data, write=write.write)
    assert again.ok, again.text
    assert 0 < world.frames["StageChunk"] < 3 * 16
    assert bytes(world.read("e", "/x").read) == data


def interrupted_creation(world: ObjectWorld, data: bytes) -> bytes:
    """Stop a creation when a part of its content is at each replica; returns its write id."""
    write = b"i" * 16
    call = world.start("a", ports.Create, data, path="/big", size=len(data), write=write)
    world.until(lambda: world.frames.get("StageChunk", 0) >= 30)
    world.cancel("a", call)
    world.run(100 * MILLISECOND)
    world.frames.clear()
    return write


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_creation_that_was_interrupted_is_resumed_on_the_same_nodes(seed: int) -> None:
    """It is another object, which would be placed on other nodes."""
    world = world_of(seed)
    data = BIG * 4
    write = interrupted_creation(world, data)
    staged = {name for name, host in world.hosts.items() if host.disk.stages}
    again = world.create("b", "/big", data, write=write)
    assert again.ok, again.text
    assert 0 < world.frames["StageChunk"] <= 3 * 32 - 30
    world.run(3 * SECOND)
    assert set(world.holders(again.value.value.object)) == staged
    assert bytes(world.read("e", "/big").read) == data
    no_failures(world)


def test_a_write_is_resumed_where_its_own_stage_has_taken_the_space() -> None:
    world = world_of()
    data = BIG * 4
    write = interrupted_creation(world, data)
    staged = [host for host in world.hosts.values() if host.disk.stages]
    for host in staged:
        host.give(ports.Conditions(len(data) - 1, ()))
    world.run(2 * SECOND)  # all nodes have heard how little is free
    again = world.create("a", "/big", data, write=write)
    assert again.ok, again.text
    assert 0 < world.frames["StageChunk"] <= 3 * 32 - 30
    assert sorted(world.holders(again.value.value.object)) == sorted(h.name for h in staged)


def test_a_read_is_resumed_from_a_chunk() -> None:
    world = world_of()
    value = created(world, data=BIG)
    content = world.stat("a", "/x").value.content
    op_data = world.start("e", ports.Read, path="/x", first=5, digest=content.digest)
    op_data.read = bytearray(BIG[: 5 * CHUNK])
    world.wait(op_data)
    assert bytes(op_data.read) == BIG
    other = world.do("e", ports.Read, path="/x", first=5, digest=b"q" * 16)
    assert other.refused == "conflict"
    assert value.object


def test_a_reader_goes_on_with_another_replica_when_one_dies() -> None:
    world = world_of()
    created(world, data=BIG)
    read = world.start("b", ports.Read, path="/x")
    world.until(lambda: len(read.read) > 0)
    reader = world.start("e", ports.Read, path="/x")
    world.until(lambda: len(reader.read) > 2 * CHUNK)
    world.kill("c")
    world.wait(reader, read)
    assert bytes(reader.read) == BIG
    assert bytes(read.read) == BIG


def test_wrong_bytes_never_reach_a_reader() -> None:
    world = world_of()
    created(world, data=BIG)

    def lie(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Piece) and sender.name == "b" and len(frame.data) > 1000:
            return msgspec.structs.replace(frame, data=memoryview(b"\0" * len(frame.data)))
        return frame

    world.filter = lie
    read = world.read("e", "/x")
    assert bytes(read.read) == BIG


def test_when_every_replica_is_damaged_the_read_fails_clearly() -> None:
    world = world_of()
    value = created(world, data=BIG)
    for name in "bcd":
        world.hosts[name].disk.rot(value.object)
    read = world.read("e", "/x")
    assert read.refused == "gone"
    assert bytes(read.read) == b""


def test_repair_on_request_verifies_every_byte() -> None:
    world = world_of()
    value = created(world, data=BIG)
    world.hosts["c"].disk.rot(value.object)
    repaired = world.do("a", ports.Repair, path="/x")
    assert repaired.ok, repaired.text
    states = {r.node: r.state for r in repaired.value.replicas}
    assert states[node_id("c")] == "repaired"
    assert bytes(world.hosts["c"].disk.contents[value.object, value.content.digest][0]) == BIG


# -- watching --------------------------------------------------------------------------------------


def test_a_watcher_hears_of_every_change_until_the_object_is_deleted() -> None:
    world = world_of()
    created(world)
    watch = world.start("e", ports.WatchChanges, path="/x")
    world.run(100 * MILLISECOND)
    for number in range(3):
        assert world.write("a", "/x", b"%d" % number).ok
        world.run(100 * MILLISECOND)
    assert world.do("a", ports.Delete, path="/x").ok
    world.wait(watch)
    assert [change.version for change in watch.changes] == [1, 2, 3, 4, 5]
    assert watch.changes[-1].deleted


def test_a_watch_survives_the_death_of_a_replica() -> None:
    world = world_of()
    created(world)
    watch = world.start("e", ports.WatchChanges, path="/x")
    world.run(100 * MILLISECOND)
    world.kill("b")
    world.run(10 * SECOND)
    assert world.write("a", "/x", b"two").ok
    assert world.until(lambda: len(watch.changes) == 2, 10 * SECOND)


# -- placement -------------------------------------------------------------------------------------


def test_replicas_are_spread_over_realms_and_never_two_on_one_node() -> None:
    realms = {"a": "north", "b": "north", "c": "south", "d": "south", "e": "west"}
    world = world_of(realms=realms)
    for number in range(8):
        made = world.create("a", f"/x{number}", b"data")
        nodes = [world.by_id[node].name for node in made.value.value.nodes]
        assert len(set(nodes)) == 3
        assert {realms[name] for name in nodes} == {"north", "south", "west"}


def test_nodes_with_bad_paths_get_replicas_last() -> None:
    world = world_of()
    for host in world.hosts.values():
        host.give(ports.Conditions(1 << 40, ((node_id("b"), 3), (node_id("c"), 2))))
    world.run(100 * MILLISECOND)
    for number in range(5):
        made = world.create("a", f"/x{number}", b"data")
        assert set(made.value.value.nodes) == {node_id(name) for name in "ade"}


def test_a_node_without_space_gets_no_replica() -> None:
    world = world_of()
    world.hosts["b"].give(ports.Conditions(10))
    world.run(100 * MILLISECOND)
    for number in range(5):
        made = world.create("a", f"/x{number}", b"more than ten bytes")
        assert node_id("b") not in made.value.value.nodes


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("x", "misuse"),
        ("/../x", "misuse"),
        ("/", "misuse"),
        ("/a\0b", "misuse"),
        ("/no/x", "not found"),
    ],
)
def test_a_path_outside_of_the_tree_is_refused(path: str, code: str) -> None:
    world = world_of()
    made = world.create("a", path, b"data")
    assert made.refused == code
    no_failures(world)


def test_a_name_that_exists_is_refused_and_nothing_is_left_behind() -> None:
    world = world_of()
    created(world)
    again = world.create("e", "/x", b"other")
    assert again.refused == "exists"
    assert bytes(world.read("d", "/x").read) == b"one"
    world.run(60 * SECOND)
    assert len(stored(world)) == 2, "the root directory and the object"


@pytest.mark.parametrize("can_resume", [False, True])
def test_a_write_that_is_stopped_leaves_its_stages_only_to_one_that_resumes_it(
    can_resume: bool,
) -> None:
    """The space of a stage is reserved: that of a large content would be missing for ten minutes."""
    world = world_of()
    created(world)
    data = b"two" * 4_000_000
    write = b"w" * 16 if can_resume else b""
    call = world.start("a", ports.Write, data, path="/x", size=len(data), write=write)
    staged = lambda: [name for name in "bcd" if world.hosts[name].disk.stages]
    assert world.until(lambda: len(staged()) == 3)
    world.cancel("a", call)
    world.run(SECOND)
    assert staged() == (["b", "c", "d"] if can_resume else [])
    assert bytes(world.read("e", "/x").read) == b"one"
    no_failures(world)


def test_two_creators_of_one_name_leave_one_object() -> None:
    world = world_of()
    calls = [
        world.start(node, ports.Create, node.encode(), path="/x", size=1) for node in ("a", "e")
    ]
    world.wait(*calls)
    assert sorted(call.refused for call in calls) == ["", "exists"]
    world.run(60 * SECOND)
    winner = next(call for call in calls if call.ok)
    assert bytes(world.read("c", "/x").read) == winner.data
    assert len(stored(world)) == 2


def test_the_object_of_a_creator_that_died_gets_its_name() -> None:
    world = world_of()
    created(world, path="/first")
    world.start("b", ports.Create, b"data", path="/x", size=4)
    found = lambda: [
        object_id
        for host in world.hosts.values()
        if host.alive
        for object_id, record in host.machine.registers
        if record.decided is not None and record.decided.name == "x"
    ]
    assert world.until(lambda: bool(found()))
    world.kill("b")
    assert world.until(lambda: world.names("a") == ["first", "x"], 30 * SECOND)
    assert bytes(world.read("a", "/x").read) == b"data"


def test_a_directory_that_has_names_is_not_deleted() -> None:
    world = world_of()
    assert world.mkdir("a", "/d").ok
    assert world.create("a", "/d/x", b"data").ok
    assert world.do("a", ports.Delete, path="/d").refused == "not empty"
    assert world.do("a", ports.Delete, path="/d/x").ok
    assert world.do("a", ports.Delete, path="/d").ok
    assert world.names("b") == []


def test_many_creators_on_one_node_share_the_commits_of_a_directory() -> None:
    world = world_of()
    created(world, path="/first")
    before = world.stat("a", "/").value.version
    calls = [
        world.start("a", ports.Create, b"data", path=f"/x{number}", size=4) for number in range(40)
    ]
    world.wait(*calls)
    assert all(call.ok for call in calls)
    assert len(world.names("b")) == 41
    assert world.stat("a", "/").value.version - before < 20


# -- draining --------------------------------------------------------------------------------------


def test_a_drain_shows_its_plan_and_can_be_stopped() -> None:
    world = world_of()
    for number in range(6):
        created(world, path=f"/x{number}")
    plan = world.do("a", ports.Drain, node=node_id("b"), dry_run=True)
    assert len(plan.value.steps) >= 6
    assert {step.state for step in plan.value.steps} == {"planned"}
    drain = world.start("a", ports.Drain, node=node_id("b"))
    world.until(lambda: len(drain.progress) >= 3)
    world.cancel("a", drain)
    world.run(10 * SECOND)
    for number in range(6):
        assert len(world.stat("a", f"/x{number}").value.replicas) >= 3
    left = [n for n in range(6) if node_id("b") in world.stat("a", f"/x{n}").value.nodes]
    assert left, "the steps that were not carried out stay as they were"


def test_a_drain_also_moves_what_was_created_while_it_began() -> None:
    world = world_of()
    for number in range(3):
        created(world, path=f"/x{number}")
    world.slow["a", "b"] = 3 * MILLISECOND
    nodes = tuple(node_id(name) for name in "bcd")
    late = world.start("a", ports.Create, b"data", path="/late", size=4, nodes=nodes)
    drain = world.start("e", ports.Drain, node=node_id("b"))
    world.wait(late, drain)
    assert late.ok, late.text
    assert node_id("b") not in world.stat("a", "/late").value.nodes


def test_the_new_replica_of_a_move_is_not_surplus_while_the_move_may_go_on() -> None:
    """A move adds a replica before it removes one. Were the new one removed as surplus, the move would fail."""
    config = msgspec.structs.replace(FAST, call_ns=5 * SECOND)
    world = world_of(config=config)
    value = created(world)

    def replicas() -> int:
        decided = register(world, "c", value).decided
        assert decided is not None
        return len(decided.replicas)

    world.start("a", ports.MoveReplica, path="/x", source=node_id("b"), target=node_id("e"))
    world.until(lambda: replicas() == 4)
    world.kill("a")
    world.run(config.call_ns - SECOND)
    assert replicas() == 4
    world.run(4 * SECOND)
    assert replicas() == 3, "the move has no end"


def test_a_drained_node_takes_no_replicas_even_after_a_restart() -> None:
    world = world_of()
    assert world.do("a", ports.Drain, node=node_id("b")).ok
    world.kill("b")
    world.restart("b")
    world.run(SECOND)
    for number in range(4):
        made = world.create("a", f"/x{number}", b"data")
        assert node_id("b") not in made.value.value.nodes
    assert world.do("a", ports.Drain, node=node_id("b"), undo=True).ok
    assert not world.hosts["b"].machine.members.draining


def test_the_policy_does_not_end_what_an_operator_has_begun() -> None:
    world = world_of()
    node, members = node_id("b"), world.hosts["b"].machine.members
    assert world.do("b", ports.Drain, node=node, mark=True, by_policy=True).ok
    assert members.drained_by == "policy"
    assert world.do("a", ports.Drain, node=node, mark=True).ok
    assert world.do("b", ports.Drain, node=node, mark=True, by_policy=True).ok
    assert world.do("b", ports.Drain, node=node, undo=True, by_policy=True).ok
    assert members.drained_by == "operator"
    world.kill("b")
    world.restart("b")
    world.run(SECOND)
    assert world.hosts["b"].machine.members.drained_by == "operator"


# -- hostile input ---------------------------------------------------------------------------------


def test_hostile_chunks_are_refused() -> None:
    world = world_of()
    created(world)
    data = b"x" * 100
    good = chunk_digest(data)
    frames = [
        StageChunk(1, b"w" * 16, 0, good, memoryview(data)),
        StageChunk(2, b"w" * 16, 1 << 60, good, memoryview(data)),
        StageChunk(3, b"w" * 16, -1, good, memoryview(data)),
        StageChunk(4, b"w" * 16, 0, good, memoryview(b"y" * (CHUNK + 1))),
    ]
    tell(world, "b", *frames)
    assert world.hosts["b"].machine.status()["counts"]["chunks_refused"] == 4
    no_failures(world)


def test_a_chunk_with_a_wrong_checksum_is_refused_and_the_write_goes_on_without_that_replica() -> (
    None
):
    world = world_of()
    created(world)

    def damage(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, StageChunk) and receiver.name == "b":
            return msgspec.structs.replace(frame, data=memoryview(b"\0" * len(frame.data)))
        return frame

    world.filter = damage
    assert world.write("a", "/x", BIG).ok
    world.filter = None
    assert bytes(world.read("e", "/x").read) == BIG
    assert world.hosts["b"].machine.status()["counts"]["chunks_refused"] > 0


def frame_of(kind: Any) -> Any:
    """A frame of a type whose fields are all empty or zero."""
    value = Value(b"", 0, b"", (), 0)
    samples: dict[str, Any] = {
        "object": b"", "value": value, "content": Content(), "base": Content(), "ballot": Ballot(),
        "data": memoryview(b""), "objects": (), "siblings": (), "edits": (), "sources": (),
    }  # fmt: skip
    plain = {int: -1, str: "", bytes: b"", bool: False}
    fields = {}
    for field in msgspec.structs.fields(kind):
        if not field.required:
            continue
        fields[field.name] = samples.get(field.name, plain.get(field.type))
    return kind(**fields)


@pytest.mark.parametrize("kind", OBJECT_FRAMES, ids=lambda kind: kind.__name__)
def test_an_empty_frame_of_any_type_does_not_raise(kind: Any) -> None:
    world = world_of()
    tell(world, "b", frame_of(kind))
    world.run(5 * SECOND)
    no_failures(world)


def test_hostile_values_and_summaries_are_refused() -> None:
    world = world_of()
    value = created(world)
    empty = msgspec.structs.replace(value, version=2, replicas=())
    twice = msgspec.structs.replace(value, version=2, replicas=(value.replicas[0],) * 2)
    tell(world, "b", Accept(1, Ballot(9, b"z"), empty), Accept(2, Ballot(9, b"z"), twice))
    tell(world, "b", Summary(tuple((bytes([n % 256]) * 16, 1) for n in range(600))))
    tell(world, "b", Prepare(3, value.object, -5, Ballot(9, b"z")))
    world.run(SECOND)
    state = world.hosts["b"].machine.inspect(value.object)
    assert state.accepted is None
    no_failures(world)


def test_too_many_operations_are_refused() -> None:
    world = world_of()
    created(world)
    world.partition("a", "bcde")
    calls = [world.start("a", ports.Read, path="/x") for _ in range(600)]
    world.wait(*calls)
    assert {call.refused for call in calls} == {"busy", "unreachable"}
