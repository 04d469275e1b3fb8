"""Bounds: buffers shrink back, a dead replica does not fill the others' memory, a slow one slows the sources down."""

from __future__ import annotations

import pytest
from tests.unit.group.harness import FAST, World, node_id, ready, settle
from tests.unit.group.pouring import WINDOW, held, pour
from tests.unit.group.talking import started, talk, texts

from holdfast.group.frames import Freed
from holdfast.group.streams.values import PIECE_OVERHEAD
from holdfast.types import MILLISECOND, SECOND


def test_everything_is_freed_when_all_is_quiet() -> None:
    world = started(1, sources=1, learners=1)
    settle(world, talk(world, ("s1", "n1", "n2"), rounds=50))
    world.run(3 * SECOND)
    for host in world.hosts.values():
        assert host.source.held == 0
        if host.replica:
            assert (held(world, host.name), host.status["log"]) == (0, 0)


def test_a_dead_replica_does_not_fill_the_memory_of_the_others() -> None:
    """It holds freeing back for a quarter of a window; then it is left behind, and is given a state when it is back."""
    world = started(1)
    world.kill("n3")
    sent, most = pour(world, "n1", rounds=400, watch=["n1", "n2"])
    assert sent * 200 > 10 * WINDOW, "it did not stop the source"
    assert most < 2 * WINDOW
    assert world.hosts["n1"].status["log"] < 2 * WINDOW // 200
    assert ["n3" in fact.detail for _, fact in world.events("left behind")] == [True]
    world.start("n3")
    ready(world)
    settle(world, sent)


def test_a_replica_that_was_cut_off_too_long_is_offered_a_state_and_catches_up() -> None:
    world = started(1)
    world.isolate("n3")
    sent, _ = pour(world, "n1", rounds=400, watch=[])
    assert world.hosts["n3"].messages == []
    world.heal_all()
    settle(world, sent)
    assert [name for name, _ in world.events("restored")] == ["n3"]


def test_a_replica_that_was_cut_off_for_a_moment_needs_no_state() -> None:
    world = started(1)
    world.isolate("n3")
    world.send("n1", texts("a", 50))
    world.run(50 * MILLISECOND)
    world.heal_all()
    settle(world, 50)
    assert world.events("restored") == []


def test_a_slow_replica_slows_the_sources_down_and_loses_nothing() -> None:
    """Flow control: the window of the source is full until the slowest application has caught up."""
    world = started(1)
    world.hosts["n2"].frozen = True
    sent, most = pour(world, "n1", rounds=200, watch=["n1", "n2", "n3"])
    assert sent * 200 < 2 * WINDOW, "the source has stopped"
    assert max(world.hosts["n1"].room) > WINDOW * 3 // 4
    assert most < 2 * WINDOW
    world.hosts["n2"].frozen = False
    settle(world, sent)
    world.run(SECOND)
    assert world.hosts["n1"].room[-1] < WINDOW // 8, "and is told that there is room"
    assert world.events("left behind") == []


def test_with_a_replica_that_stays_slow_all_go_on_at_its_speed_within_the_bound() -> None:
    """Several windows pass, from three sources, while one application takes 20 times as long for each entry."""
    world = started(1)
    world.hosts["n3"].slowness = 20
    names = ("n1", "n2", "n3")
    sent = most = most_sent = 0
    for k in range(1000):
        for name in names:
            source = world.hosts[name].source
            if source.held < WINDOW - 5000:
                world.send(name, texts(f"{name}{k}", 20, size=200))
                sent += 20
            most_sent = max(most_sent, source.held)
        world.run(MILLISECOND)
        most = max(most, *(held(world, name) for name in names))
    assert sent * 200 > 3 * 3 * WINDOW, "each source has sent several windows"
    assert most_sent > WINDOW // 2, "and has waited"
    assert most <= 2 * len(names) * WINDOW
    assert most + 3 * WINDOW <= world.config.memory_bytes(len(names))
    assert not world.events("left behind")
    world.hosts["n3"].slowness = 1
    settle(world, sent)


def test_an_application_that_hangs_for_long_is_left_behind() -> None:
    world = started(1, patience_ns=2 * SECOND)
    world.hosts["n2"].frozen = True
    pour(world, "n1", rounds=100, watch=[])
    world.run(3 * SECOND)
    assert ["n2" in fact.detail for _, fact in world.events("left behind")] == [True]
    sent, _ = pour(world, "n1", rounds=200, watch=[])
    assert sent * 200 > 2 * WINDOW, "the others go on"


