"""A message that a committed entry drops is delivered by no replica, unless the delivery was rolled back (P7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.pipeline.audit import judge
from holdfast.pipeline.audit_drops import DROPPED
from holdfast.pipeline.evidence import Evidence
from holdfast.pipeline.transforms.group_events import ROLLED_BACK, SKIP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    assert accused(event("n1", ROLLED_BACK, rollback_index=305)) == []


@pytest.mark.parametrize(("node", "index"), [("n1", 312), ("n3", 305)])
def test_a_rollback_of_later_entries_or_of_another_replica_excuses_nothing(
    node: str, index: int
) -> None:
    assert len(accused(event(node, ROLLED_BACK, rollback_index=index))) == 1


def test_what_a_replica_delivers_after_its_rollback_is_judged() -> None:
    rollback = event("n1", ROLLED_BACK, rollback_index=305)
    assert len(accused(rollback, began_ns=rollback["now_ns"])) == 1


def test_blocks_that_were_not_compared_entry_by_entry_prove_nothing() -> None:
    """That two blocks differ may be due to lost facts: only an entry that differs is a violation."""
    row = {
        "group": "book",
        "epoch": 7,
        "first_index": 0,
        "last_index": 4095,
        "entries": 4096,
        "messages": 4096,
    }
    row |= {"first_position": 0, "last_position": 4095, "nodes": ["n1", "n2"], "outcome": "unread"}
    edges = [
        LIFE | {"node": node, "hour": "", "n_before": 0, "end_max": 4096} for node in ("n1", "n2")
    ]
    edges = [edge | {"term": 1, "index": 4095} for edge in edges]
    evidence = Evidence(
        edges=edges, breaks=[], streams=[], gaps=[], events=[], recorded=[],
        ranges=[row], differing=[], overlapping=[], names={},
    )  # fmt: skip
    (verdict,), (part,), violations = judge(evidence)
    assert (verdict.verdict, part.verdict, violations) == ("not provable", "not provable", [])


@pytest.mark.spark
def test_groups_take_turns_when_too_many_blocks_differ(spark: SparkSession) -> None:
    """One group that went wrong altogether must not keep the audit from looking into others."""
    from holdfast.pipeline.transforms.delivery_compare import DIFFERS, SAME, differing_in_turn

    rows = [("bad", 1, block, DIFFERS) for block in range(9)]
    rows += [("fine", 1, 0, SAME), ("once", 1, 7, DIFFERS), ("once", 1, 9, DIFFERS)]
    blocks = spark.createDataFrame(
        rows, "`group` string, epoch bigint, block bigint, outcome string"
    )
    found = [(row["group"], row["block"]) for row in differing_in_turn(blocks, 5).collect()]
    assert found == [("bad", 0), ("once", 7), ("bad", 1), ("once", 9), ("bad", 2)]
