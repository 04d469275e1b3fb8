"""Random meshes, random failures, one seed each: what must hold after quiet, whatever happened before.

After quiet every send to a role reaches every live instance exactly once, all nodes agree on the holder of an exclusive
role, every request has ended exactly once, and what a node remembers is bounded.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.property.overlay_disturbance import build, check_ends, check_reach, disturb

from holdfast.types import MILLISECOND, SECOND


def seeds(count: int, *quick: int) -> list[Any]:
    """All of these seeds; `make test` runs the quick ones."""
    campaign = pytest.mark.campaign
    return [seed if seed in quick else pytest.param(seed, marks=campaign) for seed in range(count)]


@pytest.mark.parametrize("seed", [*seeds(12, 1, 2, 3, 4, 6, 8, 10), 108, 129])
def test_after_quiet_every_send_reaches_every_live_instance_exactly_once(seed: int) -> None:
    rng = Random(seed)
    nodes = rng.choice([8, 15, 30, 50])
    world = build(seed, nodes, rng.choice([1, 1, 2, 3]))
    names = list(world.hosts)
    for name in rng.sample(names, rng.randrange(1, min(nodes, 9))):
        world.publish(name)
        world.run(rng.randrange(200) * MILLISECOND)
    disturb(world, rng, names, 40)
    world.run(60 * SECOND)
    check_ends(world)
    alive = [name for name in names if world.hosts[name].alive]
    check_reach(world, rng.sample(alive, min(6, len(alive))), "role", "after")
    world.run(15 * SECOND)
    check_ends(world)


@pytest.mark.parametrize("seed", seeds(8, 0, 1, 3, 5, 7))
def test_all_nodes_agree_on_the_holder_of_an_exclusive_role(seed: int) -> None:
    rng = Random(1000 + seed)
    nodes = rng.choice([8, 20, 40])
    world = build(seed, nodes, rng.choice([1, 2, 4]))
    names = list(world.hosts)
    ops = {name: world.publish(name, exclusive=True) for name in rng.sample(names, 4)}
    world.run(rng.randrange(1, 400) * MILLISECOND)
    half = set(rng.sample(names, nodes // 2))
    cut = world.partition(half, [name for name in names if name not in half])
    world.run(3 * SECOND)
    for name in rng.sample(names, 2):
        if name not in ops:
            ops[name] = world.publish(name, exclusive=True)
    world.run(rng.randrange(1, 5000) * MILLISECOND)
    for a, b in cut:
        world.link(a, b)
    world.run(40 * SECOND)
    holders = world.holders()
    assert len(holders) == 1, (seed, holders)
    for sender in names[:10]:
        data = f"who {sender}".encode()
        end = world.request(sender, data, aggregate=True)
        assert world.receivers(data) == {holders[0]: 1}, (seed, sender)
        assert [d for _, d in end.replies] == [holders[0].encode()]
    check_ends(world)


@pytest.mark.parametrize("seed", [*seeds(8, 0, 3, 5, 7), 111])
def test_two_halves_that_were_apart_find_each_other(seed: int) -> None:
    rng = Random(2000 + seed)
    nodes = rng.choice([6, 16, 40])
    world = build(seed, nodes, rng.choice([1, 2, 3]))
    names = list(world.hosts)
    half = sorted(rng.sample(names, nodes // 2))
    rest = [name for name in names if name not in half]
    for name in rng.sample(names, 2):
        world.publish(name)
    world.run(rng.choice([0, 2]) * SECOND)
    cut = world.partition(half, rest)
    world.run(3 * SECOND)
    for name in (rng.choice(half), rng.choice(rest)):
        world.publish(name)
    world.run(3 * SECOND)
    for a, b in cut:
        world.link(a, b)
    world.run(30 * SECOND)
    check_reach(world, rng.sample(names, 5), "role", "healed")
    check_ends(world)


@pytest.mark.parametrize("seed", [*seeds(6, 1), 22, 129])
def test_a_send_within_the_realm_reaches_all_its_instances_and_never_leaves_it(seed: int) -> None:
    rng = Random(3000 + seed)
    world = build(seed, 36, rng.choice([2, 3, 6]))
    names = list(world.hosts)
    for name in rng.sample(names, 10):
        world.publish(name)
        world.run(rng.randrange(300) * MILLISECOND)
    disturb(world, rng, names, 25)
    world.run(60 * SECOND)
    left: list[str] = []

    def watch(sender, receiver, frame) -> None:  # type: ignore[no-untyped-def]
        if sender.realm != receiver.realm and getattr(frame, "realm_only", False):
            left.append(type(frame).__name__)

    world.watch = watch
    for sender in rng.sample([n for n in names if world.hosts[n].alive], 6):
        realm = world.hosts[sender].realm
        data = f"local {sender}".encode()
        end = world.request(sender, data, aggregate=True, realm_only=True)
        inside = [n for n in world.holders() if world.hosts[n].realm == realm]
        assert world.receivers(data) == dict.fromkeys(inside, 1), (seed, sender)
        assert end.kind == ("done" if inside else "not_found"), (seed, sender, end)
    assert not left
    check_ends(world)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_200_nodes_in_six_realms(seed: int) -> None:
    rng = Random(4000 + seed)
    world = build(seed, 200, 6)
    names = list(world.hosts)
    for name in rng.sample(names, 20):
        world.publish(name)
        world.run(rng.randrange(200) * MILLISECOND)
    disturb(world, rng, names, 60)
    world.run(60 * SECOND)
    alive = [name for name in names if world.hosts[name].alive]
    check_reach(world, rng.sample(alive, 8), "role", "after")
    world.run(20 * SECOND)
    check_ends(world)
    for name in alive:
        sizes = world.hosts[name].machine.inspect.sizes()
        assert sizes["routes"] <= 60, (name, sizes)
        assert sizes["waves"] == 0
        assert sizes["recoveries"] == 0
