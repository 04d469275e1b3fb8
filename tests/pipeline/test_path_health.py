"""P2: path-health history and times of trouble. Known facts give known rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.pipeline.making import NOON, Fact, node_id, path_fact

from holdfast.pipeline.schemas import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.pipeline.conftest import MakeFrame

pytestmark = pytest.mark.spark


def _facts() -> list[Fact]:
    """What listener `ear` recorded in its first life of 100 s, and `ear` and `late` after that.

    All senders but one are watched from 0 s to 100 s, the time of the listener's last fact.
    """
    told: list[tuple[float, str, dict[str, Any]]] = [
        (0, "fine", {}),
        (100, "fine", {"event": "sample", "rtt_us": 1000}),
        # Size falls twice, is repaired in two steps, and falls again for good.
        (0, "soft", {"heard": 5}),
        (10, "soft", {"size": 1200, "heard": 0, "expected": 5}),
        (15, "soft", {"size": 1200, "event": "sample"}),
        (20, "soft", {"size": 600}),
        (40, "soft", {"size": 1000}),
        (50, "soft", {}),
        (90, "soft", {"size": 800}),
        # Dies out of a soft error, comes back into one.
        (0, "dying", {"size": 900}),
        (30, "dying", {"size": 900, "alive": False}),
        (31, "dying", {"size": 900, "alive": False, "event": "sample"}),
        (60, "dying", {"size": 700}),
        (80, "dying", {}),
        # Not measured yet, or not at all: no trouble.
        (0, "stream", {"size": 0, "size_max": 0, "rtt_us": 0, "heard": 0, "expected": 0}),
        (5, "young", {"size": 0}),
        (9, "young", {}),
        # More heard than expected.
        (2, "eager", {"heard": 12, "expected": 10}),
    ]
    told.sort(key=lambda item: item[0])
    facts = [
        path_fact("ear", sender, n, at_s, fields.pop("size", 1472), **fields)
        for n, (at_s, sender, fields) in enumerate(told)
    ]
    # A second life: its own clock starts again, so its facts look older than those of the first.
    facts += [
        path_fact("ear", "soft", 0, 1.0, incarnation=2),
        path_fact("ear", "fine", 1, 4.0, incarnation=2, at=NOON - timedelta(hours=1)),
    ]
    return facts


@pytest.fixture(scope="module")
def facts(frame: MakeFrame) -> DataFrame:
    rows = _facts()
    # In a bad order, and some of them in two segments.
    return frame("path", rows[::-1] + rows[3:9])


@pytest.fixture(scope="module")
def health(facts: DataFrame) -> dict[str, dict[str, Any]]:
    from holdfast.pipeline.transforms.path_health import path_health

    rows = path_health(facts).toArrow().to_pylist()
    assert len({row["sender_name"] for row in rows}) == len(rows)
    return {row["sender_name"]: row for row in rows}


@pytest.fixture(scope="module")
def troubles(facts: DataFrame) -> list[dict[str, Any]]:
    from holdfast.pipeline.transforms.path_health import path_troubles

    rows = path_troubles(facts).toArrow().to_pylist()
    return sorted(rows, key=lambda row: (row["sender_name"], row["incarnation"], row["start_ns"]))


def _of(troubles: list[dict[str, Any]], sender: str) -> list[tuple[Any, ...]]:
    return [
        (row["state"], row["size"], row["seconds"], row["open"], row["ended_by"], row["facts"])
        for row in troubles
        if row["sender_name"] == sender
    ]


def test_a_known_path_gives_a_known_row(health: dict[str, dict[str, Any]]) -> None:
    assert health["soft"] == {
        "sender": node_id("soft"),
        "sender_name": "soft",
        "sender_adapter": "eth0",
        "listener": node_id("ear"),
        "listener_name": "ear",
        "listener_adapter": "eth0",
        "subnet": "lan1",
        "transport": "udp",
        "state": "ok",
        "alive": True,
        "size": 1472,
        "size_max": 1472,
        "first_seen": NOON,
        "last_seen": NOON + timedelta(seconds=1),
        "facts": 8,
        "observed_s": 103.0,
        "alive_ratio": 1.0,
        "soft_error_s": 50.0,
        "dead_s": 0.0,
        "degradations": 3,
        "deaths": 0,
        "worst_size": 600,
        "heard": 65,
        "expected": 75,
        "loss_ratio": pytest.approx(10 / 75),
        "rtt_p50_us": 200.0,
        "rtt_p99_us": 200.0,
    }


def test_a_path_is_as_its_last_life_says_whatever_the_clocks_say(
    health: dict[str, dict[str, Any]],
) -> None:
    assert health["fine"]["last_seen"] == NOON - timedelta(hours=1)
    assert health["soft"]["state"] == "ok"


def test_a_path_that_died_and_came_back(health: dict[str, dict[str, Any]]) -> None:
    row = health["dying"]
    assert (row["state"], row["deaths"], row["degradations"]) == ("ok", 1, 0)
    assert (row["dead_s"], row["soft_error_s"], row["alive_ratio"]) == (30.0, 50.0, 0.7)
    assert row["worst_size"] == 700


def test_sizes_that_are_not_measured_are_no_soft_error(health: dict[str, dict[str, Any]]) -> None:
    assert (health["stream"]["state"], health["stream"]["worst_size"]) == ("ok", None)
    assert (health["young"]["soft_error_s"], health["young"]["worst_size"]) == (0.0, 1472)


def test_what_was_not_measured_is_empty_and_not_zero(health: dict[str, dict[str, Any]]) -> None:
    assert (health["stream"]["loss_ratio"], health["stream"]["rtt_p50_us"]) == (None, None)


def test_hearing_more_than_was_expected_is_no_negative_loss(
    health: dict[str, dict[str, Any]],
) -> None:
    assert health["eager"]["loss_ratio"] == 0.0


def test_round_trips_are_percentiles_of_what_was_measured(
    health: dict[str, dict[str, Any]],
) -> None:
    assert (health["fine"]["rtt_p50_us"], health["fine"]["rtt_p99_us"]) == (200.0, 984.0)


def test_each_size_is_a_trouble_of_its_own_and_a_sample_does_not_split_it(
    troubles: list[dict[str, Any]],
) -> None:
    assert _of(troubles, "soft") == [
        ("soft error", 1200, 10.0, False, "size changed", 2),
        ("soft error", 600, 20.0, False, "size changed", 1),
        ("soft error", 1000, 10.0, False, "repaired", 1),
        ("soft error", 800, 10.0, False, "restarted", 1),
    ]


def test_a_soft_error_ends_when_the_path_dies_and_death_when_it_comes_back(
    troubles: list[dict[str, Any]],
) -> None:
    assert _of(troubles, "dying") == [
        ("soft error", 900, 30.0, False, "died", 1),
        ("dead", 900, 30.0, False, "came back", 2),
        ("soft error", 700, 20.0, False, "repaired", 1),
    ]


def test_paths_without_trouble_have_no_rows(troubles: list[dict[str, Any]]) -> None:
    assert {row["sender_name"] for row in troubles} == {"soft", "dying"}


def test_a_trouble_starts_and_ends_at_the_listeners_own_facts(
    troubles: list[dict[str, Any]],
) -> None:
    first = troubles[3]
    assert (first["sender_name"], first["start_ns"]) == ("soft", 10_000_000_000)
    assert first["start_at"] == NOON + timedelta(seconds=10)
    assert first["end_at"] == NOON + timedelta(seconds=20)
    assert troubles[6]["end_at"] == NOON + timedelta(seconds=100)


def test_soft_error_intervals_are_open_while_nothing_ended_them(
    spark: SparkSession, frame: MakeFrame
) -> None:
    from pyspark.testing import assertDataFrameEqual

    from holdfast.pipeline.transforms.path_health import soft_error_intervals

    facts = frame(
        "path",
        [
            path_fact("ear", "a", 0, 0),
            path_fact("ear", "a", 1, 5, 600),
            path_fact("ear", "a", 2, 7, alive=False),
            path_fact("ear", "a", 3, 8, 600),
            path_fact("ear", "b", 4, 20),
        ],
    )
    found = soft_error_intervals(facts).select(
        "sender_name", "size", "start_at", "end_at", "open", "seconds"
    )
    moments = pa.timestamp("us", "UTC")
    expected = spark.createDataFrame(
        pa.table(
            {
                "sender_name": ["a", "a"],
                "size": [600, 600],
                "start_at": pa.array([NOON.replace(second=5), NOON.replace(second=8)], moments),
                "end_at": pa.array([NOON.replace(second=7), None], moments),
                "open": [False, True],
                "seconds": [2.0, 12.0],
            }
        )
    )
    assertDataFrameEqual(found, expected)


def test_the_facts_of_the_tests_have_every_column_that_nodes_write() -> None:
    assert list(path_fact("a", "b", 0, 0)) == [column.name for column in COLUMNS["path"]]
