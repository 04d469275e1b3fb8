"""P1: damaged and unknown segments are set aside with the reason; nothing else is, and nothing is deleted."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.making import fact, path_fact, table_of, write_segment

from holdfast.pipeline.quarantine import Gone, Passed, Unfit, check, set_aside
from holdfast.pipeline.sources import Segment, list_segments


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """A good segment of three facts about one path."""
    write_segment(tmp_path / "landing", "path", [path_fact("a", "b", n, n) for n in range(3)])
    return _only(tmp_path)


def _only(tmp_path: Path) -> Segment:
    (found,) = list_segments([tmp_path / "landing"]).segments
    return found


def _rewrite(tmp_path: Path, table: pa.Table) -> Segment:
    pq.write_table(table, _only(tmp_path).path)
    return _only(tmp_path)


def test_a_whole_segment_passes_and_its_digest_depends_on_its_content_alone(
    tmp_path: Path, segment: Segment
) -> None:
    passed = check(segment)
    copy = tmp_path / "other name.parquet"
    copy.write_bytes(Path(segment.path).read_bytes())
    assert passed.rows == 3
    assert check(Segment("path", "2001-01-01", str(copy), segment.size, 0)) == passed


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_torn_segment_is_unfit(tmp_path: Path, segment: Segment, keep: int) -> None:
    whole = Path(segment.path).read_bytes()
    Path(segment.path).write_bytes(whole[:keep])
    with pytest.raises(Unfit, match=r"not a whole Parquet file|the file is empty"):
        check(_only(tmp_path))


def test_a_damaged_page_behind_a_good_footer_is_unfit(tmp_path: Path) -> None:
    facts = [path_fact("a", "b", n, n, rtt_us=n * n) for n in range(5_000)]
    path = write_segment(tmp_path / "landing", "path", facts)
    content = bytearray(path.read_bytes())
    content[200:3_000] = bytes(2_800)
    path.write_bytes(content)
    with pytest.raises(Unfit):
        check(_only(tmp_path))


def test_any_flipped_byte_gives_a_pass_or_a_reason_and_never_another_error(
    tmp_path: Path, segment: Segment
) -> None:
    whole = Path(segment.path).read_bytes()
    rng = Random(20261115)
    outcomes: set[type] = set()
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        Path(segment.path).write_bytes(damaged)
        try:
            outcomes.add(type(check(segment)))
        except Unfit:
            outcomes.add(Unfit)
    assert outcomes == {Passed, Unfit}


def test_a_segment_that_lacks_a_column_is_unfit(tmp_path: Path, segment: Segment) -> None:
    table = pq.read_table(segment.path, partitioning=None).drop_columns(["sender"])
    with pytest.raises(Unfit, match="0 columns named 'sender'"):
        check(_rewrite(tmp_path, table))


def test_a_column_of_another_type_is_unfit(tmp_path: Path, segment: Segment) -> None:
    table = pq.read_table(segment.path, partitioning=None)
    place = table.schema.get_field_index("size")
    table = table.set_column(place, "size", pa.array(["big", "big", "big"]))
    with pytest.raises(Unfit, match="column 'size' has type string, not int64"):
        check(_rewrite(tmp_path, table))


def test_a_narrower_integer_passes_because_columns_are_only_ever_widened(
    tmp_path: Path, segment: Segment
) -> None:
    table = pq.read_table(segment.path, partitioning=None)
    place = table.schema.get_field_index("size")
    table = table.set_column(place, "size", table["size"].cast(pa.int32()))
    assert check(_rewrite(tmp_path, table)).rows == 3


def test_a_missing_column_with_a_default_passes(tmp_path: Path) -> None:
    write_segment(tmp_path / "landing", "node", [fact("node", "a", 0, 0.0, event="start")])
    table = pq.read_table(_only(tmp_path).path, partitioning=None).drop_columns(["count"])
    assert check(_rewrite(tmp_path, table)).rows == 1


def test_a_column_that_is_not_known_is_no_fault(tmp_path: Path, segment: Segment) -> None:
    table = pq.read_table(segment.path, partitioning=None)
    table = table.append_column("colour", pa.array(["red"] * 3))
    assert check(_rewrite(tmp_path, table)).rows == 3


def test_a_newer_schema_is_unfit_and_the_reason_says_what_to_do(
    tmp_path: Path, segment: Segment
) -> None:
    newer = table_of("path", [path_fact("a", "b", 0, 0, schema=2)])
    with pytest.raises(Unfit, match="schema 2, this pipeline knows 1: update the pipeline"):
        check(_rewrite(tmp_path, newer))


def test_an_empty_value_where_order_comes_from_is_unfit(tmp_path: Path, segment: Segment) -> None:
    with pytest.raises(Unfit, match="column 'n' has empty values"):
        check(_rewrite(tmp_path, table_of("path", [path_fact("a", "b", 0, 0) | {"n": None}])))


def test_a_segment_that_its_node_removed_is_gone_and_not_unfit(segment: Segment) -> None:
    Path(segment.path).unlink()
    with pytest.raises(Gone):
        check(segment)


def test_setting_aside_moves_the_file_beside_its_reason(tmp_path: Path, segment: Segment) -> None:
    content = Path(segment.path).read_bytes()
    aside = set_aside(tmp_path / "out", segment, "torn")
    moved = Path(aside.now_at)
    assert moved.parent == tmp_path / "out" / "quarantine" / "path" / "day=2026-11-15"
    assert moved.read_bytes() == content
    assert not Path(segment.path).exists()
    lines = moved.with_name(moved.name + ".reason.txt").read_text().splitlines()
    assert lines[:2] == [segment.path, "torn"]


def test_a_second_file_of_the_same_name_replaces_nothing(tmp_path: Path, segment: Segment) -> None:
    content = Path(segment.path).read_bytes()
    first = set_aside(tmp_path / "out", segment, "torn")
    Path(segment.path).write_bytes(b"another one")
    second = set_aside(tmp_path / "out", segment, "torn again")
    assert Path(first.now_at).read_bytes() == content
    assert Path(second.now_at).read_bytes() == b"another one"


def test_a_file_on_another_file_system_is_copied_and_then_removed(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(Path, "rename", refuse)
    aside = set_aside(tmp_path / "out", segment, "torn")
    assert Path(aside.now_at).exists()
    assert not Path(segment.path).exists()


def test_a_file_that_cannot_be_moved_is_left_and_named(tmp_path: Path, segment: Segment) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    aside = set_aside(tmp_path / "out", segment, "torn")
    assert aside.now_at == ""
    assert "torn (and not moved" in aside.reason
    assert Path(segment.path).exists()
