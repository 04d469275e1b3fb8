"""U4, P10: the results that the page of a node shows are those of the newest published snapshot."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.pipeline.making import NOON, node_id
from tests.pipeline.published import fault, group_verdict, incident, publish, violation

from holdfast.pipeline import results as module
from holdfast.pipeline.results import INCIDENTS_MAX, PublishedResults

HOUR = timedelta(hours=1)
NOON_US = int(NOON.timestamp() * 1_000_000)


def test_incidents_causes_and_verdicts_are_those_of_the_tables(tmp_path: Path) -> None:
    publish(
        tmp_path,
        NOON_US,
        {
            "nodes": [{"node": node_id("alba"), "name": "alba"}],
            "incidents": [
                incident("old", NOON, NOON + HOUR),
                incident("open since noon", NOON),
                incident("new", NOON + 2 * HOUR, NOON + 3 * HOUR),
            ],
            "located_faults": [
                fault("node", "cork", NOON, NOON),
                fault("node", node_id("alba"), NOON, NOON + HOUR),
            ],
            "delivery_audit": [
                group_verdict("orders", "holds", "all replicas agree"),
                group_verdict("stock", "violated", "1 violation"),
            ],
            "delivery_violations": [violation("agreement", "two contents", "brno", "cork")],
            "guarantee_audit": [
                {"guarantee": "locks", "verdict": word, "why": f"{word} {n}"}
                for n, word in enumerate(("holds", "holds", "not provable"))
            ],
        },
    )
    found = PublishedResults(tmp_path).read()
    assert (found["source"], found["problem"], found["snapshot"]) == (str(tmp_path), "", 1)
    assert found["made_at"] == "2026-11-15T12:00:00+00:00"
    texts = [row["text"] for row in found["incidents"]]
    assert texts == ["open since noon", "new", "old"], "open ones first, then the newest"
    assert found["incidents"][0]["end_at"] is None
    assert found["incidents"][1]["end_at"] == "2026-11-15T15:00:00+00:00"
    assert [row["text"] for row in found["faults"]] == [
        "node alba (size), since 2026-11-15 12:00, confidence 0.99",
        "node cork (size), since 2026-11-15 12:00, confidence 0.99",
    ]
    assert [(row["subject"], row["verdict"], row["why"]) for row in found["verdicts"]] == [
        ("group stock", "violated", "1 violation; 50% of 80 entries compared"),
        ("locks (1)", "not provable", "for example: not provable 2"),
        ("group orders", "holds", "all replicas agree; 50% of 80 entries compared"),
        ("locks (2)", "holds", "for example: holds 0"),
    ]
    assert found["violations"] == [{"text": "agreement: two contents", "events": ["brno", "cork"]}]


def test_tables_are_read_once_per_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, NOON_US, {"incidents": [incident("one", NOON)]})
    made: list[int] = []
    genuine = module.results
    monkeypatch.setattr(
        module, "results", lambda tables: made.append(tables.snapshot.number) or genuine(tables)
    )
    reader = PublishedResults(tmp_path)
    assert reader.read() is reader.read()
    publish(tmp_path, NOON_US + 1, {"incidents": [incident("two", NOON)]})
    assert [row["text"] for row in reader.read()["incidents"]] == ["two"]
    assert made == [1, 2]


def test_only_so_many_incidents_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    many = [incident(str(n), NOON + n * HOUR, NOON + n * HOUR) for n in range(INCIDENTS_MAX + 7)]
    publish(tmp_path, NOON_US, {"incidents": many})
    found = PublishedResults(tmp_path).read()
    assert len(found["incidents"]) == INCIDENTS_MAX
    assert found["incidents"][0]["text"] == str(INCIDENTS_MAX + 6)
    assert found["incidents_left_out"] == 7


def test_a_directory_without_readable_tables_is_a_problem_in_words(tmp_path: Path) -> None:
    reader = PublishedResults(tmp_path / "nothing")
    assert "run `holdfast pipeline run` first" in reader.read()["problem"]
    snapshot = publish(tmp_path, NOON_US, {"incidents": [incident("one", NOON)]})
    [file] = snapshot.tables["incidents"][""].files
    (tmp_path / file.name).write_bytes(b"torn")
    reader = PublishedResults(tmp_path)
    assert "is not readable" in reader.read()["problem"]
    (tmp_path / file.name).unlink()
    assert "part.parquet" in reader.read()["problem"]
    publish(tmp_path, NOON_US + 1, {"incidents": [incident("two", NOON)]})
    assert reader.read()["problem"] == "", "it recovers with the next snapshot"


def test_a_node_reads_results_without_spark(tmp_path: Path) -> None:
    publish(tmp_path, NOON_US, {"incidents": [incident("one", NOON)]})
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = sys.modules['matplotlib'] = None\n"
        "from holdfast.pipeline.results import PublishedResults\n"
        f"assert PublishedResults({str(tmp_path)!r}).read()['snapshot'] == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
