"""Transforms on small frames: runs, losses, names, link moves, direction, roll-ups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import NOON, Fact, fact, node_id, path_fact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MakeFrame = Callable[[str, list[Fact]], "DataFrame"]


def runs_of(frame: MakeFrame, facts: list[Fact]) -> list[dict[str, Any]]:
    from holdfast.pipeline.transforms.path_runs import path_runs

    rows = path_runs(frame("path", facts)).orderBy("sender", "transport", "incarnation", "start_at")
    return [row.asDict() for row in rows.collect()]


def test_runs_are_stretches_of_equal_vectors_within_an_hour(frame: MakeFrame) -> None:
    """A new run begins with another vector, a long pause, lost facts, another life, another hour."""
    facts = [
        path_fact("a", "b", 0, 0),
        path_fact("a", "b", 1, 60, heard=8),
        path_fact("a", "b", 2, 120, 600),
        path_fact("a", "b", 3, 180, 600),
        path_fact("a", "b", 4, 600, 600),  # seven minutes later
        path_fact("a", "b", 6, 660, 600),  # fact 5 is lost
        path_fact("a", "b", 7, 3700, 600),
        path_fact("a", "b", 0, 3760, 600, incarnation=2),
    ]
    rows = runs_of(frame, facts)
    assert [(r["n_first"], r["n_last"], r["size"], r["lost_before"]) for r in rows] == [
        (0, 1, 1472, False),
        (2, 3, 600, False),
        (4, 4, 600, False),
        (6, 6, 600, True),
        (7, 7, 600, False),
        (0, 0, 600, False),
    ]
    assert [r["hour"][-2:] for r in rows] == ["12", "12", "12", "12", "13", "13"]
    assert (rows[0]["heard"], rows[0]["expected"], rows[0]["facts"]) == (18, 20, 2)
    assert (rows[0]["rtt_us_sum"], rows[0]["rtt_count"]) == (400, 2)


def test_loss_counts_as_one_attribute_however_it_wavers(frame: MakeFrame) -> None:
    facts = [
        path_fact("a", "b", n, n * 10.0, loss_ppm=ppm)
        for n, ppm in enumerate((0, 900, 50_000, 61_000, 100))
    ]
    rows = runs_of(frame, facts)
    assert [(r["lossy"], r["loss_ppm_max"]) for r in rows] == [
        (False, 900),
        (True, 61_000),
        (False, 100),
    ]


def test_a_name_that_is_not_known_yet_makes_no_second_path(frame: MakeFrame) -> None:
    """Rule 10: today's phantom path. Names are attributes as of a time."""
    facts = [path_fact("a", "b", 0, 0, sender_name=""), path_fact("a", "b", 1, 5)]
    (row,) = runs_of(frame, facts)
    assert (row["facts"], row["sender_name"]) == (2, "b")


def test_losses_between_two_hours_show_in_the_later_one(frame: MakeFrame) -> None:
    from holdfast.pipeline.transforms.recording import boundary_losses, recording_hours

    facts = [
        path_fact("a", "b", n, at_s) for n, at_s in ((0, 0.0), (1, 9.0), (2, 3700.0), (4, 7300.0))
    ]
    hours = recording_hours({"path": frame("path", facts)})
    rows = boundary_losses(hours).collect()
    assert [(r["listener"], r["hour"][-2:]) for r in rows] == [(node_id("a"), "14")]


def test_what_is_missing_is_told_apart_from_what_was_named(frame: MakeFrame) -> None:
    from holdfast.pipeline.transforms.recording import nodes, recording, recording_hours

    facts = [path_fact("a", "b", n, n * 1.0) for n in (0, 1, 2, 6, 9)]
    lost = [fact("lost", "a", 0, 9.0, lost_kind="path", first=3, last=5, reason="buffer full")]
    hours = recording_hours({"path": frame("path", facts), "lost": frame("lost", lost)}).cache()
    rows = {row["kind"]: row.asDict() for row in recording(hours).collect()}
    path = rows["path"]
    assert (path["facts"], path["said_lost"], path["unexplained"], path["missing"]) == (5, 3, 2, 5)
    assert path["reasons"] == ["buffer full"]
    (node,) = nodes(hours).collect()
    assert (node["name"], node["silent_s"]) == ("a", 0.0)


