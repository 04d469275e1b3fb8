"""What was recorded, what is missing, and whether somebody said so."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import NOON, Fact, fact, node_id

if TYPE_CHECKING:
    from tests.pipeline.conftest import MakeFrame

pytestmark = pytest.mark.spark

Rows = dict[tuple[str, str], dict[str, Any]]


def _nodes(name: str, numbers: list[int], incarnation: int = 1) -> list[Fact]:
    return [fact("node", name, n, n, incarnation, event="start") for n in numbers]


def _lost(name: str, first: int, last: int, reason: str, **fields: Any) -> Fact:
    usual: dict[str, Any] = {"lost_kind": "node", "first": first, "last": last, "reason": reason}
    return fact("lost", name, first, 50.0, **(usual | fields))


@pytest.fixture(scope="module")
def rows(frame: MakeFrame) -> Rows:
    from holdfast.pipeline.transforms.recording import recording

    facts = [
        *_nodes("whole", [0, 1, 2, 3]),
        *_nodes("whole", [1, 2]),
        *_nodes("twice born", [0, 1], incarnation=1),
        *_nodes("twice born", [0, 1, 2], incarnation=2),
        *_nodes("silent loss", [0, 1, 5, 7]),
        *_nodes("said so", [0, 1, 6, 7, 12]),
        *_nodes("trimmed", [100, 101]),
        *_nodes("crashed", [0, 1], incarnation=3),
    ]
    lost = [
        # Overlapping, and claiming a fact that is there after all.
        _lost("said so", 2, 4, "buffer full"),
        _lost("said so", 4, 6, "several reasons"),
        _lost("said so", 9, 10, "buffer full"),
        _lost("trimmed", 10, 19, "removed to make room"),
        _lost("crashed", 2, -1, "torn", incarnation=4, lost_incarnation=3),
        _lost("mute", 0, 9, "disk full"),
        _lost("old writer", 0, 4, "disk full", incarnation=2, lost_incarnation=None),
    ]
    frames = {"node": frame("node", facts), "link": frame("link", [fact("link", "whole", 0, 1)])}
    table = recording(frames, frame("lost", lost)).toArrow().to_pylist()
    return {(row["kind"], row["name"]): row for row in table}


def _missing(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["facts"], row["missing"], row["said_lost"], row["unexplained"]


def test_a_fact_in_two_segments_counts_once(rows: Rows) -> None:
    assert rows["node", "whole"] == {
        "kind": "node",
        "node": node_id("whole"),
        "name": "whole",
        "incarnations": 1,
        "facts": 4,
        "first_at": NOON,
        "last_at": NOON + timedelta(seconds=3),
        "missing": 0,
        "said_lost": 0,
        "uncounted_losses": 0,
        "unexplained": 0,
        "reasons": [],
    }


def test_kinds_are_counted_apart(rows: Rows) -> None:
    assert rows["link", "whole"]["facts"] == 1


def test_numbers_start_again_with_every_incarnation(rows: Rows) -> None:
    assert _missing(rows["node", "twice born"]) == (5, 0, 0, 0)
    assert rows["node", "twice born"]["incarnations"] == 2


def test_a_hole_that_nobody_named_is_unexplained(rows: Rows) -> None:
    assert _missing(rows["node", "silent loss"]) == (4, 4, 0, 4)


def test_what_the_node_named_is_explained_and_counted_once(rows: Rows) -> None:
    """2 to 5, 9 and 10 were named and are not there; 8 and 11 are nowhere."""
    assert _missing(rows["node", "said so"]) == (5, 8, 6, 2)
    assert rows["node", "said so"]["reasons"] == ["buffer full", "several reasons"]


def test_what_lies_before_the_first_fact_is_not_held_against_the_node(rows: Rows) -> None:
    assert _missing(rows["node", "trimmed"]) == (2, 10, 10, 0)


def test_a_loss_of_unknown_size_is_told_apart(rows: Rows) -> None:
    row = rows["node", "crashed"]
    assert (row["said_lost"], row["uncounted_losses"], row["reasons"]) == (0, 1, ["torn"])
    assert row["incarnations"] == 1


def test_a_node_that_kept_nothing_of_a_kind_is_still_there(rows: Rows) -> None:
    assert _missing(rows["node", "mute"]) == (0, 10, 10, 0)
    assert rows["node", "mute"]["first_at"] is None
    assert _missing(rows["node", "old writer"]) == (0, 5, 5, 0)