def test_a_flood_of_what_cannot_be_ordered_is_bounded() -> None:
    """A stream whose beginning never comes: what is above the gap may not fill the memory."""
    world = started(1, sources=1)
    world.drop = lambda sender, target, frame: getattr(frame, "first", 0) == 1
    for _ in range(10):
        world.send("s1", texts("x", 1000, size=50))
        world.run(20 * MILLISECOND)
    stream = f"{node_id('s1').hex()}/1/0"
    for name in ("n1", "n2", "n3"):
        assert world.hosts[name].status["streams"][stream]["held"] <= 2 * WINDOW + PIECE_OVERHEAD
        assert world.hosts[name].messages == []
    assert world.hosts["s1"].source.held <= 2 * WINDOW + 2000


@pytest.mark.parametrize("names", [("n1",), ("n2",), ("n1", "n2"), ("n2", "n3")], ids="+".join)
def test_replicas_that_wait_for_others_do_not_spin(names: tuple[str, ...]) -> None:
    world = World(1, **FAST)
    world.start(*names)
    world.run(10 * SECOND)
    assert world.turns_run / 10 / len(names) < 100, "turns per second and node"
    assert {world.hosts[name].status["state"] for name in names} == {"starting"}


def test_a_quiet_group_costs_next_to_nothing() -> None:
    world = started(1)
    settle(world, talk(world, ("n1", "n2", "n3")))
    world.run(2 * SECOND)
    turns, frames = world.turns_run, world.frames_sent
    world.run(10 * SECOND)
    assert (world.turns_run - turns) / 10 / 3 < 120, "turns per second and node"
    assert (world.frames_sent - frames) / 10 / 3 < 40, "frames per second and node"


def test_a_source_is_told_of_its_own_streams_only() -> None:
    """Else what is said grows with the square of the number of sources."""
    world = started(1, sources=30)
    names = [f"s{k + 1}" for k in range(30)]
    told: dict[str, set[bytes]] = {}

    def listen(_sender: str, target: str, frame: object) -> bool:
        if isinstance(frame, Freed):
            told.setdefault(target, set()).update(stream.source for stream, _ in frame.upto)
        return False

    world.drop = listen
    settle(world, talk(world, tuple(names), rounds=3))
    world.run(2 * SECOND)
    assert all(world.hosts[name].source.held == 0 for name in names)
    assert {name: told[name] for name in names} == {name: {node_id(name)} for name in names}
    assert len(told["n2"]) == 30


@pytest.mark.parametrize("transport", ["channel", "datagram"])
@pytest.mark.parametrize("size", [10, 1000, 20_000, 250_000])
def test_one_that_is_gone_does_not_keep_senders_waiting(transport: str, size: int) -> None:
    """A sender stops at half a window (`runtime.handles`), whatever its messages are like. What nobody frees because
    of the one that is gone must be enough by then to leave it behind."""
    settings = {"transport": transport, "datagram_window": 200_000, "datagram_bytes": 8_000}
    world = started(1, sources=1, window_bytes=1_000_000, payload_bytes=60_000, **settings)
    world.kill("n3")
    source, sent = world.hosts["s1"].source, 0
    for _ in range(12_000):
        if sent > 2_500_000:
            break
        if source.held + size <= world.config.window_bytes // 2:
            world.send("s1", [bytes(size)])
            sent += size + 256
        world.run(MILLISECOND)
    assert sent > 2_500_000
    assert world.hosts["n1"].status["position"] > 0


def test_one_that_could_not_be_reached_takes_part_as_soon_as_it_is_back() -> None:
    """Only one whose application stood still is left out for a while: it may stand still again."""
    world = started(1, patience_ns=60 * SECOND)
    world.isolate("n3")
    sent, _ = pour(world, "n1", rounds=400, watch=["n1"])
    view = {member["name"]: member for member in world.hosts["n1"].status["view"]}
    assert view["n3"]["suspended"]
    world.heal_all()
    world.run(5 * SECOND)
    assert not any(member["suspended"] for member in world.hosts["n1"].status["view"])
    settle(world, sent)
