"""Scenarios by chance: within their budget, with a quiet end, and the same for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import MisuseError
from holdfast.sim.nemesis import TRICKS, Budget, plan
from holdfast.sim.scenario import (
    Ask,
    Break,
    Burst,
    Do,
    Heal,
    Scenario,
    SetApplication,
    SetDisk,
    parse_scenario,
)
from holdfast.types import SECOND

HOSTS = ["n1", "n2", "n3", "n4", "n5"]
DOWN_VERBS = ("crash", "crash-in-turn", "power-off", "stop")


def make(seed: int, budget: Budget | None = None, seconds: int = 60) -> Scenario:
    return plan(seed, HOSTS, ["red", "blue"], seconds * SECOND, 10 * SECOND, budget)


def test_the_seed_decides() -> None:
    assert make(1) == make(1)
    assert make(1) != make(2)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_the_plan_is_a_scenario_in_the_order_of_time(seed: int) -> None:
    scenario = make(seed)
    times = [step.at_ns for step in scenario.steps]
    assert times == sorted(times)
    assert parse_scenario(scenario.text(), "nemesis") == scenario


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_nothing_goes_wrong_in_the_quiet_time(seed: int) -> None:
    scenario = make(seed)
    assert scenario.last_ns() == 50 * SECOND
    last = [step.action for step in scenario.steps if step.at_ns == 50 * SECOND]
    assert Heal() in last
    for host in HOSTS:
        assert Do("start", host) in last
        assert Do("resume", host) in last


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(0, 2))
@settings(max_examples=50)
def test_the_budget_is_kept(seed: int, faults_max: int, down_max: int) -> None:
    budget = Budget(faults_max=faults_max, down_max=down_max)
    down: list[str] = []
    broken: list[str] = []
    started_ns = -budget.settle_ns
    for step in make(seed, budget).steps[: -4 * len(HOSTS) - 1]:
        match step.action:
            case Do(verb, host) if verb in DOWN_VERBS:
                down.append(host)
                assert step.at_ns - started_ns >= budget.settle_ns
            case Do("start", host):
                down.remove(host)
                started_ns = step.at_ns
            case Break(_, name):
                broken.append(name)
            case Heal(name):
                broken.remove(name)
        assert len(down) <= down_max
        assert len(broken) <= faults_max


def test_spared_subnets_and_hosts_are_spared() -> None:
    for seed in range(50):
        budget = Budget(spared_subnets=("blue",), spared_hosts=("n1", "n2"))
        for step in make(seed, budget).steps[: -4 * len(HOSTS) - 1]:
            match step.action:
                case Break(fault):
                    assert fault.where.subnet == "red"
                case Do(verb, host) if verb in DOWN_VERBS:
                    assert host not in ("n1", "n2")


def test_over_many_seeds_everything_happens() -> None:
    verbs, kinds = set(), set()
    for seed in range(100):
        for step in make(seed).steps:
            if isinstance(step.action, Break):
                kinds.add(type(step.action.fault.what).__name__)
            elif isinstance(step.action, Do):
                verbs.add(step.action.verb)
    assert verbs == {*DOWN_VERBS, "start", "pause", "resume"}
    assert len(kinds) == 10


VOTERS = ("n1", "n2", "n3")
GROUP_TRICKS = Budget(tricks=tuple(TRICKS), sources=("n4", "n5"), group="book", voters=VOTERS)


def test_everything_that_groups_fear_happens_too() -> None:
    texts, kinds = set(), set()
    for seed in range(100):
        for step in make(seed, GROUP_TRICKS).steps:
            match step.action:
                case Break(fault):
                    texts |= {"leader"} if "@leader" in fault.text() else set()
                    texts |= {"split"} if "," in fault.text() else set()
                case Do(verb, host):
                    texts.add(f"{verb} {host}")
                case SetDisk(full=True):
                    kinds.add("full")
                case SetApplication(slow_ns=slow_ns) if slow_ns:
                    kinds.add("slow application")
                case Burst():
                    kinds.add("burst")
                case Ask(_, verb):
                    kinds.add(verb)
    assert kinds == {
        "full", "slow application", "burst", "add", "remove", "hand-over", "refound",
    }  # fmt: skip
    assert {"leader", "split", "pause @leader", "crash @leader", "crash *"} <= texts


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_plan_with_everything_reads_back_the_same(seed: int) -> None:
    scenario = make(seed, GROUP_TRICKS)
    assert parse_scenario(scenario.text(), "nemesis") == scenario
    assert [step.at_ns for step in scenario.steps] == sorted(step.at_ns for step in scenario.steps)


def test_a_removed_replica_is_admitted_again_at_the_end() -> None:
    last = [step.action for step in make(3, GROUP_TRICKS).steps[-4:]]
    assert last == [Ask("book", "add", host) for host in VOTERS] + [Ask("book", "refound")]


def test_only_sources_die_in_the_middle_of_sending() -> None:
    budget = Budget(tricks=("source",), sources=("n4", "n5"))
    for seed in range(50):
        for step in make(seed, budget).steps[: -4 * len(HOSTS) - 1]:
            match step.action:
                case Do(_, host) | Burst(host):
                    assert host in ("n4", "n5")


def test_a_run_without_time_for_faults_is_refused() -> None:
    with pytest.raises(MisuseError, match="no time for faults"):
        make(1, seconds=10)
