"""Scenarios as text: what is written is what happens, and what is printed reads back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.toys import open_flow, pair, puppet, send

from holdfast.errors import MisuseError
from holdfast.faults.amounts import MILLION, parse_share, parse_time, share_text, time_text
from holdfast.faults.model import (
    Blackout,
    Corrupt,
    Duplicate,
    Fault,
    Filter,
    Loss,
    Over,
    Pattern,
    Rate,
    Reorder,
    Slow,
    Where,
)
from holdfast.sim.host import DOWN, PAUSED, UP
from holdfast.sim.scenario import (
    ASKED,
    VERBS,
    Ask,
    Break,
    Burst,
    Do,
    Heal,
    Scenario,
    SetApplication,
    SetDisk,
    Step,
    load_scenario,
    parse_scenario,
    scenario_names,
)
from holdfast.types import MILLISECOND, SECOND

NAMES = st.sampled_from(["n1", "n2", "n30", "core-7", "n1,n2", "@leader"])
PPM = st.integers(0, MILLION)
TIMES = st.integers(0, 1 << 50)
POSITIVE = st.integers(1, 1 << 50)
WHERE = st.builds(
    Where,
    st.sampled_from(["*", "red", "blue"]),
    st.one_of(st.just("*"), NAMES, NAMES.map(lambda name: name + "/red")),
    st.one_of(st.just("*"), NAMES),
    st.booleans(),
)
WHAT = st.one_of(
    st.just(Blackout()),
    st.builds(Loss, PPM),
    st.builds(Over, st.integers(0, 70_000)),
    st.builds(Filter, st.sampled_from(["udp", "tcp"])),
    st.builds(Pattern, st.binary(min_size=1, max_size=8)),
    st.builds(Corrupt, PPM),
    st.builds(Duplicate, PPM),
    st.builds(Reorder, PPM, TIMES),
    st.builds(Slow, TIMES, TIMES),
    st.builds(Rate, POSITIVE, st.integers(0, 1 << 40)),
)
FAULTS = st.builds(Fault, WHERE, WHAT, st.sampled_from(["", "udp", "tcp"]), PPM)
FLAPPING = st.builds(Fault, WHERE, WHAT, on_ns=POSITIVE, off_ns=POSITIVE)
ACTIONS = st.one_of(
    st.builds(Break, st.one_of(FAULTS, FLAPPING), st.sampled_from(["", "hole"])),
    st.just(Heal()),
    st.just(Heal("hole")),
    st.builds(Heal, where=WHERE),
    st.builds(Do, st.sampled_from(sorted(VERBS)), NAMES),
    st.builds(SetDisk, NAMES, slow_ns=TIMES),
    st.builds(SetDisk, NAMES, full=st.just(True)),
    st.builds(SetApplication, NAMES, POSITIVE),
    st.builds(SetApplication, NAMES),
    st.builds(Ask, st.just("book"), st.sampled_from(ASKED[:3]), NAMES),
    st.just(Ask("book", "refound")),
    st.builds(Burst, NAMES, st.integers(0, 1 << 20)),
)


@given(st.lists(st.builds(Step, TIMES, ACTIONS), max_size=8))
def test_what_is_printed_reads_back_the_same(steps: list[Step]) -> None:
    scenario = Scenario("s", tuple(steps))
    assert parse_scenario(scenario.text(), "s") == scenario


@given(TIMES)
def test_times_are_exact_in_both_directions(value: int) -> None:
    assert parse_time(time_text(value)) == value


@given(PPM)
def test_shares_are_exact_in_both_directions(ppm: int) -> None:
    assert parse_share(share_text(ppm)) == ppm


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5s", 1_500_000_000), ("20ms", 20_000_000), ("0s", 0), ("0.000000001s", 1), ("7ns", 7)],
)
def test_times_as_people_write_them(text: str, value: int) -> None:
    assert parse_time(text) == value


def test_a_scenario_as_people_write_it() -> None:
    text = """
    # a hole in one direction, then a crash
    at 1.5s break red n1->n2 over 1000   # small packets pass
    at 3s crash n3
    at 4s start n3
    at 5s heal all
    """
    assert parse_scenario(text).steps == (
        Step(1_500_000_000, Break(Fault(Where("red", "n1", "n2"), Over(1000)))),
        Step(3_000_000_000, Do("crash", "n3")),
        Step(4_000_000_000, Do("start", "n3")),
        Step(5_000_000_000, Heal()),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("break red n1->n2 over 9", "'break' where 'at' is expected"),
        ("at 3 crash n1", "'3' is not a time"),
        ("at 3s explode n1", "unknown verb 'explode': break, heal, disk, application, burst"),
        ("at 3s crash", "the line ends where a host is expected"),
        ("at 3s crash n1 n2", "'n2' is not understood here"),
        ("at 3s break red n1-n2 blackout", "'n1-n2' is not FROM->TO"),
        (
            "at 3s break red n1->n2 gremlins",
            "'gremlins' is not a kind of fault here: blackout, loss",
        ),
        ("at 3s break red n1->n2 loss 5", "'5' is not a share"),
        ("at 3s break red n1->n2 loss 101%", "more than 100%"),
        ("at 3s break red n1->n2 pattern xyz", "'xyz' is not bytes in hex"),
        ("at 3s break red n1->n2 reorder 5% 3ms", "'3ms' where 'by' is expected"),
        ("at 3s break red n1->n2 rate 0 queue 5", "write blackout"),
        ("at 3s break red n1->n2 blackout only ip", "'ip' is not a kind of packets"),
        ("at 3s break red n1->n2 blackout flap 1s/0s", "above zero"),
        ("at 3s disk n1 wet", "'wet' is not a state of a disk"),
        ("at 3s application n1 wet", "'wet' is not a state of an application"),
        ("at 3s burst n1 many", "'many' is not a number"),
        ("at 3s group book eat n1", "unknown request 'eat' to a group: add, remove"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(line: str, complaint: str) -> None:
    with pytest.raises(MisuseError, match="broken, line 2") as caught:
        parse_scenario(f"\n{line}\n", "broken")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("at 1s crash n9", "there is no host n9; there are n1, n2"),
        ("at 1s break green n1->n2 blackout", "there is no subnet green; there are red, blue"),
        ("at 1s break red n9->n2 blackout", "there is no host n9"),
        ("at 1s break red n1/eth0->n2 blackout", "n1 has no adapter eth0"),
    ],
)
def test_names_that_the_world_does_not_have_are_refused_before_anything_happens(
    line: str, complaint: str
) -> None:
    world, _, _ = pair()
    with pytest.raises(MisuseError, match=complaint):
        parse_scenario(line).schedule(world)
    assert world.heap == []


def test_hosts_do_what_the_scenario_says_when_it_says_it() -> None:
    world, n1, _ = pair()
    lines = ("at 1s pause n1", "at 2s resume n1", "at 3s crash n1", "at 4s start n1")
    parse_scenario("\n".join(lines)).schedule(world)
    states = []
    for _ in range(5):
        world.run_for(SECOND - 1)
        states.append(n1.state)
        world.run_for(1)
    assert states == [UP, PAUSED, UP, DOWN, UP]
    assert n1.boots == 2


def test_faults_are_broken_and_healed_by_name_by_place_and_all() -> None:
    world, _, _ = pair()
    parse_scenario(
        """
        at 0s break red n1->n2 blackout as first
        at 0s break red n1->n2 over 1000
        at 0s break blue n2->n1 slow 5ms
        at 0s break blue n1->* corrupt 1%
        at 1s heal first
        at 2s heal blue n2->n1
        at 3s heal all
        """
    ).schedule(world)
    counts = []
    for _ in range(4):
        world.run_for(SECOND - 1)
        counts.append(len(world.network.faults))
        world.run_for(1)
    assert counts == [4, 3, 2, 0]


def test_a_selector_can_name_one_adapter() -> None:
    world, n1, n2 = pair()
    parse_scenario("at 0s break * n1/blue->n2 blackout").schedule(world)
    world.run_for(1)
    for subnet in ("red", "blue"):
        send(n1, open_flow(world, n1, n2, "udp", subnet), subnet.encode())
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == [b"red"]


def test_disks_become_slow_and_sound_again() -> None:
    world, n1, _ = pair()
    parse_scenario("at 1s disk n1 slow 50ms\nat 2s disk n1 ok\nat 3s disk n1 full").schedule(world)
    seen = []
    for _ in range(4):
        world.run_for(SECOND - 1)
        seen.append((n1.disk.slow_ns, n1.disk.full))
        world.run_for(1)
    assert seen == [(0, False), (50 * MILLISECOND, False), (0, False), (0, True)]


def test_every_scenario_that_comes_with_holdfast_can_be_read() -> None:
    assert {"quiet", "restart", "size-hole", "soft-errors"} <= set(scenario_names())
    for name in scenario_names():
        scenario = load_scenario(name)
        assert parse_scenario(scenario.text(), name) == scenario


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MisuseError, match="no scenario 'nope': give a file, or one of quiet"):
        load_scenario("nope")


def test_one_line_can_mean_several_hosts_or_all_of_them() -> None:
    world, n1, n2 = pair()
    parse_scenario("at 1s crash *\nat 2s start n1,n2\nat 3s disk * full").schedule(world)
    world.run(1 * SECOND)
    assert (n1.state, n2.state) == (DOWN, DOWN)
    world.run(3 * SECOND)
    assert (n1.state, n2.state, n1.disk.full, n2.disk.full) == (UP, UP, True, True)


def test_the_leader_is_the_replica_that_leads_at_that_moment() -> None:
    world, n1, n2 = pair()
    leader = "n1"
    world.aliases["@leader"] = lambda: leader
    parse_scenario(
        "at 1s pause @leader\nat 2s pause @leader\nat 2s break red @leader->* blackout"
    ).schedule(world)
    world.run(SECOND)
    assert (n1.state, n2.state) == (PAUSED, UP)
    leader = "n2"
    world.run(2 * SECOND)
    assert n2.state == PAUSED
    wheres = [active.fault.where for active in world.network.faults.values()]
    assert wheres == [Where("red", "n2", "*")]


def test_sides_of_a_split_are_lists_of_hosts() -> None:
    where = Where("*", "n1,n2", "n3,n4/red", both=True)
    assert where.covers("red", ("n1", "red"), ("n3", "red"))
    assert where.covers("blue", ("n3", "blue"), ("n2", "blue"))
    assert where.covers("red", ("n2", "red"), ("n4", "red"))
    assert not where.covers("blue", ("n2", "blue"), ("n4", "blue"))
    assert not where.covers("red", ("n1", "red"), ("n2", "red"))
    assert not where.covers("red", ("n30", "red"), ("n1", "red"))


def test_applications_become_slow_and_bursts_reach_every_sender() -> None:
    world, n1, n2 = pair()
    bursts: list[tuple[str, int]] = []
    world.burst = lambda host, count: bursts.append((host, count))
    parse_scenario("at 1s application n1 slow 5ms\nat 1s burst n2 70").schedule(world)
    world.run(SECOND)
    assert (n1.application_slow_ns, n2.application_slow_ns) == (5 * MILLISECOND, 0)
    assert bursts == [("n2", 70)]


def test_a_burst_is_refused_in_a_world_without_senders() -> None:
    world, _, _ = pair()
    with pytest.raises(MisuseError, match="no sender of this world sends bursts"):
        parse_scenario("at 1s burst n1 5").schedule(world)


def test_what_is_asked_of_a_group_reaches_it() -> None:
    world, _, _ = pair()
    asked: list[tuple[str, str, str]] = []
    world.ask = lambda *words: asked.append(words)
    parse_scenario("at 1s group book remove n2\nat 1s group book refound").schedule(world)
    world.run(SECOND)
    assert asked == [("book", "remove", "n2"), ("book", "refound", "")]
