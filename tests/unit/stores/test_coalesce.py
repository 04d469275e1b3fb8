"""Writes that later writes of the same commit undo: leaving them out never changes the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.dialog.records import BLOCK, DIALOG, POSITION, number_key
from holdfast.machine import Erase, Put, Write
from holdfast.stores.dialogs import MemoryDialogStore, SqliteDialogStore
from holdfast.stores.dialogs.coalesce import coalesce
from holdfast.stores.dialogs.port import DialogStore

TABLES = (BLOCK, DIALOG, POSITION)
# Keys of several lengths, so that one can be the beginning of another; few, so that writes meet.
keys = st.binary(max_size=2).map(lambda key: bytes(byte % 4 for byte in key))
tables = st.sampled_from(TABLES)
writes = st.one_of(
    st.builds(Put, tables, keys, st.binary(min_size=1, max_size=2)),
    st.builds(Erase, tables, keys, keys),
)
Rows = dict[tuple[str, bytes], bytes]


def applied(rows: Rows, batch: Sequence[Write]) -> Rows:
    """What a commit leaves, by the definition of the two writes."""
    left = dict(rows)
    for write in batch:
        if isinstance(write, Put):
            left[write.table, write.key] = write.value
        else:
            left = {
                (table, key): value
                for (table, key), value in left.items()
                if table != write.table or not write.first <= key < write.stop
            }
    return left


@settings(max_examples=100, deadline=None)
@given(st.lists(writes, max_size=6), st.lists(writes, max_size=16))
def test_leaving_out_overwritten_writes_does_not_change_the_result(
    earlier: list[Write], batch: list[Write]
) -> None:
    rows = applied({}, earlier)
    kept = coalesce(batch)
    assert applied(rows, kept) == applied(rows, batch)
    puts = [(w.table, w.key) for w in kept if isinstance(w, Put)]
    assert len(puts) == len(set(puts)), "one put for each key, for COPY"
    assert coalesce(kept) == kept


@settings(max_examples=100, deadline=None)
@given(st.lists(writes, max_size=16))
def test_blocks_may_follow_all_other_writes(batch: list[Write]) -> None:
    """The order of a large batch in PostgreSQL: COPY comes last."""
    kept = coalesce(batch)
    blocks: list[Write] = [w for w in kept if isinstance(w, Put) and w.table == BLOCK]
    rest: list[Write] = [w for w in kept if not isinstance(w, Put) or w.table != BLOCK]
    assert applied({}, [*rest, *blocks]) == applied({}, batch)


def test_a_put_after_an_erasure_of_its_key_stays() -> None:
    batch: list[Write] = [
        Put(BLOCK, b"a", b"1"),
        Erase(BLOCK, b"a", b"b"),
        Put(BLOCK, b"a", b"2"),
    ]
    assert coalesce(batch) == batch[1:]


def test_adjacent_and_nested_ranges_erase_all_between_their_ends() -> None:
    """In each order in which they come; the key at the end of the last one is not erased."""
    ranges = [(2, 4), (4, 6), (3, 5), (6, 7), (8, 9), (1, 2), (2, 7)]
    random = Random(3)
    for _ in range(50):
        random.shuffle(ranges)
        puts: list[Write] = [Put(BLOCK, number_key(n), b"x") for n in range(12)]
        erasures: list[Write] = [Erase(BLOCK, number_key(a), number_key(b)) for a, b in ranges]
        kept = [
            int.from_bytes(w.key, "big") for w in coalesce(puts + erasures) if isinstance(w, Put)
        ]
        assert kept == [0, 7, 9, 10, 11]


def test_an_erasure_always_stays_and_an_empty_one_erases_nothing() -> None:
    batch: list[Write] = [
        Put(BLOCK, b"b", b"1"),
        Erase(BLOCK, b"c", b"a"),
        Erase(BLOCK, b"b", b"b"),
        Erase(DIALOG, b"a", b"z"),
    ]
    assert coalesce(batch) == batch


def test_only_the_last_position_of_a_burst_is_written() -> None:
    """A message that arrived and was taken in one commit costs an erasure, and no write of its body."""
    batch: list[Write] = []
    for n in range(1000):
        batch += [Put(BLOCK, number_key(n), bytes(100)), Put(POSITION, b"d", number_key(n))]
        batch.append(Erase(BLOCK, number_key(n), number_key(n + 1)))
    kept = coalesce(batch)
    assert [w for w in kept if isinstance(w, Put)] == [Put(POSITION, b"d", number_key(999))]


def test_stores_hold_the_same_rows_after_coalesced_and_plain_commits(tmp_path: Path) -> None:
    stores: list[tuple[DialogStore, DialogStore]] = [
        (MemoryDialogStore(b"one"), MemoryDialogStore(b"two")),
        (
            SqliteDialogStore(tmp_path / "one.sqlite", os.urandom),
            SqliteDialogStore(tmp_path / "two.sqlite", os.urandom),
        ),
    ]
    for plain, coalesced in stores:
        plain.open()
        coalesced.open()
        random = Random(11)
        rows: Rows = {}
        for _ in range(30):
            batch = random_batch(random)
            plain.commit(batch)
            coalesced.commit(coalesce(batch))
            rows = applied(rows, batch)
        for table in TABLES:
            expected = sorted((key, value) for (t, key), value in rows.items() if t == table)
            assert coalesced.load(table) == plain.load(table) == expected
        plain.close()
        coalesced.close()


def random_batch(random: Random) -> list[Write]:
    batch: list[Write] = []
    for _ in range(random.randint(0, 40)):
        table, n = random.choice(TABLES), random.randrange(20)
        if random.random() < 0.6:
            batch.append(Put(table, number_key(n), random.randbytes(5)))
        else:
            batch.append(Erase(table, number_key(n), number_key(n + random.randrange(4))))
    return batch
