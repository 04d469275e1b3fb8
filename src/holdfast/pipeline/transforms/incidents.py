"""Soft-error incidents (SPEC P2): start, end, class, evidence, direction, affected traffic.

`fold_paths` runs the fold of `incident_fold` on the executors, one pair at a time, over the runs of some hours with the
carry of the hour before. `incidents` is the view for people: written incidents, open ones from the newest carry, and
what other nodes recorded about the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.incident_fold import Fold, Incident, Run, incident_id, open_incidents
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.path_runs import PAIR, PATH_DDL
from holdfast.pipeline.units import SPARK_HOUR, contains, in_order, last_hour
from holdfast.pipeline.verdict import CONGESTED, DATA, DEAD, DELAY, FLAPPING, PROTOCOL, Vector

TOLERANCE_S: Final = 30
"""How far the clocks of two nodes may differ when their records are put side by side."""
_DAY_US: Final = 86_400 * 1_000_000

_PAIR_DDL: Final = ", ".join(f"{name} string" for name in PAIR)

FOLDED: Final = f"""what string, unit string, {_PAIR_DDL}, transport string, hour string, id string,
    error_class string, start_us bigint, end_us bigint, open boolean, ended_by string, repeats bigint,
    flapping boolean, facts bigint, worst bigint, size_max bigint, `values` string, unobserved_us bigint,
    ok_us bigint, soft_us bigint, dead_us bigint, falls bigint, deaths bigint, size_min bigint, carry binary"""
"""What the fold writes: rows of three kinds (`incident`, `hour`, `carry`) in one frame."""

INCIDENT_HISTORY: Final = f"""id string, {PATH_DDL}, hour string, error_class string, start_us bigint,
    end_us bigint, open boolean, ended_by string, repeats bigint, flapping boolean, facts bigint, worst bigint,
    size_max bigint, `values` string, unobserved_us bigint"""

PATH_HOURS: Final = f"""{PATH_DDL}, hour string, ok_us bigint, soft_us bigint, dead_us bigint, falls bigint,
    deaths bigint, size_min bigint"""

PATH_CARRY: Final = f"{_PAIR_DDL}, carry binary"

INCIDENTS: Final = f"""id string, {PATH_DDL}, sender_name string, listener_name string, error_class string,
    start_at timestamp, end_at timestamp, last_seen_at timestamp, open boolean, ended_by string, seconds double,
    repeats bigint, flapping boolean, worst bigint, size_max bigint, `values` string, facts bigint,
    unobserved_s double, direction string, moves bigint, affected array<string>, text string"""
"""`direction` is `one way`, `both ways` or `unknown`; `moves` and `affected` are the traffic that left the path during
the incident; `worst` is the smallest size that passed, or the largest loss in parts per million."""


def fold_paths(
    runs: DataFrame,
    carry: DataFrame | None,
    units: Sequence[str],
    kept: Sequence[str] | None = None,
) -> DataFrame:
    """The fold over `runs` of `units`. `carry` has the state of each pair before them.

    The carry after each unit of `kept` is written; of all units if it is not given.
    """
    ordered = in_order(units)
    columns = (
        *PAIR, "transport", "hour", "incarnation", "start_us", "end_us", "alive", "size", "size_max", "loss_ppm",
        "bad_patterns", "holes", "flows", "flows_bad", "delay_us", "rate_limit_kbps", "data_lost",
        "outage_ms", "outage_every_ms", "facts", "lost_before", "carry",
    )  # fmt: skip
    rows = (
        runs.withColumn("start_us", sf.unix_micros("start_at"))
        .withColumn("end_us", sf.unix_micros("end_at"))
        .withColumn("loss_ppm", sf.when(sf.col("lossy"), sf.col("loss_ppm_max")).otherwise(0))
        .withColumn("delay_us", sf.when(sf.col("delayed"), sf.col("delay_us_max")).otherwise(0))
        .withColumn("rate_limit_kbps", sf.coalesce("rate_limit_kbps_min", sf.lit(0)))
        .withColumns(
            {
                name: sf.when(sf.col("interrupted"), sf.col(f"{name}_max")).otherwise(0)
                for name in ("outage_ms", "outage_every_ms")
            }
        )
        .withColumn("carry", sf.lit(None).cast("binary"))
        .select(*columns, "start_ns", "n_first")
    )
    if carry is not None:
        # An empty hour sorts before every hour: the carry of a pair comes before its runs.
        state = carry.select(*PAIR, sf.lit("").alias("hour"), "carry")
        rows = rows.unionByName(state, allowMissingColumns=True)
    keys = [*PAIR, "hour", "incarnation", "start_ns", "n_first", "transport"]
    return (
        rows.repartition(*PAIR)
        .sortWithinPartitions(*keys)
        .select(*columns)
        .mapInArrow(_Folder(ordered, units if kept is None else kept), FOLDED)
    )


class _Folder:
    """Folds the rows of one partition, which are sorted by pair, then by time."""

    def __init__(self, units: Sequence[str], kept: Sequence[str]) -> None:
        self._units = list(units)
        self._kept = frozenset(kept)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = _Rows()
        pair: tuple[str, ...] | None = None
        fold = Fold()
        place = 0
        for batch in batches:
            for row in batch.to_pylist():
                mine = tuple(row[name] for name in PAIR)
                if mine != pair:
                    self._end(out, pair, fold, place)
                    pair, fold, place = mine, Fold(row["carry"]), 0
                    if row["carry"] is not None:
                        continue
                # The carry after each unit that this run leaves behind.
                while not contains(self._units[place], row["hour"]):
                    self._carry(out, pair, fold, self._units[place])
                    place += 1
                fold.take(_run(row))
            if len(out) > _BATCH_ROWS:
                yield out.batch()
        self._end(out, pair, fold, place)
        if len(out):
            yield out.batch()

    def _end(self, out: _Rows, pair: tuple[str, ...] | None, fold: Fold, place: int) -> None:
        if pair is None:
            return
        for unit in self._units[place:]:
            self._carry(out, pair, fold, unit)
        fold.close_hour()
        out.fold(pair, fold, self._units)

    def _carry(self, out: _Rows, pair: tuple[str, ...], fold: Fold, unit: str) -> None:
        if unit in self._kept:
            out.carry(pair, unit, fold.finish(last_hour(unit)))


_BATCH_ROWS: Final = 8192
_ARROW: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}
_FOLDED_ARROW: Final = pa.schema(
    [
        (name.strip("`"), _ARROW[kind])
        for name, kind in (column.split() for column in FOLDED.replace("\n", " ").split(","))
    ]
)


class _Rows:
    """Rows of the fold on their way into a batch."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def carry(self, pair: tuple[str, ...], unit: str, state: bytes) -> None:
        self._rows.append(
            {"what": "carry", "unit": unit, **dict(zip(PAIR, pair, strict=True)), "carry": state}
        )

    def fold(self, pair: tuple[str, ...], fold: Fold, units: Sequence[str]) -> None:
        front = dict(zip(PAIR, pair, strict=True))
        for incident in fold.incidents:
            self._rows.append(
                {
                    "what": "incident",
                    "unit": unit_among(units, incident.hour),
                    **front,
                    **incident_fields(pair, incident),
                }
            )
        for (hour, kind), row in fold.hours.items():
            self._rows.append(
                {
                    "what": "hour", "unit": unit_among(units, hour), **front, "transport": kind, "hour": hour,
                    "ok_us": row.ok_us, "soft_us": row.soft_us, "dead_us": row.dead_us, "falls": row.falls,
                    "deaths": row.deaths, "size_min": row.size_min,
                }
            )  # fmt: skip

    def batch(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        return pa.RecordBatch.from_pylist(rows, schema=_FOLDED_ARROW)


def incident_fields(pair: Sequence[str], incident: Incident) -> dict[str, Any]:
    fields = {name: getattr(incident, name) for name in incident.__struct_fields__}
    name = incident_id(pair, incident.transport, incident.error_class, incident.start_us)
    return {**fields, "id": name}


def unit_among(units: Sequence[str], hour: str) -> str:
    """The unit that holds an hour. A fold may count time into the last hour before its units: the first takes it."""
    return next((name for name in (hour, hour[:10]) if name in units), units[0])


def _run(row: dict[str, Any]) -> Run:
    vector = Vector(
        row["alive"], row["size"], row["size_max"], row["loss_ppm"], row["bad_patterns"], row["holes"],
        row["flows"], row["flows_bad"], row["delay_us"], row["rate_limit_kbps"], row["data_lost"],
        row["outage_ms"], row["outage_every_ms"],
    )  # fmt: skip
    return Run(
        row["hour"], row["incarnation"], row["start_us"], row["end_us"], row["transport"], vector, row["facts"],
        row["lost_before"],
    )  # fmt: skip


def open_from_carry(carry: DataFrame) -> DataFrame:
    """The incidents that are still in a carry, as rows of the history."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [name for name in _FOLDED_ARROW.names if name in _HISTORY]
        schema = pa.schema([_FOLDED_ARROW.field(name) for name in names])
        for batch in batches:
            rows = [
                {**dict(zip(PAIR, pair, strict=True)), **incident_fields(pair, incident)}
                for row in batch.to_pylist()
                for pair in [tuple(row[name] for name in PAIR)]
                for incident in open_incidents(row["carry"])
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    ddl = ", ".join(
        f"`{field.name}` {_spark_type(field.type)}"
        for field in _FOLDED_ARROW
        if field.name in _HISTORY
    )
    return conform(carry.mapInArrow(unpack, ddl), INCIDENT_HISTORY)


_HISTORY: Final = frozenset(
    part.split()[0].strip("`") for part in INCIDENT_HISTORY.replace("\n", " ").split(",")
)


def _spark_type(arrow: pa.DataType) -> str:
    return next(name for name, known in _ARROW.items() if known == arrow)


def incidents(
    rows: DataFrame,
    runs: DataFrame,
    moves: DataFrame,
    names: DataFrame,
    settled: DataFrame | None = None,
    tolerance_s: int = TOLERANCE_S,
) -> DataFrame:
    """Incidents of the history, each with its direction and the traffic that left the path.

    `runs` are path runs (they show whether the way back was watched), `moves` link moves, `names` the newest name of
    each node. `settled` are rows of an earlier result whose direction and traffic cannot change any more.
    """
    rows = rows.withColumn("from_us", sf.col("start_us") - tolerance_s * 1_000_000).withColumn(
        "to_us", sf.col("end_us") + tolerance_s * 1_000_000
    )
    fresh = rows if settled is None else rows.join(settled.select("id"), "id", "left_anti")
    found = _direction(fresh, rows, runs, tolerance_s).join(_affected(fresh, moves), "id", "full")
    known = found.withColumns(
        {name: sf.lit(None).cast("string") for name in ("sender_was", "listener_was")}
    )
    if settled is not None:
        known = known.unionByName(
            settled.select(
                *("id", "direction", "moves", "affected"),
                sf.col("sender_name").alias("sender_was"),
                sf.col("listener_name").alias("listener_was"),
            )
        )
    told = (
        rows.join(known, "id", "left")
        .join(_named(names, "sender"), "sender", "left")
        .join(_named(names, "listener"), "listener", "left")
    )
    shown = told.select(
        "*",
        sf.timestamp_micros("start_us").alias("start_at"),
        sf.when(~sf.col("open"), sf.timestamp_micros("end_us")).alias("end_at"),
        sf.timestamp_micros("end_us").alias("last_seen_at"),
        ((sf.col("end_us") - sf.col("start_us")) / 1e6).alias("seconds"),
        (sf.col("unobserved_us") / 1e6).alias("unobserved_s"),
    )
    filled = shown.withColumns(
        {
            "direction": sf.coalesce("direction", sf.lit("unknown")),
            "moves": sf.coalesce("moves", sf.lit(0)),
            "affected": sf.coalesce("affected", sf.array().cast("array<string>")),
            "sender_name": sf.coalesce("sender_name", "sender_was", sf.substring("sender", 1, 8)),
            "listener_name": sf.coalesce(
                "listener_name", "listener_was", sf.substring("listener", 1, 8)
            ),
        }
    )
    return conform(filled.withColumn("text", _text()), INCIDENTS)


def _reversed(prefix: str = "back_") -> list[Column]:
    swap = {
        "sender": "listener",
        "sender_adapter": "listener_adapter",
        "listener": "sender",
        "listener_adapter": "sender_adapter",
        "subnet": "subnet",
    }
    return [sf.col(theirs).alias(f"{prefix}{mine}") for mine, theirs in swap.items()]


def hours_at_start(start_us: Column, tolerance_s: int = TOLERANCE_S) -> Column:
    """The one or two hours in which the way back is looked at: those that the start touches, give or take the clocks.

    They depend on the incident alone, so its direction is the same whatever else a run looks at.
    """
    hour = lambda at_us: sf.date_format(sf.timestamp_micros(at_us), SPARK_HOUR)
    margin_us = tolerance_s * 1_000_000
    return sf.array_distinct(sf.array(hour(start_us - margin_us), hour(start_us + margin_us)))


def _days(from_us: Column, to_us: Column) -> Column:
    """The numbers of the days that a stretch of time touches. Joins need an equality, or a path that fails every hour
    would be compared with all of its history."""
    day = lambda at_us: sf.floor(at_us / _DAY_US).cast("bigint")
    return sf.sequence(day(from_us), sf.greatest(day(from_us), day(to_us)))


def _direction(
    rows: DataFrame, every: DataFrame, runs: DataFrame, tolerance_s: int = TOLERANCE_S
) -> DataFrame:
    """Whether the way back shows the same at the same time, for `rows` of `every` incident. Unknown unless the other
    end heard something there during the incident: a node that is down hears nothing, before and after do not count.

    Both ends' clocks take part, hence the tolerance: an incident on the way back counts when it overlaps this one
    widened by it, and what was heard when it overlaps this one narrowed by it, by half of its length at most.
    """
    same_pair = [sf.col(name) == sf.col(f"back_{name}") for name in PAIR]
    back = every.select(
        *_reversed(),
        sf.col("transport").alias("back_transport"),
        sf.col("error_class").alias("back_class"),
        sf.col("start_us").alias("back_start_us"),
        sf.col("end_us").alias("back_end_us"),
        sf.explode(_days(sf.col("start_us"), sf.col("end_us"))).alias("back_day"),
    )
    both = (
        rows.withColumn("day", sf.explode(_days(sf.col("from_us"), sf.col("to_us"))))
        .join(
            back,
            [
                *same_pair,
                sf.col("transport") == sf.col("back_transport"),
                sf.col("error_class") == sf.col("back_class"),
                sf.col("day") == sf.col("back_day"),
                sf.col("back_start_us") <= sf.col("to_us"),
                sf.col("back_end_us") >= sf.col("from_us"),
            ],
        )
        .select("id")
        .distinct()
        .withColumn("both", sf.lit(True))
    )
    length_us = sf.col("end_us") - sf.col("start_us")
    heard = runs.where("alive").select(
        *_reversed("back_"),
        sf.col("hour").alias("heard_hour"),
        sf.unix_micros("start_at").alias("heard_from_us"),
        sf.unix_micros("end_at").alias("heard_to_us"),
    )
    watched = (
        rows.withColumn("begun", sf.explode(hours_at_start(sf.col("start_us"), tolerance_s)))
        .withColumn("margin_us", sf.least(length_us / 4, sf.lit(tolerance_s * 1_000_000)))
        .join(
            heard,
            [
                *same_pair,
                sf.col("begun") == sf.col("heard_hour"),
                sf.col("heard_from_us") <= sf.col("end_us") - sf.col("margin_us"),
                sf.col("heard_to_us") >= sf.col("start_us") + sf.col("margin_us"),
            ],
        )
        .select("id")
        .distinct()
        .withColumn("watched", sf.lit(True))
    )
    # A filter of TCP in one direction stops connections in both.
    stops_both = (sf.col("error_class") == PROTOCOL) & (sf.col("transport") == "tcp")
    shared = sf.col("both") | (stops_both & sf.col("watched"))
    direction = sf.when(shared, "both ways").when(sf.col("watched"), "one way")
    return (
        watched.join(both, "id", "full")
        .join(rows.select("id", "error_class", "transport"), "id")
        .withColumn("direction", direction)
        .select("id", "direction")
    )


def _affected(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Link moves away from the path of an incident while it lasted, as the sender recorded them."""
    at_us = sf.unix_micros("at")
    left = moves.where("event IN ('moved', 'flow_lost')").withColumn(
        "left_day", sf.floor(at_us / _DAY_US).cast("bigint")
    )
    rows = rows.withColumn("day", sf.explode(_days(sf.col("from_us"), sf.col("to_us"))))
    joined = rows.join(
        left,
        [
            rows["sender"] == left["node"],
            rows["listener"] == left["peer"],
            rows["sender_adapter"] == left["local_adapter"],
            rows["listener_adapter"] == left["remote_adapter"],
            rows["day"] == left["left_day"],
            (rows["transport"] == left["transport"]) | (rows["transport"] == ""),
            sf.unix_micros(left["at"]).between(rows["from_us"], rows["to_us"]),
        ],
    )
    return joined.groupBy(rows["id"]).agg(
        sf.count("*").alias("moves"),
        sf.slice(sf.sort_array(sf.collect_set(left["reason"])), 1, 8).alias("affected"),
    )


def _named(names: DataFrame, side: str) -> DataFrame:
    return sf.broadcast(
        names.select(sf.col("node").alias(side), sf.col("name").alias(f"{side}_name"))
    )


def _text() -> Column:
    """One plain sentence."""
    what = (
        sf.when(sf.col("error_class") == DEAD, sf.lit("nothing is heard"))
        .when(
            sf.col("error_class") == "size",
            sf.when(
                sf.col("worst") > 0,
                sf.format_string("packets over %d bytes vanish", sf.col("worst")),
            ).otherwise(sf.lit("packets of some sizes vanish")),
        )
        .when(
            sf.col("error_class") == "loss",
            sf.format_string("up to %.1f %% of packets are lost", sf.col("worst") / 10_000),
        )
        .when(
            sf.col("error_class") == "pattern",
            sf.concat(sf.lit("packets filled with "), "values", sf.lit(" vanish")),
        )
        .when(
            sf.col("error_class") == CONGESTED,
            sf.format_string("packets are dropped above about %d kbit/s", sf.col("worst")),
        )
        .when(
            sf.col("error_class") == DELAY,
            sf.format_string(
                "packets take up to %.0f ms longer than usual", sf.col("worst") / 1000
            ),
        )
        .when(
            sf.col("error_class") == DATA, sf.lit("application data does not pass, cause unknown,")
        )
        .when(
            sf.col("error_class") == FLAPPING,
            sf.format_string(
                "nothing passes for up to %.1f s, again and again,", sf.col("worst") / 1000
            ),
        )
        .when(sf.col("error_class") == "flows", sf.lit("some connections fail where others pass"))
        .when(sf.col("error_class") == "multicast", sf.lit("multicast does not pass"))
        .otherwise(sf.lit("packets do not pass although others do"))
    )
    kind = sf.when(sf.col("transport") != "", sf.concat(sf.upper("transport"), sf.lit(": ")))
    return sf.concat(
        sf.coalesce(kind, sf.lit("")),
        what,
        sf.lit(" from "),
        "sender_name",
        sf.lit(" to "),
        "listener_name",
        sf.when(sf.col("direction") == "unknown", "").otherwise(
            sf.concat(sf.lit(", "), sf.col("direction"))
        ),
    )
