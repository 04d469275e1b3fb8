"""P1, rule 7: one root snapshot, created exclusively; readers never see half a table, on any store."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import SetupError
from holdfast.pipeline.garbage import collect_garbage, discard, new_attempt
from holdfast.pipeline.reader import open_tables, read_table
from holdfast.pipeline.snapshot import (
    Part,
    PipelineBusy,
    Snapshot,
    Snapshots,
    TableDamaged,
    TableFile,
    TableMissing,
)
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import (
    AlreadyThere,
    Missing,
    Store,
    for_people,
    join,
    scheme_of,
    to_path,
    to_uri,
)
from holdfast.pipeline.storage.stores import Stores

HOUR_US = 3_600_000_000


@pytest.fixture(params=["links", "no links"])
def store(request: pytest.FixtureRequest) -> Store:
    """A file system with hard links, and a store that can only create and fill."""
    return LocalStore(links=request.param == "links")


def published(
    store: Store, root: str, number: int, value: int, now_us: int = 0, attempt: str = ""
) -> Snapshot:
    """A snapshot with one table of one row."""
    attempt = attempt or new_attempt(now_us)
    name = f"tables/t/{attempt}/part.parquet"
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [value] * 3}), content)
    data = content.getvalue().to_pybytes()
    store.create(join(root, name), data)
    file = TableFile(name, len(data), 3)
    snapshot = Snapshot(
        number=number, attempt=attempt, created_us=now_us, tables={"t": {"": Part((file,))}}
    )
    return Snapshots(store, root).publish(snapshot)


def test_creating_a_file_is_exclusive_and_leaves_nothing_else(store: Store, tmp_path: Path) -> None:
    uri = to_uri(tmp_path / "a" / "x")
    store.create(uri, b"one")
    with pytest.raises(AlreadyThere):
        store.create(uri, b"two")
    assert store.read(uri) == b"one"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x"]


def test_of_many_writers_exactly_one_creates(store: Store, tmp_path: Path) -> None:
    uri = to_uri(tmp_path / "x")
    won: list[int] = []

    def write(number: int) -> None:
        try:
            store.create(uri, b"%d" % number)
            won.append(number)
        except AlreadyThere:
            pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read(uri) == b"%d" % won[0]


def test_a_store_lists_reads_replaces_and_removes(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    store.replace(join(root, "b/c/f"), b"old")
    store.replace(join(root, "b/c/f"), b"newer")
    assert [(stat.uri, stat.size) for stat in store.files(root)] == [(join(root, "b/c/f"), 5)]
    assert store.folders(root) == ["b"]
    assert store.folders(join(root, "nowhere")) == []
    assert list(store.files(join(root, "nowhere"))) == []
    store.remove(join(root, "b"))
    store.remove(join(root, "b"))
    with pytest.raises(Missing):
        store.read(join(root, "b/c/f"))


@pytest.mark.parametrize(
    ("given", "scheme", "uri"),
    [
        ("/data/x/", "file", "file:///data/x"),
        ("file:/data/x", "file", "file:///data/x"),
        ("file:///data/with space", "file", "file:///data/with space"),
        ("s3a://bucket/key/", "s3a", "s3a://bucket/key"),
        ("hdfs://name:9000/x", "hdfs", "hdfs://name:9000/x"),
    ],
)
def test_locations_are_uris(given: str, scheme: str, uri: str) -> None:
    assert scheme_of(given) == scheme
    assert to_uri(given) == uri
    if scheme == "file":
        assert str(to_path(uri)) == for_people(uri) == uri.removeprefix("file://")


def test_a_remote_location_without_an_engine_says_so() -> None:
    with pytest.raises(SetupError, match="needs Spark's Hadoop client"):
        Stores().read("s3a://bucket/x")


def test_the_newest_whole_snapshot_counts(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    snapshots = Snapshots(store, root)
    assert snapshots.latest() is None
    published(store, root, 1, 10)
    published(store, root, 2, 20)
    assert read_table(tmp_path, "t").column("value").to_pylist() == [20] * 3
    # A writer that died while it filled the file: a store without links shows that.
    (tmp_path / "snapshots" / "00000003.json").write_bytes(b'{"sha256": "x", "snap')
    assert open_tables(tmp_path).snapshot.number == 2
    assert snapshots.next_number() == 4


def test_a_snapshot_that_was_altered_is_not_believed(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    published(store, root, 1, 10)
    path = tmp_path / "snapshots" / "00000001.json"
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":7'))
    with pytest.raises(TableDamaged, match=r"does not match its checksum.*run the pipeline again"):
        open_tables(tmp_path)


def test_a_snapshot_of_another_version_is_refused(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    Snapshots(store, root).publish(Snapshot(number=1, version=9))
    with pytest.raises(TableDamaged, match="version 9, this Holdfast reads 1"):
        open_tables(tmp_path)


def test_the_loser_of_two_runs_discards_its_work(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    published(store, root, 1, 10)
    attempt = new_attempt(0)
    with pytest.raises(PipelineBusy, match=r"another run published snapshot 1.*Run again"):
        published(store, root, 1, 99, attempt=attempt)
    discard(store, root, attempt)
    assert read_table(tmp_path, "t").column("value").to_pylist() == [10] * 3
    assert not list(tmp_path.rglob(f"*{attempt}*"))


def test_garbage_goes_by_reference_and_age(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    snapshots = Snapshots(store, root)
    for number in range(1, 16):
        published(store, root, number, number, now_us=number * HOUR_US)
    now_us = 40 * HOUR_US
    young = new_attempt(now_us - HOUR_US)
    store.create(join(root, f"tables/t/{young}/x.parquet"), b"another run is writing this")
    old = new_attempt(now_us - 20 * HOUR_US)
    store.create(join(root, f"facts/path/{old}/x.parquet"), b"a run that died")
    removed = collect_garbage(store, snapshots, now_us)
    assert removed == 4  # the tables of snapshots 1 to 3, and the dead attempt
    assert snapshots.numbers() == list(range(4, 16))
    assert (tmp_path / "tables" / "t" / young).exists()
    assert not (tmp_path / "facts" / "path" / old).exists()
    assert read_table(tmp_path, "t").column("value").to_pylist() == [15] * 3
    assert snapshots.load(4).tables["t"][""].files[0].name
    assert store.read(join(root, snapshots.load(4).tables["t"][""].files[0].name))


def test_readers_that_race_a_rewrite_see_whole_tables(store: Store, tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    published(store, root, 1, 1)
    stop = threading.Event()
    seen: list[list[int]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(read_table(tmp_path, "t").column("value").to_pylist())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 40):
        published(store, root, number, number)
    stop.set()
    reader.join()
    assert seen
    assert all(len(rows) == 3 and len(set(rows)) == 1 for rows in seen)


def test_a_table_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TableMissing, match="run `holdfast pipeline run` first"):
        read_table(tmp_path, "t")


def test_a_file_that_a_snapshot_names_and_that_is_gone_is_named(tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    snapshot = published(LocalStore(), root, 1, 1)
    (tmp_path / snapshot.tables["t"][""].files[0].name).unlink()
    with pytest.raises(TableDamaged, match="which is not there"):
        read_table(tmp_path, "t")


def test_a_file_with_another_number_of_rows_is_damaged(tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    snapshot = published(LocalStore(), root, 1, 1)
    pq.write_table(pa.table({"value": [1]}), tmp_path / snapshot.tables["t"][""].files[0].name)
    with pytest.raises(TableDamaged, match="has 1 rows, its snapshot says 3"):
        read_table(tmp_path, "t")


def test_snapshots_are_compact_and_readable() -> None:
    part = Part((TableFile("facts/path/a/unit=x/part-0.parquet", 12, 5),))
    snapshot = Snapshot(number=3, tables={"facts/path": {"2026-11-15T10": part}})
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
