"""Refused connections are logged, but neither a hostile peer nor a misconfigured one fills the log."""

from __future__ import annotations

import pytest

from holdfast.transports import refusals
from holdfast.transports.refusals import KNOWN_MAX, Refusals
from holdfast.types import SECOND


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [1000 * SECOND]
    monkeypatch.setattr(refusals.time, "monotonic_ns", lambda: now[0])
    return now


def lines(caplog: pytest.LogCaptureFixture) -> int:
    found = len(caplog.records)
    caplog.clear()
    return found


def test_a_node_that_is_refused_again_and_again_is_reported_ever_more_rarely(
    caplog: pytest.LogCaptureFixture, clock: list[int]
) -> None:
    """A node with a wrong certificate tries every few seconds: 26 lines a minute, for ever."""
    refused = Refusals("red")
    found = []
    for _ in range(3):
        for _ in range(30):
            clock[0] += 2 * SECOND
            refused.note("10.0.0.1", 7400, "the peer trusts another authority")
        found.append(lines(caplog))
    assert found[0] <= 6
    assert found[1] <= 1
    assert found[2] <= 1


def test_another_host_and_another_reason_are_reported_at_once(
    caplog: pytest.LogCaptureFixture, clock: list[int]
) -> None:
    refused = Refusals("red")
    for host, reason in (("10.0.0.1", "a"), ("10.0.0.2", "a"), ("10.0.0.1", "b")):
        clock[0] += SECOND
        refused.note(host, 7400, reason)
        assert lines(caplog) == 1
    for number in range(2 * KNOWN_MAX):
        refused.note("10.0.0.3", number, f"reason {number}")
    assert lines(caplog) == 0, "one line in a second"
    clock[0] += SECOND
    refused.note("10.0.0.4", 7400, "a")
    assert (
        caplog.records[0].getMessage().endswith(f"({2 * KNOWN_MAX} more since the last such line)")
    )
    assert len(refused._known) <= KNOWN_MAX


def test_one_that_comes_back_after_a_while_is_reported_as_new(
    caplog: pytest.LogCaptureFixture, clock: list[int]
) -> None:
    refused = Refusals("red")
    for _ in range(20):
        clock[0] += 2 * SECOND
        refused.note("10.0.0.1", 7400, "a")
    lines(caplog)
    clock[0] += 3600 * SECOND
    for _ in range(3):
        refused.note("10.0.0.1", 7400, "a")
        clock[0] += 2 * SECOND
    assert lines(caplog) >= 2
