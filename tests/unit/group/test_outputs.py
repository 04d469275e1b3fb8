"""What the application says to the outside: each output once, from whichever replica leads."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import World, node_id, ready, settle
from tests.unit.group.outputs import heard, said, talk, talking

from holdfast.errors import MisuseError
from holdfast.group.frames import AppendResponse, Entry, Outputs, OutputsAck
from holdfast.group.log.entries import EVERYBODY, Marked, encode_data
from holdfast.group.log.replicated_metadata import ReplicatedMetadata
from holdfast.group.log.values import DESTINATIONS_MAX
from holdfast.group.outputs.output_buffer import ApplyWindow, OutputBuffer
from holdfast.group.outputs.output_receiver import FLOORS_MAX, OutputReceiverMachine
from holdfast.group.ports import Context, Output, OutputsReady, OutputsRefused, RestartFromSurvivor
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, SECOND


def leader(world: World) -> str:
    return next(
        name for name, host in world.hosts.items() if host.replica and host.status["state"] == "leading"
    )  # fmt: skip


def kept(world: World) -> list[dict[str, int]]:
    return [host.status["outputs"] for host in world.hosts.values() if host.replica]


def send(world: World, first: int, last: int, source: str = "s1") -> None:
    for k in range(first, last + 1):
        world.send(source, [b"%d" % k])
        world.run(MILLISECOND)


def test_a_node_gets_each_output_once_and_in_order_and_then_no_replica_keeps_it() -> None:
    world = talking("node:s1")
    send(world, 1, 20)
    settle(world, 20)
    assert heard(world) == said(1, 20)
    world.run(SECOND)
    assert kept(world) == [{}, {}, {}]


def test_ids_are_the_position_of_the_batch_and_a_count_and_the_same_on_all_replicas() -> None:
    world = World(voters=1, sources=1)
    world.start()
    world.hosts["n1"].says = lambda m: [("node:s1", m + b"a"), ("node:s1", m + b"b")]
    ready(world)
    world.send("s1", [b"x", b"y"])
    settle(world, 2)
    ids = [(output.position, output.k, output.payload) for output in world.hosts["s1"].outputs]
    assert ids == [(1, 0, b"xa"), (1, 1, b"xb"), (1, 2, b"ya"), (1, 3, b"yb")]


@pytest.mark.parametrize("seed", range(8))
def test_outputs_survive_the_death_of_the_leader_each_once(seed: int) -> None:
    """docs/design/groups.md, rule 10: all replicas keep them, a new leader sends them again, the node takes each id
    once."""
    world = World(seed, voters=3, sources=2, loss=0.05, double=0.05, reorder=True)
    world.start()
    for host in world.hosts.values():
        talk(host, "node:s2")
    ready(world)
    count = 0
    for _ in range(3):
        for _ in range(10):
            count += 1
            world.send("s1", [b"%d" % count])
            world.run(world.rng.randint(0, 3) * MILLISECOND)
        name = leader(world)
        world.restart(name)
        talk(world.hosts[name], "node:s2")
        world.run(2 * SECOND)
        ready(world, 20 * SECOND)
    settle(world, count)
    world.run(5 * SECOND)
    assert heard(world, "s2") == said(1, count)
    assert kept(world) == [{}, {}, {}]


def test_nothing_is_said_that_is_not_decided() -> None:
    """Rule 10: the leader sends after the commit. In a `fast` group its application is ahead of that."""
    world = talking("node:s1", delivery="fast")
    send(world, 1, 3)
    settle(world, 3)
    world.drop = lambda _s, _t, frame: isinstance(frame, AppendResponse)
    send(world, 4, 4)
    assert world.hosts["n1"].messages[-1] == b"4"
    assert heard(world) == said(1, 3)
    world.drop = None
    world.run_until(lambda: heard(world) == said(1, 4), 5 * SECOND)


def test_a_node_that_has_more_than_was_sent_has_what_was_sent() -> None:
    """Two sides of an `availability` group say different things under the same ids; a node keeps what it had first.
    Without this the winning side would send again for ever, and its application be given no more in the end."""
    world = talking("node:s1", mode="availability")
    for name in ("n2", "n3"):
        world.cut("n1", name)
    send(world, 1, 5)
    world.run_until(lambda: len(world.hosts["n1"].messages) == 5, 5 * SECOND)
    world.run(SECOND)
    world.isolate("n1")
    world.run(SECOND)
    world.heal_all()
    world.run(10 * SECOND)
    assert kept(world) == [{}, {}, {}]
    assert heard(world)[:5] == said(1, 5)


def test_a_destination_that_is_away_gets_everything_when_it_is_back() -> None:
    world = talking("node:s1")
    world.isolate("s1")
    send(world, 1, 5, "n2")
    settle(world, 5)
    assert kept(world)[0] == {"node:s1": 5}
    world.heal_all()
    world.run(2 * SECOND)
    assert heard(world) == said(1, 5)


def test_a_destination_that_restarts_is_not_given_what_it_had() -> None:
    world = talking("node:s1")
    send(world, 1, 5, "n2")
    settle(world, 5)
    world.restart("s1")
    send(world, 6, 8, "n2")
    settle(world, 8)
    world.run(SECOND)
    assert heard(world) == said(6, 8)


def test_a_foreign_destination_is_sent_to_by_the_leader_until_it_takes_it() -> None:
    world = talking("https://example.org/hook")
    first = leader(world)
    world.hosts[first].takes_outputs = False
    send(world, 1, 3)
    settle(world, 3)
    world.run(2 * SECOND)
    assert kept(world) == [{"https://example.org/hook": 3}] * 3
    world.hosts[first].takes_outputs = True
    world.run(2 * SECOND)
    assert [output.payload for output in world.hosts[first].sent] == said(1, 3)
    assert kept(world) == [{}, {}, {}]


def test_what_is_kept_is_bounded_and_holds_messages_back_not_outputs() -> None:
    world = talking("node:nobody", output_bytes=2000, window_bytes=8000)
    for k in range(1, 101):
        world.send("s1", [b"%d" % k + b"." * 200])
        world.run(MILLISECOND)
    world.run(2 * SECOND)
    host = world.hosts[leader(world)]
    assert len(host.app.got) < 30
    assert host.replica is not None
    assert host.replica.inspect().delivery.output_buffer.bytes < 8000
    assert world.hosts["s1"].source.held > 4000


def test_an_application_that_says_much_more_than_it_is_given_has_fewer_messages_at_once() -> None:
    """What it says about those that it has already cannot be held back any more: `output_bytes` would be exceeded by
    as much as that is, many times over here."""
    limit = 200_000
    world = World(voters=3, sources=1, window_bytes=500_000, output_bytes=limit)
    world.start()
    for host in world.hosts.values():
        host.says = lambda message: [("till", message * 1000)]
        host.takes_outputs = False
    ready(world)
    world.send("s1", [b"%03d" % k for k in range(1000)])
    world.run(2 * SECOND)
    for name in ("n1", "n2", "n3"):
        replica = world.hosts[name].replica
        assert replica is not None
        assert limit <= replica.inspect().delivery.output_buffer.bytes < 2 * limit
    for host in world.hosts.values():
        host.takes_outputs = True
    settle(world, 1000, 60 * SECOND)
    world.run(5 * SECOND)
    assert kept(world) == [{}, {}, {}]


def test_the_pace_of_an_application_follows_what_it_says() -> None:
    apply_window = ApplyWindow(64_000)
    assert (apply_window.allowed(64_000), apply_window.batch) == (64, 64)
    loud = [Output(1, 0, "d", bytes(8000 - 64))]
    apply_window.note(1, loud)
    assert (
        apply_window.allowed(64_000),
        apply_window.allowed(20_000),
        apply_window.allowed(0),
    ) == (8, 2, 1)
    apply_window.note(7, [])
    assert apply_window.allowed(64_000) == 8
    apply_window.note(1, [])
    assert apply_window.allowed(64_000) == 16, (
        "it has gone through as many as it may have, and said less"
    )
    apply_window.note(0, loud)
    assert apply_window.allowed(64_000) == 16, "of something that was given up"
    for _ in range(20):
        apply_window.note(100_000_000, [])
    assert apply_window.batch > 1 << 50, "one that says nothing is not held back"
    apply_window.note(2, loud)
    assert apply_window.batch == 16


def test_a_destination_that_was_away_for_long_is_waited_for_and_then_all_goes_on() -> None:
    """That its outputs have arrived stands in the order behind the messages that wait for room. Nobody is to blame for
    standing still meanwhile."""
    world = talking("till", output_bytes=2000, window_bytes=8000, patience_ns=SECOND)
    for host in world.hosts.values():
        host.takes_outputs = False
    sent = 0
    for _ in range(200):
        if world.hosts["s1"].source.held < 4000:
            world.send("s1", [b"%d" % sent])
            sent += 1
        world.run(20 * MILLISECOND)
    statuses = [world.hosts[name].status for name in ("n1", "n2", "n3")]
    assert all(status["lag"] > 0 for status in statuses)
    assert {status["why"] for status in statuses} == {
        "till does not accept its outputs, and the output buffer is full"
    }
    for host in world.hosts.values():
        host.takes_outputs = True
    settle(world, sent)
    world.run(2 * SECOND)
    assert kept(world) == [{}, {}, {}]
    assert not world.events("left behind") + world.events("stalls")
    assert len(world.events("leads")) == 1


def test_a_state_carries_the_outputs_that_were_not_delivered_yet() -> None:
    world = talking("node:s1")
    world.isolate("s1")
    send(world, 1, 5, "n2")
    settle(world, 5)
    follower = next(name for name in ("n2", "n3") if name != leader(world))
    world.run(2 * SECOND)
    world.restart(follower)
    talk(world.hosts[follower], "node:s1")
    ready(world)
    assert world.hosts[follower].status["outputs"] == {"node:s1": 5}


@pytest.mark.parametrize("destination", ["node:s1", "printer"])
@pytest.mark.parametrize("anew", [True, False])
def test_no_two_outputs_have_one_id_however_often_the_group_is_founded(
    destination: str, anew: bool
) -> None:
    """One that begins anew counts positions from 1 again; one that goes on after `recover` uses those again that its
    replica did not have."""
    world = talking(destination)
    send(world, 1, 5)
    settle(world, 5)
    if not anew:
        world.isolate("n3")
        world.run(SECOND)
    send(world, 6, 8)
    world.run(2 * SECOND)
    found = collected(world)
    assert {output.payload for output in found} == set(said(1, 8))
    lost = ("n1", "n2", "n3") if anew else ("n1", "n2")
    for name in lost:
        world.kill(name)
    world.heal_all()
    world.run(SECOND)
    for name in lost:
        world.start(name)
        talk(world.hosts[name], destination)
    world.run(SECOND)
    if not anew:
        world.inject("n3", RestartFromSurvivor())
    world.run(5 * SECOND)
    send(world, 11, 13)
    world.run(5 * SECOND)
    found += collected(world)
    ids = {(output.group_epoch, output.position, output.k): output.payload for output in found}
    assert set(ids.values()) >= {*said(1, 8), *said(11, 13)}
    assert all(ids[o.group_epoch, o.position, o.k] == o.payload for o in found)
    histories = {output.group_epoch for output in found}
    assert len(histories) == 2
    assert 0 not in histories


def collected(world: World) -> list[Output]:
    """What came out of the group, at nodes or elsewhere."""
    return [output for host in world.hosts.values() for output in (*host.outputs, *host.sent)]


def test_outputs_outside_apply_are_refused() -> None:

    with pytest.raises(MisuseError, match="apply"):
        Context("g", 0).output("node:a", b"x")
    with pytest.raises(MisuseError, match="destination"):
        Context("g", 0, 1, []).output("", b"x")


def test_a_late_output_that_is_known_to_have_arrived_is_not_kept() -> None:
    held = OutputBuffer(1000)
    metadata = ReplicatedMetadata()
    metadata.watermarks["d"] = (5, 0)
    held.take([Output(5, 0, "d", b"x"), Output(6, 0, "d", b"y")], metadata)
    assert [id_ for id_, _ in held.queues["d"]] == [(6, 0)]


@pytest.mark.parametrize("stuck", [False, True])
def test_a_replica_that_is_behind_keeps_nothing_for_good_however_many_destinations_there_are(
    stuck: bool,
) -> None:
    """More than are remembered one by one. What they have is said of all of them together, up to the first output that
    one of them has not got."""
    count = DESTINATIONS_MAX * 3 // 2
    world = World(voters=3, sources=2)
    world.start()
    for host in world.hosts.values():
        host.says = lambda m: [(f"d{m.decode()}", m)] + ([("node:s2", m)] if m == b"7" else [])
    ready(world)
    behind = next(name for name in ("n2", "n3") if name != leader(world))
    world.hosts[behind].slowness = 5000
    if stuck:
        world.isolate("s2")
    world.send("s1", [b"%d" % k for k in range(count // 2)])
    world.run(20 * MILLISECOND)
    world.send("s1", [b"%d" % k for k in range(count // 2, count)])
    world.run(200 * MILLISECOND)
    core = world.hosts[leader(world)].replica.inspect()  # type: ignore[union-attr]
    assert len(world.hosts[leader(world)].sent) == count
    assert len(world.hosts[behind].app.got) < count, "it has not said all of it yet"
    world.run(10 * SECOND)
    if stuck:
        assert len(kept(world)[0]) == 1
        assert core.log.tail.metadata.floor == (1, -1), "what one has not got is not below it"
        world.heal_all()
        world.run(5 * SECOND)
    assert [len(host.app.got) for host in world.hosts.values() if host.replica] == [count] * 3
    assert kept(world) == [{}, {}, {}]
    assert len(core.log.tail.metadata.watermarks) < DESTINATIONS_MAX // 2
    world.check()


def test_a_floor_travels_with_a_state_and_is_counted_with_every_destination() -> None:
    metadata = ReplicatedMetadata()
    for k in range(3):
        data = encode_data(Marked(f"d{k}", 5 + k, 0))
        metadata.advance(Entry(1, 1, 9, 0, 9, None, 0, 0, data))
    metadata.advance(Entry(1, 2, 9, 0, 9, None, 0, 0, encode_data(Marked(EVERYBODY, 7, -1))))
    assert metadata.watermarks == {"d2": (7, 0)}
    other = ReplicatedMetadata.of(metadata.state()).copy()
    assert [other.arrived(name) for name in ("d1", "d2", "other")] == [(7, -1), (7, 0), (7, -1)]


class Sink:
    """A sink alone, fed with frames of a leader."""

    def __init__(self) -> None:
        self.machine = OutputReceiverMachine(node_id("me"), [])
        self.out = Outbox()

    def give(self, *frames: Any) -> tuple[list[int], tuple[int, int] | None]:
        """Positions of the outputs that were handed over, and where the sender is told to go on."""
        self.out.clear()
        self.machine.up(0, [Received(node_id("me"), list(frames), 0)], self.out)
        handed = [effect for effect, _ in self.out.effects]
        assert not (handed and self.out.writes), "not in the turn that hands them over"
        self.machine.up(1, [effect.taken() for effect in handed], self.out)
        taken = [o.position for effect in handed for o in effect.outputs]
        answers = [frame for _, item in self.out.ups for frame in item.frames]
        assert all(isinstance(answer, OutputsAck) for answer in answers)
        return taken, (answers[-1].position, answers[-1].k) if answers else None


def outputs(after: int, *positions: int, floor: int = 0, group_epoch: int = 1) -> Outputs:
    at = (after, 0) if after else (0, -1)
    items = tuple((position, 0, b"x") for position in positions)
    return Outputs("g", group_epoch, at, (floor, 0 if floor else -1), items)


def test_an_output_receiver_takes_what_follows_and_names_the_next_output() -> None:
    sink = Sink()
    assert sink.give(outputs(0, 1, 2)) == ([1, 2], (2, 0))
    assert sink.give(outputs(0, 1, 2, 3)) == ([3], (3, 0))
    assert sink.give(outputs(5, 6)) == ([], (3, 0))
    assert sink.give(outputs(5, 6, floor=5)) == ([6], (6, 0))


def test_that_outputs_were_taken_is_written_and_said_only_after_the_application_was_called() -> (
    None
):
    """A process may end between a write and what it does next: outputs would be lost, and nobody sends them again."""
    sink = Sink()
    sink.out.clear()
    sink.machine.up(0, [Received(node_id("me"), [outputs(0, 1, 2)], 0)], sink.out)
    assert [type(effect) for effect, _ in sink.out.effects] == [OutputsReady]
    assert (sink.out.writes, sink.out.ups) == ([], [])
    sink.machine.up(0, [Received(node_id("me"), [outputs(0, 1, 2, 3)], 0)], sink.out)
    handed = [effect for effect, _ in sink.out.effects]
    assert [o.position for effect in handed for o in effect.outputs] == [1, 2, 3]
    assert not sink.out.ups, "each is handed over once, and not confirmed when it comes again"
    sink.machine.up(1, [handed[0].taken()], sink.out)
    assert (len(sink.out.writes), sink.out.ups[-1][1].frames[0].position) == (1, 2)
    sink.out.clear()
    sink.machine.up(2, [handed[1].taken()], sink.out)
    assert (len(sink.out.writes), sink.out.ups[-1][1].frames[0].position) == (1, 3)
    assert sink.give(outputs(0, 1, 2, 3)) == ([], (3, 0))


def test_what_was_handed_over_before_a_group_was_founded_again_holds_nothing_up() -> None:
    sink = Sink()
    sink.machine.up(0, [Received(node_id("me"), [outputs(0, 1, 2)], 0)], sink.out)
    old = sink.out.effects[0][0]
    assert sink.give(outputs(0, 1, group_epoch=2)) == ([1], (1, 0))
    sink.out.clear()
    sink.machine.up(3, [old.taken()], sink.out)
    assert (sink.out.writes, sink.out.ups) == ([], [])


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_an_output_receiver_starts_over_with_a_recreated_group_and_ignores_the_old_one(
    first: int, second: int
) -> None:
    """The number of a founding is drawn by chance: a later one may be smaller."""
    sink = Sink()
    sink.give(outputs(0, 1, 2, group_epoch=first))
    assert sink.give(outputs(0, 1, group_epoch=second)) == ([1], (1, 0))
    assert sink.give(outputs(2, 3, group_epoch=first)) == ([], None)


def test_frames_of_groups_without_a_reader_cost_no_other_group_anything() -> None:
    """Nothing is written about them, and however many there are, all others go on: known ones and new ones."""
    sink = Sink()
    assert sink.give(outputs(0, 1)) == ([1], (1, 0))
    for k in range(2 * FLOORS_MAX):
        frame = Outputs(f"x{k}", 1, (7, 0), (5, 0) if k % 2 else (0, -1), ((8, 0, b"x"),))
        taken, at = sink.give(frame)
        assert (taken, at) == ([], (5, 0) if k % 2 else (0, -1))
        assert not sink.out.writes
    assert len(sink.machine._floors) == FLOORS_MAX
    assert sink.give(outputs(1, 2)) == ([2], (2, 0))
    assert sink.give(Outputs("new", 1, (0, -1), (0, -1), ((1, 0, b"x"),))) == ([1], (1, 0))
    assert list(sink.machine.status()) == ["g", "new"]


def test_what_was_refused_is_not_answered_and_is_handed_over_again() -> None:
    """What comes meanwhile says what it follows, so that nobody takes it without what was refused before."""
    sink = Sink()
    sink.machine.up(0, [Received(node_id("me"), [outputs(0, 1), outputs(1, 2)], 0)], sink.out)
    first, second = (effect for effect, _ in sink.out.effects)
    assert (first.after, second.after) == ((0, -1), (1, 0))
    sink.out.clear()
    sink.machine.up(1, [OutputsRefused("g", 7), OutputsRefused("g", 1)], sink.out)
    assert (sink.out.writes, sink.out.ups) == ([], [])
    sink.machine.up(2, [Received(node_id("me"), [outputs(0, 1, 2)], 0)], sink.out)
    (again,) = (effect for effect, _ in sink.out.effects)
    assert ([o.position for o in again.outputs], again.after) == ([1, 2], (0, -1))
    sink.machine.up(3, [again.taken()], sink.out)
    assert sink.out.ups[-1][1].frames[0].position == 2


@pytest.mark.parametrize(
    "frame",
    [outputs(0), outputs(3, 3), outputs(0, 2, 1), outputs(0, -1), outputs(0, 1, group_epoch=-1)],
)
def test_nonsense_is_ignored(frame: Outputs) -> None:
    sink = Sink()
    assert sink.give(frame) == ([], None)
    assert sink.machine.ignored == 1


def test_a_leader_that_steps_down_stops_its_output_senders() -> None:
    world = World(voters=3, sources=1)
    world.start()
    ready(world)
    for host in world.hosts.values():
        host.says = lambda message: [("printer", message)]
        host.takes_outputs = False
    world.send("s1", [b"one"])
    world.run(100 * MILLISECOND)
    assert [host.stops for host in world.hosts.values()] == [0, 0, 0, 0]
    world.isolate("n1")
    world.run(2 * SECOND)
    assert world.hosts["n1"].stops == 1
