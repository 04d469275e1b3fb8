"""A node's id is made once; its incarnation grows with every start and is durable before anybody sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.errors import MisuseError, StoreDamaged, StoreFull
from holdfast.machine import Put, Write
from holdfast.stores import Identity, MemoryStore, SqliteStore, open_identity
from holdfast.stores.identity import TABLE
from holdfast.stores.memory import Tables
from holdfast.types import NodeId

ID = NodeId(bytes(range(16)))


def never() -> bytes:
    raise AssertionError("the id was made already")


def test_the_first_start_makes_an_id() -> None:
    assert open_identity(MemoryStore(), lambda: ID) == Identity(ID, 1)


def test_every_start_is_a_new_incarnation_of_the_same_node() -> None:
    tables = Tables()
    open_identity(MemoryStore(tables), lambda: ID)
    starts = [open_identity(MemoryStore(tables), never) for _ in range(300)]
    assert starts == [Identity(ID, n) for n in range(2, 302)]


def test_the_incarnation_is_durable_before_it_is_told(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        store = SqliteStore(tmp_path)
        assert open_identity(store, lambda: ID) == Identity(ID, n)
        store.close()


def test_an_incarnation_that_cannot_be_written_is_not_used() -> None:
    tables = Tables()
    with pytest.raises(StoreFull):
        open_identity(MemoryStore(tables, max_bytes=10), lambda: ID)
    assert open_identity(MemoryStore(tables), lambda: ID) == Identity(ID, 1)


def test_id_and_incarnation_are_one_commit() -> None:
    commits: list[Sequence[Write]] = []

    class Watched(MemoryStore):
        def commit(self, writes: Sequence[Write]) -> None:
            commits.append(writes)
            super().commit(writes)

    open_identity(Watched(), lambda: ID)
    assert len(commits) == 1


@pytest.mark.parametrize("made", [b"", bytes(15), bytes(17)])
def test_an_id_of_another_length_is_refused_and_nothing_written(made: bytes) -> None:
    store = MemoryStore()
    with pytest.raises(MisuseError, match=f"returned {len(made)}"):
        open_identity(store, lambda: made)
    assert store.load(TABLE) == []


@pytest.mark.parametrize(
    "rows",
    [
        [Put(TABLE, b"node", ID)],
        [Put(TABLE, b"incarnation", bytes(8))],
        [Put(TABLE, b"node", ID), Put(TABLE, b"incarnation", bytes(7))],
        [Put(TABLE, b"node", ID[1:]), Put(TABLE, b"incarnation", bytes(8))],
    ],
)
def test_a_damaged_identity_is_never_replaced_by_a_new_one(rows: list[Write]) -> None:
    store = MemoryStore()
    store.commit(rows)
    before = store.load(TABLE)
    with pytest.raises(StoreDamaged, match="nothing was written"):
        open_identity(store, lambda: ID)
    assert store.load(TABLE) == before
