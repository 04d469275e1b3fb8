"""P7: what dialogs promised, judged from the ranges that both ends recorded. Each planted violation is found alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.dialog.ids import twin
from holdfast.pipeline.dialog_audit import (
    CLAIMS,
    DIGEST_MASK,
    DialogVerdict,
    DialogViolation,
    conversation,
    judge_dialogs,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIALOG = "0b" * 32
ALL = 7


def digest(first: int, last: int) -> int:
    """A digest that adds up, as that of nodes does."""
    return sum((number + 1) * 0x9E3779B97F4A7C15 for number in range(first, last + 1)) & DIGEST_MASK


def passed(event: str, first: int, last: int, n: int, **fields: Any) -> dict[str, Any]:
    node = "aa" * 16 if event == "captured" else "bb" * 16
    usual = {
        "event": event, "dialog": DIALOG, "sender": "creator", "assurances": ALL, "first": first, "last": last,
        "digest": digest(first, last), "epoch": 0, "node": node, "incarnation": 1, "n": n,
    }  # fmt: skip
    return usual | fields


GOOD = [
    passed("captured", 0, 9, 0),
    passed("captured", 10, 19, 1),
    passed("taken", 0, 4, 0),
    passed("taken", 5, 14, 1),
    passed("taken", 15, 19, 2),
]


def judge(
    rows: list[dict[str, Any]], done: bool = True, missing: int = 0
) -> tuple[DialogVerdict, list[DialogViolation]]:
    incomplete = {("bb" * 16, 1): missing}
    (verdict,), violations = judge_dialogs(rows, [DIALOG] if done else [], incomplete)
    return verdict, violations


def test_a_dialog_whose_messages_all_passed_once_and_in_order_holds() -> None:
    verdict, violations = judge(GOOD)
    assert (verdict.verdict, violations) == ("holds", [])
    assert (verdict.captured, verdict.taken, verdict.compared) == (20, 20, 20)


PLANTED = {
    "taken twice": ([*GOOD, passed("taken", 3, 4, 3)], {"at most once", "in order"}),
    "taken twice by one that replaced it": (
        [*GOOD, passed("taken", 15, 19, 0, epoch=1, node="cc" * 16)],
        {"at most once"},
    ),
    "out of order": (
        [*GOOD[:2], passed("taken", 10, 19, 0), passed("taken", 0, 9, 1)],
        {"in order"},
    ),
    "lost": ([*GOOD[:3], passed("taken", 15, 19, 2)], {"at least once"}),
    "changed": (
        [*GOOD[:4], passed("taken", 15, 19, 2, digest=1)],
        {"same content"},
    ),
    "from nothing": ([*GOOD, passed("taken", 20, 20, 3)], {"same content"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_and_no_other(name: str) -> None:
    rows, claims = PLANTED[name]
    verdict, violations = judge(rows)
    assert verdict.verdict == "violated"
    assert {violation.claim for violation in violations} == claims
    assert all(violation.events and violation.text for violation in violations)


def test_every_claim_has_a_planted_violation() -> None:
    assert {claim for _, claims in PLANTED.values() for claim in claims} == set(CLAIMS)


@pytest.mark.parametrize(
    ("assurances", "rows"),
    [
        (5, [*GOOD, passed("taken", 15, 19, 3)]),
        (6, [*GOOD[:2], passed("taken", 10, 19, 0), passed("taken", 0, 9, 1)]),
        (3, [*GOOD[:3], passed("taken", 15, 19, 2)]),
    ],
    ids=["repeats", "any order", "losses"],
)
def test_what_was_not_promised_is_no_violation(assurances: int, rows: list[dict[str, Any]]) -> None:
    _, violations = judge([row | {"assurances": assurances} for row in rows])
    assert violations == []


@pytest.mark.parametrize(
    ("rows", "done", "missing", "why"),
    [
        (GOOD[:3], False, 0, "15 messages are on their way"),
        (GOOD[2:], True, 0, "the sending end was not recorded"),
        (GOOD[:3], True, 4, "4 facts about it are missing"),
    ],
)
def test_what_the_facts_do_not_show_is_not_provable(
    rows: list[dict[str, Any]], done: bool, missing: int, why: str
) -> None:
    verdict, violations = judge(rows, done, missing)
    assert (verdict.verdict, verdict.why, violations) == ("not provable", why, [])


def test_deleted_messages_are_accounted_for() -> None:
    rows = [*GOOD[:2], passed("taken", 0, 9, 0), passed("deleted", 10, 19, 1)]
    verdict, violations = judge(rows)
    assert (verdict.deleted, violations) == (10, [])


def test_both_ends_in_one_store_are_one_dialog() -> None:
    other = twin(bytes.fromhex(DIALOG)).hex()
    assert conversation(other) == conversation(DIALOG) == DIALOG
    rows = [row | ({"dialog": other} if row["event"] == "taken" else {}) for row in GOOD]
    verdict, _ = judge(rows)
    assert verdict.verdict == "holds"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.lists(st.integers(1, 9), min_size=1))
def test_however_messages_are_batched_a_whole_dialog_holds(
    sent: list[int], taken: list[int]
) -> None:
    rows, at = [], 0
    for n, size in enumerate(sent):
        rows.append(passed("captured", at, at + size - 1, n))
        at += size
    place, n = 0, 0
    while place < at:
        size = min(taken[n % len(taken)], at - place)
        rows.append(passed("taken", place, place + size - 1, n))
        place, n = place + size, n + 1
    verdict, violations = judge(rows)
    assert (verdict.verdict, verdict.compared, violations) == ("holds", at, [])


@pytest.mark.spark
def test_executors_give_both_ends_of_a_dialog_the_same_name(spark: SparkSession) -> None:
    """Dialogs are judged where their rows are: the expression of Spark must agree with the function."""
    from holdfast.pipeline.transforms.dialog_view import conversation_column

    ids = [DIALOG, *(DIALOG[:48] + f"{top:02x}" + DIALOG[50:] for top in range(0, 256, 5)), "ab"]
    rows = spark.createDataFrame([(one,) for one in ids], "dialog string")
    found = rows.select("dialog", conversation_column().alias("name")).collect()
    assert [row["name"] for row in found] == [conversation(row["dialog"]) for row in found]
    assert sum(row["name"] != row["dialog"] for row in found) == 26
