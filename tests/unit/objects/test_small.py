"""Small contents: they come with the version, are kept in the store, and move to files when there are many."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.objects import created, no_failures, register, stored, world_of

from holdfast.links.ports import Received
from holdfast.objects import ports
from holdfast.objects.config import SMALL_MAX
from holdfast.objects.frames import Accept, Accepted, Prepare
from holdfast.objects.ports import TABLE
from holdfast.objects.values import ID, Ballot, Value, content_of, successor
from holdfast.sim.objects_world import FAST, ObjectHost, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND, NodeId


def sent(world: ObjectWorld) -> dict[str, int]:
    """Frames since the last call that are not the upkeep of replicas."""
    world.run(3 * SECOND)
    frames = dict(world.frames)
    world.frames.clear()
    return frames


def write(world: ObjectWorld, node: str, value: Value, data: bytes, **fields: Any) -> Any:
    """Through an object that was opened."""
    return world.do(node, ports.Write, data, path="", object=value.object, size=len(data), **fields)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_small_write_of_the_last_writer_takes_one_round_trip() -> None:
    world = world_of()
    value = created(world)
    world.frames.clear()
    assert write(world, "a", value, b"two").ok
    assert sent(world) == {"Accept": 3, "Accepted": 3, "Decide": 3}
    assert bytes(world.read("e", "/x").read) == b"two"


def test_a_small_write_of_another_writer_takes_two_round_trips() -> None:
    world = world_of()
    value = created(world)
    assert bytes(world.read("e", "/x").read) == b"one"
    sent(world)
    assert write(world, "e", value, b"two").ok
    frames = sent(world)
    assert frames == {"Prepare": 3, "Promise": 3, "Accept": 3, "Accepted": 3, "Decide": 3}


def test_a_large_content_is_staged() -> None:
    world = world_of()
    data = b"z" * (SMALL_MAX + 1)
    value = created(world, data=data)
    assert world.frames["StageClose"] == 3
    assert all(world.hosts[n].disk.contents for n in "bcd")
    assert bytes(world.read("e", "/x").read) == data
    assert len(stored(world)) == 2
    assert register(world, "b", value).sound


# -- ballot 0 belongs to the proposer of the version before --------------------------------------------------------


def test_ballot_zero_of_another_proposer_is_refused() -> None:
    world = world_of()
    value = created(world)
    current = world.stat("a", "/x").value
    assert current.owner
    want = successor(current, b"w" * 16, edition=2)
    registers = world.hosts["b"].machine.registers
    assert registers.accept(Accept(1, Ballot(0, b"other"), want)).reason == "ballot"
    assert registers.accept(Accept(1, Ballot(0, b""), want)).reason == "ballot"
    assert register(world, "b", value).accepted is None
    assert registers.accept(Accept(1, Ballot(0, current.owner), want)).reason == ""


def test_a_version_without_an_owner_needs_promises() -> None:
    """A value that another node finished, or an old one, names no owner."""
    world = world_of()
    created(world)
    current = world.stat("a", "/x").value
    registers = world.hosts["b"].machine.registers
    anonymous = successor(current, b"v" * 16)
    assert registers.decide(anonymous)
    want = successor(anonymous, b"w" * 16, edition=2)
    assert registers.accept(Accept(1, Ballot(0, b""), want)).reason == "ballot"


def test_two_writers_on_one_node_do_not_share_ballot_zero() -> None:
    """Both find the version that this node made. Two values at one ballot could both be decided."""
    world = world_of()
    value = created(world)
    seen: dict[tuple[int, Ballot], bytes] = {}

    def watch(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Accept) and frame.value.object == value.object:
            ballot = (frame.value.version, frame.ballot)
            assert seen.setdefault(ballot, frame.value.write) == frame.value.write
        return frame

    world.filter = watch
    calls = [
        world.start("a", ports.Write, data, path="", object=value.object, size=1, edition=1)
        for data in (b"1", b"2", b"3")
    ]
    world.wait(*calls)
    assert sorted(call.refused for call in calls) == ["", "conflict", "conflict"]
    assert any(ballot.round == 0 for _, ballot in seen)
    winner = next(call for call in calls if call.ok)
    assert bytes(world.read("e", "/x").read) == winner.data


def test_a_promise_stops_the_owner() -> None:
    """Another writer has the promises of all replicas, and its value is on the way. If they accepted that of the owner
    in between, both would be decided."""
    world = world_of()
    value = created(world)
    world.read("e", "/x")

    def watch(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Prepare) and sender.name == "e":
            for name in "bcd":
                world.slow["e", name] = 30 * MILLISECOND
        return frame

    world.filter = watch
    for name in "bcd":
        world.slow["a", name] = 20 * MILLISECOND
    calls = [
        world.start(node, ports.Write, b"w", path="", object=value.object, size=1, edition=1)
        for node in ("a", "e")
    ]
    world.wait(*calls)
    assert sorted(call.refused for call in calls) == ["", "conflict"]


def test_the_owner_does_not_overtake_a_version_that_is_decided() -> None:
    world = world_of()
    value = created(world)
    for name in "bcd":
        world.slow["a", name] = 200 * MILLISECOND
    late = world.start("a", ports.Write, b"late", path="", object=value.object, size=4, edition=1)
    first = world.write("e", "/x", b"first")
    assert first.ok, first.text
    assert not late.done
    world.wait(late)
    assert late.refused == "conflict", late.text
    assert bytes(world.read("e", "/x").read) == b"first"


def test_an_owner_whose_replicas_have_moved_decides_nothing() -> None:
    """All replicas of its version have left the set and forgotten the object. To them the owner's value looks like one
    that lets them in, and together they are a majority of the set that it names."""
    world = world_of(names=("a", "b", "c", "d", "e", "f", "g"))
    value = created(world)
    world.partition("a", "bcdefg")
    for source, target in (("b", "e"), ("c", "f"), ("d", "g")):
        moved = world.do(
            "g", ports.MoveReplica, path="/x", source=node_id(source), target=node_id(target)
        )
        assert [step.state for step in moved.value.steps] == ["done"], moved.value
    assert write(world, "g", value, b"newer").ok
    world.run(10 * SECOND)
    assert all(world.hosts[n].machine.registers.get(value.object) is None for n in "bcd")
    world.heal()
    late = write(world, "a", value, b"late", edition=1)
    assert late.refused == "conflict", late.text
    assert bytes(world.read("b", "/x").read) == b"newer"
    no_failures(world)


def test_an_owner_that_restarts_asks_for_promises() -> None:
    world = world_of()
    value = created(world)
    world.kill("a")
    world.restart("a")
    world.run(SECOND)
    assert bytes(world.read("a", "/x").read) == b"one"
    sent(world)
    assert write(world, "a", value, b"two").ok
    assert sent(world)["Prepare"] == 3


def test_a_write_through_an_opened_object_follows_a_later_edition() -> None:
    """The edition that this node remembers is old. The write names none, so it goes on top of the current one."""
    world = world_of()
    value = created(world)
    assert world.write("e", "/x", b"two").ok
    world.run(SECOND)
    third = write(world, "a", value, b"three")
    assert third.ok, third.text
    assert third.value.value.edition == 3
    assert bytes(world.read("c", "/x").read) == b"three"
    assert write(world, "e", value, b"four", edition=2).refused == "conflict"


# -- durability --------------------------------------------------------------------------------------------------------


def test_a_small_content_survives_a_crash_of_all_replicas() -> None:
    world = world_of()
    value = created(world)
    assert write(world, "a", value, b"two").ok
    for name in "bcd":
        world.kill(name)
    for name in "bcd":
        world.restart(name)
    world.run(3 * SECOND)
    assert bytes(world.read("e", "/x").read) == b"two"
    assert not any(key[0] == value.object for n in "bcd" for key in world.hosts[n].disk.contents)


def test_a_damaged_row_is_repaired() -> None:
    """Its digest is compared when the node starts: the replica must not look sound."""
    world = world_of()
    value = created(world)
    rows = world.hosts["d"].tables[TABLE]
    [key] = [key for key in rows if len(key) == 2 * ID and key[:ID] == value.object]
    world.kill("d")
    rows[key] = rows[key][:-1] + b"X"
    world.restart("d")
    assert not register(world, "d", value).sound
    assert world.until(lambda: register(world, "d", value).sound, 10 * SECOND)
    assert bytes(world.read("d", "/x", fresh=False).read) == b"one"


def test_rows_of_another_disk_are_erased() -> None:
    world = world_of()
    value = created(world)
    world.partition("d", "abce")
    world.empty_disk("d")
    world.run(100 * MILLISECOND)
    rows = world.hosts["d"].tables[TABLE]
    assert not any(key[:ID] == value.object for key in rows)


def test_old_contents_are_erased() -> None:
    world = world_of()
    value = created(world)
    for number in range(5):
        assert write(world, "a", value, b"%d" % number).ok
    world.run(10 * SECOND)
    keys = [key for key in world.hosts["b"].tables[TABLE] if key[:ID] == value.object]
    assert sorted(len(key) for key in keys) == [ID, 2 * ID]
    assert world.do("a", ports.Delete, path="/x").ok
    world.run(60 * SECOND)
    assert not any(
        key[:ID] == value.object for h in world.hosts.values() for key in h.tables[TABLE]
    )


# -- bounds and bad input ----------------------------------------------------------------------------------------------


def test_many_small_contents_move_to_files() -> None:
    world = world_of(config=msgspec.structs.replace(FAST, small_total=4000))
    values = [created(world, f"/x{n}", bytes([65 + n]) * 1000) for n in range(8)]
    world.run(5 * SECOND)
    host = world.hosts["b"]
    assert 0 < host.machine.status()["small_bytes"] <= 4000
    assert len(host.disk.contents) >= 4
    for number, value in enumerate(values):
        assert register(world, "b", value).sound
        assert bytes(world.read("b", f"/x{number}").read) == bytes([65 + number]) * 1000
    world.kill("b")
    world.restart("b")
    world.run(3 * SECOND)
    assert all(register(world, "b", value).sound for value in values)
    for number in range(8):
        assert world.do("a", ports.Delete, path=f"/x{number}").ok
    world.run(60 * SECOND)
    left = {key[0] for key in host.disk.contents}
    assert not left & {value.object for value in values}, "no file is left behind"


def test_a_node_without_space_refuses_a_small_content() -> None:
    world = world_of()
    value = created(world)
    for name in "bcd":
        world.hosts[name].give(ports.Conditions(free_bytes=2, penalties=()))
    world.run(SECOND)
    big = write(world, "a", value, b"more than two")
    assert big.ok or big.refused == "full"
    current = world.stat("a", "/x").value
    data = b"three"
    want = successor(current, b"w" * 16, content=content_of(data)[0], edition=9)
    reply = world.hosts["b"].machine.contents.accept(
        Accept(1, Ballot(9, b"z"), want, memoryview(data))
    )
    assert reply.reason == "full"


def test_what_is_kept_takes_the_space_that_was_reported_and_gives_it_back() -> None:
    """The space is reported only when it changes by much: without a count of its own, a node would fill its disk."""
    world = world_of()
    value = created(world)
    machine = world.hosts["b"].machine
    current = machine.registers.decided(value.object)
    assert current is not None
    world.hosts["b"].give(ports.Conditions(free_bytes=1000, penalties=()))
    answers: list[str] = []

    def keep(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Accepted):
            answers.append(frame.reason)
        return frame

    world.filter = keep
    for number in range(3):
        data = b"%d" % number * 400
        want = successor(current, b"w" * 16, content=content_of(data)[0], edition=9)
        frame = Accept(number + 1, Ballot(number + 9, b"z"), want, memoryview(data))
        world.hosts["b"].give(Received(NodeId(node_id("a")), [frame], world.now))
        world.run(MILLISECOND)
    world.run(30 * SECOND)  # Old contents are deleted.
    assert answers[:3] == ["", "", "full"]
    assert machine.contents.small.total <= 500
    other = content_of(b"x" * 500)[0]
    assert machine.contents.small.refuses(other, memoryview(b"x" * 500), 1000) == ""


def test_wrong_bytes_and_too_many_are_refused() -> None:
    world = world_of()
    value = created(world)
    current = world.stat("a", "/x").value
    host = world.hosts["b"]
    right, large = b"right", b"l" * (SMALL_MAX + 1)
    wrong = successor(current, b"w" * 16, content=content_of(right)[0], edition=2)
    hostile = successor(current, b"w" * 16, content=content_of(large)[0], edition=2)
    answers: list[str] = []

    def keep(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Accepted):
            answers.append(frame.reason)
        return frame

    world.filter = keep
    frames = [
        Accept(1, Ballot(9, b"z"), wrong, memoryview(b"wrong")),
        Accept(2, Ballot(9, b"z"), hostile, memoryview(large)),
    ]
    host.give(Received(NodeId(node_id("a")), frames, world.now))
    world.run(SECOND)
    assert answers == ["checksum", "hostile"]
    assert register(world, "b", value).accepted is None
    no_failures(world)


def test_a_patch_of_a_small_content() -> None:
    world = world_of()
    value = created(world, data=b"hello world")
    assert world.do("a", ports.Patch, path="/x", edits=((6, b"WORLD"),)).ok
    assert bytes(world.read("e", "/x").read) == b"hello WORLD"
    far = 3 * SMALL_MAX
    assert world.do("a", ports.Patch, path="/x", edits=((far, b"!"),)).ok
    expected = b"hello WORLD".ljust(far, b"\0") + b"!"
    assert bytes(world.read("e", "/x").read) == expected
    world.run(5 * SECOND)
    assert sorted(world.holders(value.object)) == ["b", "c", "d"]
    assert world.do("a", ports.Patch, path="/x", edits=((0, b"J"),), size=5).ok
    assert bytes(world.read("e", "/x").read) == b"Jello"


def test_a_small_creation_that_one_replica_accepted_is_in_doubt_and_forgotten() -> None:
    """No majority has a record of it, so it is never decided, and the replica drops it."""
    world = world_of()

    def lose(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        lost = isinstance(frame, Accept) and receiver.name in "cd" and frame.value.name == "x"
        return None if lost else frame

    world.filter = lose
    targets = tuple(node_id(name) for name in "bcd")
    call = world.start("a", ports.Create, b"one", path="/x", size=3, nodes=targets)
    world.wait(call)
    assert call.refused == "in doubt", call.text
    world.filter = None
    world.run(90 * SECOND)
    assert world.names("e") == []
    assert len(world.hosts["b"].machine.registers) == 0
    again = world.create("e", "/x", b"again")
    assert again.ok, again.text
    no_failures(world)
