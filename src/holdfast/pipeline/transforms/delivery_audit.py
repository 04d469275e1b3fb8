"""Do all replicas of a group deliver the same messages in the same order?

Deliveries are recorded per entry of the group's log, and all replicas have the same log. So rows of one group and
index must say the same on every replica, in every incarnation: position, stream, first, last, digest. What a replica
did not record (a crashed tail, a restored state) is no evidence against it. A verdict is one of

- `holds`: two replicas or more were compared, and nothing speaks against the claims below;
- `violated`: the offending rows are named;
- `not provable`: there was nothing to compare, or facts were lost where the answer would be.

Nothing here uses time across nodes: entries are ordered by index, the facts of one node by `now_ns` and `n`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform

AGREEMENT: Final = "agreement"
"""Replicas deliver the same at the same index."""
ONE_PLACE: Final = "one place"
"""No two entries claim the same position."""
ONCE: Final = "once"
"""No message of a stream is in two entries, and a stream's numbers grow with the index."""
IN_ORDER: Final = "in order"
"""A replica never goes back, unless its state was restored."""
NO_HOLE: Final = "no hole"
"""A replica skips no position, unless its state was restored."""

HOLDS: Final = "holds"
VIOLATED: Final = "violated"
NOT_PROVABLE: Final = "not provable"

NAMED_MAX: Final = 20
"""How many offences a group's verdict names; the table of violations has all of them."""

DELIVERIES: Final = """`group` string, replica string, replica_name string, incarnations bigint, entries bigint,
    messages bigint, first_position bigint, last_position bigint, positions bigint"""

DELIVERY_VIOLATIONS: Final = """`group` string, claim string, index bigint, position bigint,
    rows array<string>"""

DELIVERY_AUDIT: Final = """`group` string, verdict string, why string, replicas bigint, entries bigint,
    entries_compared bigint, messages bigint, first_position bigint, last_position bigint, positions bigint,
    holes_unexplained bigint, violations bigint, named array<string>"""

_SAME: Final = ("position", "stream", "first", "last", "digest")
"""What must be the same on every replica for one group and index."""


def deliveries(delivery_facts: DataFrame) -> DataFrame:
    """One row per group and replica. `messages` counts every delivery; `positions` counts each position once."""
    rows = _each_once(_rows(delivery_facts))
    once = (
        rows.groupBy("group", "node", "index", "position")
        .agg(sf.max("messages").alias("messages"))
        .groupBy("group", "node")
        .agg(sf.sum("messages").alias("positions"))
    )
    counts = rows.groupBy("group", "node").agg(
        sf.max_by("name", "incarnation").alias("replica_name"),
        sf.count_distinct("incarnation").alias("incarnations"),
        sf.count("*").alias("entries"),
        sf.sum("messages").alias("messages"),
        sf.min("position").alias("first_position"),
        (sf.max("end") - 1).alias("last_position"),
    )
    return conform(
        counts.join(once, ["group", "node"]).withColumnRenamed("node", "replica"), DELIVERIES
    )


def delivery_violations(
    delivery_facts: DataFrame, group_facts: DataFrame | None = None
) -> DataFrame:
    """One row per offence, with the rows that make it one. `group_facts` tell when a replica's state was restored."""
    rows = _rows(delivery_facts)
    entries = _entries(rows)
    went_back = sf.col("index") <= sf.col("index_before")
    skipped = sf.lit(group_facts is not None) & _skips() & (sf.col("lost") == 0)
    by_replica = _steps(rows, group_facts).where(~sf.col("restored"))
    found = (
        _disagreements(rows, entries)
        .unionByName(
            _offences(
                _beside_earlier(entries.where("low = high")),
                (ONE_PLACE, sf.expr("position < end_before.end"), "end_before.row"),
                (ONCE, sf.expr("first <= last_before.last"), "last_before.row"),
            )
        )
        .unionByName(
            _offences(
                by_replica,
                (IN_ORDER, went_back, "row_before"),
                (NO_HOLE, skipped, "row_before"),
            )
        )
    )
    return conform(
        found.withColumn("rows", sf.transform("offenders", _as_text)), DELIVERY_VIOLATIONS
    )


