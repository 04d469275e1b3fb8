"""The twelve rules of objects, each with the schedule that breaks a design without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.support.objects import created, no_failures, register, world_of

from holdfast.links.ports import Received
from holdfast.objects import ports
from holdfast.objects.frames import (
    Accept,
    Accepted,
    Decide,
    Look,
    Prepare,
    StageClose,
    StageState,
)
from holdfast.objects.values import DIRECTORY, LOOSE, Ballot, successor
from holdfast.sim.objects_world import FAST, ObjectHost, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND, NodeId

Filter = Callable[[ObjectHost, ObjectHost, Any], Any]


def losing(*kinds: type, to: str = "", after: int = 0) -> Filter:
    """Lose frames of these types, to one node or all, after the first few."""
    seen = [0]

    def keep(_: ObjectHost, receiver: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, kinds) and (not to or receiver.name in to):
            seen[0] += 1
            return frame if seen[0] <= after else None
        return frame

    return keep


def one_value_per_ballot(object_id: bytes) -> Filter:
    """Two values with one ballot could both be decided."""
    seen: dict[tuple[int, Ballot], bytes] = {}

    def watch(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Accept) and frame.value.object == object_id:
            ballot = (frame.value.version, frame.ballot)
            assert seen.setdefault(ballot, frame.value.write) == frame.value.write
        return frame

    return watch


# -- 1: the quorum is counted over the recorded replica set ----------------------------------------


def test_one_replica_of_three_that_answers_is_not_a_majority() -> None:
    world = world_of()
    created(world)
    world.kill("c")
    world.kill("d")
    write = world.write("a", "/x", b"two")
    assert write.refused == "unreachable"
    assert "nothing was changed" in write.text
    assert world.read("a", "/x").refused == "unreachable"


def test_two_of_three_are_a_majority() -> None:
    world = world_of()
    created(world)
    world.kill("d")
    assert world.write("a", "/x", b"two").ok
    assert bytes(world.read("e", "/x").read) == b"two"
    no_failures(world)


# -- 2: a register per object, with durable ballots ------------------------------------------------


def test_a_promise_survives_a_crash() -> None:
    """A replica promises a ballot, crashes, and must refuse a lower one afterwards."""
    world = world_of()
    value = created(world)
    asked = Prepare(0, value.object, 2, Ballot(5, b"z"))
    world.hosts["b"].give(Received(NodeId(node_id("a")), [asked], world.now))
    world.run(SECOND)
    world.kill("b")
    world.restart("b")
    world.run(100 * MILLISECOND)
    late = world.hosts["b"].machine.registers.prepare(Prepare(2, value.object, 2, Ballot(4, b"y")))
    assert late.reason == "ballot"
    assert late.ballot == Ballot(5, b"z")


def test_an_idle_object_costs_nothing() -> None:
    world = world_of()
    created(world)
    world.run(20 * SECOND)
    world.frames.clear()
    world.run(60 * SECOND)
    assert world.frames == {}


# -- 3: a write is compare-and-set; lost contact is in doubt ---------------------------------------


def test_of_two_concurrent_writers_one_wins_and_the_other_gets_a_conflict() -> None:
    world = world_of()
    created(world)
    calls = [
        world.start(node, ports.Write, data, path="/x", size=len(data))
        for node, data in (("a", b"from a"), ("e", b"from e"))
    ]
    world.wait(*calls)
    assert sorted(call.refused for call in calls) == ["", "conflict"]
    winner = next(call for call in calls if call.ok)
    assert bytes(world.read("b", "/x").read) == winner.data
    assert world.stat("b", "/x").value.edition == 2


def test_of_two_concurrent_writers_on_one_node_one_wins() -> None:
    """All start at the same version, on a node without ballot 0. With ballots that name only the node, two were
    decided."""
    for seed in range(5):
        world = world_of(seed)
        value = created(world)
        world.filter = one_value_per_ballot(value.object)
        calls = [
            world.start("e", ports.Write, data, path="/x", size=len(data), edition=1)
            for data in (b"first", b"second", b"third")
        ]
        world.wait(*calls)
        assert sorted(call.refused for call in calls) == ["", "conflict", "conflict"]
        winner = next(call for call in calls if call.ok)
        assert bytes(world.read("e", "/x").read) == winner.data


def test_a_write_whose_contact_is_lost_is_in_doubt_and_resolved_by_reading() -> None:
    """Both replicas accept, and the writer hears of neither. A reader finds the write."""
    world = world_of()
    value = created(world)
    before = world.stat("a", "/x").value
    world.filter = losing(Accepted, to="a")
    write = world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: sum(register(world, n, value).accepted is not None for n in "bcd") == 3)
    world.partition("a", "bcde")
    world.wait(write)
    assert write.refused == "in doubt"
    assert "may take effect" in write.text
    world.filter = None
    assert bytes(world.read("e", "/x").read) == b"two"
    assert world.stat("e", "/x").value.edition == before.edition + 1


def test_a_change_of_the_replica_set_is_no_conflict_for_a_writer() -> None:
    """A replica moves while a writer sends its content. The writer compares editions, and goes on."""
    world = world_of()
    before = created(world)
    world.disk_ns = 5 * MILLISECOND
    data = b"two" * 4_000_000
    write = world.start("a", ports.Write, data, path="/x", size=len(data), edition=1)
    world.until(lambda: len(write.chunks) > 2)
    moved = world.do("e", ports.MoveReplica, path="/x", source=node_id("d"))
    assert moved.ok, moved.text
    assert not write.done
    world.wait(write)
    assert write.ok, write.text
    after = world.stat("a", "/x").value
    assert after.edition == 2
    assert after.nodes != before.nodes


# -- 4: a strict read finishes or supersedes an undecided version ----------------------------------


def test_a_read_finishes_a_version_that_one_replica_accepted() -> None:
    """The writer dies when one replica has accepted. A first read gives the new version, so a second one must too."""
    world = world_of()
    value = created(world)
    world.filter = losing(Accept, to="cd")
    write = world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: register(world, "b", value).accepted is not None)
    world.kill("a")
    world.kill("d")  # so that the replica which has accepted is part of every majority
    world.filter = None
    assert not write.ok
    first = world.read("e", "/x")
    assert bytes(first.read) == b"two"
    world.run(100 * MILLISECOND)
    for node in "bc":
        state = register(world, node, value)
        assert state.decided is not None
        assert state.accepted is None
        assert state.decided.edition == 2


def test_a_read_brings_the_content_of_a_version_that_it_finishes() -> None:
    """One replica has accepted a version, and another one does not have its content. It gets that from the first; else
    no majority could accept the version, and the object could not be read or written any more."""
    world = world_of()
    value = created(world)
    world.filter = losing(Accept, to="cd")
    world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: register(world, "b", value).accepted is not None)
    accepted = register(world, "b", value).accepted
    assert accepted is not None
    world.kill("a")
    world.filter = None
    world.hosts["c"].machine.registers.dropped(value.object, [accepted.content.digest])
    world.kill("d")  # so that the replica which has accepted is part of every majority
    read = world.read("e", "/x")
    assert read.ok, read.text
    assert bytes(read.read) == b"two"


def test_a_local_read_may_be_old_but_never_undecided() -> None:
    world = world_of()
    value = created(world)
    world.filter = losing(Accept, to="cd")
    world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: register(world, "b", value).accepted is not None)
    old = world.read("b", "/x", fresh=False)
    assert bytes(old.read) == b"one"


# -- 5: the replica set is a value of the same register --------------------------------------------


def test_the_set_changes_by_one_replica_at_a_time() -> None:
    world = world_of()
    value = created(world)
    current = world.stat("a", "/x").value
    ref = world.hosts["a"].machine.members.ref(node_id("e"))
    other = world.hosts["a"].machine.members.ref(node_id("a"))
    assert ref is not None
    assert other is not None
    jump = successor(current, b"w" * 16, replicas=(current.replicas[0], ref, other))
    reply = world.hosts["b"].machine.registers.accept(Accept(1, Ballot(9, b"z"), jump))
    assert reply.reason == "set"
    assert register(world, "b", value).accepted is None


def test_a_newcomer_without_the_content_does_not_count() -> None:
    world = world_of()
    created(world)
    current = world.stat("a", "/x").value
    ref = world.hosts["a"].machine.members.ref(node_id("e"))
    assert ref is not None
    grown = successor(current, b"w" * 16, replicas=(*current.replicas, ref))
    reply = world.hosts["e"].machine.registers.accept(Accept(1, Ballot(9, b"z"), grown))
    assert reply.reason == "content"


def test_a_newcomer_is_not_added_by_the_old_set_alone() -> None:
    """Two of three old replicas accept a fourth one, which is lost. They are no majority of the new set."""
    world = world_of()
    value = created(world)
    world.filter = losing(Accept, to="de")
    target = node_id("e")
    move = world.do("a", ports.MoveReplica, path="/x", source=node_id("d"), target=target)
    assert [step.state for step in move.value.steps] == ["failed"]
    decided = [register(world, node, value).decided for node in "bc"]
    assert all(found is not None and target not in found.nodes for found in decided)
    world.filter = None
    assert bytes(world.read("e", "/x").read) == b"one"
    no_failures(world)


def test_an_emptied_disk_is_a_new_replica_that_has_no_vote() -> None:
    """Two of three disks lose everything. What is left is no majority: the object does not come back empty."""
    world = world_of()
    value = created(world)
    world.partition("ae", "bcd")
    world.empty_disk("b")
    assert register(world, "b", value).reason == "unknown"
    promise = world.hosts["b"].machine.registers.prepare(
        Prepare(1, value.object, 2, Ballot(1, b"z"))
    )
    assert promise.reason == "unknown"
    world.heal()
    assert world.until(lambda: len(world.holders(value.object)) == 3, 30 * SECOND)
    refs = world.stat("a", "/x").value.replicas
    old = next(ref for ref in value.replicas if ref.node == node_id("b"))
    assert old not in refs


# -- 6: content first, record second ---------------------------------------------------------------


def test_a_replica_that_has_not_the_content_does_not_accept() -> None:
    world = world_of()
    created(world)
    current = world.stat("a", "/x").value
    content = type(current.content)(b"d" * 16, 100)
    changed = successor(current, b"w" * 16, content=content, edition=2)
    reply = world.hosts["b"].machine.registers.accept(Accept(1, Ballot(9, b"z"), changed))
    assert reply.reason == "content"


def test_a_crash_before_the_rename_leaves_the_old_version() -> None:
    world = world_of()
    created(world)
    world.filter = losing(StageClose)
    write = world.start("a", ports.Write, b"two" * 200_000, path="/x", size=600_000)
    world.run(50 * MILLISECOND)
    for node in "bcd":
        world.kill(node)
        world.restart(node)
    world.filter = None
    world.wait(write)
    assert write.refused in ("unreachable", "in doubt")
    world.run(SECOND)
    assert bytes(world.read("e", "/x").read) == b"one"
    assert all(not host.disk.stages for host in world.hosts.values())


def test_space_is_reserved_before_content_is_accepted() -> None:
    world = world_of()
    created(world)
    for name in "bcd":
        host = world.hosts[name]
        host.disk.capacity = host.disk.used + 1000
    write = world.write("a", "/x", b"z" * 600_000)
    assert write.refused == "full"
    assert world.frames.get("StageChunk", 0) < 20
    assert bytes(world.read("a", "/x").read) == b"one"


def test_a_full_disk_on_one_replica_does_not_stop_a_write() -> None:
    world = world_of()
    created(world)
    world.hosts["b"].disk.capacity = world.hosts["b"].disk.used + 10
    assert world.write("a", "/x", b"z" * 10_000).ok
    assert bytes(world.read("e", "/x").read) == b"z" * 10_000


# -- 7: a partial update names the digest of its base ----------------------------------------------


def test_a_patch_is_applied_to_the_base_that_it_names() -> None:
    world = world_of()
    created(world, data=b"hello world")
    base = world.stat("a", "/x").value.content.digest
    assert world.do("a", ports.Patch, path="/x", edits=((6, b"WORLD"),), base=base).ok
    assert bytes(world.read("e", "/x").read) == b"hello WORLD"
    late = world.do("e", ports.Patch, path="/x", edits=((0, b"X"),), base=base)
    assert late.refused == "conflict"


def test_a_patch_whose_result_is_not_the_same_on_a_majority_is_refused() -> None:
    world = world_of()
    created(world, data=b"hello world")

    def differ(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, StageState):
            return msgspec.structs.replace(frame, digest=sender.id)
        return frame

    world.filter = differ
    world.frames.clear()
    patch = world.do("a", ports.Patch, path="/x", edits=((0, b"J"),))
    assert patch.refused == "unreachable"
    assert "nothing was changed" in patch.text
    assert "Accept" not in world.frames, "nothing was proposed"
    world.filter = None
    assert bytes(world.read("e", "/x").read) == b"hello world"


def test_a_replica_without_the_base_does_not_take_part_in_a_patch() -> None:
    """A late replica would make other content from an older base."""
    world = world_of()
    value = created(world, data=b"hello world")
    world.cut("a", "d")
    world.cut("b", "d")
    world.cut("c", "d")
    world.cut("d", "e")
    assert world.write("a", "/x", b"HELLO WORLD").ok
    world.heal()
    patch = world.start("a", ports.Patch, path="/x", edits=((0, b"J"),))
    world.wait(patch)
    assert patch.ok, patch.text
    world.run(5 * SECOND)
    assert bytes(world.read("d", "/x", fresh=False).read) == b"JELLO WORLD"
    assert sorted(world.holders(value.object)) == ["b", "c", "d"]


# -- 8: repair goes from the decided version only --------------------------------------------------


def test_a_damaged_replica_is_found_by_a_reader_and_repaired() -> None:
    world = world_of()
    value = created(world, data=b"z" * 600_000)
    assert world.hosts["b"].disk.rot(value.object) == 1
    read = world.read("b", "/x")
    assert bytes(read.read) == b"z" * 600_000
    assert world.until(
        lambda: world.hosts["b"].machine.status()["counts"].get("repaired") == 1, 10 * SECOND
    )
    assert "b" in world.holders(value.object)


def test_an_undecided_version_is_no_source_of_repair() -> None:
    """One replica has accepted a newer version. A damaged one gets the decided version all the same."""
    world = world_of()
    one = b"one" * 10_000
    value = created(world, data=one)
    world.filter = losing(Accept, to="cd")
    world.start("a", ports.Write, b"two", path="/x", size=3)
    world.until(lambda: register(world, "b", value).accepted is not None)
    world.kill("a")
    world.kill("b")
    world.filter = None
    assert world.hosts["c"].disk.rot(value.object) == 1
    assert bytes(world.read("e", "/x").read) == one
    repaired = lambda: world.hosts["c"].machine.status()["counts"].get("repaired")
    assert world.until(lambda: bool(repaired()), 10 * SECOND)
    assert bytes(world.read("c", "/x", fresh=False).read) == one


def test_a_late_replica_is_brought_up_to_date_on_contact() -> None:
    world = world_of()
    value = created(world)
    world.kill("d")
    assert world.write("a", "/x", b"two").ok
    world.restart("d")
    newer = lambda: getattr(register(world, "d", value).decided, "edition", 0) == 2
    assert world.until(newer, 5 * SECOND)
    assert world.until(lambda: "d" in world.holders(value.object), 5 * SECOND)
    assert bytes(world.read("d", "/x", fresh=False).read) == b"two"


# -- 9: delete is a decided tombstone --------------------------------------------------------------


def test_a_replica_that_missed_the_deletion_does_not_bring_the_object_back() -> None:
    world = world_of()
    value = created(world)
    world.kill("d")
    assert world.do("a", ports.Delete, path="/x").ok
    world.run(2 * SECOND)
    state = register(world, "b", value)
    assert state.decided is not None
    assert state.decided.deleted, "kept until every recorded replica has it"
    world.restart("d")
    world.run(2 * SECOND)
    assert world.read("d", "/x").refused == "not found"
    assert value.object not in world.hosts["d"].published
    assert world.until(
        lambda: all(register(world, n, value).decided is None for n in "bcd"), 30 * SECOND
    )
    assert all(key[0] != value.object for h in world.hosts.values() for key in h.disk.contents)


def test_a_returning_node_publishes_nothing_that_a_quorum_has_not_confirmed() -> None:
    world = world_of()
    value = created(world)
    world.kill("d")
    world.partition("d", "abce")
    world.restart("d")
    world.run(10 * SECOND)
    assert value.object not in world.hosts["d"].published
    world.heal()
    assert world.until(
        lambda: (
            value.object in world.hosts["d"].published
            or not world.hosts["d"].machine.registers.mine(register(world, "d", value).decided)
        ),
        60 * SECOND,
    )


def test_a_name_that_is_created_again_is_a_new_object() -> None:
    world = world_of()
    value = created(world)
    assert world.do("a", ports.Delete, path="/x").ok
    again = world.create("b", "/x", b"other")
    assert again.ok, again.text
    assert again.value.value.object != value.object


# -- 10: replace after a grace period, add before remove -------------------------------------------


def test_a_dead_node_is_replaced_after_a_grace_period() -> None:
    world = world_of()
    value = created(world)
    world.kill("d")
    killed_at = world.now
    assert world.until(lambda: len(world.holders(value.object)) == 3, 30 * SECOND)
    grace = world.hosts["a"].config.replace_after_ns
    assert grace // 4 <= world.now - killed_at < grace, "sooner: a bare majority is left"
    world.run(3 * SECOND)
    assert len(world.stat("a", "/x").value.replicas) == 3


def test_a_replica_is_replaced_when_the_grace_period_ends() -> None:
    """Not at the end of the interval between checks, which is longer here."""
    config = msgspec.structs.replace(FAST, replace_after_ns=2 * SECOND, scan_ns=2 * SECOND)
    world = world_of(config=config)
    value = created(world)
    world.run(3 * SECOND)
    world.kill("d")
    assert world.until(lambda: len(world.holders(value.object)) == 3, SECOND)


def test_one_replica_repairs_for_all() -> None:
    """The others do not copy the content to more nodes at the same time."""
    world = world_of()
    value = created(world)
    asked: list[str] = []

    def watch(sender: ObjectHost, _: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Look) and sender.name in "bcd":
            asked.append(sender.name)
        return frame

    world.filter = watch
    world.kill("d")
    assert world.until(lambda: len(world.holders(value.object)) == 3, 30 * SECOND)
    world.run(3 * SECOND)
    assert set(asked) == {"b"}, "the first replica that is there"


def test_a_short_absence_replaces_nothing() -> None:
    world = world_of()
    created(world)
    world.kill("d")
    world.run(500 * MILLISECOND)
    world.restart("d")
    world.run(20 * SECOND)
    assert set(world.stat("a", "/x").value.nodes) == {node_id(n) for n in "bcd"}
    assert world.frames.get("Pull", 0) == 0


def test_a_drain_adds_before_it_removes() -> None:
    world = world_of()
    value = created(world)
    sizes: list[int] = []

    def watch(_: ObjectHost, __: ObjectHost, frame: Any) -> Any:
        if isinstance(frame, Decide) and frame.value.object == value.object:
            sizes.append(len(frame.value.replicas))
        return frame

    world.filter = watch
    drain = world.do("e", ports.Drain, node=node_id("b"))
    assert [step.state for step in drain.value.steps] == ["done"] * len(drain.value.steps)
    assert min(sizes) >= 3
    assert node_id("b") not in world.stat("a", "/x").value.nodes


def test_a_replica_is_not_removed_while_another_one_is_not_verified() -> None:
    """The new replica is there, and one of the old ones has lost its content: with it, only two would be left."""
    world = world_of()
    value = created(world)
    world.hosts["c"].disk.capacity = 0
    world.hosts["c"].machine.registers.dropped(value.object, [value.content.digest])
    move = world.do("a", ports.MoveReplica, path="/x", source=node_id("b"), target=node_id("e"))
    assert [step.state for step in move.value.steps] == ["failed"]
    assert "nothing was removed" in move.value.steps[0].reason
    assert node_id("b") in world.stat("a", "/x").value.nodes


def test_a_drain_that_would_leave_too_few_replicas_is_refused() -> None:
    world = world_of(names=("a", "b", "c"), root=("a", "b", "c"))
    created(world, nodes=tuple(node_id(n) for n in "abc"))
    plan = world.do("a", ports.Drain, node=node_id("b"), dry_run=True)
    assert {step.state for step in plan.value.steps} == {"blocked"}
    drain = world.do("a", ports.Drain, node=node_id("b"))
    assert drain.refused == "blocked"
    assert "nothing was moved" in drain.text
    assert len(world.stat("a", "/x").value.replicas) == 3


# -- 11: loose versions are version vectors --------------------------------------------------------


def split_writes(world: ObjectWorld) -> Any:
    value = created(world, path="/l", mode=LOOSE)
    world.read("b", "/l")
    world.read("c", "/l")
    world.partition("b", "acde")
    left = world.start("b", ports.Write, b"left", path="/l", size=4)
    right = world.start("c", ports.Write, b"right", path="/l", size=5)
    world.wait(left, right)
    assert left.ok, left.text
    assert right.ok, right.text
    return value


def test_the_conflict_handler_merges_both_sides_once() -> None:
    world = world_of()
    runs: list[str] = []

    def handler(name: str) -> Any:
        def merge(versions: tuple[bytes | None, ...]) -> bytes:
            runs.append(name)
            return b"+".join(sorted(v for v in versions if v is not None))

        return merge

    for host in world.hosts.values():
        host.handler = handler(host.name)
    split_writes(world)
    world.heal()
    world.run(5 * SECOND)
    assert runs == ["b"], "at the replica with the lowest id"
    for node in "abcde":
        assert bytes(world.read(node, "/l").read) == b"left+right"
    assert world.stat("a", "/l").siblings == 1


def test_when_the_handler_raises_both_versions_stay() -> None:
    world = world_of()

    def fail(_: tuple[bytes | None, ...]) -> bytes:
        raise ValueError("cannot merge")

    for host in world.hosts.values():
        host.handler = fail
    split_writes(world)
    world.heal()
    world.run(5 * SECOND)
    assert world.stat("a", "/l").siblings == 2
    no_failures(world)


def test_delete_against_update_is_a_conflict() -> None:
    world = world_of()
    seen: list[tuple[bytes | None, ...]] = []

    def keep(versions: tuple[bytes | None, ...]) -> bytes | None:
        seen.append(versions)
        return next(v for v in versions if v is not None)

    for host in world.hosts.values():
        host.handler = keep
    created(world, path="/l", mode=LOOSE)
    for node in "bc":
        world.read(node, "/l")
    world.partition("b", "acde")
    write = world.start("b", ports.Write, b"update", path="/l", size=6)
    delete = world.start("c", ports.Delete, path="/l")
    world.wait(write, delete)
    assert write.ok
    assert delete.ok, delete.text
    world.heal()
    world.run(5 * SECOND)
    assert any(None in versions for versions in seen)
    assert bytes(world.read("a", "/l").read) == b"update"


# -- 12: a move commits in the object's register ---------------------------------------------------


def moved_world() -> tuple[ObjectWorld, Any]:
    world = world_of()
    assert world.mkdir("a", "/old").ok
    assert world.mkdir("a", "/new").ok
    return world, created(world, path="/old/x")


def test_a_mover_that_dies_after_the_commit_leaves_one_name() -> None:
    """The object is at its new place, its new entry is pending, and the old entry is still there."""
    world, value = moved_world()
    move = world.start("e", ports.Move, source="/old/x", target="/new/y")
    done = lambda: any(
        (state := register(world, n, value)).decided is not None and state.decided.name == "y"
        for n in "bcd"
    )
    assert world.until(done)
    world.kill("e")
    assert not move.ok
    assert bytes(world.read("a", "/new/y").read) == b"one"
    assert world.read("a", "/old/x").refused == "not found"
    assert world.until(lambda: world.names("a", "/old") == [], 20 * SECOND)
    assert world.names("a", "/new") == ["y"]


def test_a_mover_that_dies_before_the_commit_leaves_the_old_name() -> None:
    """A reservation without a commit is withdrawn by the next node that wants the name."""
    world, value = moved_world()
    world.filter = lambda _, __, f: (
        None if isinstance(f, Prepare) and f.object == value.object else f
    )
    world.start("e", ports.Move, source="/old/x", target="/new/y")
    world.run(300 * MILLISECOND)
    world.kill("e")
    world.filter = None
    assert bytes(world.read("a", "/old/x").read) == b"one"
    assert world.names("a", "/new") == []
    assert world.mkdir("a", "/other").ok
    other = world.create("a", "/third", b"three")
    assert other.ok
    first = world.do("a", ports.Move, source="/third", target="/new/y")
    if first.refused == "busy":
        world.run(2 * SECOND)
        first = world.do("a", ports.Move, source="/third", target="/new/y")
    assert first.ok, first.text
    assert bytes(world.read("b", "/new/y").read) == b"three"
    assert bytes(world.read("b", "/old/x").read) == b"one"


def test_a_mover_that_was_taken_for_dead_cannot_commit() -> None:
    """Its reservation was withdrawn and the name given away. If it could commit, its object would have no name."""
    world, value = moved_world()
    assert world.create("a", "/third", b"three").ok
    world.filter = lambda sender, __, f: (
        None if isinstance(f, Prepare) and f.object == value.object and sender.name == "e" else f
    )
    late = world.start("e", ports.Move, source="/old/x", target="/new/y")
    world.run(300 * MILLISECOND)
    assert world.do("a", ports.Move, source="/third", target="/new/y").refused == "busy"
    world.run(1100 * MILLISECOND)
    other = world.do("a", ports.Move, source="/third", target="/new/y")
    assert other.ok, other.text
    assert not late.done
    world.filter = None
    world.wait(late)
    assert late.refused == "conflict", late.text
    assert bytes(world.read("b", "/new/y").read) == b"three"
    assert bytes(world.read("b", "/old/x").read) == b"one"


def test_two_movers_of_one_object_give_it_one_name() -> None:
    world, _ = moved_world()
    calls = [
        world.start("a", ports.Move, source="/old/x", target="/new/p"),
        world.start("e", ports.Move, source="/old/x", target="/new/q"),
    ]
    world.wait(*calls)
    assert sum(call.ok for call in calls) == 1, [call.text for call in calls]
    world.run(10 * SECOND)
    names = world.names("a", "/new")
    assert len(names) == 1
    assert world.names("a", "/old") == []
    assert bytes(world.read("b", f"/new/{names[0]}").read) == b"one"


def test_two_movers_to_one_place_leave_one_name() -> None:
    """Both reserve the same name for the same object. The one that loses must not remove the name that the other one
    has confirmed, nor reserve it again."""
    for seed in range(6):
        world = world_of(seed)
        for path in ("/old", "/new"):
            assert world.mkdir("a", path).ok
        value = created(world, path="/old/x")
        for name in "abcd":
            world.slow["e", name] = seed * 2 * MILLISECOND
        calls = [
            world.start(node, ports.Move, source="/old/x", target="/new/x") for node in ("a", "e")
        ]
        world.wait(*calls)
        assert any(call.ok for call in calls), [call.text for call in calls]
        world.run(10 * SECOND)
        assert (world.names("a", "/new"), world.names("a", "/old")) == (["x"], []), seed
        assert world.stat("a", "/new/x").value.object == value.object


def test_a_late_mover_does_not_remove_the_name_of_an_object_that_came_back() -> None:
    """It has moved the object and is slow to remove the old name. Meanwhile a replica does that, and another node moves
    the object back: the same name belongs to the same object again."""
    for delay_ms in (20, 60, 100):
        world, _ = moved_world()
        late = world.start("e", ports.Move, source="/old/x", target="/new/x")
        moved = lambda w=world: w.names("a", "/new") == ["x"] and w.names("a", "/old") == []
        world.until(lambda w=world: w.frames.get("Decide", 0) > 0)
        state = lambda w=world: any(
            record.decided is not None and record.decided.name == "x" and record.decided.left[0]
            for _, record in w.hosts["b"].machine.registers
        )
        assert world.until(state)
        for name in "abcd":
            world.slow["e", name] = delay_ms * MILLISECOND
        while not moved():
            world.run(MILLISECOND)
        back = world.do("a", ports.Move, source="/new/x", target="/old/x")
        assert back.ok, back.text
        world.wait(late)
        world.run(10 * SECOND)
        assert (world.names("a", "/old"), world.names("a", "/new")) == (["x"], [])
        assert bytes(world.read("b", "/old/x").read) == b"one"


def test_two_directories_cannot_be_moved_into_each_other() -> None:
    """Into a directory deep inside of the other one: neither move changes the directory that the other one moves."""
    world = world_of()
    for path in ("/p", "/q", "/p/in", "/q/in"):
        assert world.mkdir("a", path).ok
    world.run(3 * SECOND)
    calls = [
        world.start("a", ports.Move, source="/p", target="/q/in/p"),
        world.start("e", ports.Move, source="/q", target="/p/in/q"),
    ]
    world.wait(*calls)
    assert sum(call.ok for call in calls) == 1, "a cycle would cut both off from the root"
    world.run(10 * SECOND)
    [left] = world.names("a", "/")
    other = "q" if left == "p" else "p"
    assert world.names("a", f"/{left}/in/{other}") == ["in"]


def test_a_directory_is_not_moved_into_itself() -> None:
    world = world_of()
    assert world.mkdir("a", "/p").ok
    assert world.mkdir("a", "/p/q").ok
    move = world.do("b", ports.Move, source="/p", target="/p/q/r")
    assert move.refused == "misuse"
    assert world.names("a", "/p") == ["q"]


def test_an_older_token_of_a_directory_move_is_refused() -> None:
    world = world_of()
    assert world.mkdir("a", "/p").ok
    value = world.stat("a", "/p").value
    newer = successor(value, b"w" * 16, token=7)
    holder = world.by_id[value.nodes[0]].machine.registers
    assert holder.decide(newer)
    older = successor(newer, b"v" * 16, token=6, name="stale")
    assert holder.accept(Accept(1, Ballot(9, b"z"), older)).reason == "token"
    assert value.kind == DIRECTORY
