"""P7 on executors: the same traces, through the hourly transform and the judges, give the same findings as without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.conftest import MakeFrame
from tests.pipeline.guarantee_rows import subjects
from tests.pipeline.guarantee_traces import HARMLESS, PLANTED
from tests.pipeline.making import Fact

from holdfast.pipeline.judges import judge_subject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


def all_facts() -> dict[str, list[Fact]]:
    """Kind to the facts of all traces."""
    facts: dict[str, list[Fact]] = {}
    for name, (_, make, _) in (*PLANTED.items(), *HARMLESS.items()):
        for (kind, _), found in make(name).facts.items():
            facts.setdefault(kind, []).extend(found)
    return facts


@pytest.fixture(scope="module")
def judged(frame: MakeFrame) -> list[dict[str, Any]]:
    from holdfast.pipeline.transforms.guarantee_events import guarantee_events
    from holdfast.pipeline.transforms.guarantee_view import JUDGED, judge_on_executor

    frames: dict[str, DataFrame] = {kind: frame(kind, facts) for kind, facts in all_facts().items()}
    rows = guarantee_events(frames).groupBy("guarantee", "subject")
    return [
        row.asDict() for row in rows.applyInArrow(judge_on_executor({}), JUDGED).toLocalIterator()
    ]


def test_executors_find_what_the_judges_find(judged: list[dict[str, Any]]) -> None:
    expected: set[tuple[str, str, str]] = set()
    words: dict[tuple[str, str], str] = {}
    facts = [(kind, one) for kind, found in all_facts().items() for one in found]
    for (guarantee, subject), rows in subjects(facts).items():
        verdicts, violations = judge_subject(guarantee, subject, rows, {})
        words.update({(v.guarantee, v.subject): v.verdict for v in verdicts})
        expected |= {(guarantee, subject, violation.claim) for violation in violations}
    found = [row for row in judged if row["claim"] is not None]
    assert {(row["guarantee"], row["subject"], row["claim"]) for row in found} == expected
    assert len(expected) >= len(PLANTED)
    assert all(row["events"] and row["text"] and row["verdict"] is None for row in found)
    verdicts_there = {
        (row["guarantee"], row["subject"]): row["verdict"]
        for row in judged
        if row["verdict"] is not None
    }
    assert verdicts_there == words


def test_an_hour_with_some_kinds_only_has_their_rows(frame: MakeFrame) -> None:
    """Most hours have few of the kinds; columns of the others are empty."""
    from holdfast.pipeline.transforms.guarantee_events import guarantee_events

    locks = all_facts()["lock"][:2]
    rows = guarantee_events({"lock": frame("lock", locks)}).collect()
    assert [(row["guarantee"], row["kind"], row["token"]) for row in rows] == [
        ("locks", "lock", fact["token"]) for fact in locks
    ]
    assert {row["version"] for row in rows} == {None}
