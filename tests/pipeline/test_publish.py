"""Readers see whole tables only, whatever happens to the writer."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import MisuseError
from holdfast.pipeline import publish as publishing
from holdfast.pipeline.publish import PipelineBusy, announce, publish, sole_writer, stage
from holdfast.pipeline.reader import (
    TableDamaged,
    TableMissing,
    read_manifest,
    read_table,
    table_dir,
)

FILES = 4
ROWS = 50


def writer(version: int) -> Callable[[Path], None]:
    """Writes a table in several files, all rows of which say `version`, and what Spark leaves beside them."""

    def write(folder: Path) -> None:
        folder.mkdir()
        for number in range(FILES):
            rows = pa.table({"version": [version] * ROWS, "row": list(range(ROWS))})
            pq.write_table(rows, folder / f"part-{number}.parquet")
        (folder / "_SUCCESS").touch()
        (folder / ".part-0.parquet.crc").touch()

    return write


def never(folder: Path) -> None:
    raise AssertionError("must not be written again")


def versions(root: Path) -> list[int]:
    return list(read_table(root, "t").column("version").to_pylist())


def test_a_published_table_is_read_whole_and_without_spark(tmp_path: Path) -> None:
    manifest = publish(tmp_path, "t", "one", writer(1))
    assert versions(tmp_path) == [1] * FILES * ROWS
    assert manifest.rows == FILES * ROWS
    assert [file.name for file in manifest.files] == [f"part-{n}.parquet" for n in range(FILES)]
    assert len(list((table_dir(tmp_path, "t") / "runs" / "one").iterdir())) == FILES


def test_publishing_the_same_run_again_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path, "t", "one", writer(1))
    manifest_file = table_dir(tmp_path, "t") / "manifest.json"
    before = (manifest_file.stat().st_ino, manifest_file.read_bytes())
    publish(tmp_path, "t", "one", never)
    assert (manifest_file.stat().st_ino, manifest_file.read_bytes()) == before


def test_a_write_that_fails_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    publish(tmp_path, "t", "one", writer(1))

    def fail(folder: Path) -> None:
        writer(2)(folder)
        (folder / "part-2.parquet").write_bytes(b"torn")

    with pytest.raises(pa.ArrowInvalid):
        publish(tmp_path, "t", "two", fail)
    assert versions(tmp_path) == [1] * FILES * ROWS
    assert [path.name for path in (table_dir(tmp_path, "t") / "runs").iterdir()] == ["one"]


def test_a_run_that_was_staged_before_a_crash_is_announced_without_being_made_again(
    tmp_path: Path,
) -> None:
    publish(tmp_path, "t", "one", writer(1))
    stage(tmp_path, "t", "two", writer(2))
    assert versions(tmp_path)[0] == 1
    publish(tmp_path, "t", "two", never)
    assert versions(tmp_path)[0] == 2


def test_a_crash_in_the_middle_of_a_write_leaves_nothing_that_a_later_run_takes_for_whole(
    tmp_path: Path,
) -> None:
    writer(1)(_made(table_dir(tmp_path, "t") / "runs") / ".draft-one")
    publish(tmp_path, "t", "one", writer(2))
    assert versions(tmp_path)[0] == 2
    assert [path.name for path in (table_dir(tmp_path, "t") / "runs").iterdir()] == ["one"]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_old_runs_are_removed_but_the_last_few_stay_for_readers(tmp_path: Path) -> None:
    for version in range(6):
        publish(tmp_path, "t", f"run-{version}", writer(version))
    kept = sorted(path.name for path in (table_dir(tmp_path, "t") / "runs").iterdir())
    assert kept == ["run-3", "run-4", "run-5"]


def test_going_back_to_an_earlier_run_needs_no_work(tmp_path: Path) -> None:
    publish(tmp_path, "t", "one", writer(1))
    publish(tmp_path, "t", "two", writer(2))
    manifest = publish(tmp_path, "t", "one", never)
    assert versions(tmp_path)[0] == 1
    assert manifest.previous == ("two",)


def test_readers_beside_a_busy_writer_never_see_half_a_table(tmp_path: Path) -> None:
    publish(tmp_path, "t", "run-0", writer(0))
    done = threading.Event()
    seen: list[set[int]] = [set(), set()]
    wrong: list[object] = []

    def read(place: int) -> None:
        latest = 0
        while True:
            last = done.is_set()
            try:
                rows = versions(tmp_path)
            except Exception as error:  # noqa: BLE001 - whatever a reader sees is what this test is about
                wrong.append(error)
                return
            if len(rows) != FILES * ROWS or len(set(rows)) != 1 or rows[0] < latest:
                wrong.append(rows)
            latest = rows[0]
            seen[place].add(latest)
            if last:
                return

    readers = [threading.Thread(target=read, args=(place,)) for place in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 60):
        publish(tmp_path, "t", f"run-{version}", writer(version))
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert all(59 in versions_seen for versions_seen in seen)


def test_a_reader_whose_run_was_removed_starts_over_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, "t", "run-0", writer(0))
    opened = pq.ParquetFile
    slow = iter([True])

    def slow_reader(path: Path) -> pq.ParquetFile:
        if next(slow, False):
            for version in range(1, 5):
                publish(tmp_path, "t", f"run-{version}", writer(version))
        return opened(path)

    monkeypatch.setattr(pq, "ParquetFile", slow_reader)
    assert versions(tmp_path) == [4] * FILES * ROWS


def test_a_table_that_was_never_published_is_missing(tmp_path: Path) -> None:
    assert read_manifest(tmp_path, "t") is None
    with pytest.raises(TableMissing, match="holdfast pipeline run"):
        read_table(tmp_path, "t")


def test_a_table_whose_files_somebody_removed_is_damaged_and_not_short(tmp_path: Path) -> None:
    publish(tmp_path, "t", "one", writer(1))
    (table_dir(tmp_path, "t") / "runs" / "one" / "part-3.parquet").unlink()
    with pytest.raises(TableDamaged, match="names files that are not in"):
        read_table(tmp_path, "t")


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "t", "one", writer(1))
    path = table_dir(tmp_path, "t") / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(TableDamaged, match="version 9"):
        read_table(tmp_path, "t")


def test_a_run_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no Parquet file"):
        publish(tmp_path, "t", "one", lambda folder: folder.mkdir())
    assert read_manifest(tmp_path, "t") is None


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", ".hidden", "x" * 101])
def test_a_run_id_that_is_no_plain_name_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(MisuseError, match="no name for a run"):
        publish(tmp_path, "t", run, never)


def test_two_runs_never_write_to_one_directory_at_a_time(tmp_path: Path) -> None:
    with (
        sole_writer(tmp_path),
        pytest.raises(PipelineBusy, match="another run"),
        sole_writer(tmp_path),
    ):
        pass
    with sole_writer(tmp_path):
        pass


def test_the_manifest_is_durable_before_old_runs_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after the manifest was written must not leave it naming a run that is gone."""
    publish(tmp_path, "t", "one", writer(1))
    stage(tmp_path, "t", "two", writer(2))
    order: list[str] = []
    monkeypatch.setattr(publishing, "_sync", lambda path: order.append(f"sync {path.name}"))
    monkeypatch.setattr(publishing, "_remove_old", lambda runs, kept: order.append("remove"))
    announce(tmp_path, "t", "two")
    assert order == ["sync t", "remove"]


def test_reading_loads_no_spark() -> None:
    code = "import sys, holdfast.pipeline.reader; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
