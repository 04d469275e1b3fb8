"""The SQLite store of dialogs: crashes at every point, the fair lock, the time limit."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.dialog.records import BLOCK, DIALOG, STAGED, TX, number_key
from holdfast.errors import (
    MisuseError,
    StoreDamaged,
    StoreError,
    StoreFenced,
    TransactionAborted,
)
from holdfast.machine import Erase, Put
from holdfast.runtime.dialogs.stores import ThreadWorker
from holdfast.stores.dialogs.fairlock import FairLock
from holdfast.stores.dialogs.sqlite import SqliteDialogStore


def opened(directory: Path, **more: float) -> SqliteDialogStore:
    store = SqliteDialogStore(directory / "d.sqlite", os.urandom, **more)
    store.open()
    return store


def test_a_copy_taken_at_any_moment_has_whole_batches_only(tmp_path: Path) -> None:
    """Each batch has two rows with one number; a crash is a copy of the files as they are on disk."""
    store = opened(tmp_path)
    done = threading.Event()
    copies = []

    def copy() -> None:
        while not done.is_set():
            target = tmp_path / f"copy{len(copies)}"
            target.mkdir()
            # The log first: it is replayed only as far as it is complete.
            for name in ("d.sqlite-wal", "d.sqlite"):
                if (tmp_path / name).exists():
                    shutil.copy(tmp_path / name, target / name)
            copies.append(target)
            time.sleep(0.005)

    thread = threading.Thread(target=copy)
    thread.start()
    for n in range(200):
        store.commit([Put(DIALOG, b"a", b"%d" % n), Put(BLOCK, number_key(n), b"%d" % n)])
    done.set()
    thread.join()
    store.close()
    assert len(copies) > 5
    for target in copies:
        try:
            again = opened(target)
        except StoreError:
            continue  # The copy was taken while the file was made.
        rows, blocks = again.load(DIALOG), again.load(BLOCK)
        if rows:
            assert rows[0][1] == blocks[-1][1]
            assert len(blocks) == int(rows[0][1]) + 1
        again.close()


def test_every_commit_is_synced(tmp_path: Path) -> None:
    """With less, SQLite reports a commit that a power cut undoes."""
    store = opened(tmp_path)
    for db in (store._db, store._tx):
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_messages_that_leave_the_store_are_not_written_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    log = tmp_path / "d.sqlite-wal"
    store.commit([Put(BLOCK, number_key(n), bytes(60_000)) for n in range(50)])
    other = sqlite3.connect(tmp_path / "d.sqlite")
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    assert log.stat().st_size == 0
    store.commit([Erase(BLOCK, number_key(0), number_key(50))])
    assert log.stat().st_size < 300_000, "the index of free pages"
    assert store.load(BLOCK) == []
    store.close()


def test_the_log_does_not_grow_under_steady_load(tmp_path: Path) -> None:
    """It begins anew only when everything in it is in the file."""
    store = opened(tmp_path)
    body = os.urandom(64 << 10)
    log = tmp_path / "d.sqlite-wal"
    sizes = []
    for n in range(0, 48 * 20, 20):
        blocks = [Put(BLOCK, number_key(n + k), body) for k in range(20)]
        store.commit([*blocks, Erase(BLOCK, number_key(0), number_key(n))])
        sizes.append(log.stat().st_size >> 20)
    store.close()
    assert max(sizes) <= 32, "more than 100 MB were written"


CHILD = """
import os, sys
from pathlib import Path
from holdfast.dialog.records import DIALOG, BLOCK, number_key
from holdfast.machine import Erase, Put
from holdfast.stores.dialogs.sqlite import SqliteDialogStore
store = SqliteDialogStore(Path(sys.argv[1]), os.urandom)
store.open()
for n in range(100000):
    store.commit([Put(DIALOG, b"a", b"%d" % n), Put(BLOCK, number_key(n), b"x" * 500)])
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


def test_what_was_reported_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        reported = -1
        for line in child.stdout:
            reported = int(line)
            if reported >= 50 * (round_ + 1):
                break
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        reported = max([reported, *map(int, rest)])
        store = opened(tmp_path)
        (_, value), *_ = store.load(DIALOG)
        assert int(value) >= reported
        assert len(store.load(BLOCK)) >= reported + 1
        store.close()


def test_a_changed_row_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit([Put(DIALOG, b"a", b"right")])
    db = sqlite3.connect(tmp_path / "d.sqlite")
    db.execute("UPDATE holdfast_dialog SET value = CAST(x'77726f6e67' || substr(value, 6) AS BLOB)")
    db.commit()
    db.close()
    with pytest.raises(StoreDamaged, match="not what was written"):
        store.load(DIALOG)
    store.close()


