"""Seeded campaigns: safety after every step, progress within a stated number of rounds after the last fault.

A failing seed is in the message. Replay it with `pytest tests/unit/stability/test_properties.py -k <seed>`.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.support.stability_campaign import (
    Campaign,
    settle_bound_ns,
    silence_neighbours,
)
from tests.support.stability_world import World, with_protocol

from holdfast.stability import PROTOCOLS
from holdfast.stability.hypercube import distances, neighbours
from holdfast.types import MILLISECOND, SECOND

SIZES_EACH = 6
"""Few sizes in a test: the large ones take some seconds each, many times that on a busy machine."""


@pytest.mark.parametrize("seed", range(1000, 1015))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_faults_free_nothing_early_and_stop_nothing(protocol: str, seed: int) -> None:
    """Loss, duplication, reordering, crashes, restarts with and without memory, joins, cuts and moves."""
    campaign = Campaign(protocol, 2 + seed % 14, seed)
    campaign.run(faults=8)
    campaign.end_faults()
    campaign.check_progress()


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(1, 101, 20))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hundred_seeds_free_nothing_early_and_stop_nothing(protocol: str, first: int) -> None:
    for seed in range(first, first + 20):
        campaign = Campaign(protocol, 2 + seed % 31, seed)
        campaign.run(faults=10)
        campaign.end_faults()
        campaign.check_progress()


@pytest.mark.parametrize("seed", range(6))
def test_the_protocol_may_change_in_the_middle_of_faults(seed: int) -> None:
    """`auto` with a limit inside the range of sizes: views use the coordinator and the cube in turn."""
    campaign = Campaign("auto", 6, seed, cube_from=7)
    campaign.run(faults=12)
    campaign.end_faults()
    campaign.check_progress()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "size"), [("cube", 100), ("cube", 300), ("coord", 300), ("tree", 300)]
)
def test_large_views_survive_faults(protocol: str, size: int) -> None:
    campaign = Campaign(protocol, size, size)
    campaign.run(faults=3)
    campaign.end_faults()
    campaign.check_progress()


@pytest.mark.parametrize("size", [8, 14, 34, 64])
def test_degree_less_one_silent_neighbours_cut_no_member_off(size: int) -> None:
    """All but one neighbour of place 0 crash. Its reports still reach the others by the one that is left, and after the
    view excuses the crashed members everything becomes stable."""
    world = World(size, with_protocol("cube"), size)
    assert world.run(SECOND, world.is_settled)
    gone = silence_neighbours(world, 0, len(neighbours(size, 0)) - 1)
    for name in world.hosts:
        world.suspect(name, gone)
    world.order(10)
    world.run(60 * MILLISECOND)
    far = world.status(world.view.members[-1].name)
    silent = {blocker.name for blocker in far.blockers if blocker.why == "silent"}
    assert silent == set(gone), "member 0 was heard: only those that crashed are missing"
    world.commit_view([name for name in world.hosts if name not in gone])
    assert world.run(settle_bound_ns(world), world.is_settled)


def check_failed_neighbours(size: int, seed: int, protocol: str = "cube") -> None:
    """Up to degree - 1 neighbours of any member crash under load, with loss. `World` checks after every step that
    nothing was freed that a member lacks. Members that the others still reach are not called silent, and when the view
    excuses those that crashed, everything becomes stable."""
    rng = Random(seed)
    world = World(size, with_protocol(protocol), seed, loss=0.1, duplicate=0.1)
    world.order(10)
    world.run(rng.randint(0, 20) * MILLISECOND)
    place = rng.randrange(size)
    degree = len(neighbours(size, place))
    gone = silence_neighbours(world, place, rng.randint(0, degree - 1), rng.randrange(degree))
    for name in world.hosts:
        if name not in gone:
            world.suspect(name, gone)
    world.order(10)
    world.run(rng.randint(60, 120) * MILLISECOND)
    reached = reachable(size, place, gone)
    if protocol == "cube" and len(reached) + len(gone) == size:
        for blocker in world.status(f"m{place}").blockers:
            assert blocker.why != "silent" or blocker.name in gone, (size, place, gone)
    world.heal()
    if gone:
        world.commit_view([name for name in world.hosts if name not in gone])
    bound_ns = settle_bound_ns(world)
    assert world.run(bound_ns, world.is_settled), (size, place, gone)


def reachable(size: int, place: int, gone: list[str]) -> list[int]:
    """The places that can be reached on the cube without the members that are gone."""
    without = [other for other in range(size) if f"m{other}" in gone]
    return [k for k, hops in enumerate(distances(size, place, without=without)) if hops >= 0]


@pytest.mark.parametrize("seed", range(30))
def test_failures_among_the_neighbours_of_a_member(seed: int) -> None:
    """Sizes 2 to 31 in turn, whatever their distance from a power of two."""
    check_failed_neighbours(2 + seed, seed)


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(2, 301, SIZES_EACH))
def test_failures_among_the_neighbours_of_a_member_at_all_sizes(first: int) -> None:
    """Every size from 2 to 300."""
    for size in range(first, min(first + SIZES_EACH, 301)):
        check_failed_neighbours(size, size)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_failures_of_several_members_at_three_hundred(protocol: str) -> None:
    """The other protocols have no neighbours: the same members fail."""
    check_failed_neighbours(60 if protocol == "full" else 300, 300, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failed_member_delays_the_others_no_longer_than_its_detection(protocol: str) -> None:
    """S6. The view without it is committed 80 ms after the crash; two rounds later everything is stable."""
    world = World(12, with_protocol(protocol), 5)
    assert world.run(SECOND, world.is_settled)
    world.crash("m4")
    world.order(10)
    assert not world.run(80 * MILLISECOND, world.is_settled)
    world.commit_view([name for name in world.hosts if name != "m4"])
    config = world.config
    apply_ns = 8 * world.pace_us[1] * 1000
    rounds_ns = 2 * (config.period_ns + config.gap_ns + config.repeat_ns)
    assert world.run(apply_ns + rounds_ns, world.is_settled)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_traffic_without_end_has_a_bounded_lag(protocol: str) -> None:
    """S5: under endless load what is not stable never exceeds what was ordered within the lag bound."""
    world = World(9, with_protocol(protocol), 2)
    most = 0
    for _ in range(400):
        world.order(5)
        world.run(MILLISECOND)
        host = world.hosts["m3"]
        assert host.detector is not None
        if world.now > 100 * MILLISECOND:
            most = max(most, world.head - int(host.detector.stable[1]))
    assert 0 < most < 5 * 60, "60 ms of traffic"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_seed_gives_one_run(protocol: str) -> None:
    runs = []
    for _ in range(2):
        campaign = Campaign(protocol, 7, 77)
        campaign.run(faults=5)
        world = campaign.world
        stable = [host.detector.stable.tolist() for host in world.hosts.values() if host.detector]
        runs.append((world.now, world.frames, dict(world.sent), stable))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("size", [2, 3, 5, 16, 40])
def test_the_four_protocols_agree(size: int, loss: float) -> None:
    """The same log and the same pace: when it ends, all members of all four call the same index stable."""
    found = []
    for protocol in PROTOCOLS:
        world = World(size, with_protocol(protocol), 9, loss=loss)
        world.order(25)
        assert world.run(3 * SECOND, world.is_settled), protocol
        found.append(sorted({world.status(name).stable for name in world.hosts}))
    assert found == [[(world.head, world.head)]] * len(PROTOCOLS)


@pytest.mark.parametrize("seed", range(4))
def test_with_thirty_percent_loss_members_are_at_most_one_round_apart(seed: int) -> None:
    """Section 3.5, as read: a member cannot end a round without a frame of every other in that round or a later one."""
    world = World(20, with_protocol("cube"), seed, loss=0.3, duplicate=0.2, delay_us=(50, 2000))
    for _ in range(60):
        world.order(2)
        world.run(2 * MILLISECOND)
        rounds = [world.status(name).round for name in world.hosts]
        assert max(rounds) - min(rounds) <= 1
    assert min(rounds) > 2
