"""`holdfast bench health` without root: it measures what it can, and says what it cannot."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.bench import health_bench as health
from holdfast.bench.health_quiet import NODES, START_NS, plan_pauses, quiet
from holdfast.errors import SetupError
from holdfast.types import SECOND


def test_without_root_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SetupError("a lab needs root")

    monkeypatch.setattr(health, "need_root", refuse)
    report = health.bench_health(lambda _: None, ("size",), 1.0, 1.0, 0.05)
    assert report.env["not_measured"] == ["everything in the lab: a lab needs root"]
    assert report.figures["virtual_minutes"] == 0.05
    assert report.figures["virtual_loss_1_percent_sessions_lost"] == 0
    assert not any(name.startswith("lab_") for name in report.figures)


def test_parts_can_be_left_out() -> None:
    report = health.bench_health(lambda _: None, ("size",), 0, 0, 0)
    assert report.aims == {}
    assert report.env["not_measured"]


def test_pauses_are_the_same_for_the_same_seed_and_never_two_at_once() -> None:
    pauses = plan_pauses(3, 600 * SECOND)
    assert pauses == plan_pauses(3, 600 * SECOND)
    assert len(pauses) <= NODES
    times = sorted(time for one in pauses.values() for time in one)
    assert len(times) > 20
    assert times[0][0] > START_NS
    assert all(a[1] <= b[0] for a, b in pairwise(times))


def test_a_fault_is_no_false_alarm_that_would_be_overlooked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counter of false alarms sees alarms: with half of the packets lost there are some."""
    monkeypatch.setattr("holdfast.bench.health_quiet.NODES", 3)
    alarms = quiet(500_000, 0.2, 1)
    assert alarms.false
