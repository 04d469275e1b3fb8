"""Ingest: each segment is examined on the executors and copied once into the fact store.

    <root>/facts/<kind>/<attempt>/unit=<hour or day>/bucket=<n>/*.parquet

Facts are partitioned by kind, hour or day of the event, and a bucket of nodes. The files of a unit that gets new facts
are rewritten together with the new facts, so a unit has one file per bucket however small the segments are, copies of
a fact are dropped, and contradictions are found. All tables are made from this store, never from landing files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.pipeline.check import FOREIGN, SEGMENT_BYTES_MAX, Verdict, check
from holdfast.pipeline.frames import files_by_unit, literally, read_files
from holdfast.pipeline.landings import Segment
from holdfast.pipeline.schemas import COLUMNS, spark_schema
from holdfast.pipeline.snapshot import Part, Parts
from holdfast.pipeline.storage.port import Store, join, to_uri
from holdfast.pipeline.units import SPARK_HOUR, Calendar, is_day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FACTS: Final = "facts"
_EXAMINED: Final = "path string, verdict binary"
_EXAMINED_ARROW: Final = pa.schema([("path", pa.string()), ("verdict", pa.binary())])
_FILES_PER_BATCH: Final = "64"
"""Whole files are in a batch: it must fit into memory."""
_ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Merged(msgspec.Struct, frozen=True):
    """What merging new segments of a kind into the fact store did."""

    parts: Parts
    """All parts of the kind afterwards."""
    units: tuple[str, ...]
    """Units that were written."""
    rows: int
    """New rows read."""
    duplicates: int
    """Rows that were there already, or twice in the new segments."""
    conflicts: int
    """Facts with one number and different contents: an integrity error. The same content is kept in every run."""


def examine(session: SparkSession, segments: Sequence[Segment], now_us: int) -> dict[str, Verdict]:
    """The verdict on each segment, by URI. One that is not there any more has none."""
    found = {
        segment.uri: Verdict(
            FOREIGN, f"{segment.size} bytes: no node seals segments over {SEGMENT_BYTES_MAX} bytes"
        )
        for segment in segments
        if segment.size > SEGMENT_BYTES_MAX
    }
    segments = [segment for segment in segments if segment.uri not in found]
    if not segments:
        return found
    before = session.conf.get(_ARROW_ROWS, "10000") or "10000"
    session.conf.set(_ARROW_ROWS, _FILES_PER_BATCH)
    try:
        frame = (
            session.read.format("binaryFile")
            .option("ignoreMissingFiles", "true")
            .load([literally(segment.uri) for segment in segments])
            .select("path", "content")
            .mapInArrow(_Examiner(now_us), _EXAMINED)
        )
        rows = frame.collect()
    finally:
        session.conf.set(_ARROW_ROWS, before)
    return found | {
        to_uri(row["path"]): msgspec.msgpack.decode(row["verdict"], type=Verdict) for row in rows
    }


class _Examiner:
    """Runs `check` on an executor."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            paths, verdicts = [], []
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                *_, kind, _, name = path.as_py().split("/")
                verdict = check(content.as_buffer().to_pybytes(), name, kind, self._now_us)
                paths.append(path.as_py())
                verdicts.append(msgspec.msgpack.encode(verdict))
            yield pa.RecordBatch.from_arrays(
                [pa.array(paths, pa.string()), pa.array(verdicts, pa.binary())],
                schema=_EXAMINED_ARROW,
            )


def merge(
    session: SparkSession,
    store: Store,
    root: str,
    attempt: str,
    kind: str,
    parts: Parts,
    new: Sequence[str],
    dirty: Iterable[str],
    calendar: Calendar,
    buckets: int,
) -> Merged:
    """Write the units of `dirty` again, with the facts of the segments `new` in them."""
    from pyspark.sql import Observation

    units = tuple(sorted(set(dirty)))
    replaced = [unit for unit in parts if _replaced(unit, units)]
    old = [join(root, file.name) for unit in replaced for file in parts[unit].files]
    frame = _union(session, kind, new, old)
    seen = Observation()
    target = join(root, FACTS, kind, attempt)
    kept = _unique(frame, kind, calendar, buckets, seen)
    kept.write.partitionBy("unit", "bucket").parquet(target)
    counts = seen.get
    made = files_by_unit(store, root, target)
    after = {unit: part for unit, part in parts.items() if unit not in replaced}
    after |= {unit: Part(tuple(files)) for unit, files in made.items()}
    return Merged(
        parts=after,
        units=tuple(sorted(made)),
        rows=int(counts["new_rows"] or 0),
        duplicates=int(counts["extra"] or 0) - int(counts["conflicts"] or 0),
        conflicts=int(counts["conflicts"] or 0),
    )


def _replaced(unit: str, units: Sequence[str]) -> bool:
    """Whether the files of a unit are taken over: its own, or its day's if that is closed now."""
    return (
        unit in units or unit[:10] in units or (is_day(unit) and any(u[:10] == unit for u in units))
    )


def _union(session: SparkSession, kind: str, new: Sequence[str], old: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as sf

    schema = spark_schema(kind)
    return (
        read_files(session, schema, new)
        .withColumn("is_new", sf.lit(1))
        .unionByName(read_files(session, schema, old).withColumn("is_new", sf.lit(0)))
    )


def _unique(frame: DataFrame, kind: str, calendar: Calendar, buckets: int, seen: Any) -> DataFrame:
    """Each fact once. Of contradicting ones the one with the lowest hash stays, whatever came first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    hour = sf.date_format("at", SPARK_HOUR)
    unit = sf.when(hour >= calendar.first_open.isoformat(), hour).otherwise(
        sf.substring(hour, 1, 10)
    )
    content = [column.name for column in COLUMNS[kind] if column.name != "schema"]
    key = ("unit", "bucket", "node", "incarnation", "n")
    by_key = Window.partitionBy(*key).orderBy("hash", "is_new")
    spread = (
        frame.withColumn("unit", unit)
        .withColumn("bucket", sf.crc32("node") % buckets)
        .withColumn("hash", sf.xxhash64(*content))
        .repartition("unit", "bucket")
        .withColumn("rank", sf.row_number().over(by_key))
        .withColumn("lowest", sf.first("hash").over(by_key))
    )
    counted = spread.observe(
        seen,
        sf.sum("is_new").alias("new_rows"),
        sf.sum((sf.col("rank") > 1).cast("bigint")).alias("extra"),
        sf.sum((sf.col("hash") != sf.col("lowest")).cast("bigint")).alias("conflicts"),
    )
    return counted.where("rank = 1").select(
        *(column.name for column in COLUMNS[kind]), "unit", "bucket"
    )
