"""What every store must do. To add one: subclass `StoreSuite`, or `DurableSuite` if it outlives the process.

A `DurableSuite` also says in `child` how another process opens the same store: that process is killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import StoreDamaged, StoreError, StoreFull, StoreLocked
from holdfast.machine import Erase, Put, Write
from holdfast.stores import MemoryStore, SqliteStore, Store, sqlite
from holdfast.stores.memory import Tables
from holdfast.stores.sqlite import APPLICATION_ID, FILE, PAGE_BYTES, SCHEMA

keys = st.binary(max_size=3)
writes = st.one_of(
    st.builds(Put, st.sampled_from(["t", "u"]), keys, st.binary(max_size=5)),
    st.builds(Erase, st.sampled_from(["t", "u"]), keys, keys),
)


class Model:
    """Tables as plain dictionaries."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], bytes] = {}

    def commit(self, batch: list[Write]) -> None:
        for write in batch:
            if isinstance(write, Put):
                self.rows[write.table, write.key] = write.value
            else:
                for table, key in list(self.rows):
                    if table == write.table and write.first <= key < write.stop:
                        del self.rows[table, key]

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for (name, key), value in self.rows.items() if name == table)


def filled(store: Store, commits_max: int, size: int) -> int:
    """Commit one row after the other until the store is full; gives how many it took."""
    for done in range(commits_max):
        try:
            store.commit([Put("t", done.to_bytes(4, "big"), bytes(size))])
        except StoreFull:
            return done
    pytest.fail(f"{commits_max} commits of {size} bytes did not fill the store")


