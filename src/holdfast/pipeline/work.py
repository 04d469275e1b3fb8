"""Making tables of one attempt: hourly tables, the path fold, views. Nothing here is visible before the snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.frames import files_by_unit, files_by_what, literally, read_parts
from holdfast.pipeline.frontier import EVERYTHING, NOTHING
from holdfast.pipeline.ingest import FACTS
from holdfast.pipeline.schemas import spark_schema
from holdfast.pipeline.snapshot import Part, Parts, TableFile
from holdfast.pipeline.storage.port import Store, join
from holdfast.pipeline.tables import HOURLY, INCIDENTS_VERSION, VIEWS, Hourly, View, schema_of
from holdfast.pipeline.units import (
    Calendar,
    contains,
    day_of,
    first_hour,
    in_order,
    is_day,
    last_hour,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES: Final = "tables"
_OF_INCIDENTS: Final = ("path_runs", "link_moves", "incident_history")
"""The hourly tables that incidents are made of."""
CARRY: Final = "path_carry"


class Attempt(msgspec.Struct):
    """The tables as this run leaves them. `parts` starts as the base snapshot has them."""

    session: object
    store: Store
    root: str
    name: str
    calendar: Calendar
    look_back_days: int
    now: datetime
    parts: dict[str, Parts]
    changed: dict[str, set[str]] = {}
    """Table to its units that this run has written."""
    views: dict[Part, object] = {}
    """What was read of views."""
    memo: dict[str, object] = {}
    """What several views of this run share."""
    inventory: tuple[str, ...] = ()
    """The lines of the inventory of the network."""
    view_versions: dict[str, int] = {}
    """The versions of the transforms that made the tables of the base snapshot."""
    new_hours: dict[str, str] = {}
    """Kind to the first hour with new facts that change tables."""

    @property
    def spark(self) -> SparkSession:
        return cast("SparkSession", self.session)

    # -- reading -------------------------------------------------------------------------------------------------

    def facts_of(self, kind: str, units: Iterable[str]) -> DataFrame:
        """The facts of some units."""
        parts = self.parts.get(f"{FACTS}/{kind}", {})
        return read_parts(
            self.spark, self.root, spark_schema(kind), [parts[u] for u in units if u in parts]
        )

    def _has_facts(self, kind: str, units: Iterable[str]) -> bool:
        parts = self.parts.get(f"{FACTS}/{kind}", {})
        return any(unit in parts for unit in units)

    def rows_of(self, table: str, units: Iterable[str]) -> DataFrame:
        """The rows of some units of an hourly table."""
        parts = self.parts.get(table, {})
        return read_parts(
            self.spark, self.root, schema_of(table), [parts[u] for u in units if u in parts]
        )

    def within(self, table: str, days: int | None) -> list[str]:
        """The units of a table in the last days."""
        units = in_order(self.parts.get(table, {}))
        if days is None:
            return units
        first = self.calendar.newest - timedelta(days=days - 1)
        return [unit for unit in units if day_of(unit) >= first]

    # -- what views read (tables.Source) -------------------------------------------------------------------------

    def hourly(self, name: str, look_back_days: int | None = None) -> DataFrame:
        return self.rows_of(name, self.within(name, look_back_days))

    def facts(self, kind: str, look_back_days: int | None = None) -> DataFrame:
        return self.facts_of(kind, self.within(f"{FACTS}/{kind}", look_back_days))

    def carry(self) -> DataFrame | None:
        units = in_order(self.parts.get(CARRY, {}))
        return self.rows_of(CARRY, units[-1:]) if units else None

    def view(self, name: str) -> DataFrame:
        part = self.parts[name][""]
        # Spark finds out the columns by a job: once is enough.
        if part not in self.views:
            uris = [literally(join(self.root, file.name)) for file in part.files]
            self.views[part] = self.spark.read.parquet(*uris)
        return cast("DataFrame", self.views[part])

    def facts_around(self, kind: str, hours: Sequence[str]) -> DataFrame:
        """The facts of the units that hold some hours, and of the unit before each."""
        units = in_order(self.parts.get(f"{FACTS}/{kind}", {}))
        places = {i for i, unit in enumerate(units) if any(contains(unit, hour) for hour in hours)}
        return self.facts_of(
            kind, [u for i, u in enumerate(units) if i in places or i + 1 in places]
        )

    def incident_rows(self) -> DataFrame:
        """Written incidents and those that are still in the newest carry."""
        from holdfast.pipeline.transforms.incidents import open_from_carry

        if "incidents" not in self.memo:
            rows, carry = self.hourly("incident_history"), self.carry()
            if carry is not None:
                rows = rows.unionByName(open_from_carry(carry))
            self.memo["incidents"] = rows.cache()
        return cast("DataFrame", self.memo["incidents"])

    def settled_incidents(self) -> DataFrame | None:
        from pyspark.sql import functions as sf

        if (
            "incidents" not in self.parts
            or self.view_versions.get("incidents") != INCIDENTS_VERSION
        ):
            return None
        written = [day_of(unit) for name in _OF_INCIDENTS for unit in self.changed.get(name, ())]
        # A day more than anything that this run may have changed: an incident can go on after an hour of silence.
        before = min([self.calendar.first_in_time, *written]) - timedelta(days=1)
        over = ~sf.col("open") & (sf.col("last_seen_at") < sf.lit(before.isoformat()).cast("date"))
        return self.view("incidents").where(over)

    def _unsettled(self) -> DataFrame:
        rows, settled = self.incident_rows(), self.settled_incidents()
        return rows if settled is None else rows.join(settled.select("id"), "id", "left_anti")

    def hours_of_incidents(self) -> DataFrame:
        from pyspark.sql import functions as sf

        hours = self._hours_of_starts()
        units = [u for u in self.parts.get("path_runs", {}) if any(contains(u, h) for h in hours)]
        return self.rows_of("path_runs", units).where(sf.col("hour").isin(hours))

    def moves_of_incidents(self) -> DataFrame:
        first = min(self._hours_of_starts(), default="9")
        units = [unit for unit in self.parts.get("link_moves", {}) if last_hour(unit) >= first]
        return self.rows_of("link_moves", units)

    def _hours_of_starts(self) -> list[str]:
        """The hours around the start of the incidents that are not settled."""
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.incidents import hours_at_start

        if "hours" not in self.memo:
            hours = sf.explode(hours_at_start(sf.col("start_us"))).alias("hour")
            found = self._unsettled().select(hours).distinct().collect()
            self.memo["hours"] = sorted(row["hour"] for row in found)
        return cast("list[str]", self.memo["hours"])

    def hours(self, name: str, spans: Sequence[tuple[str, str]]) -> DataFrame:
        units = [
            unit
            for unit in self.within(name, self.look_back_days)
            if any(first <= last_hour(unit) and first_hour(unit) <= last for first, last in spans)
        ]
        return self.rows_of(name, units)

    def changed_since(self, view: str) -> str:
        (made,) = [one for one in VIEWS if one.name == view]
        inputs = [table for table in HOURLY if table.name in made.inputs]
        versions = {made.name: made.version} | {table.name: table.version for table in inputs}
        if any(self.view_versions.get(name) != version for name, version in versions.items()):
            return EVERYTHING
        kinds = [kind for table in inputs for kind in table.kinds]
        return min((self.new_hours.get(kind, NOTHING) for kind in kinds), default=NOTHING)

    def published(self, view: str, schema: str) -> DataFrame:
        return read_parts(self.spark, self.root, schema, [self.parts[view][""]])

    def published_rows(self, view: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for part in self.parts.get(view, {}).values():
            for file in part.files:
                content = pa.BufferReader(self.store.read(join(self.root, file.name)))
                rows += pq.read_table(content, columns=list(columns)).to_pylist()
        return rows

    def first_day(self, look_back_days: int) -> str:
        return (self.calendar.newest - timedelta(days=look_back_days - 1)).isoformat()

    @property
    def first_open(self) -> str:
        return self.calendar.first_open.isoformat()

    def close(self) -> None:
        """Give back what was cached."""
        for name in ("incidents", "audit", "frontier", "dialogs", "guarantees"):
            rows = self.memo.pop(name, None)
            if rows is not None:
                cast("DataFrame", rows).unpersist()

    # -- writing -------------------------------------------------------------------------------------------------

    def write_hourly(self, table: Hourly, units: Sequence[str]) -> None:
        """Make an hourly table again for some units."""

        kinds = [kind for kind in table.kinds if not table.sparse or self._has_facts(kind, units)]
        if not kinds:
            self._replace(table.name, units, {})
            return
        facts = {kind: self.facts_of(kind, units) for kind in kinds}
        rows = table.build(facts).withColumn("unit", self._unit_column())
        target = join(self.root, TABLES, table.name, self.name)
        rows.repartition("unit").write.partitionBy("unit").parquet(target)
        self._replace(table.name, units, files_by_unit(self.store, self.root, target))

    def write_fold(self, units: Sequence[str]) -> None:
        """Fold path runs from the first of `units` on, until the carry is as it was."""
        known = in_order(self.parts.get("path_runs", {}))
        first, last = in_order(units)[0], in_order(units)[-1]
        earlier = [unit for unit in known if last_hour(unit) < first_hour(first)]
        if earlier and not self._carry_before(first):
            first = earlier[0]  # No carry was kept: begin with the oldest hour there is.
        # Whether facts were lost between two hours shows in the later one.
        after = [unit for unit in known if last_hour(unit) > last_hour(last)]
        span = [u for u in known if last_hour(first) <= last_hour(u) <= last_hour(last)] + after[:1]
        if not span:
            return
        published = dict(self.parts.get(CARRY, {}))
        self._fold_span(span, "first")
        end = span[-1]
        same = end in published and self.parts[CARRY][end].digest == published[end].digest
        if after[1:] and not same:
            self._fold_span(after[1:], "rest")

    def _carry_before(self, unit: str) -> list[str]:
        """The newest carry before a unit, if there is one."""
        carries = in_order(self.parts.get(CARRY, {}))
        return [u for u in carries if last_hour(u) < first_hour(unit)][-1:]

    def _fold_span(self, span: Sequence[str], mark: str) -> None:
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.incidents import fold_paths
        from holdfast.pipeline.transforms.recording import boundary_losses

        before = self._carry_before(span[0])
        carry = self.rows_of(CARRY, before) if before else None
        losses = sf.broadcast(
            boundary_losses(self._recorded_around(span)).withColumn("edge", sf.lit(True))
        )
        runs = self._with_edges(self.rows_of("path_runs", span), losses)
        target = join(self.root, TABLES, CARRY, self.name, mark)
        oldest = self.calendar.first_in_time - timedelta(days=1)
        kept = [unit for unit in span if day_of(unit) >= oldest] or [span[-1]]
        folded = fold_paths(runs, carry, span, kept)
        folded.repartition("what", "unit").write.partitionBy("what", "unit").parquet(target)
        self._take_folded(span, files_by_what(self.store, self.root, target))
        self._digest_carry(join(target, "what=carry"))
        carries = self.parts[CARRY]
        for unit in [u for u in carries if day_of(u) < oldest and u != span[-1]]:
            del carries[unit]

    def _recorded_around(self, span: Sequence[str]) -> DataFrame:
        """What was recorded during some units and the day before. After a longer silence nothing is known anyway."""
        first = day_of(span[0]) - timedelta(days=1)
        last = last_hour(span[-1])
        known = self.parts.get("recording_hours", {})
        units = [u for u in known if day_of(u) >= first and last_hour(u) <= last]
        return self.rows_of("recording_hours", units)

    def _with_edges(self, runs: DataFrame, losses: DataFrame) -> DataFrame:
        """Runs that are the first of their path in an hour inherit the losses between that hour and the one before."""
        from pyspark.sql import Window
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.path_runs import PATH

        first = Window.partitionBy(*PATH, "incarnation", "hour").orderBy("start_ns", "n_first")
        return (
            runs.join(losses, ["listener", "incarnation", "hour"], "left")
            .withColumn("place", sf.row_number().over(first))
            .withColumn(
                "lost_before",
                sf.col("lost_before")
                | ((sf.col("place") == 1) & sf.coalesce("edge", sf.lit(False))),
            )
            .drop("place", "edge")
        )

    def _take_folded(
        self, span: Sequence[str], made: dict[tuple[str, str], list[TableFile]]
    ) -> None:
        names = {"incident": "incident_history", "hour": "path_hours", "carry": CARRY}
        for what, table in names.items():
            files = {unit: found for (kind, unit), found in made.items() if kind == what}
            self._replace(table, span, files)

    def _digest_carry(self, target: str) -> None:
        """Digests of the carries under `target`, in one job."""
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.path_runs import PAIR

        schema = f"{schema_of(CARRY)}, unit string"
        rows = (
            self.spark.read.schema(schema)
            .parquet(literally(target))
            .groupBy("unit")
            .agg(
                sf.count("*").alias("rows"),
                sf.bit_xor(sf.xxhash64(*PAIR, "carry")).alias("digest"),
            )
            .collect()
        )
        carries = self.parts[CARRY]
        for row in rows:
            digest = f"{row['rows']}-{row['digest']}"
            carries[row["unit"]] = msgspec.structs.replace(carries[row["unit"]], digest=digest)

    def write_rollup(self, units: Sequence[str]) -> None:
        """Roll up the paths of some units."""

        from holdfast.pipeline.transforms.path_rollup import conformed, path_rollup

        unit = self._unit_column()
        runs = self.rows_of("path_runs", units).withColumn("unit", unit)
        hours = self.rows_of("path_hours", units).withColumn("unit", unit)
        target = join(self.root, TABLES, "path_rollup", self.name)
        rows = conformed(path_rollup(runs, hours))
        rows.repartition("unit").write.partitionBy("unit").parquet(target)
        self._replace("path_rollup", units, files_by_unit(self.store, self.root, target))

    def write_view(self, view: View) -> None:
        """Make a view again."""
        target = join(self.root, TABLES, view.name, self.name)
        made = view.build(self)
        made.repartition(1).sortWithinPartitions(*view.sort).write.parquet(target)
        found = files_by_unit(self.store, self.root, target)
        files = tuple(self._counted(file) for part in found.values() for file in part)
        self.parts[view.name] = {"": Part(files)}
        self.changed[view.name] = {""}

    def _counted(self, file: TableFile) -> TableFile:
        """With the rows of its footer, which is also the proof that the file is whole."""
        content = pa.BufferReader(self.store.read(join(self.root, file.name)))
        return msgspec.structs.replace(file, rows=pq.read_metadata(content).num_rows)

    def _unit_column(self) -> Column:
        """The unit of a row, from its hour."""
        from pyspark.sql import functions as sf

        hour = sf.col("hour")
        first = self.calendar.first_open.isoformat()
        return sf.when(hour >= first, hour).otherwise(sf.substring(hour, 1, 10))

    def _replace(self, table: str, units: Sequence[str], made: dict[str, list[TableFile]]) -> None:
        """The new files stand for `units`; hours of a day that is written as a whole are gone."""
        days = {unit for unit in [*units, *made] if is_day(unit)}
        gone = {*units, *made}
        kept = {
            unit: part
            for unit, part in self.parts.get(table, {}).items()
            if unit not in gone and unit[:10] not in days
        }
        kept |= {unit: Part(tuple(files)) for unit, files in made.items()}
        self.parts[table] = kept
        self.changed.setdefault(table, set()).update(gone)
