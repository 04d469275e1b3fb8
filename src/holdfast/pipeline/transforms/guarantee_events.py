"""The facts that guarantees are judged by, per hour: one row per fact and subject, with the columns of all judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.judges import HOPS, LOCKS, OBJECTS, STABILITY, TRANSACTIONS
from holdfast.pipeline.transforms import conform, hour_column

GUARANTEE_EVENTS: Final = """hour string, guarantee string, subject string, kind string, node string,
    incarnation bigint, n bigint, now_ns bigint, at_us bigint, event string, view bigint, stable bigint, held bigint,
    freed bigint, term bigint, `index` bigint, holder string, holder_incarnation bigint, token bigint,
    transaction string, taken bigint, sent bigint, version bigint, write string, digest string, is_own boolean,
    started_ns bigint, peer string, peers string"""
"""`subject` is `group/epoch` (stability), `group/epoch/lock`, the node (transactions, one hop) or the object. Columns
that a kind of fact does not have are empty."""

_TYPES: Final = {
    name.strip("`"): kind
    for name, kind in (part.split() for part in GUARANTEE_EVENTS.replace("\n", " ").split(","))
}
Frames = Mapping[str, DataFrame]


def guarantee_events(facts: Frames) -> DataFrame:
    """The rows of an hour, from the kinds of facts that it has."""
    parts = [part for make in _MAKERS for part in make(facts)]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows


def _stability(facts: Frames) -> list[DataFrame]:
    """Samples of replicas, and states that replicas restored."""
    found = []
    if "stability" in facts:
        rows = facts["stability"].withColumn("event", sf.lit("sample"))
        numbers = {name: sf.coalesce(name, sf.lit(-1)) for name in ("held", "freed", "view")}
        found.append(_rows(rows.withColumns(numbers), STABILITY, "stability", _group()))
    if "group" in facts:
        restored = facts["group"].where("event = 'restored'")
        found.append(_rows(restored, STABILITY, "group", _group()))
    return found


def _locks(facts: Frames) -> list[DataFrame]:
    if "lock" not in facts:
        return []
    subject = sf.concat_ws("/", _group(), sf.col("lock"))
    return [_rows(facts["lock"], LOCKS, "lock", subject)]


def _transactions(facts: Frames) -> list[DataFrame]:
    found = []
    if "dialog_transaction" in facts:
        ends = facts["dialog_transaction"]
        found.append(_rows(ends, TRANSACTIONS, "dialog_transaction", sf.col("node")))
    if "dialog_range" in facts:
        size = sf.col("last") - sf.col("first") + 1
        of = lambda event: sf.when(sf.col("event") == event, size).otherwise(0)
        ranges = (
            facts["dialog_range"]
            .where("transaction != ''")
            .withColumn("taken", of("taken"))
            .withColumn("sent", of("captured"))
        )
        found.append(_rows(ranges, TRANSACTIONS, "dialog_range", sf.col("node")))
    return found


def _objects(facts: Frames) -> list[DataFrame]:
    found = []
    if "object" in facts:
        decided = facts["object"].where("event = 'decided'")
        found.append(_rows(decided, OBJECTS, "object", sf.col("object")))
    if "object_op" in facts:
        operations = facts["object_op"]
        found.append(_rows(operations, OBJECTS, "object_op", sf.col("object")))
        found.append(_rows(operations, HOPS, "object_op", sf.col("node")))
    if "link" in facts:
        links = facts["link"].where("event IN ('up', 'down')")
        found.append(_rows(links, HOPS, "link", sf.col("node")))
    return found


_MAKERS: Final[tuple[Callable[[Frames], list[DataFrame]], ...]] = (
    _stability,
    _locks,
    _transactions,
    _objects,
)


def _group() -> Column:
    return sf.concat_ws("/", sf.col("group"), sf.hex(sf.coalesce("epoch", sf.lit(0))))


def _rows(facts: DataFrame, guarantee: str, kind: str, subject: Column) -> DataFrame:
    made = facts.withColumns(
        {
            "hour": hour_column(),
            "guarantee": sf.lit(guarantee),
            "subject": subject,
            "kind": sf.lit(kind),
            "at_us": sf.unix_micros("at"),
        }
    )
    columns = [
        (sf.col(f"`{name}`") if name in made.columns else sf.lit(None)).cast(kind).alias(name)
        for name, kind in _TYPES.items()
    ]
    return conform(made.select(*columns), GUARANTEE_EVENTS)
