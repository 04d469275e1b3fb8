"""Comparing replicas: by blocks first, then entry by entry where blocks differ.

Blocks of a life are summed over hours (counts add, hashes combine by exclusive or). Where all replicas that recorded a
block have the same counts and hashes, all their entries are the same. Only other blocks are read again, entry by entry,
from the hours that have them. Neighbouring blocks with one outcome are a stretch; `audit_frontier` keeps stretches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.delivery_blocks import BLOCK, DIGEST_MASK, mix
from holdfast.pipeline.transforms.group_events import ROLLED_BACK

_KEY: Final = ("group", "epoch", "block")
_STRETCH: Final = ("group", "epoch", "first_block")
_LIFE: Final = ("group", "epoch", "node", "incarnation")
_LIFE_DDL: Final = "`group` string, epoch bigint, node string, incarnation bigint"
_SAME: Final = ("entries", "index_min", "index_max", "entry_hash", "digest_hash", "digests")

SAME: Final = "same"
SINGLE: Final = "single"
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"
"""The entries are the same, but the content of one was not recorded."""
UNREAD: Final = "unread"
"""The block differs between replicas, and too many do to compare each entry."""

_SUMS: Final = (
    *("entries", "messages", "digests", "index_min", "position_min", "index_max", "end_max"),
    *("entry_hash", "digest_hash"),
)
_BLOCK_SUMS: Final = """`group` string, epoch bigint, node string, incarnation bigint, hour string, block bigint,
    entries bigint, messages bigint, digests bigint, index_min bigint, position_min bigint, index_max bigint,
    end_max bigint, entry_hash bigint, digest_hash bigint"""


def edge_digests(edges: DataFrame) -> DataFrame:
    """Digests of the first entries of hours, which the hours alone could not know: rows to add to blocks.

    `hour` is the hour before, from which that knowledge comes.
    """
    of_life = Window.partitionBy(*_LIFE).orderBy("hour", "n_before")
    delta = sf.col("digest_before") - sf.lag("digest").over(of_life)
    first = (
        edges.withColumn("goes_on", sf.lag("end_before").over(of_life) == sf.col("position"))
        .withColumn("delta", delta.bitwiseAND(sf.lit(DIGEST_MASK).cast("bigint")))
        .withColumn("hour", sf.lag("hour").over(of_life))
        .where("goes_on")
        .select(*_LIFE, "hour", sf.col("index_before").alias("index"), "delta")
    )
    hashed = first.mapInArrow(
        _hash_deltas, f"{_LIFE_DDL}, hour string, `index` bigint, digest_hash bigint"
    )
    nothing = sf.lit(0).cast("bigint")
    unknown = sf.lit(None).cast("bigint")
    return conform(
        hashed.withColumns(
            {
                "block": sf.floor(sf.col("index") / BLOCK),
                "digests": sf.lit(1).cast("bigint"),
                **dict.fromkeys(("entries", "messages", "entry_hash"), nothing),
                **dict.fromkeys(("index_min", "position_min", "index_max", "end_max"), unknown),
            }
        ),
        _BLOCK_SUMS,
    )


def _hash_deltas(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashes = mix(batch.column("index").to_numpy(), batch.column("delta").to_numpy())
        names = [*_LIFE, "hour", "index"]
        columns = [batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays(
            [*columns, pa.array(hashes.view(np.int64))], names=[*names, "digest_hash"]
        )


def rolled_back(events: DataFrame) -> DataFrame:
    """What was rolled back: deliveries of a life from an index on, made before a time of its own clock."""
    return events.where((sf.col("event") == ROLLED_BACK) & (sf.col("rollback_index") >= 0)).select(
        *_LIFE,
        sf.col("rollback_index").alias("from_index"),
        sf.col("now_ns").alias("before_ns"),
    )


def compare_blocks(blocks: DataFrame, edges: DataFrame) -> DataFrame:
    """One row per block: its outcome, which replicas recorded it, and in which hours.

    Both have a column `part`: blocks are neighbours only within one. `edges` adds what hours could not know.
    """
    columns = ("part", *_LIFE, "block", "hour", *_SUMS)
    merged = (
        blocks.select(*columns)
        .unionByName(edges.select(*columns))
        .groupBy("part", *_LIFE, "block")
        .agg(
            *(sf.sum(name).alias(name) for name in ("entries", "messages", "digests")),
            *(sf.min(name).alias(name) for name in ("index_min", "position_min")),
            *(sf.max(name).alias(name) for name in ("index_max", "end_max")),
            *(sf.bit_xor(name).alias(name) for name in ("entry_hash", "digest_hash")),
            sf.collect_set("hour").alias("hours"),
        )
    )
    content = sf.struct(*_SAME)
    nodes = sf.array_distinct(sf.sort_array(sf.collect_list("node")))
    compared = merged.groupBy("part", *_KEY).agg(
        nodes.alias("nodes"),
        sf.min(content).alias("low"),
        sf.max(content).alias("high"),
        sf.max("entries").alias("entries"),
        sf.max("messages").alias("messages"),
        sf.min("index_min").alias("first_index"),
        sf.max("index_max").alias("last_index"),
        sf.min("position_min").alias("first_position"),
        (sf.max("end_max") - 1).alias("last_position"),
        sf.array_distinct(sf.flatten(sf.collect_list("hours"))).alias("hours"),
    )
    complete = sf.col("low.digests") == sf.col("low.entries")
    same = (sf.col("low") == sf.col("high")) & complete
    outcome = (
        sf.when((sf.size("nodes") < 2) & (sf.col("low") == sf.col("high")), SINGLE)
        .when(same, SAME)
        .otherwise(DIFFERS)
    )
    # Blocks must not overlap in positions either; where they do, both are read.
    by_block = Window.partitionBy("group", "epoch", "part").orderBy("block")
    overlap = sf.coalesce(
        sf.lag("last_position").over(by_block) >= sf.col("first_position"), sf.lit(False)
    )
    after = sf.coalesce(
        sf.lead("first_position").over(by_block) <= sf.col("last_position"), sf.lit(False)
    )
    return compared.withColumn("outcome", sf.when(overlap | after, DIFFERS).otherwise(outcome))


def differing_in_turn(compared: DataFrame, most: int) -> DataFrame:
    """Up to `most` blocks that differ: the first of each group and epoch, then the second of each, and so on."""
    in_turn = Window.partitionBy("group", "epoch").orderBy("block")
    return (
        compared.where(sf.col("outcome") == DIFFERS)
        .withColumn("turn", sf.row_number().over(in_turn))
        .orderBy("turn", "group", "epoch")
        .limit(most)
        .select("group", "epoch", "block")
    )


def as_stretches(rows: DataFrame, first_open: str) -> DataFrame:
    """Adjacent rows (blocks, or stretches) with the same outcome, replicas and unit of time, as one.

    Blocks that differ make one stretch, whatever their replicas and time: their entries are compared together.
    """
    ordered = Window.partitionBy("group", "epoch").orderBy("first_block")
    differs = sf.col("outcome") == DIFFERS
    unit = sf.when(sf.col("last_hour") >= first_open, sf.col("last_hour")).otherwise(
        sf.substring("last_hour", 1, 10)
    )
    alike = sf.struct(
        "part",
        "outcome",
        sf.when(differs, sf.array().cast("array<string>"))
        .otherwise(sf.col("nodes"))
        .alias("nodes"),
        sf.when(differs, "").otherwise(unit).alias("unit"),
    )
    goes_on = (sf.col("alike") == sf.lag("alike").over(ordered)) & sf.col("found").isNull()
    return (
        rows.withColumn("alike", alike)
        .withColumn("starts", sf.when(sf.coalesce(goes_on, sf.lit(False)), 0).otherwise(1))
        .withColumn("run", sf.sum("starts").over(ordered))
        .groupBy("group", "epoch", "run")
        .agg(
            sf.first("part").alias("part"),
            sf.first("alike.outcome").alias("outcome"),
            sf.first("alike.nodes").alias("nodes"),
            *(
                sf.min(name).alias(name)
                for name in ("first_block", "first_hour", "first_index", "first_position")
            ),
            *(
                sf.max(name).alias(name)
                for name in ("last_block", "last_hour", "last_index", "last_position")
            ),
            *(sf.sum(name).alias(name) for name in ("blocks", "entries", "messages")),
            sf.array_sort(sf.array_distinct(sf.flatten(sf.collect_list("hours")))).alias("hours"),
            sf.first("found").alias("found"),
        )
        .drop("run")
    )


def as_ranges(entries: DataFrame) -> DataFrame:
    """Adjacent entries of a stretch with the same outcome and replicas, as one."""
    ordered = Window.partitionBy(*_STRETCH).orderBy("index")
    same = (sf.col("outcome") == sf.lag("outcome").over(ordered)) & (
        sf.col("nodes") == sf.lag("nodes").over(ordered)
    )
    return (
        entries.withColumn("starts", sf.when(sf.coalesce(same, sf.lit(False)), 0).otherwise(1))
        .withColumn("run", sf.sum("starts").over(ordered))
        .groupBy(*_STRETCH, "run", "outcome", "nodes")
        .agg(
            sf.min("index").alias("first_index"),
            sf.max("index").alias("last_index"),
            sf.count("*").alias("entries"),
            sf.sum("messages").alias("messages"),
            sf.min("first_position").alias("first_position"),
            sf.max("last_position").alias("last_position"),
        )
        .drop("run")
    )


def entries_of(facts: DataFrame, stretches: DataFrame, voids: DataFrame) -> DataFrame:
    """The deliveries of some stretches with the digest of each entry alone; without those that were rolled back.

    `stretches` has `group`, `epoch`, `first_block` and `last_block`. `facts` are all delivery facts of the hours
    concerned. `voids` has `node`, `incarnation`, `group`, `epoch`, `from_index` and `before_ns` of each rollback.
    """
    end = sf.col("position") + sf.col("last") - sf.col("first") + 1
    by_number = Window.partitionBy(*_LIFE).orderBy("n")
    goes_on = (sf.lag("end").over(by_number) == sf.col("position")) | (sf.col("position") == 0)
    delta = (
        sf.col("digest") - sf.coalesce(sf.lag("digest").over(by_number), sf.lit(0))
    ).bitwiseAND(sf.lit(DIGEST_MASK).cast("bigint"))
    known = (
        facts.withColumn("epoch", sf.coalesce("epoch", sf.lit(0)))
        .withColumn("end", end)
        .withColumn(
            "delta", sf.when(sf.col("position") == 0, sf.col("digest")).when(goes_on, delta)
        )
        .withColumn("block", sf.floor(sf.col("index") / BLOCK))
    )
    rows = within(known, stretches)
    return rows.join(
        sf.broadcast(voids),
        [
            *(rows[name] == voids[name] for name in _LIFE),
            rows["index"] >= voids["from_index"],
            rows["now_ns"] < voids["before_ns"],
        ],
        "left_anti",
    )


def compare_entries(entries: DataFrame) -> DataFrame:
    """One row per entry: its outcome, which replicas recorded it, and what they recorded if they differ."""
    frame = sf.struct("term", "position", "stream", "first", "last")
    told = sf.struct(
        "node", "incarnation", "n", "index", "term", "position", "stream", "first", "last", "delta"
    )
    grouped = entries.groupBy(*_STRETCH, "index").agg(
        sf.array_distinct(sf.sort_array(sf.collect_list("node"))).alias("nodes"),
        sf.min(frame).alias("low"),
        sf.max(frame).alias("high"),
        sf.min("delta").alias("delta_low"),
        sf.max("delta").alias("delta_high"),
        sf.count_if(sf.col("delta").isNull()).alias("unknown"),
        sf.count("delta").alias("known"),
        sf.max(sf.col("last") - sf.col("first") + 1).alias("messages"),
        sf.min("position").alias("first_position"),
        (sf.max("end") - 1).alias("last_position"),
        sf.sort_array(sf.collect_set(told)).alias("told"),
    )
    differs = (sf.col("low") != sf.col("high")) | sf.coalesce(
        sf.col("delta_low") != sf.col("delta_high"), sf.lit(False)
    )
    outcome = (
        sf.when(differs, DIFFERS)
        .when(sf.size("nodes") < 2, SINGLE)
        .when(sf.col("known") < 2, UNKNOWN)
        .otherwise(SAME)
    )
    return grouped.withColumn("outcome", outcome)


def overlapping(compared: DataFrame) -> DataFrame:
    """Entries that claim a position, or repeat a message of a stream, that an entry of their stretch with a lower index
    has.

    Only entries on whose place all replicas agree take part: the others are violations already.
    """
    agreed = compared.where("low = high").select("*", "low.stream", "low.first", "low.last")
    in_group = Window.partitionBy(*_STRETCH).orderBy("index")
    in_stream = Window.partitionBy(*_STRETCH, "stream").orderBy("index")
    earlier = (Window.unboundedPreceding, -1)
    one = sf.col("told")[0].alias("entry")
    place = sf.max(sf.struct("last_position", one)).over(in_group.rowsBetween(*earlier))
    number = sf.max(sf.struct("last", one)).over(in_stream.rowsBetween(*earlier))
    found = agreed.withColumn("place", place).withColumn("number", number)
    claims = sf.array(
        sf.when(
            sf.col("first_position") <= sf.col("place.last_position"),
            _claim("one place", sf.col("place.entry")),
        ),
        sf.when(sf.col("first") <= sf.col("number.last"), _claim("once", sf.col("number.entry"))),
    )
    return (
        found.withColumn("broken", sf.explode(claims))
        .where("broken IS NOT NULL")
        .select(*_STRETCH, "index", "broken.claim", "broken.told")
    )


def _claim(name: str, other: Column) -> Column:
    return sf.struct(sf.lit(name).alias("claim"), sf.array(other, sf.col("told")[0]).alias("told"))


def within(rows: DataFrame, ranges: DataFrame) -> DataFrame:
    """The rows whose block is in one of some ranges of blocks, with that range's `first_block`."""
    wanted = sf.broadcast(ranges.select("group", "epoch", "first_block", "last_block"))
    return rows.join(
        wanted,
        [
            rows["group"] == wanted["group"],
            rows["epoch"] == wanted["epoch"],
            rows["block"] >= wanted["first_block"],
            rows["block"] <= wanted["last_block"],
        ],
    ).select(*(rows[name] for name in rows.columns), wanted["first_block"])


def of_what(rows: DataFrame, what: str) -> DataFrame:
    return rows.where(sf.col("what") == what)