def test_rule_10_the_lock_alternates_writer_and_transactions() -> None:
    lock = FairLock()
    order: list[str] = []
    lock.acquire()

    def worker(name: str, times: int) -> None:
        for _ in range(times):
            lock.acquire()
            order.append(name)
            time.sleep(0.001)
            lock.release()

    threads = [
        threading.Thread(target=worker, args=(name, 20)) for name in ("writer", "application")
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic_ns() + 10_000_000_000
    while lock.waiting < 2:
        assert time.monotonic_ns() < deadline
        time.sleep(0.001)
    lock.release()
    for thread in threads:
        thread.join()
    changes = sum(a != b for a, b in pairwise(order))
    assert changes >= 35, "neither takes it twice while the other waits"


def test_rule_10_the_lock_is_given_in_the_order_of_asking() -> None:
    lock = FairLock()
    order: list[int] = []
    lock.acquire()

    def worker(number: int) -> None:
        lock.acquire()
        order.append(number)
        lock.release()

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        while lock.waiting <= number:
            time.sleep(0)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_rule_10_a_transaction_takes_the_file_at_its_first_statement(tmp_path: Path) -> None:
    """A read that takes it only later would find that another process has written, and could not commit."""
    store = opened(tmp_path)
    transaction = store.begin()
    other = sqlite3.connect(tmp_path / "d.sqlite", timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    transaction.run(lambda db: db.execute("SELECT count(*) FROM holdfast_dialog").fetchone())
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    transaction.abort()
    other.execute("BEGIN IMMEDIATE")
    other.close()
    store.close()


def test_rule_10_waiting_for_the_lock_has_a_limit() -> None:
    lock = FairLock()
    lock.acquire()
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.01)
    lock.release()


def test_rule_10_the_time_limit_covers_reads_too(tmp_path: Path) -> None:
    """A transaction that only reads holds the file as well: a slow report would stop every acknowledgement."""
    store = opened(tmp_path, limit_s=0.2)
    transaction = store.begin()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    begin = time.monotonic_ns()
    with pytest.raises(TransactionAborted, match="rolled back"):
        transaction.run(lambda db: db.execute(endless).fetchall())
    assert time.monotonic_ns() - begin < 5_000_000_000
    store.commit([Put(DIALOG, b"a", b"1")])
    with pytest.raises(TransactionAborted):
        transaction.commit([Put(TX, b"t" * 16, b"c")], 1)
    assert store.load(TX) == []
    store.close()


def test_rule_10_a_transaction_that_idles_is_ended_too(tmp_path: Path) -> None:
    store = opened(tmp_path, limit_s=0.2)
    epoch = store.open().epoch
    transaction = store.begin()
    expired = threading.Event()
    transaction.on_expired = expired.set
    transaction.run(lambda db: db.execute("CREATE TABLE own (x)"))
    # No statement follows: the writer gets the file all the same, and the table is not there.
    store.commit([Put(DIALOG, b"a", b"1")])
    assert expired.wait(20)
    store.begin().run(lambda db: db.execute("CREATE TABLE own (y)"))
    with pytest.raises(TransactionAborted, match="rolled back"):
        transaction.run(lambda db: db.execute("INSERT INTO own VALUES (1)"))
    with pytest.raises(TransactionAborted, match="rolled back"):
        transaction.commit([Put(STAGED, b"s", b"1"), Put(TX, b"t" * 16, b"c")], epoch)
    transaction.abort()
    assert store.load(STAGED) == []
    store.close()


def test_rule_10_a_transaction_is_ended_behind_a_slow_computation(tmp_path: Path) -> None:
    """Its function returns without an error, after the time is over: nothing of it may stay."""
    store = opened(tmp_path, limit_s=0.1)
    transaction = store.begin()
    expired = threading.Event()
    transaction.on_expired = expired.set
    interrupted = threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE own (x)")
        for _ in range(20_000):
            try:
                db.execute("INSERT INTO own VALUES (1)")
            except sqlite3.Error:
                interrupted.set()  # It goes on without a word.
                return
            time.sleep(0.001)

    with pytest.raises(TransactionAborted, match="rolled back"):
        transaction.run(slow)
    assert interrupted.is_set()
    store.commit([Put(DIALOG, b"a", b"1")])
    store.begin().run(lambda db: db.execute("CREATE TABLE own (y)"))
    store.close()


def test_rule_10_a_commit_in_time_is_not_ended_by_the_timer(tmp_path: Path) -> None:
    store = opened(tmp_path, limit_s=0.05)
    epoch = store.open().epoch
    ended = []
    for n in range(30):
        transaction = store.begin()
        try:
            transaction.run(lambda db: db.execute("SELECT 1").fetchall())
            transaction.commit([Put(TX, b"%16d" % n, b"c")], epoch)
        except TransactionAborted:
            ended.append(n)  # A busy machine: it took longer than the limit.
    committed = [int(key) for key, _ in store.load(TX)]
    assert sorted({*committed, *ended}) == list(range(30))
    assert not {*committed} & {*ended}
    store.close()


def test_rule_10_the_next_transaction_begins_when_an_idle_one_is_ended(tmp_path: Path) -> None:
    """The application has forgotten it: neither committed nor aborted."""
    store = opened(tmp_path, limit_s=0.1)

    async def run() -> list[tuple[int]]:
        worker = ThreadWorker(store, durable=True)
        forgotten, next_ = await worker.begin(None), await worker.begin(None)
        await forgotten.run(lambda db: db.execute("CREATE TABLE own (x)"))
        assert forgotten.holds_file
        async with asyncio.timeout(20):
            rows = await next_.run(
                lambda db: db.execute(
                    "SELECT count(*) FROM sqlite_master WHERE name = 'own'"
                ).fetchall()
            )
        assert not forgotten.holds_file
        with pytest.raises(TransactionAborted, match="rolled back"):
            await forgotten.run(lambda db: db.execute("SELECT 1"))
        await forgotten.abort()
        await next_.abort()
        worker.close()
        return rows

    assert asyncio.run(run()) == [(0,)]
    store.close()


def test_two_processes_cannot_both_write(tmp_path: Path) -> None:
    first = opened(tmp_path)
    second = opened(tmp_path)
    with pytest.raises(StoreFenced, match="new owner"):
        first.commit([Put(DIALOG, b"a", b"1")])
    with pytest.raises(StoreFenced, match="earlier commit failed"):
        first.commit([Put(DIALOG, b"a", b"1")])
    second.commit([Put(DIALOG, b"a", b"2")])
    for store in (first, second):
        store.close()


def test_a_file_with_other_pages_is_used_as_it_is(tmp_path: Path) -> None:
    """Its log is checkpointed at the same size."""
    path = tmp_path / "store"
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 4096")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE own (text)")
    db.close()
    for name, pages in (("store", 4096), ("new", 2048)):
        store = SqliteDialogStore(tmp_path / name, os.urandom)
        store.open()
        assert store._db.execute("PRAGMA wal_autocheckpoint").fetchone() == (pages,)
        store.close()