class StoreSuite:
    """Holds for every store. `room` is what `open_small` leaves for rows, roughly."""

    room = 100_000

    def open(self, directory: Path) -> Store:
        raise NotImplementedError

    def open_small(self, directory: Path) -> Store:
        """A store that becomes full after about `room` bytes."""
        raise NotImplementedError

    def reopen(self, store: Store, directory: Path) -> Store:
        store.close()
        return self.open(directory)

    def test_a_new_store_is_empty(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        assert store.load("t") == []
        store.close()

    def test_rows_come_back_sorted_by_key_as_bytes(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        unsorted = [b"b", b"", b"a\xff", b"\xff", b"a", b"a\x00", b"\x00"]
        store.commit([Put("t", key, b"v" + key) for key in unsorted])
        assert store.load("t") == [(key, b"v" + key) for key in sorted(unsorted)]
        store.close()

    def test_a_range_of_keys_can_be_read_and_is_cut_at_a_limit(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        keys = [b"", b"a", b"a\x00", b"b", b"\xff"]
        store.commit([Put("t", key, b"v" + key) for key in keys])

        def read(*which: object) -> list[bytes]:
            return [key for key, _ in store.load("t", *which)]  # type: ignore[arg-type]

        assert read(b"a") == [b"a", b"a\x00", b"b", b"\xff"]
        assert read(b"a", b"b") == [b"a", b"a\x00"]
        assert read(b"", b"a\x00") == [b"", b"a"]
        assert read(b"a", b"", 2) == [b"a", b"a\x00"]
        assert read(b"", b"", 1) == [b""]
        assert read(b"c", b"d") == []
        store.close()

    def test_tables_do_not_mix(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"k", b"1"), Put("T", b"k", b"2"), Erase("u", b"", b"z")])
        assert store.load("t") == [(b"k", b"1")]
        assert store.load("T") == [(b"k", b"2")]
        store.close()

    def test_a_put_replaces(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"k", b"1"), Put("t", b"k", b"2")])
        store.commit([Put("t", b"k", b"3")])
        assert store.load("t") == [(b"k", b"3")]
        store.close()

    def test_an_erase_removes_the_first_key_and_not_the_stop(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", bytes([n]), b"") for n in range(6)])
        store.commit([Erase("t", bytes([2]), bytes([4]))])
        assert [key[0] for key, _ in store.load("t")] == [0, 1, 4, 5]
        store.close()

    @pytest.mark.parametrize(("first", "stop"), [(b"\x04", b"\x02"), (b"\x03", b"\x03")])
    def test_an_empty_range_erases_nothing(self, tmp_path: Path, first: bytes, stop: bytes) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", bytes([n]), b"") for n in range(6)])
        store.commit([Erase("t", first, stop)])
        assert len(store.load("t")) == 6
        store.close()

    def test_writes_of_one_commit_take_effect_in_order(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"a", b"1"), Erase("t", b"", b"z"), Put("t", b"b", b"2")])
        assert store.load("t") == [(b"b", b"2")]
        store.close()

    def test_a_commit_of_nothing_is_fine(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"a", b"1")])
        store.commit([])
        assert store.load("t") == [(b"a", b"1")]
        store.close()

    def test_views_are_copied(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        packet = bytearray(b"payload")
        store.commit([Put("t", b"k", memoryview(packet))])  # type: ignore[arg-type]  # links keep views
        packet[:] = b"another"
        assert store.load("t") == [(b"k", b"payload")]
        store.close()

    def test_large_values_and_long_keys_come_back(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        rows = [(b"k" * 900, b"x" * 3_000_000), (b"l" * 900, b"")]
        store.commit([Put("t", key, value) for key, value in rows])
        store = self.reopen(store, tmp_path)
        assert store.load("t") == rows
        store.close()

    def test_what_was_committed_is_there_after_opening_again(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"a", b"1"), Put("t", b"b", b"2")])
        store.commit([Erase("t", b"a", b"b")])
        store = self.reopen(store, tmp_path)
        assert store.load("t") == [(b"b", b"2")]
        store.close()

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.commit([Put("t", b"k", b"v")])
        with pytest.raises(StoreError, match="closed"):
            store.load("t")

    def test_a_full_store_makes_no_part_of_the_commit_and_then_takes_no_more(
        self, tmp_path: Path
    ) -> None:
        store = self.open_small(tmp_path)
        store.commit([Put("t", b"safe", b"v")])
        large = Put("t", b"large", b"x" * (2 * self.room))
        with pytest.raises(StoreFull) as first:
            store.commit([Put("t", b"a", b"v"), Erase("t", b"s", b"t"), large])
        with pytest.raises(StoreFull) as second:
            store.commit([Put("t", b"small", b"v")])
        assert str(first.value) in str(second.value)
        assert store.load("t") == [(b"safe", b"v")]
        store = self.reopen(store, tmp_path)
        assert store.load("t") == [(b"safe", b"v")]
        store.commit([Put("t", b"small", b"v")])
        store.close()

    def test_a_store_that_fills_up_slowly_keeps_what_it_reported(self, tmp_path: Path) -> None:
        store = self.open_small(tmp_path)
        done = filled(store, commits_max=10 * self.room // 1000, size=1000)
        store = self.reopen(store, tmp_path)
        assert [key for key, _ in store.load("t")] == [n.to_bytes(4, "big") for n in range(done)]
        store.close()

    @settings(
        derandomize=True,
        deadline=None,
        max_examples=40,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(batches=st.lists(st.lists(writes, max_size=8), max_size=6), again=st.booleans())
    def test_a_store_does_what_a_dictionary_does(
        self,
        batches: list[list[Write]],
        again: bool,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        directory = tmp_path_factory.mktemp("store")
        store, model = self.open(directory), Model()
        for batch in batches:
            store.commit(batch)
            model.commit(batch)
        if again:
            store = self.reopen(store, directory)
        for table in ("t", "u"):
            assert store.load(table) == model.load(table)
        store.close()


# -- stores that outlive the process -----------------------------------------------------------------------------

COMMITS_MAX = 100_000
PARTS = 7

WRITER = f"""
from holdfast.machine import Erase, Put
from pathlib import Path
import sys
{{child}}
for n in range(1, {COMMITS_MAX}):
    key = n.to_bytes(4, "big")
    store.commit(
        [Put("log", key + bytes([part]), bytes(500)) for part in range({PARTS})]
        + [Put("meta", b"n", key), Erase("log", b"", max(0, n - 2).to_bytes(4, "big"))]
    )
    print(n, flush=True)
"""

OPENER = """
from pathlib import Path
import sys
try:
    {child}
    print("opened")
except Exception as error:
    print(type(error).__name__)
"""

HOLDER = (
    OPENER
    + """
sys.stdout.flush()
sys.stdin.read()
"""
)


class DurableSuite(StoreSuite):
    child: str
    """Code that opens the store in `sys.argv[1]` as `store`, in one line."""

    def process(self, code: str, directory: Path) -> subprocess.Popen[str]:
        code = code.format(child=self.child)
        return subprocess.Popen(
            [sys.executable, "-c", code, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @pytest.mark.parametrize("reports", [0, 1, 40, 171])
    def test_a_killed_process_leaves_whole_commits_and_all_that_it_reported(
        self, tmp_path: Path, reports: int
    ) -> None:
        process = self.process(WRITER, tmp_path)
        assert process.stdout is not None
        for _ in range(reports):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        reported = [int(line) for line in process.stdout.read().split("\n")[:-1]]
        process.communicate()

        store = self.open(tmp_path)
        meta, log = dict(store.load("meta")), [key for key, _ in store.load("log")]
        last = int.from_bytes(meta.get(b"n", b""), "big")
        assert last >= max(reported, default=reports)
        kept = range(max(1, last - 2), last + 1) if last else range(0)
        assert log == [n.to_bytes(4, "big") + bytes([p]) for n in kept for p in range(PARTS)]
        store.commit([Put("meta", b"n", b"again")])
        store.close()

    def test_a_second_process_is_told_that_the_store_is_in_use(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        store.commit([Put("t", b"k", b"v")])
        assert self.process(OPENER, tmp_path).communicate()[0] == "StoreLocked\n"
        store.commit([Put("t", b"l", b"v")])
        store.close()
        assert self.process(OPENER, tmp_path).communicate()[0] == "opened\n"

    def test_of_several_processes_that_start_together_one_gets_the_store(
        self, tmp_path: Path
    ) -> None:
        processes = [self.process(HOLDER, tmp_path) for _ in range(3)]
        said = []
        for process in processes:
            assert process.stdout is not None
            said.append(process.stdout.readline())
        for process in processes:
            process.communicate()
        assert sorted(said) == ["StoreLocked\n", "StoreLocked\n", "opened\n"]

    def test_a_second_opener_in_the_same_process_is_told_too(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        with pytest.raises(StoreLocked, match="in use"):
            self.open(tmp_path)
        store.commit([Put("t", b"k", b"v")])
        store.close()


# -- the stores there are ----------------------------------------------------------------------------------------


class TestMemory(StoreSuite):
    def open(self, directory: Path) -> Store:
        return MemoryStore()

    def open_small(self, directory: Path) -> Store:
        return MemoryStore(max_bytes=self.room)

    def reopen(self, store: Store, directory: Path) -> Store:
        assert isinstance(store, MemoryStore)
        store.close()
        return MemoryStore(store.tables)

    def test_a_row_is_counted_once_however_often_it_changes(self) -> None:
        tables = Tables()
        store = MemoryStore(tables)
        for size in (10, 3, 20):
            store.commit([Put("t", b"key", bytes(size))])
        assert tables.size == 23
        store.commit([Erase("t", b"key", b"kez")])
        assert tables.size == 0


class TestSqlite(DurableSuite):
    child = "from holdfast.stores import SqliteStore; store = SqliteStore(Path(sys.argv[1]))"

    def open(self, directory: Path) -> Store:
        return SqliteStore(directory)

    def open_small(self, directory: Path) -> Store:
        return SqliteStore(directory, max_bytes=self.room)

    def test_commits_are_synced_to_a_write_ahead_log(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        settings_ = {
            name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "locking_mode", "user_version")
        }
        store.close()
        full = 2
        assert settings_ == {
            "journal_mode": "wal",
            "synchronous": full,
            "locking_mode": "exclusive",
            "user_version": SCHEMA,
        }

    def test_the_directory_is_made(self, tmp_path: Path) -> None:
        SqliteStore(tmp_path / "a" / "b").close()
        assert (tmp_path / "a" / "b" / FILE).exists()

    def test_a_directory_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreError, match="data directory"):
            SqliteStore(tmp_path / "file" / "data")

    def test_a_directory_that_cannot_be_synced_is_named_and_the_file_given_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as broken:
            broken.setattr(sqlite, "sync_directory", refuse)
            with pytest.raises(StoreError, match=r"node\.sqlite: .*cannot be synced") as kept:
                SqliteStore(tmp_path)
        SqliteStore(tmp_path).close()
        assert isinstance(kept.value.__cause__, OSError)

    def test_a_file_that_is_no_database_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"not a database" * 1000)
        with pytest.raises(StoreDamaged, match="not a store"):
            SqliteStore(tmp_path)
        assert (tmp_path / FILE).read_bytes() == b"not a database" * 1000

    def test_another_programs_database_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        with opened(tmp_path) as db:
            db.execute("CREATE TABLE theirs (x)")
        before = (tmp_path / FILE).read_bytes()
        with pytest.raises(StoreDamaged, match="another program"):
            SqliteStore(tmp_path)
        assert (tmp_path / FILE).read_bytes() == before

    def test_a_newer_schema_is_refused_and_named(self, tmp_path: Path) -> None:
        SqliteStore(tmp_path).close()
        with opened(tmp_path) as db:
            db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        with pytest.raises(
            StoreError, match=f"newer version of Holdfast .schema {SCHEMA + 1}"
        ) as error:
            SqliteStore(tmp_path)
        assert not isinstance(error.value, StoreDamaged)

    def test_an_older_schema_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        """Schema 1 has no checksums: its rows would all look damaged."""
        SqliteStore(tmp_path).close()
        with opened(tmp_path) as db:
            db.execute("PRAGMA user_version = 1")
        before = (tmp_path / FILE).read_bytes()
        with pytest.raises(
            StoreError, match=r"earlier version of Holdfast .schema 1.* empty store"
        ) as error:
            SqliteStore(tmp_path)
        assert not isinstance(error.value, StoreDamaged)
        assert (tmp_path / FILE).read_bytes() == before

    def test_a_flipped_bit_on_disk_is_detected_when_the_row_is_read(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        store.commit([Put("pay", b"1", b"PAY 100 to Ann"), Put("other", b"1", b"fine")])
        store.close()
        data = bytearray((tmp_path / FILE).read_bytes())
        assert data.count(b"PAY 100") == 1
        data[data.find(b"PAY 100") + 4] ^= 8
        (tmp_path / FILE).write_bytes(data)
        store = SqliteStore(tmp_path)
        assert store.load("other") == [(b"1", b"fine")]
        with pytest.raises(StoreDamaged, match=r"node\.sqlite is damaged.*table pay.* key 31"):
            store.load("pay")
        store.close()

    @pytest.mark.parametrize(
        "change",
        [
            "SET key = x'32' WHERE key = x'31'",
            "SET tbl = 'u'",
            "SET value = x'00'",
            "SET value = x''",
            "SET value = 7",
            "SET key = 'text'",
        ],
    )
    def test_a_row_in_the_place_of_another_or_cut_short_is_damaged(
        self, tmp_path: Path, change: str
    ) -> None:
        store = SqliteStore(tmp_path)
        store.commit([Put("t", b"1", b"value")])
        store.close()
        with opened(tmp_path) as db:
            db.execute(f"UPDATE kv {change}")
        store = SqliteStore(tmp_path)
        with pytest.raises(StoreDamaged, match="has a wrong checksum"):
            store.load("u" if "tbl" in change else "t")
        store.close()

    def test_a_file_that_a_crash_left_empty_is_a_new_store(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"")
        SqliteStore(tmp_path).close()
        with opened(tmp_path) as db:
            assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)

    @pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
    def test_a_damaged_file_is_refused(self, tmp_path: Path, damage: str) -> None:
        store = SqliteStore(tmp_path)
        store.commit([Put("t", n.to_bytes(4, "big"), bytes(100)) for n in range(2000)])
        store.close()
        data = bytearray((tmp_path / FILE).read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "zeros":
            data[3 * PAGE_BYTES : 5 * PAGE_BYTES] = bytes(2 * PAGE_BYTES)
        else:
            data[3 * PAGE_BYTES : 4 * PAGE_BYTES] = bytes(n * 7 % 256 for n in range(PAGE_BYTES))
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises(StoreDamaged, match="restore a copy"):
            SqliteStore(tmp_path)

    @pytest.mark.parametrize("size", [100, 1000, 3900])
    def test_messages_of_up_to_four_kilobytes_take_little_more_than_their_size(
        self, tmp_path: Path, size: int
    ) -> None:
        store = SqliteStore(tmp_path)
        store.commit([Put("log", n.to_bytes(8, "big"), os.urandom(size)) for n in range(2000)])
        store.close()
        assert (tmp_path / FILE).stat().st_size < 2000 * (size + 50) * 1.15

    @pytest.mark.parametrize("gone", ["directory", FILE, f"{FILE}-wal", "moved", "replaced"])
    def test_a_commit_to_a_file_that_was_unlinked_fails(self, tmp_path: Path, gone: str) -> None:
        home = tmp_path / "data"
        store = SqliteStore(home)
        store.commit([Put("t", b"k", b"v")])
        if gone == "directory":
            shutil.rmtree(home)
        elif gone == "moved":
            home.rename(tmp_path / "elsewhere")
        elif gone == "replaced":
            (home / FILE).rename(home / "old")
            (home / FILE).write_bytes((home / "old").read_bytes())
        else:
            (home / gone).unlink()
        for _ in range(2):
            with pytest.raises(StoreError, match="removed, moved or replaced"):
                store.commit([Put("t", b"l", b"w")])
        store.close()

    def test_a_store_that_is_opened_again_and_much_used_is_still_there(
        self, tmp_path: Path
    ) -> None:
        """Checkpoints begin the write-ahead log anew; it stays the same file."""
        for life in range(3):
            store = SqliteStore(tmp_path)
            for number in range(200):
                store.commit([Put("t", bytes([life, number]), bytes(50_000))])
            store.close()
        store = SqliteStore(tmp_path)
        assert len(store.load("t")) == 600
        store.close()

    def test_a_message_says_what_to_do(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(StoreLocked, match=r"nothing was changed; stop .* data directory"):
            SqliteStore(tmp_path)
        store.close()
        store = SqliteStore(tmp_path, max_bytes=50_000)
        with pytest.raises(StoreFull, match=r"not made.* is safe; free some disk space"):
            store.commit([Put("t", b"k", bytes(100_000))])
        store.close()

    def test_a_write_of_an_unknown_kind_takes_no_part_of_the_commit(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(KeyError):
            store.commit([Put("t", b"k", b"v"), "nonsense"])  # type: ignore[list-item]  # on purpose
        assert store.load("t") == []
        with pytest.raises(StoreError, match="interrupted"):
            store.commit([Put("t", b"k", b"v")])
        store.close()

    def test_a_write_that_the_database_refuses_takes_no_part_of_the_commit(
        self, tmp_path: Path
    ) -> None:
        store = SqliteStore(tmp_path)
        store._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50)
        with pytest.raises(StoreError, match="too big"):
            store.commit([Put("t", b"k", b"v"), Put("t", b"l", bytes(100))])
        assert store.load("t") == []
        store.close()

    @pytest.mark.root
    def test_a_disk_that_is_full_fails_the_commit_and_keeps_what_was_reported(
        self, tmp_path: Path
    ) -> None:
        with small_disk(tmp_path, kilobytes=400):
            store = SqliteStore(tmp_path)
            done = filled(store, commits_max=1000, size=5000)
            store.close()
            store = SqliteStore(tmp_path)
            assert len(store.load("t")) == done
            store.close()


@contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(directory / FILE)
    try:
        with db:
            yield db
    finally:
        db.close()


@contextmanager
def small_disk(directory: Path, kilobytes: int) -> Iterator[None]:
    """A file system with next to no room, for as long as the test needs it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)