def delivery_audit(
    delivery_facts: DataFrame,
    group_facts: DataFrame | None = None,
    violations: DataFrame | None = None,
) -> DataFrame:
    """One row per group: the verdict, why, and what it rests on. `violations` saves finding them again."""
    if violations is None:
        violations = delivery_violations(delivery_facts, group_facts)
    rows = _rows(delivery_facts)
    entries = _entries(rows)
    covered = entries.groupBy("group").agg(
        sf.count("*").alias("entries"),
        sf.count_if(sf.col("replicas") > 1).alias("entries_compared"),
        sf.sum("messages").alias("positions"),
    )
    totals = (
        _each_once(rows)
        .groupBy("group")
        .agg(
            sf.count_distinct("node").alias("replicas"),
            sf.sum("messages").alias("messages"),
            sf.min("position").alias("first_position"),
            (sf.max("end") - 1).alias("last_position"),
        )
    )
    unexplained = _skips() & ~sf.col("restored")
    if group_facts is not None:
        unexplained &= sf.col("lost") > 0
    holes = _steps(rows, group_facts).groupBy("group").agg(sf.count_if(unexplained).alias("holes"))
    joined = (
        totals.join(covered, "group")
        .join(holes, "group", "left")
        .join(_named(violations), "group", "left")
        .withColumn("violations", sf.coalesce("violations", sf.lit(0)))
        .withColumn("holes_unexplained", sf.coalesce("holes", sf.lit(0)))
        .withColumn("named", sf.coalesce("named", sf.array().cast("array<string>")))
        .withColumn("verdict", _verdict())
    )
    return conform(joined.withColumn("why", _why()), DELIVERY_AUDIT)


def _rows(delivery_facts: DataFrame) -> DataFrame:
    """Facts with the number of messages, the position after the last one, and all that names the row."""
    messages = sf.col("last") - sf.col("first") + 1
    return (
        delivery_facts.withColumn("messages", messages)
        .withColumn("end", sf.col("position") + messages)
        .withColumn("row", sf.struct("name", "node", "incarnation", "n", "index", *_SAME))
    )


def _each_once(rows: DataFrame) -> DataFrame:
    """What is counted, without copies of facts that are in two segments."""
    return rows.select(
        *("group", "node", "name", "incarnation", "n", "index", "position", "messages", "end")
    ).distinct()


def _as_text(row: Column) -> Column:
    return sf.format_string(
        "%s (%s, incarnation %d, fact %d): index %d, position %d, stream %s, %d to %d, digest %08x",
        *(row["name"], sf.substring(row["node"], 1, 8), row["incarnation"], row["n"], row["index"]),
        *(row[name] for name in _SAME),
    )


def _entries(rows: DataFrame) -> DataFrame:
    """One row per entry of the log; `low` and `high` differ if its deliveries contradict each other."""
    content = sf.struct(*_SAME)
    return (
        rows.groupBy("group", "index")
        .agg(
            sf.min(content).alias("low"),
            sf.max(content).alias("high"),
            sf.max("messages").alias("messages"),
            sf.count_distinct("node").alias("replicas"),
            sf.min("row").alias("row"),
        )
        .select("*", "low.position", "low.stream", "low.first", "low.last")
        .withColumn("end", sf.col("position") + sf.col("messages"))
    )


def _disagreements(rows: DataFrame, entries: DataFrame) -> DataFrame:
    broken = entries.where("low != high").select("group", "index")
    return (
        rows.join(broken, ["group", "index"])
        .groupBy("group", "index")
        .agg(
            sf.min("position").alias("position"),
            sf.sort_array(sf.collect_set("row")).alias("offenders"),
        )
        .withColumn("claim", sf.lit(AGREEMENT))
    )


def _beside_earlier(entries: DataFrame) -> DataFrame:
    """Each entry beside the one that came furthest of all before it: in position, and in its stream's numbers."""
    in_group = Window.partitionBy("group").orderBy("index")
    in_stream = Window.partitionBy("group", "stream").orderBy("index")
    earlier = (Window.unboundedPreceding, -1)
    return entries.withColumns(
        {
            "end_before": sf.max(sf.struct("end", "row")).over(in_group.rowsBetween(*earlier)),
            "last_before": sf.max(sf.struct("last", "row")).over(in_stream.rowsBetween(*earlier)),
        }
    )


