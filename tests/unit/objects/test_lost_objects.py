"""Schedules that would lose an object, bring a deleted one back, or decide one object twice."""

from __future__ import annotations

from typing import Any

from tests.support.objects import created, no_failures, register, world_of

from holdfast.objects import ports
from holdfast.objects.frames import Accept, Accepted, Decide
from holdfast.objects.values import LOOSE, Value, root_id
from holdfast.sim.objects_world import ObjectHost, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND

SIX = ("a", "b", "c", "d", "e", "f")


def nodes(names: str) -> tuple[bytes, ...]:
    return tuple(node_id(name) for name in names)


def moved(world: ObjectWorld, path: str, ways: str) -> None:
    """Move replicas one after the other: `bf` from b to f."""
    for source, target in ways.split():
        done = world.do(
            "a", ports.MoveReplica, path=path, source=node_id(source), target=node_id(target)
        )
        assert done.ok, done.text
        assert [step.state for step in done.value.steps] == ["done"], done.value


# -- an object that cannot be reached exists all the same ------------------------------------------


def test_a_name_whose_object_is_behind_a_partition_is_not_given_away() -> None:
    """The directory is on this side, the object on the other, and the creator has never heard of the object."""
    world = world_of(names=SIX)
    value = created(world, nodes=nodes("bdf"))
    world.partition("ace", "bdf")
    again = world.create("c", "/x", b"other")
    assert again.refused == "unreachable", again.value
    world.heal()
    world.run(30 * SECOND)
    assert bytes(world.read("e", "/x").read) == b"one"
    assert world.stat("e", "/x").value.object == value.object
    no_failures(world)


def test_a_root_directory_that_has_moved_is_not_created_again() -> None:
    """The configured nodes have no replica of the root any more, and cannot reach those that have."""
    world = world_of(names=SIX)
    created(world)
    moved(world, "/", "ab cd ef")
    world.run(30 * SECOND)
    for name in "ace":
        world.kill(name)
        world.restart(name)
    world.run(SECOND)
    world.partition("ace", "bdf")
    made = world.create("c", "/y", b"new")
    assert made.refused == "unreachable", made.value
    world.heal()
    world.run(5 * SECOND)
    assert world.names("a") == ["x"]
    root = root_id("holdfast")
    versions = {h.machine.registers.decided(root) for h in world.hosts.values()}
    assert len({v.nodes for v in versions if v is not None}) == 1


# -- a creation whose end one replica has not heard ------------------------------------------------


def half_created(world: ObjectWorld) -> Value:
    """An object on b, c and d. Node d has accepted its first version, and misses everything that follows."""

    def keep(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Accept) and receiver.name == "d" and frame.value.name == "x":
            world.at(world.now + 1, lambda: world.kill("d"))
        return None if isinstance(frame, Decide) and receiver.name == "d" else frame

    world.commit_ns = 1
    world.filter = keep
    call = world.create("a", "/x", b"one", nodes=nodes("bcd"))
    assert call.ok, call.text
    world.run(SECOND)
    world.filter = None
    row = world.hosts["d"].tables["objects"].get(call.value.value.object)
    assert row is not None
    value: Value = call.value.value
    return value


def test_a_replica_that_returns_with_a_first_version_does_not_bring_a_deleted_object_back() -> None:
    world = world_of(names=SIX)
    value = half_created(world)
    assert world.until(lambda: len(world.holders(value.object)) == 3, 30 * SECOND)
    world.run(5 * SECOND)
    assert node_id("d") not in world.stat("a", "/x").value.nodes
    assert world.do("a", ports.Delete, path="/x").ok
    gone = lambda: all(register(world, n, value).decided is None for n in "abcef")
    assert world.until(gone, 60 * SECOND)
    world.restart("d")
    accepted = register(world, "d", value).accepted
    assert accepted is not None
    assert accepted.version == 1
    world.run(60 * SECOND)
    assert all(register(world, n, value).decided is None for n in SIX)
    assert world.read("a", "/x").refused == "not found"
    assert world.names("a") == []
    assert register(world, "d", value).accepted is None, "and it is not kept for good"
    assert all(key[0] != value.object for h in world.hosts.values() for key in h.disk.contents)


def test_a_replica_that_returns_with_a_first_version_does_not_decide_it_again() -> None:
    """All replicas have moved, and their old nodes have forgotten the object. An entry still names those nodes."""
    world = world_of(names=SIX)
    value = half_created(world)
    assert world.until(lambda: len(world.holders(value.object)) == 3, 30 * SECOND)
    world.run(5 * SECOND)
    first = world.stat("a", "/x").value.nodes
    spare = [n for n in "aef" if node_id(n) not in first]
    for source in "bc":
        moved(world, "/x", source + spare.pop())
    assert world.write("a", "/x", b"two").ok
    world.run(30 * SECOND)
    for name in "bc":
        assert world.hosts[name].machine.registers.get(value.object) is None
        world.kill(name)
        world.restart(name)
    world.restart("d")
    world.run(SECOND)
    read = world.read("c", "/x")
    assert bytes(read.read) == b"two", read.text
    world.run(30 * SECOND)
    assert all(register(world, n, value).decided is None for n in "bcd")
    no_failures(world)


