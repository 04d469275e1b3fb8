"""A message that a committed entry drops is delivered by no replica, unless the delivery was rolled back (P7)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.pipeline.audit import DROPPED, Evidence, judge
from holdfast.pipeline.transforms.group_events import SKIP, UNDONE

STREAM = "source/1/0"
LIFE = {"group": "book", "epoch": 7, "incarnation": 1}


def event(node: str, what: str, **fields: Any) -> dict[str, Any]:
    empty = {"term": 3, "index": 0, "stream": "", "first": 0, "last": 0, "rollback_index": -1}
    return LIFE | empty | {"node": node, "event": what, "now_ns": 9, "n": 1, "detail": ""} | fields


def accused(*events: dict[str, Any], began_ns: int = 0) -> list[str]:
    """n2 leads in term 3, drops messages 298 to 302 at index 311 and delivers index 313. n1 delivered 1 to 310."""
    drop = event("n2", SKIP, index=311, stream=STREAM, first=298, last=302)
    edge = LIFE | {"node": "n2", "term": 3, "index": 313, "n": 5, "position": 300}
    edge |= {
        "end": 310,
        "digest": 1,
        "hour": 0,
        "n_before": 4,
        "index_before": 312,
        "end_before": 300,
    }
    edge |= {"digest_before": 0, "term_before": 3, "end_max": 310, "n_after": 5}
    span = LIFE | {"node": "n1", "stream": STREAM, "hour": 0, "n_before": 0}
    span |= {"first": 1, "last": 310, "ns_before": began_ns}
    evidence = Evidence(
        edges=[edge], breaks=[], streams=[span], gaps=[], events=[drop, *events], recorded=[],
        ranges=[], differing=[], overlapping=[], names={},
    )  # fmt: skip
    _, _, violations = judge(evidence)
    return [found.text for found in violations if found.claim == DROPPED]


def test_a_delivery_of_a_dropped_message_is_a_violation() -> None:
    assert len(accused()) == 1


def test_a_delivery_that_was_rolled_back_is_none() -> None:
    """A `fast` group: n1 led before, delivered ahead, and rolled back to what the next leader had."""
    assert accused(event("n1", UNDONE, rollback_index=305)) == []


@pytest.mark.parametrize(("node", "index"), [("n1", 312), ("n3", 305)])
def test_a_rollback_of_later_entries_or_of_another_replica_excuses_nothing(
    node: str, index: int
) -> None:
    assert len(accused(event(node, UNDONE, rollback_index=index))) == 1


def test_what_a_replica_delivers_after_its_rollback_is_judged() -> None:
    rollback = event("n1", UNDONE, rollback_index=305)
    assert len(accused(rollback, began_ns=rollback["now_ns"])) == 1
