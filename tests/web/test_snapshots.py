"""How often the node is asked for its status, and what counts as a change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.web.fake_status import FakeDomain

from holdfast.types import MILLISECOND, SECOND
from holdfast.web.snapshots import COST_FACTOR, INTERVAL_NS, Snapshots


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5 * SECOND

    def __call__(self) -> int:
        return self.now_ns


def test_however_many_look_the_node_is_asked_four_times_a_second() -> None:
    domain, clock = FakeDomain(), Clock()
    snapshots = Snapshots(domain.status, clock)
    for _ in range(2000):
        snapshots.latest()
        clock.now_ns += MILLISECOND
    assert domain.asked == 8


def test_a_change_is_a_new_version_and_no_change_is_none() -> None:
    domain, clock = FakeDomain(), Clock()
    snapshots = Snapshots(domain.status, clock)
    versions = []
    for change in (False, False, True, False, True):
        if change:
            domain.fault("n1", "n2", "red", "udp", size=1000 + domain.asked)
        versions.append(snapshots.latest().version)
        clock.now_ns += INTERVAL_NS
    assert versions == [1, 1, 2, 2, 3]


def test_that_time_passes_is_no_change_but_the_newest_ages_are_told() -> None:
    domain, clock = FakeDomain(), Clock()
    snapshots = Snapshots(domain.status, clock)
    first = snapshots.latest()
    domain.uptime_s += 100
    clock.now_ns += INTERVAL_NS
    second = snapshots.latest()
    assert second.version == first.version
    assert json.loads(second.body)["node"]["uptime_s"] == domain.uptime_s


def test_text_that_looks_like_an_age_is_still_a_change() -> None:
    clock, text = Clock(), {"text": '"since_s":1,'}
    snapshots = Snapshots(lambda: dict(text), clock)
    first = snapshots.latest().version
    text["text"] = '"since_s":2,'
    clock.now_ns += INTERVAL_NS
    assert snapshots.latest().version == first + 1


def test_a_status_that_takes_long_is_asked_for_less_often() -> None:
    clock, asked = Clock(), []

    def slow() -> dict[str, Any]:
        asked.append(clock.now_ns)
        clock.now_ns += SECOND
        return {}

    snapshots = Snapshots(slow, clock)
    while clock.now_ns < 100 * SECOND:
        snapshots.latest()
        clock.now_ns += INTERVAL_NS
    share = len(asked) * SECOND / (95 * SECOND)
    assert 0.5 / COST_FACTOR < share <= 1.1 / COST_FACTOR


def test_a_status_that_fails_is_told_and_the_next_one_is_fine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    answers: Iterator[Any] = iter([ZeroDivisionError("oops"), {"bad": object()}, {"fine": 1}])

    def status() -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    snapshots = Snapshots(status, clock)
    told = []
    for _ in range(3):
        told.append(snapshots.latest())
        clock.now_ns += INTERVAL_NS
    assert [snapshot.failed for snapshot in told] == [True, True, False]
    assert "ZeroDivisionError" in json.loads(told[0].body)["error"]
    assert json.loads(told[2].body) == {"fine": 1}
    assert len({snapshot.version for snapshot in told}) == 3
    assert len(caplog.records) == 1, "a fault that lasts is logged once, not four times a second"