def test_a_creation_that_one_replica_accepted_is_in_doubt() -> None:
    """The replica may finish it later: 'nothing was created' would not be true."""
    world = world_of()

    def keep(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        lost = isinstance(frame, Accept) and receiver.name in "cd" and frame.value.name == "x"
        return None if lost else frame

    world.filter = keep
    data = b"one" * 10_000  # staged on all three before
    call = world.start("a", ports.Create, data, path="/x", size=len(data), nodes=nodes("bcd"))
    accepted = lambda: any(r.accepted for _, r in world.hosts["b"].machine.registers)
    assert world.until(accepted)
    world.partition("a", "bcde")
    world.wait(call)
    assert call.refused == "in doubt", call.text
    world.heal()
    world.filter = None
    world.run(10 * SECOND)
    assert world.names("e") == ["x"]


# -- operations that are resumed -------------------------------------------------------------------


def test_a_creation_that_is_resumed_on_other_nodes_does_not_decide_one_object_twice() -> None:
    """All replicas have accepted the first attempt, and its creator does not hear of it."""
    world = world_of(names=SIX)

    def keep(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        return None if isinstance(frame, Accepted) and receiver.name == "a" else frame

    created(world, path="/first")
    world.filter = keep
    write = b"w" * 16
    fields = {"path": "/x", "size": 3, "write": write}
    first = world.start("a", ports.Create, b"one", nodes=nodes("bcd"), **fields)
    accepted = lambda: all(
        any(r.accepted and r.accepted.name == "x" for _, r in world.hosts[n].machine.registers)
        for n in "bcd"
    )
    assert world.until(accepted)
    world.partition("a", "bcdef")
    second = world.start("e", ports.Create, b"one", nodes=nodes("ef"), replicas=2, **fields)
    world.wait(first, second)
    assert first.refused == "in doubt"
    world.heal()
    world.filter = None
    world.run(20 * SECOND)
    agree(world)
    assert bytes(world.read("f", "/x").read) == b"one"
    assert world.names("b") == ["first", "x"]


def agree(world: ObjectWorld) -> None:
    """Every version of an object has one value, on all nodes."""
    seen: dict[tuple[bytes, int], Value] = {}
    for host in world.hosts.values():
        for object_id, record in host.machine.registers:
            if record.decided is not None:
                key = (object_id, record.decided.version)
                assert seen.setdefault(key, record.decided) == record.decided


def test_a_write_that_is_resumed_after_it_took_effect_is_not_repeated() -> None:
    """Another writer has followed: its content would be overwritten by the old one."""
    world = world_of()
    created(world)
    write = b"w" * 16
    assert world.write("a", "/x", b"two", write=write).ok
    assert world.write("e", "/x", b"three").ok
    again = world.write("a", "/x", b"two", write=write)
    assert again.ok, again.text
    assert bytes(world.read("b", "/x").read) == b"three"
    assert world.stat("b", "/x").value.edition == 3


# -- loose objects ---------------------------------------------------------------------------------


def test_a_drain_does_not_lose_the_only_copy_of_a_loose_write() -> None:
    """A write on one side of a partition has one copy. The node is drained before the others have it."""
    world = world_of()
    created(world, path="/l", mode=LOOSE)
    world.read("b", "/l")
    world.partition("b", "acde")
    write = world.write("b", "/l", b"only here")
    assert write.ok, write.text
    world.cuts.pop((node_id("a"), node_id("b")))
    world.slow["b", "a"] = 5 * MILLISECOND  # the others are a majority before it answers
    world.connect(world.hosts["a"], node_id("b"))
    move = world.do("a", ports.MoveReplica, path="/l", source=node_id("b"))
    assert [step.state for step in move.value.steps] == ["failed"], move.value
    world.heal()
    world.run(10 * SECOND)
    assert bytes(world.read("e", "/l").read) == b"only here"
    again = world.do("a", ports.MoveReplica, path="/l", source=node_id("b"))
    assert [step.state for step in again.value.steps] == ["done"], again.value
    assert bytes(world.read("e", "/l").read) == b"only here"


def test_a_loose_version_that_could_not_be_copied_on_contact_is_copied_later() -> None:
    world = world_of()
    value = created(world, path="/l", mode=LOOSE)
    world.read("b", "/l")
    world.partition("b", "acde")
    assert world.write("b", "/l", b"only here").ok
    for name in "cd":
        world.hosts[name].disk.capacity = 0
    world.heal()
    world.run(2 * SECOND)
    for name in "cd":
        world.hosts[name].disk.capacity = 1 << 40
    world.run(10 * SECOND)
    for name in "bcd":
        versions = register(world, name, value).siblings
        assert [sibling.content.size for sibling in versions] == [len(b"only here")]