def test_traffic_that_left_a_path_names_the_path_that_was_left(frame: MakeFrame) -> None:
    from holdfast.pipeline.transforms.link_moves import link_moves

    facts = [
        fact("link", "a", 0, 1.0, event="up", peer="x", path="red/red/tcp"),
        fact(
            "link", "a", 1, 2.0, event="moved", peer="x", path="blue/blue/tcp", path_before="red/red/udp",
            reason="channel 16",
        ),
        fact("link", "a", 2, 3.0, event="flow_lost", peer="x", path="red/green/tcp+probe"),
        fact("link", "a", 3, 4.0, event="moved", peer="x", path="odd", path_before=""),
    ]  # fmt: skip
    rows = link_moves(frame("link", facts)).orderBy("n").collect()
    assert [
        (r["local_adapter"], r["remote_adapter"], r["transport"], r["path_after"]) for r in rows
    ] == [
        ("red", "red", "udp", "blue/blue/tcp"),
        ("red", "green", "tcp", ""),
    ]


def history(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    from pyspark.sql.types import StructType

    from holdfast.pipeline.transforms.incidents import INCIDENT_HISTORY

    schema = StructType.fromDDL(INCIDENT_HISTORY)
    start = int(NOON.timestamp() * 1e6)
    plain: dict[str, Any] = {
        "sender": "a", "sender_adapter": "e", "listener": "b", "listener_adapter": "f", "subnet": "s",
        "transport": "udp", "hour": "2026-11-15T12", "error_class": "size", "start_us": start,
        "end_us": start + 60_000_000, "open": False, "ended_by": "repaired", "repeats": 0, "flapping": False,
        "facts": 1, "worst": 600, "size_max": 1472, "values": "", "unobserved_us": 0,
    }  # fmt: skip
    values = [
        tuple((plain | {"id": str(i)} | row)[name] for name in schema.names)  # type: ignore[attr-defined]
        for i, row in enumerate(rows)
    ]
    return spark.createDataFrame(values, schema)


def told(
    spark: SparkSession, frame: MakeFrame, rows: list[dict[str, Any]], **more: Any
) -> list[Any]:
    from holdfast.pipeline.transforms.incidents import incidents
    from holdfast.pipeline.transforms.link_moves import link_moves
    from holdfast.pipeline.transforms.path_runs import path_runs

    runs = path_runs(frame("path", more.get("runs", [])))
    moves = link_moves(frame("link", more.get("moves", [])))
    names = spark.createDataFrame([("a", "alba"), ("b", "brno")], "node string, name string")
    return incidents(history(spark, rows), runs, moves, names).orderBy("id").collect()


BACK = {"sender": "b", "sender_adapter": "f", "listener": "a", "listener_adapter": "e"}


def test_direction_needs_the_way_back_and_tolerates_a_difference_of_clocks(
    spark: SparkSession, frame: MakeFrame
) -> None:
    """Rule 11: both ways if the reverse path shows the same, one way if it was heard, otherwise unknown."""
    start = int(NOON.timestamp() * 1e6)
    later = start + 1200 * 10**6
    rows = [
        {},
        {**BACK, "start_us": start + 80 * 10**6, "end_us": start + 90 * 10**6},
        {"start_us": later, "end_us": later + 5 * 10**6},
        {"start_us": later * 2, "end_us": later * 2 + 5 * 10**6},
    ]
    found = told(spark, frame, rows, runs=[heard_back(0, 1190.0), heard_back(1, 1210.0)])
    assert [row["direction"] for row in found] == ["both ways", "both ways", "one way", "unknown"]
    assert found[2]["text"] == "UDP: packets over 600 bytes vanish from alba to brno, one way"


def heard_back(n: int, at_s: float, **values: Any) -> dict[str, Any]:
    """What the sender of the incidents of `history` heard on the way back."""
    ends = {"node": "a", "sender": "b", "sender_adapter": "f", "listener_adapter": "e"}
    return path_fact("a", "b", n, at_s) | ends | {"subnet": "s"} | values


def test_a_node_that_was_down_has_not_shown_that_only_one_direction_failed(
    spark: SparkSession, frame: MakeFrame
) -> None:
    """It heard the way back until it was killed, and again when it had restarted: not during the incident."""
    start = int(NOON.timestamp() * 1e6) + 600 * 10**6
    dead = {"error_class": "dead", "transport": "", "worst": 0, "start_us": start}
    dead["end_us"] = start + 12 * 10**6
    runs = [
        heard_back(0, 580.0),
        heard_back(1, 599.5),
        heard_back(0, 612.5, incarnation=2),
        heard_back(1, 640.0, incarnation=2),
    ]
    (found,) = told(spark, frame, [dead], runs=runs)
    assert (found["direction"], found["text"]) == ("unknown", "nothing is heard from alba to brno")
    (found,) = told(spark, frame, [dead], runs=[heard_back(0, 580.0), heard_back(1, 640.0)])
    assert found["direction"] == "one way"


def test_a_filter_of_tcp_stops_connections_in_both_directions(
    spark: SparkSession, frame: MakeFrame
) -> None:
    filtered = {"error_class": "protocol", "transport": "tcp", "worst": 0}
    runs = [heard_back(0, 20.0), heard_back(1, 90.0)]
    (found,) = told(spark, frame, [filtered], runs=runs)
    assert found["direction"] == "both ways"


def test_every_class_of_the_node_becomes_a_sentence(spark: SparkSession, frame: MakeFrame) -> None:
    rows = [
        {"error_class": "congested", "worst": 96},
        {"error_class": "delay", "worst": 286_000},
        {"error_class": "data", "worst": 0},
        {"error_class": "flapping", "transport": "", "worst": 300},
    ]
    assert [row["text"] for row in told(spark, frame, rows)] == [
        "UDP: packets are dropped above about 96 kbit/s from alba to brno",
        "UDP: packets take up to 286 ms longer than usual from alba to brno",
        "UDP: application data does not pass, cause unknown, from alba to brno",
        "nothing passes for up to 0.3 s, again and again, from alba to brno",
    ]


def test_direction_depends_on_no_other_incident_of_the_run(
    spark: SparkSession, frame: MakeFrame
) -> None:
    """Runs look at the way back in the hours in which some incident began: only its own hour may count for one."""
    start = int(NOON.timestamp() * 1e6)
    rows = [{"end_us": start + 2 * 3600 * 10**6}]
    way_back = {"sender": "b", "sender_adapter": "f", "listener_adapter": "e", "subnet": "s"}
    heard = path_fact("a", "b", 0, 3600.0 + 1800.0) | {"node": "a"} | way_back
    (later,) = told(spark, frame, rows, runs=[heard])
    assert later["direction"] == "unknown"
    (before,) = told(spark, frame, rows, runs=[heard_back(0, -20.0)])
    assert before["direction"] == "unknown", "it did not hear anything during the incident"
    (edge,) = told(spark, frame, rows, runs=[heard_back(0, 45.0)])
    assert edge["direction"] == "one way"


def test_traffic_that_left_during_an_incident_is_counted(
    spark: SparkSession, frame: MakeFrame
) -> None:
    move = lambda n, at_s, path: fact(
        "link",
        "a",
        n,
        at_s,
        node="a",
        event="moved",
        peer="b",
        path="x/y/tcp",
        path_before=path,
        reason="channel 16",
    )
    moves = [move(0, 10.0, "e/f/udp"), move(1, 20.0, "e/f/tcp"), move(2, 500.0, "e/f/udp")]
    (row,) = told(spark, frame, [{}], moves=moves)
    assert (row["moves"], row["affected"]) == (1, ["channel 16"])
    assert row["end_at"] - row["start_at"] == timedelta(seconds=60)
