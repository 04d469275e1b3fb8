"""Disks that fill and rot, units that are built again, and peers that lie: an object is neither blocked nor lost."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.support.objects import created, no_failures, register, world_of

from holdfast.links.ports import Received
from holdfast.objects import ports
from holdfast.objects.frames import (
    Accept,
    Damaged,
    Fetch,
    FetchList,
    Piece,
    Prepare,
    Pull,
    StageChunk,
    StageOpen,
    StageState,
)
from holdfast.objects.machine import ObjectMachine
from holdfast.objects.values import CHUNK, Ballot, Content, chunk_digest, root_id
from holdfast.sim.objects_world import FAST, ObjectHost, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND, NodeId

BIG = bytes(range(256)) * (CHUNK // 64)  # four chunks
HUGE = (1 << 64) - 1


def tell(world: ObjectWorld, node: str, *frames: Any, sender: str = "a") -> None:
    world.hosts[node].give(Received(NodeId(node_id(sender)), list(frames), world.now))


def only_accepted_by_b(world: ObjectWorld) -> Any:
    """An object on b, c and d with a version that b alone has accepted."""
    value = created(world)

    def keep(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        return None if isinstance(frame, Accept) and receiver.name in "cd" else frame

    world.filter = keep
    world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: register(world, "b", value).accepted is not None)
    world.kill("a")
    world.filter = None
    return value


# -- disks -----------------------------------------------------------------------------------------


def test_a_version_whose_content_is_lost_does_not_block_the_object() -> None:
    """One replica has accepted a version, and its content has rotted away since. The others have not accepted it, so it
    is not decided, and they go on without it."""
    world = world_of()
    value = only_accepted_by_b(world)
    accepted = register(world, "b", value).accepted
    assert accepted is not None
    for name in "bcd":
        world.hosts[name].machine.registers.dropped(value.object, [accepted.content.digest])
    for name in "cd":
        world.slow[name, "b"] = MILLISECOND  # b answers itself first
    read = world.read("b", "/x")
    assert bytes(read.read) == b"one", read.text
    assert world.write("b", "/x", b"three").ok
    assert bytes(world.read("e", "/x").read) == b"three"


def test_a_full_disk_does_not_keep_a_lost_replica_from_being_replaced() -> None:
    """The replica that repairs for all cannot restore its own content."""
    world = world_of()
    value = created(world)
    world.hosts["b"].disk.capacity = 0
    assert world.write("a", "/x", b"two" * 10_000).ok
    world.run(SECOND)
    assert world.holders(value.object) == ["c", "d"]
    world.kill("d")
    world.run(10 * SECOND)
    assert len([name for name in world.holders(value.object) if name != "b"]) == 2


def test_a_copy_that_fails_gives_its_space_back() -> None:
    world = world_of()
    value = created(world, data=BIG)
    world.filter = lambda _, __, frame: None if isinstance(frame, Piece) else frame
    tell(world, "e", *[_pull(value, number) for number in range(3)])
    world.run(20 * SECOND)
    assert world.hosts["e"].disk.stages == {}


def _pull(value: Any, call: int) -> Any:
    return Pull(call, value.object, value.content, value.nodes)


def test_damage_of_a_chunk_list_is_found_by_a_reader_and_repaired() -> None:
    world = world_of()
    value = created(world, data=BIG)
    key = (value.object, value.content.digest)
    data, chunks = world.hosts["b"].disk.contents[key]
    world.hosts["b"].disk.contents[key] = (data, b"\0" * len(chunks))
    assert bytes(world.read("b", "/x").read) == BIG
    world.run(10 * SECOND)
    assert world.hosts["b"].disk.contents[key][1] == chunks


def test_a_slow_reader_gets_an_overwritten_version_to_its_end() -> None:
    world = world_of()
    created(world, data=BIG * 4)
    world.disk_ns = 800 * MILLISECOND
    read = world.start("e", ports.Read, path="/x")
    assert world.write("a", "/x", b"two").ok
    assert not read.done
    world.wait(read)
    assert bytes(read.read) == BIG * 4, read.text


# -- a unit that is built again --------------------------------------------------------------------


def test_answers_to_an_earlier_unit_are_not_taken_for_those_of_a_new_one() -> None:
    """A vote for another value, or the end of other disk work, would count for what the new unit has asked."""
    rng = Random(1)
    make = lambda now: ObjectMachine(node_id("a"), "a", FAST, rng, rng.randbytes, now=now).hub
    old, new = make(5 * SECOND), make(6 * SECOND)
    asked = {old.number() for _ in range(100_000)}
    assert not asked & {new.number() for _ in range(100_000)}


def test_a_unit_that_has_not_read_its_table_does_not_vote_on_the_root() -> None:
    """It would write a row without a disk over the one that it has not read yet."""
    rng = Random(1)
    machine = ObjectMachine(node_id("a"), "a", FAST, rng, rng.randbytes, None, None, now=SECOND)
    promise = machine.registers.prepare(Prepare(1, root_id("holdfast"), 1, Ballot(1, b"z")))
    assert promise.reason == "unknown"


# -- peers that lie --------------------------------------------------------------------------------


def test_a_wrong_size_does_not_make_a_replica_drop_its_content() -> None:
    world = world_of()
    value = created(world, data=BIG)
    for size in (1, CHUNK - 1, 40 * CHUNK, 1 << 50, -1):
        wrong = Content(value.content.digest, size)
        for name in "bcd":
            fetch = [Fetch(1, value.object, wrong, n) for n in (0, 4, 39, 1 << 40)]
            tell(
                world,
                name,
                *fetch,
                FetchList(2, value.object, wrong, 0),
                Damaged(value.object, wrong, 0),
            )
    world.run(5 * SECOND)
    for name in "bcd":
        assert world.hosts[name].machine.status()["counts"].get("damaged", 0) == 0
    assert world.holders(value.object) == ["b", "c", "d"]
    no_failures(world)


def test_more_content_than_was_announced_is_refused() -> None:
    world = world_of()
    created(world)
    data = b"x" * 100
    chunk = StageChunk(2, b"w" * 16, 0, chunk_digest(data), memoryview(data))
    tell(world, "b", StageOpen(1, b"o" * 16, b"w" * 16, 99))
    world.run(SECOND)
    tell(world, "b", chunk)
    assert world.hosts["b"].machine.status()["counts"]["chunks_refused"] == 1


def test_a_replica_that_claims_to_have_a_negative_number_of_chunks_does_no_harm() -> None:
    world = world_of()
    created(world)

    def lie(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, StageState) and sender.name == "b":
            return msgspec.structs.replace(frame, have=-3)
        return frame

    world.filter = lie
    write = world.write("a", "/x", BIG, write=b"w" * 16)
    assert write.ok, write.text
    no_failures(world)


def twisted(rng: Random, item: Any, depth: int = 0) -> Any:
    """The same frame with one number, text or part that is absurd."""
    fields = [f.name for f in msgspec.structs.fields(item) if f.name not in ("call", "write")]
    if not fields:
        return item
    name = rng.choice(fields)
    old = getattr(item, name)
    new: Any = old
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, int):
        new = rng.choice((0, -1, HUGE, 1 << 62, 1 << 49))
    elif isinstance(old, msgspec.Struct) and depth < 3:
        new = twisted(rng, old, depth + 1)
    elif isinstance(old, tuple):
        new = rng.choice(((), old * 40))
    elif isinstance(old, bytes):
        new = rng.choice((b"", old[:3], old + old))
    elif isinstance(old, memoryview):
        new = old[: len(old) // 2]
    elif isinstance(old, str):
        new = rng.choice(("", "x" * 300))
    return msgspec.structs.replace(item, **{name: new})


@pytest.mark.parametrize("seed", range(4))
def test_absurd_fields_in_frames_of_a_peer_raise_nothing(seed: int) -> None:
    world = world_of(seed)
    created(world)
    rng = Random(seed)

    def twist(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        return twisted(rng, frame) if sender.name == "b" and rng.randrange(3) == 0 else frame

    world.filter = twist
    for number in range(12):
        node = rng.choice("acde")
        world.start(node, ports.Write, b"%d" % number, path="/x", size=2)
        world.start(node, ports.Read, path="/x")
        world.start(node, ports.Create, b"n", path=f"/n{number}", size=1)
        world.start(node, ports.Drain, node=node_id("b"), dry_run=True)
        world.run(300 * MILLISECOND)
    for name in "acde":
        assert [failure.error for failure in world.hosts[name].failures] == []


def test_a_ballot_that_cannot_be_outbid_is_refused() -> None:
    """The next round could not be encoded: every proposer would fail."""
    world = world_of()
    value = created(world)
    for name in "bcd":
        tell(world, name, Prepare(1, value.object, 2, Ballot(HUGE, b"z")))
    world.run(100 * MILLISECOND)
    write = world.write("a", "/x", b"two")
    no_failures(world)
    assert write.ok, write.text


def test_a_slow_replica_does_not_hold_up_a_write() -> None:
    """It answers, so it is not lost. But the others would wait for each of its answers, to the end of the content."""
    world = world_of()
    value = created(world)
    world.slow["a", "d"] = world.slow["d", "a"] = 700 * MILLISECOND
    data = BIG * 5
    begun = world.now
    write = world.start("a", ports.Write, data, path="", object=value.object, size=len(data))
    world.wait(write)
    assert write.ok, write.text
    assert world.now - begun < 2500 * MILLISECOND
    world.slow.clear()
    world.run(10 * SECOND)
    assert "d" in world.holders(value.object)
