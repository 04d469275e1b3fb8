"""Whether a segment can be used: read through once, alone, before anything is made of it.

One bad file fails a whole Spark read, and Spark's message does not name it. `check` is a pure function of the file's
bytes and name. It runs on the executors (`ingest`) and in tests.

| outcome | when | examined again |
| --- | --- | --- |
| `kept` | all is well | never |
| `torn` | not a whole Parquet file | when the file changes |
| `foreign` | the name is no segment's, or contradicts the content; too large for a segment | when the file changes |
| `schema` | columns are missing, have other types, or come from a newer version | when the pipeline's schema rises |
| `future` | facts lie in the future | when that time has come |
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.schemas import COLUMNS, Column
from holdfast.pipeline.units import HOUR_FORMAT
from holdfast.recording.landing import parse_stem
from holdfast.telemetry.facts import SCHEMA

KEPT: Final = "kept"
TORN: Final = "torn"
FOREIGN: Final = "foreign"
WRONG_SCHEMA: Final = "schema"
FUTURE: Final = "future"
GONE: Final = "gone"
OUTCOMES: Final = (KEPT, TORN, FOREIGN, WRONG_SCHEMA, FUTURE)

SEGMENT_BYTES_MAX: Final = 256 << 20
"""Many times what a node seals. Larger files are not read: they would not fit into an executor."""
FUTURE_US_MAX: Final = 3600 * 1_000_000
"""How far a node's clock may be ahead of the pipeline's."""
_BATCH_ROWS: Final = 65_536
_NEVER_EMPTY: Final = ("schema", "node", "name", "incarnation", "n", "at", "now_ns")


class Verdict(msgspec.Struct, frozen=True):
    """What is known of a segment."""

    outcome: str
    reason: str = ""
    rows: int = 0
    digest: str = ""
    """sha256 of the file."""
    hours: tuple[str, ...] = ()
    """The hours of its facts."""
    examine_us: int = 0
    """When to look again; 0 for never."""
    disordered: int = 0
    """Facts whose `now_ns` is below that of the fact before them in one life."""


class Unfit(Exception):
    """Why a segment cannot be used."""

    def __init__(self, outcome: str, reason: str, examine_us: int = 0) -> None:
        super().__init__(reason)
        self.verdict = Verdict(outcome, reason, examine_us=examine_us)


def check(content: bytes, name: str, kind: str, now_us: int) -> Verdict:
    """Judge the segment `name` of `kind`; never raises for what the file holds."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        verdict = _read(content, name, kind, now_us)
    except Unfit as unfit:
        verdict = unfit.verdict
    except (pa.ArrowException, OSError, ValueError, OverflowError) as damage:
        verdict = Verdict(TORN, f"not a whole Parquet file: {_first_line(damage)}")
    return msgspec.structs.replace(verdict, digest=digest)


def _read(content: bytes, name: str, kind: str, now_us: int) -> Verdict:
    if not content:
        raise Unfit(TORN, "the file is empty")
    with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
        columns = _check_columns(kind, parquet.schema_arrow)
        return _read_through(parquet, columns, name, kind, now_us)


def _read_through(
    parquet: pq.ParquetFile, columns: list[str], name: str, kind: str, now_us: int
) -> Verdict:
    place = parse_stem(name.removesuffix(".parquet"), kind)
    if place is None:
        raise Unfit(FOREIGN, "the name is not <node>-<incarnation>-<number>.parquet")
    rows = disordered = 0
    hours: set[int] = set()
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
        batch.validate(full=True)
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        _check_values(batch, now_us)
        for column, expected in (("node", place.node), ("incarnation", place.incarnation)):
            found = pc.unique(batch.column(column)).to_pylist()
            if found != [expected]:
                raise Unfit(
                    FOREIGN,
                    f"the name says {column} {expected}, the content {', '.join(map(str, found[:3]))}",
                )
        at_us = batch.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        hours.update(pc.unique(pc.divide(at_us, 3_600_000_000)).to_pylist())
        steps = pc.pairwise_diff(batch.column("now_ns"))
        disordered += pc.sum(pc.less(steps, 0)).as_py() or 0
    named = tuple(
        datetime.fromtimestamp(hour * 3600, UTC).strftime(HOUR_FORMAT) for hour in sorted(hours)
    )
    return Verdict(KEPT, rows=rows, hours=named, disordered=disordered)


def _check_values(batch: pa.RecordBatch, now_us: int) -> None:
    for name in _NEVER_EMPTY:
        if batch.column(name).null_count:
            raise Unfit(WRONG_SCHEMA, f"column {name!r} has empty values")
    newest = pc.max(batch.column("schema")).as_py()
    if newest > SCHEMA:
        raise Unfit(
            WRONG_SCHEMA,
            f"written with schema {newest}, this pipeline knows {SCHEMA}: update the pipeline",
        )
    at_us = batch.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    latest_us, earliest_us = pc.max(at_us).as_py(), pc.min(at_us).as_py()
    if earliest_us < 0:
        raise Unfit(FOREIGN, "facts lie before 1970: the node's clock was not set")
    if latest_us > now_us + FUTURE_US_MAX:
        ahead_s = (latest_us - now_us) // 1_000_000
        raise Unfit(
            FUTURE,
            f"facts lie {ahead_s} s in the future: set the node's clock",
            latest_us - FUTURE_US_MAX,
        )


def _check_columns(kind: str, schema: pa.Schema) -> list[str]:
    """The columns to read through; raises `Unfit` if one that must be there is not, or has another type."""
    present: list[str] = []
    for column in COLUMNS[kind]:
        place = schema.get_all_field_indices(column.name)
        if not place and column.optional:
            continue
        if len(place) != 1:
            raise Unfit(
                WRONG_SCHEMA, f"{len(place)} columns named {column.name!r}, there must be one"
            )
        if not _reads_as(schema.field(place[0]).type, column):
            found = schema.field(place[0]).type
            raise Unfit(
                WRONG_SCHEMA, f"column {column.name!r} has type {found}, not {column.arrow}"
            )
        present.append(column.name)
    return present


def _reads_as(found: pa.DataType, column: Column) -> bool:
    """Columns are only ever widened, so a narrower integer is an older segment's."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if found == column.arrow:
        return True
    if pa.types.is_string(column.arrow):
        return bool(pa.types.is_large_string(found))
    if pa.types.is_timestamp(column.arrow):
        return bool(pa.types.is_timestamp(found) and found.unit in ("ms", "us") and found.tz)
    if pa.types.is_signed_integer(column.arrow):
        return bool(pa.types.is_signed_integer(found) and found.bit_width <= column.arrow.bit_width)
    return False


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0][:300]
