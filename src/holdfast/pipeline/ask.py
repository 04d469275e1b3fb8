"""Answers to questions over history: a question becomes a filter on the published tables.

Time is counted back from the newest fact of the snapshot, so one snapshot gives one answer whenever it is asked. A path
is clean if no incident touches the period. Time without observation is neither clean nor broken: every answer states
how much of the period was observed (`asked_coverage`), and a question can demand it (`coverage >= 95%` asks about all
time, the column about the period).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.check import GONE, KEPT
from holdfast.pipeline.ledger import LEDGER
from holdfast.pipeline.question import All, Clean, Compare, Either, Node, Not, clauses, parse
from holdfast.pipeline.transforms.path_runs import PAIR, PATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.reader import Tables

QUARANTINE: Final = "quarantine"
ANSWER: Final = (
    *("sender_name", "listener_name", "subnet", "transport", "sender_adapter", "listener_adapter"),
    *("state", "size", "size_max", "asked_coverage", "sender", "listener"),
)
_ZERO_IS_UNKNOWN: Final = ("size", "size_max", "worst_size")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Column]]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def ask(question: str, health: DataFrame, incidents: DataFrame, hours: DataFrame) -> DataFrame:
    """The paths that satisfy a question. `hours` are path hours; raises `QuestionUnclear`."""
    node = parse(question)
    now = health.agg(sf.max("last_seen").alias("now")).first()
    if now is None or now["now"] is None:
        return health.withColumn("asked_coverage", sf.lit(None).cast("double")).select(*ANSWER)
    until = sf.lit(now["now"])
    asked = clauses(node)
    rows = health
    for number, clause in enumerate(asked):
        rows = rows.join(_spoilt(clause, number, incidents, until), list(PAIR), "left").join(
            _observed(clause, number, hours, until), list(PATH), "left"
        )
    columns = {clause: _is_clean(number) for number, clause in enumerate(asked)}
    shares = [sf.coalesce(f"observed_{i}", sf.lit(0.0)) for i in range(len(asked))]
    coverage = sf.least(*shares) if len(shares) > 1 else (shares or [sf.col("coverage")])[0]
    return rows.where(_filter(node, columns)).withColumn("asked_coverage", coverage).select(*ANSWER)


def _filter(node: Node, cleans: dict[Clean, Column]) -> Column:
    if isinstance(node, Clean):
        return cleans[node]
    if isinstance(node, Compare):
        # What was never measured satisfies no comparison, nor the opposite: it stays null, also below a `not`.
        return _OPERATORS[node.operator](_measured(node.column), sf.lit(node.value))
    if isinstance(node, Not):
        return ~_filter(node.item, cleans)
    assert isinstance(node, All | Either)
    parts = [_filter(item, cleans) for item in node.items]
    result = parts[0]
    for part in parts[1:]:
        result = (result & part) if isinstance(node, All) else (result | part)
    return result


def _measured(column: str) -> Column:
    """A column of `path_health`; null where nothing is known of it."""
    value = sf.col(column)
    return sf.when(value > 0, value) if column in _ZERO_IS_UNKNOWN else value


def _spoilt(clause: Clean, number: int, incidents: DataFrame, until: Column) -> DataFrame:
    """The transports of each pair with an incident in the period; an empty one concerns all."""
    start_us = sf.unix_micros(until) - sf.lit(int(clause.seconds * 1e6))
    end_us = sf.unix_micros(sf.coalesce("end_at", until))
    found = incidents.where(end_us > start_us)
    if clause.error_class:
        found = found.where(sf.col("error_class") == clause.error_class)
    return found.groupBy(*PAIR).agg(sf.collect_set("transport").alias(f"spoilt_{number}"))


def _is_clean(number: int) -> Column:
    spoilt = sf.col(f"spoilt_{number}")
    hit = sf.array_contains(spoilt, sf.col("transport")) | sf.array_contains(spoilt, sf.lit(""))
    return ~sf.coalesce(hit, sf.lit(False))


def _observed(clause: Clean, number: int, hours: DataFrame, until: Column) -> DataFrame:
    """The share of the period in which each path was observed, by whole hours."""
    first = sf.date_format(
        sf.timestamp_micros(sf.unix_micros(until) - sf.lit(int(clause.seconds * 1e6))),
        "yyyy-MM-dd'T'HH",
    )
    seen = sf.sum(sf.col("ok_us") + sf.col("soft_us") + sf.col("dead_us"))
    share = sf.least(seen / (clause.seconds * 1e6), sf.lit(1.0))
    return (
        hours.where(sf.col("hour") >= first).groupBy(*PATH).agg(share.alias(f"observed_{number}"))
    )


def open_views(session: SparkSession, tables: Tables) -> list[str]:
    """Register all published tables as SQL views; gives their names."""
    from holdfast.pipeline.frames import literally
    from holdfast.pipeline.storage.port import join

    names = []
    for name, parts in tables.snapshot.tables.items():
        uris = [join(tables.root, file.name) for part in parts.values() for file in part.files]
        if not uris or name == "path_carry":
            continue
        view = name.replace("/", "_")
        session.read.parquet(*map(literally, uris)).createOrReplaceTempView(view)
        names.append(view)
    if LEDGER in names:
        quarantine(session.table(LEDGER)).createOrReplaceTempView(QUARANTINE)
        names.append(QUARANTINE)
    return sorted(names)


def quarantine(ledger: DataFrame) -> DataFrame:
    """The files that are not used now, and why: those whose newest entry says so."""
    columns = ("kind", "day", "size", "outcome", "reason", "examine_us")
    newest = ledger.groupBy("path").agg(sf.max_by(sf.struct(*columns), "run").alias("newest"))
    return newest.select("path", "newest.*").where(~sf.col("outcome").isin(KEPT, GONE))


def answer_rows(frame: DataFrame, limit: int) -> list[dict[str, Any]]:
    ordered = frame.orderBy("subnet", "transport", "sender_name", "listener_name")
    return [row.asDict() for row in ordered.limit(limit).collect()]