def _steps(rows: DataFrame, group_facts: DataFrame | None) -> DataFrame:
    """Each delivery beside the one before it on the same replica: whether a restore or lost facts lie between."""
    by_number = Window.partitionBy("node", "incarnation").orderBy("n", "row")
    of_replica = Window.partitionBy("node", "incarnation", "group").orderBy("now_ns", "n")
    missing = sf.coalesce(sf.col("n") - sf.lag("n").over(by_number) - 1, sf.lit(0))
    is_copy = sf.col("row") == sf.col("row_before")
    steps = (
        rows.withColumn("row_before", sf.lag("row").over(by_number))
        .where(~sf.coalesce(is_copy, sf.lit(False)))
        .withColumn("missing", missing)
        .withColumn("missing_so_far", sf.sum("missing").over(by_number))
        .withColumns(
            {
                "index_before": sf.lag("index").over(of_replica),
                "end_before": sf.max("end").over(
                    of_replica.rowsBetween(Window.unboundedPreceding, -1)
                ),
                "ns_before": sf.lag("now_ns").over(of_replica),
                "row_before": sf.lag("row").over(of_replica),
                "lost": sf.col("missing_so_far") - sf.lag("missing_so_far").over(of_replica),
            }
        )
        .where("index_before IS NOT NULL")
    )
    if group_facts is None:
        return steps.withColumn("restored", sf.lit(False))
    # A replica is restored rarely, so the times are a short list per replica.
    restores = (
        group_facts.where(sf.col("event") == "restored")
        .groupBy("node", "incarnation", "group")
        .agg(sf.collect_set("now_ns").alias("restores"))
    )
    between = sf.exists("restores", lambda at: at.between(sf.col("ns_before"), sf.col("now_ns")))
    return steps.join(sf.broadcast(restores), ["node", "incarnation", "group"], "left").withColumn(
        "restored", sf.coalesce(between, sf.lit(False))
    )


def _skips() -> Column:
    return sf.col("position") > sf.col("end_before")


def _offences(rows: DataFrame, *claims: tuple[str, Column, str]) -> DataFrame:
    """One row for each claim that a row breaks, together with the row it breaks it against."""
    broken = sf.array(
        *(
            sf.when(
                condition,
                sf.struct(
                    sf.lit(claim).alias("claim"), sf.array(sf.col(other), "row").alias("offenders")
                ),
            )
            for claim, condition, other in claims
        )
    )
    return (
        rows.withColumn("broken", sf.explode(broken))
        .where("broken IS NOT NULL")
        .select("group", "index", "position", "broken.claim", "broken.offenders")
    )


def _named(violations: DataFrame) -> DataFrame:
    """How many offences each group has, and the first ones by index, one line each."""
    by_index = Window.partitionBy("group").orderBy("index", "claim")
    line = sf.concat_ws(": ", "claim", sf.concat_ws(" | ", "rows"))
    among_first = sf.when(sf.col("rank") <= NAMED_MAX, sf.struct("rank", line.alias("line")))
    return (
        violations.withColumn("rank", sf.row_number().over(by_index))
        .groupBy("group")
        .agg(
            sf.count("*").alias("violations"),
            sf.sort_array(sf.collect_list(among_first)).alias("first"),
        )
        .withColumn("named", sf.col("first.line"))
    )


def _verdict() -> Column:
    provable = (sf.col("entries_compared") > 0) & (sf.col("holes_unexplained") == 0)
    return sf.when(sf.col("violations") > 0, VIOLATED).when(provable, HOLDS).otherwise(NOT_PROVABLE)


def _why() -> Column:
    return (
        sf.when(
            sf.col("verdict") == VIOLATED,
            _counted("violations", "offence"),
        )
        .when(sf.col("replicas") < 2, sf.lit("only one replica recorded deliveries"))
        .when(sf.col("entries_compared") == 0, sf.lit("no entry was recorded by two replicas"))
        .when(
            sf.col("holes_unexplained") > 0,
            sf.concat(
                _counted("holes_unexplained", "hole"),
                sf.lit(" in what replicas recorded, unexplained"),
            ),
        )
        .otherwise(
            sf.format_string(
                "%d of %d entries compared between %d replicas, all the same",
                *("entries_compared", "entries", "replicas"),
            )
        )
    )


def _counted(column: str, noun: str) -> Column:
    return sf.concat_ws(" ", column, sf.when(sf.col(column) == 1, noun).otherwise(noun + "s"))
