"""What the log says of a fact, and how loudly (U2)."""

from __future__ import annotations

import logging

import pytest

from holdfast.runtime.events import event_of, level_of
from holdfast.telemetry.facts import LinkFact, NodeFact


@pytest.mark.parametrize("event", ["alarm", "cannot_join", "unit_failed"])
def test_what_an_operator_must_see_is_a_warning_so_that_quiet_does_not_hide_it(event: str) -> None:
    assert level_of(NodeFact(0, event, "something")) == logging.WARNING


def test_the_end_of_an_alarm_and_ordinary_events_are_not_warnings() -> None:
    assert level_of(NodeFact(0, "alarm_over", "something")) == logging.INFO
    assert level_of(LinkFact(0, "up", "ab" * 16, "n2")) == logging.INFO


def test_a_node_that_cannot_join_says_why_in_its_log() -> None:
    text = event_of(NodeFact(0, "cannot_join", "cannot join through 10.0.0.9:7400: no answer"))
    assert text == "cannot join through 10.0.0.9:7400: no answer"
