"""P7, first part: do replicas agree? One group per case, all in one audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import Fact, delivery, fact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.pipeline.conftest import MakeFrame

pytestmark = pytest.mark.spark

Audit = dict[str, dict[str, Any]]


def _log(replica: str, count: int = 5, **fields: Any) -> list[Fact]:
    """Entries 1 to `count` of ten messages each, as one replica delivers them."""
    return [
        delivery(replica, k, k + 1, k * 10, k * 10 + 1, k * 10 + 10, **fields) for k in range(count)
    ]


def _agree() -> list[Fact]:
    return _log("a") + _log("b") + _log("c", 3)


def _agree_after_a_restart() -> list[Fact]:
    return _log("a") + _log("b") + _log("b", incarnation=2)


def _other_digest() -> list[Fact]:
    facts = _log("a") + _log("b")
    facts[7]["digest"] = 5
    return facts


def _other_split() -> list[Fact]:
    facts = _log("a") + _log("b")
    facts[4]["last"] = 49
    return facts


def _same_position_twice() -> list[Fact]:
    """Each index is delivered by one replica only, and yet two of them claim the same positions."""
    a, b = _log("a"), _log("b", 6)
    b[5] |= {"position": 45, "first": 51, "last": 60}
    return a + b[:4] + b[5:]


def _same_message_twice() -> list[Fact]:
    facts = _log("a", 6) + _log("b", 6)
    for row in facts:
        if row["index"] == 6:
            row |= {"first": 50, "last": 59}
    return facts


def _goes_back() -> list[Fact]:
    facts = _log("a") + _log("b")
    facts[1], facts[2] = facts[1] | {"n": 2, "now_ns": 2}, facts[2] | {"n": 1, "now_ns": 1}
    return facts


def _delivers_an_entry_twice() -> list[Fact]:
    return _log("a") + _log("b") + [_log("b")[4] | {"n": 5, "now_ns": 5_000_000_000}]


def _skips() -> list[Fact]:
    """`b` numbers its facts without a hole, but not its positions."""
    b = [row | {"n": n} for n, row in enumerate(_log("b")[:2] + _log("b")[3:])]
    return _log("a") + b


def _lost_a_fact() -> list[Fact]:
    b = _log("b")
    return _log("a") + b[:2] + b[3:]


def _alone() -> list[Fact]:
    return _log("a")


def _apart() -> list[Fact]:
    return _log("a")[:2] + _log("b")[2:]


CASES: dict[str, Callable[[], list[Fact]]] = {
    "agree": _agree,
    "restart": _agree_after_a_restart,
    "digest": _other_digest,
    "split": _other_split,
    "overlap": _same_position_twice,
    "twice": _same_message_twice,
    "back": _goes_back,
    "again": _delivers_an_entry_twice,
    "skip": _skips,
    "restored": _skips,
    "lost": _lost_a_fact,
    "alone": _alone,
    "apart": _apart,
}


def _all() -> list[Fact]:
    """Each case in a group of its own, on nodes of its own: facts are numbered per node."""
    return [
        row | {"group": case, "node": f"{case}-{row['name']}"}
        for case, make in CASES.items()
        for row in make()
    ]


@pytest.fixture(scope="module")
def frames(frame: MakeFrame) -> tuple[DataFrame, DataFrame]:
    facts = _all()
    restored = fact("group", "b", 0, 2.5, group="restored", event="restored", index=3)
    other = fact("group", "b", 0, 2.5, group="skip", event="recovered", index=3)
    group_facts = [restored | {"node": "restored-b"}, other | {"node": "skip-b"}]
    return frame("delivery", facts[::-1] + facts[4:20]), frame("group", group_facts)


@pytest.fixture(scope="module")
def audit(frames: tuple[DataFrame, DataFrame]) -> Audit:
    from holdfast.pipeline.transforms.delivery_audit import delivery_audit

    return {row["group"]: row for row in delivery_audit(*frames).toArrow().to_pylist()}


def test_replicas_that_deliver_the_same_agree(audit: Audit) -> None:
    assert audit["agree"] == {
        "group": "agree",
        "verdict": "holds",
        "why": "5 of 5 entries compared between 3 replicas, all the same",
        "replicas": 3,
        "entries": 5,
        "entries_compared": 5,
        "messages": 130,
        "first_position": 0,
        "last_position": 49,
        "positions": 50,
        "holes_unexplained": 0,
        "violations": 0,
        "named": [],
    }


def test_a_replica_that_replays_its_log_after_a_restart_agrees(audit: Audit) -> None:
    assert audit["restart"]["verdict"] == "holds"


@pytest.mark.parametrize(
    ("case", "claim"),
    [
        ("digest", "agreement"),
        ("split", "agreement"),
        ("overlap", "one place"),
        ("twice", "once"),
        ("again", "in order"),
        ("skip", "no hole"),
    ],
)
def test_each_offence_is_found_and_is_the_only_one(audit: Audit, case: str, claim: str) -> None:
    row = audit[case]
    assert (row["verdict"], row["violations"], row["why"]) == ("violated", 1, "1 offence")
    assert row["named"][0].startswith(f"{claim}: ")


def test_a_replica_that_goes_back_first_skips_and_then_breaks_the_order(audit: Audit) -> None:
    claims = [line.partition(":")[0] for line in audit["back"]["named"]]
    assert (audit["back"]["verdict"], claims) == ("violated", ["in order", "no hole"])


def test_the_offending_rows_are_named_with_all_that_finds_them(audit: Audit) -> None:
    (line,) = audit["digest"]["named"]
    assert line.split(" | ") == [
        "agreement: a (digest-a, incarnation 1, fact 2): index 3, position 20, stream s, 21 to 30, digest 000003eb",
        "b (digest-b, incarnation 1, fact 2): index 3, position 20, stream s, 21 to 30, digest 00000005",
    ]


def test_a_hole_after_a_restored_state_is_no_offence(audit: Audit) -> None:
    assert audit["restored"]["verdict"] == "holds"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("lost", "1 hole in what replicas recorded, unexplained"),
        ("alone", "only one replica recorded deliveries"),
        ("apart", "no entry was recorded by two replicas"),
    ],
)
def test_what_the_facts_do_not_show_is_not_provable(audit: Audit, case: str, why: str) -> None:
    assert (audit[case]["verdict"], audit[case]["why"]) == ("not provable", why)


def test_a_crashed_tail_is_a_valid_prefix(audit: Audit) -> None:
    """Replica c of `agree` stops after three of five entries."""
    assert audit["agree"]["verdict"] == "holds"
    assert audit["agree"]["messages"] == 50 + 50 + 30


def test_every_group_has_a_verdict(audit: Audit) -> None:
    assert audit.keys() == CASES.keys()


def test_deliveries_are_counted_per_replica_and_positions_once(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    from holdfast.pipeline.transforms.delivery_audit import deliveries

    rows = deliveries(frames[0].where("group = 'restart'")).toArrow().to_pylist()
    b = next(row for row in rows if row["replica_name"] == "b")
    assert b == {
        "group": "restart",
        "replica": "restart-b",
        "replica_name": "b",
        "incarnations": 2,
        "entries": 10,
        "messages": 100,
        "first_position": 0,
        "last_position": 49,
        "positions": 50,
    }


def test_without_the_facts_of_groups_a_hole_proves_nothing(
    frames: tuple[DataFrame, DataFrame],
) -> None:
    from holdfast.pipeline.transforms.delivery_audit import delivery_audit

    (row,) = delivery_audit(frames[0].where("group = 'skip'")).toArrow().to_pylist()
    assert (row["verdict"], row["holes_unexplained"]) == ("not provable", 1)
