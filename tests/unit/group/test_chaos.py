"""Agreement under faults, over many seeds. Replay one: `pytest 'tests/unit/group/test_chaos.py::test_...[17]'`."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.seeds import seeds
from tests.unit.group.chaos import Amnesia, Chaos, Losses, Moves, Relayed

SEEDS = range(25)
seen: Counter[str] = Counter()


@pytest.mark.parametrize("seed", seeds(SEEDS, range(25, 50)))
def test_replicas_agree_and_nothing_is_lost_or_doubled_under_faults(seed: int) -> None:
    """docs/design/architecture.md, invariants 1 and 2: loss, doubles, reordering, cuts, and restarts of anybody, one
    memory at a time."""
    chaos = Chaos(seed, steps=40)
    world = chaos.run()
    for event in ("recovered", "restored", "leads"):
        seen[event] += len(world.events(event))
    seen["cuts"] += chaos.cuts
    seen["leader restarts"] += chaos.restarts["leader"]
    seen["deliveries"] += max(len(host.app.got) for host in world.hosts.values())
    seen["runs"] += 1


@pytest.mark.parametrize("seed", seeds(range(1, 6), range(6, 41)))
def test_learners_with_feeds_agree_under_faults(seed: int) -> None:
    """Rule 11 of stability: feeds are cut, restarted and replaced while messages flow."""
    world = Relayed(seed, steps=20).run()
    seen["passed on"] += sum(
        host.status["relay"]["passed_on"] for host in world.hosts.values() if host.replica
    )
    seen["relayed runs"] += 1


@pytest.mark.parametrize("seed", seeds(range(100, 110), range(110, 120)))
def test_replicas_never_disagree_however_many_forget(seed: int) -> None:
    """Restarts at any moment, as long as one voter remembers. The group may halt; it may not begin another epoch."""
    world = Amnesia(seed, steps=40).run()
    assert world.events("founded") == world.events("founded")[:1]
    seen["forgetful runs"] += 1
    seen["let in again"] += len(world.events("view"))


@pytest.mark.parametrize("seed", seeds([*range(1, 31), 40540, 42006], range(31, 61)))
def test_members_agree_and_go_on_while_replicas_come_and_go(seed: int) -> None:
    """L10, and invariants 1 and 2: changes of the view all the time, under every fault and in every mode."""
    moves = Moves(seed)
    world = moves.run()
    seen["moving runs"] += 1
    seen["views"] += len(world.events("view"))
    seen["leaders"] += len(world.events("leads"))


@pytest.mark.parametrize("seed", seeds(range(1, 16), range(16, 31)))
def test_members_agree_and_go_on_whatever_is_chosen_about_lost_messages(seed: int) -> None:
    """The same with lost datagrams, every kind of answer, and outputs, each of which comes once."""
    world = Losses(seed).run()
    seen["questions"] += len(world.events("asks"))
    seen["outputs"] += len(world.hosts["s1"].outputs)


def test_the_runs_above_were_worth_it() -> None:
    """A campaign that exercises nothing proves nothing."""
    if seen["runs"] < len(SEEDS):
        pytest.skip("only some of the seeds were run")
    assert seen["deliveries"] > 5_000
    assert min(seen["recovered"], seen["restored"], seen["cuts"]) > 25
    assert seen["leader restarts"] > 5
    assert seen["let in again"] > 50
    assert seen["views"] > 5 * seen["moving runs"]
    assert seen["leaders"] > 2 * seen["moving runs"]
    assert seen["questions"] > 15
    assert seen["outputs"] > 5_000
    assert seen["passed on"] > 100 * seen["relayed runs"]