def in_block(db: sqlite3.Connection) -> None:
    with db:
        db.execute("INSERT INTO own VALUES (2)")


@pytest.mark.parametrize(
    "act",
    [
        lambda db: db.execute("COMMIT"),
        lambda db: db.execute("END"),
        lambda db: db.execute("ROLLBACK"),
        lambda db: db.commit(),
        lambda db: db.rollback(),
        in_block,
        lambda db: db.executescript("INSERT INTO own VALUES (3)"),
    ],
    ids=["COMMIT", "END", "ROLLBACK", "commit()", "rollback()", "with db", "executescript()"],
)
def test_a_function_of_the_application_cannot_end_the_transaction(
    tmp_path: Path, act: Callable[[sqlite3.Connection], object]
) -> None:
    """Its statements would be committed without the messages, and the job would be done again."""
    store = opened(tmp_path)
    epoch = store.open().epoch
    before = store.begin()
    before.run(lambda db: db.execute("CREATE TABLE own (x)"))
    before.commit([Put(TX, b"1" * 16, b"c")], epoch)
    transaction = store.begin()
    transaction.run(lambda db: db.execute("INSERT INTO own VALUES (1)"))
    with pytest.raises(MisuseError, match="nothing is committed yet"):
        transaction.run(act)
    transaction.abort()
    after = store.begin()
    rows = after.run(lambda db: db.execute("SELECT x FROM own").fetchall())
    after.commit([Put(TX, b"2" * 16, b"c")], epoch)
    assert rows == []
    store.close()


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_transaction_that_the_database_rolled_back_commits_nothing(
    tmp_path: Path, swallowed: bool
) -> None:
    """Also when the application ignores the error. Its rows would be committed one by one."""
    store = opened(tmp_path)
    epoch = store.open().epoch
    transaction = store.begin()

    def fail(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE own (x UNIQUE)")
        db.execute("INSERT INTO own VALUES (1)")
        try:
            db.execute("INSERT OR ROLLBACK INTO own VALUES (1)")
        except sqlite3.IntegrityError:
            if not swallowed:
                raise

    if swallowed:
        transaction.run(fail)
    else:
        with pytest.raises(sqlite3.IntegrityError):
            transaction.run(fail)
    with pytest.raises(TransactionAborted, match="nothing took effect"):
        transaction.run(lambda db: db.execute("CREATE TABLE another (x)"))
    with pytest.raises(TransactionAborted, match="nothing took effect"):
        transaction.commit([Put(STAGED, b"s" * 16, b"1"), Put(TX, b"t" * 16, b"c")], epoch)
    assert store.load(STAGED) == []
    assert store.load(TX) == []
    store.commit([Put(DIALOG, b"d", b"1")])  # The file is free.
    store.close()
