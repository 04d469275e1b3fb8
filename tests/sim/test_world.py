"""The clock and the heap of events."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.toys import Puppet

from holdfast.errors import MisuseError
from holdfast.sim.world import World
from holdfast.types import SECOND


def test_events_come_in_order_of_time_then_of_asking() -> None:
    world = World(1)
    seen: list[Any] = []
    for when, name in ((5, "b"), (3, "a"), (5, "c")):
        world.at(when, seen.append, name)
    assert world.run() == 3
    assert seen == ["a", "b", "c"]
    assert world.now == 5


def test_running_until_a_time_takes_what_happens_at_it_and_stops_the_clock_there() -> None:
    world = World(1)
    seen: list[Any] = []
    for when in (9, 10, 11):
        world.at(when, seen.append, when)
    assert world.run(10) == 2
    assert (seen, world.now) == ([9, 10], 10)


def test_a_run_can_be_bounded_by_events() -> None:
    world = World(1)
    seen: list[Any] = []
    for when in (1, 2, 3):
        world.at(when, seen.append, when)
    assert world.run(10, max_events=2) == 2
    assert (seen, world.now, world.events) == ([1, 2], 2, 2)


def test_running_until_something_holds_stops_right_there() -> None:
    world = World(1)
    seen: list[Any] = []
    for when in (1, 2, 3):
        world.at(when, seen.append, when)
    assert world.run_until(lambda: len(seen) == 2)
    assert world.now == 2


def test_what_never_holds_is_given_up_at_the_limit() -> None:
    world = World(1)
    world.at(5 * SECOND, lambda _: None)
    assert not world.run_until(lambda: False, limit=SECOND)
    assert world.now == SECOND


def test_an_event_cannot_be_in_the_past() -> None:
    world = World(1)
    world.run(10)
    with pytest.raises(AssertionError, match="events cannot be scheduled in the past"):
        world.at(9, lambda _: None)


def test_names_and_addresses_are_used_once() -> None:
    world = World(1)
    n1, n2 = (world.add_host(name, Puppet) for name in ("n1", "n2"))
    with pytest.raises(MisuseError, match="host n1 already exists"):
        world.add_host("n1", Puppet)
    world.network.attach(n1, "red", "red", ("127.1.0.1", 7000))
    with pytest.raises(MisuseError, match=r"127\.1\.0\.1:7000 already belongs to n1"):
        world.network.attach(n2, "red", "red", ("127.1.0.1", 7000))
    with pytest.raises(MisuseError, match="n1 already has an adapter red"):
        world.network.attach(n1, "red", "red", ("127.1.0.9", 7000))
    with pytest.raises(MisuseError, match="give its settings the first time"):
        world.network.subnet("red", mtu=1500)


def test_an_error_inside_the_world_comes_with_the_replay_command() -> None:
    world = World(31)

    def fail(_: None) -> None:
        raise ZeroDivisionError

    world.at(7, fail)
    with pytest.raises(ZeroDivisionError) as caught:
        world.run()
    assert caught.value.__notes__ == ["at 7 ns; replay: holdfast sim run --seed 31"]
