"""`holdfast pipeline audit` on published tables: violated guarantees have an exit code of their own. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.pipeline.command import app
from holdfast.pipeline.garbage import new_attempt
from holdfast.pipeline.snapshot import Part, Snapshot, Snapshots, TableFile
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import join, to_uri

LOCK = {
    "guarantee": "locks", "subject": "book/7/till", "verdict": "holds", "why": "4 comparisons", "facts": 5,
    "checked": 4, "violations": 0,
}  # fmt: skip
BROKEN = {
    "guarantee": "locks", "subject": "book/7/door", "claim": "one holder", "text": "two held it",
    "events": ["lock granted at node aa"],
}  # fmt: skip


def publish(directory: Path, **tables: list[dict[str, Any]]) -> None:
    """A snapshot with these tables."""
    store, root, attempt = LocalStore(), to_uri(directory), new_attempt(1)
    parts: dict[str, dict[str, Part]] = {}
    for name, rows in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        data = sink.getvalue().to_pybytes()
        file = f"tables/{name}/{attempt}/part.parquet"
        store.create(join(root, file), data)
        parts[name] = {"": Part((TableFile(file, len(data), len(rows)),))}
    Snapshots(store, root).publish(Snapshot(number=1, attempt=attempt, created_us=1, tables=parts))


@pytest.mark.parametrize(("word", "code"), [("holds", 0), ("not provable", 0), ("violated", 3)])
def test_the_exit_code_says_whether_a_guarantee_is_violated(
    word: str, code: int, tmp_path: Path
) -> None:
    worst = LOCK | {"subject": "book/7/door", "verdict": word, "why": "two held it"}
    publish(tmp_path, guarantee_audit=[LOCK, worst], guarantee_violations=[BROKEN])
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["audit", "--out", str(tmp_path)])
    assert result.exit_code == code
    assert f"Guarantee locks: {2 if word == 'holds' else 1} subject" in result.stdout
    assert "one holder: two held it" in result.stdout
    assert "lock granted at node aa" in result.stdout
    told = CliRunner().invoke(app, ["audit", "--out", str(tmp_path), "--json"])
    assert [row["verdict"] for row in json.loads(told.stdout)["guarantees"]] == ["holds", word]
