"""The baseline of `holdfast bench dialog` stores each message at both ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.bench import dialog_bare
from holdfast.bench.dialog_bare import bare_rate
from holdfast.bench.dialog_speed import source_of
from holdfast.bench.dialog_tables import MemoryTable, open_table

BODY = b"x" * 100


def test_a_commit_inserts_a_batch_and_deletes_what_was_acknowledged(tmp_path: Path) -> None:
    table = open_table("sqlite", str(tmp_path), "near")
    table.commit([(0, BODY), (1, BODY)], 0)
    table.commit([(2, BODY), (3, BODY)], 2)
    db = sqlite3.connect(tmp_path / "near")
    assert db.execute("SELECT n FROM m ORDER BY n").fetchall() == [(2,), (3,)]
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
    table.close()


@pytest.mark.parametrize("kind", ["memory", "express", "sqlite"])
def test_every_message_is_stored_and_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stored: list[int] = []

    class Counting:
        def __init__(self, table: Any) -> None:
            self._table = table

        def commit(self, rows: Any, below: int) -> None:
            stored.extend(number for number, _ in rows)
            self._table.commit(rows, below)

        def close(self) -> None:
            self._table.close()

    monkeypatch.setattr(dialog_bare, "open_table", lambda *where: Counting(open_table(*where)))
    with source_of(kind, "") as source:
        assert bare_rate(kind, source or str(tmp_path), 100, 3000, batch=100) > 0
    assert stored == list(range(3000))


def test_the_rows_of_a_memory_table_go_when_they_are_acknowledged() -> None:
    table = MemoryTable()
    table.commit([(0, BODY), (1, BODY)], 0)
    table.commit([(2, BODY)], 2)
    assert len(table) == 1
