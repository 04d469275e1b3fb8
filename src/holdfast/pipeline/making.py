"""Steps 2 to 4 of a run: examine new segments, merge them into the fact store, bring the tables up to date."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.pipeline.check import GONE, KEPT, Verdict
from holdfast.pipeline.engine import SMALL_BYTES
from holdfast.pipeline.frontier import EVERYTHING
from holdfast.pipeline.ingest import FACTS, Merged, examine, merge
from holdfast.pipeline.intake import Intake, bytes_to_read
from holdfast.pipeline.landings import Segment
from holdfast.pipeline.ledger import LEDGER, Entry, append_ledger, compacted
from holdfast.pipeline.next_snapshot import (
    current_versions,
    drop_old,
    forget_arrivals,
    totals,
)
from holdfast.pipeline.run_context import RunContext
from holdfast.pipeline.run_report import SetAside
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.snapshot import Snapshot
from holdfast.pipeline.steps import Steps, Work
from holdfast.pipeline.storage.port import Store, for_people
from holdfast.pipeline.tables import FOLD_VERSION, HOURLY, NODES, PATHS, VIEWS, Hourly, View
from holdfast.pipeline.units import Calendar, day_of, in_order, is_day
from holdfast.pipeline.work import Attempt
from holdfast.telemetry.facts import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of steps 2 to 4."""

    snapshot: Snapshot
    facts: int
    duplicates: int
    conflicts: int
    too_late: int
    units: tuple[str, ...]
    tables: tuple[str, ...]
    set_aside: tuple[SetAside, ...]


class Maker:
    """Steps 2 to 4."""

    def __init__(
        self,
        run: RunContext,
        store: Store,
        base: Snapshot,
        number: int,
        intake: Intake,
        attempt: str,
        session: SparkSession,
    ) -> None:
        self.run, self.store, self.base, self.number = run, store, base, number
        self.intake, self.attempt, self.session = intake, attempt, session
        self.steps = Steps(run.tell, 6 + len(HOURLY) + len(VIEWS), _threads(run, base, intake))
        self._repaired = False

    def make(self) -> Made:
        self.steps.begin("examining segments")
        verdicts = examine(self.session, self.intake.new, self.run.now_us)
        entries = [self._entry(segment, verdicts.get(segment.uri)) for segment in self.intake.new]
        good = [entry for entry in entries if entry.outcome == KEPT]
        calendar = self._calendar(good)
        work = Attempt(
            self.session, self.store, self.run.root, self.attempt, calendar,
            self.run.settings.look_back_days, self.run.now, {n: dict(p) for n, p in self.base.tables.items()},
            inventory=self.run.inventory(self.store), view_versions=self.base.versions,
            new_hours=_new_hours(good, calendar),
        )  # fmt: skip
        try:
            dirty, merged = self._merge(work, good, calendar)
            self._tables(work, dirty, calendar)
        finally:
            work.close()
        set_aside = tuple(
            SetAside(for_people(entry.path), entry.outcome, entry.reason)
            for entry in entries
            if entry.set_aside
        )
        drop_old(work.parts, self.run.settings.retention, calendar)
        snapshot = self._snapshot(work, entries, merged)
        late = sum(1 for entry in good if any(calendar.is_late(hour) for hour in entry.hours))
        return Made(
            snapshot=snapshot,
            facts=sum(m.rows - m.duplicates - m.conflicts for m in merged),
            duplicates=sum(m.duplicates for m in merged),
            conflicts=sum(m.conflicts for m in merged),
            too_late=late if self.base.number else 0,
            units=tuple(in_order({unit for units in dirty.values() for unit in units})),
            tables=tuple(sorted(name for name, units in work.changed.items() if units)),
            set_aside=set_aside,
        )

    def _entry(self, segment: Segment, verdict: Verdict | None) -> Entry:
        found = verdict or Verdict(
            GONE, "it was removed before it was read, or this user may not read it"
        )
        return Entry(
            path=segment.uri, kind=segment.kind, day=segment.day, size=segment.size,
            mtime_ms=segment.mtime_ms, digest=found.digest, rows=found.rows, hours=list(found.hours),
            outcome=found.outcome, reason=found.reason, schema=SCHEMA, examine_us=found.examine_us,
            disordered=found.disordered, run=self.number,
        )  # fmt: skip

    def _calendar(self, good: Sequence[Entry]) -> Calendar:
        days = [day_of(hour) for entry in good for hour in entry.hours]
        days += [day_of(u) for n, p in self.base.tables.items() if n.startswith(FACTS) for u in p]
        return Calendar(max(days, default=self.run.today), self.run.settings.retention)

    def _merge(
        self, work: Attempt, good: Sequence[Entry], calendar: Calendar
    ) -> tuple[dict[str, set[str]], list[Merged]]:
        """Facts into the fact store; gives the units of each kind whose tables must be made again."""
        merged: dict[str, Merged] = {}
        todo: list[Work] = []
        for kind in COLUMNS:
            entries = [entry for entry in good if entry.kind == kind]
            units = {calendar.unit_of(hour) for entry in entries for hour in entry.hours}
            units |= _closing(work.parts.get(f"{FACTS}/{kind}", {}), calendar)
            if units:
                todo.append(partial(self._store_facts, work, kind, entries, units, merged))
        self.steps.together(todo)
        dirty = {
            kind: {u for u in done.units if not self.base.number or not calendar.is_late(u)}
            for kind, done in merged.items()
        }
        # Which of two contents stays may have changed in an hour of which no segment tells.
        work.new_hours |= {kind: EVERYTHING for kind, done in merged.items() if done.conflicts}
        self._repaired = bool(dirty.get("repair"))
        return dirty, list(merged.values())

    def _store_facts(
        self,
        work: Attempt,
        kind: str,
        entries: Sequence[Entry],
        units: set[str],
        merged: dict[str, Merged],
    ) -> None:
        self.steps.begin(f"storing {kind} facts")
        table = f"{FACTS}/{kind}"
        merged[kind] = merge(
            self.session, self.store, self.run.root, self.attempt, kind, work.parts.get(table, {}),
            [entry.path for entry in entries], units, work.calendar, self.base.buckets,
        )  # fmt: skip
        work.parts[table] = merged[kind].parts

    def _tables(self, work: Attempt, dirty: dict[str, set[str]], calendar: Calendar) -> None:
        todo: list[Work] = []
        for table in HOURLY:
            units = {unit for kind in table.kinds for unit in dirty.get(kind, ())}
            if self.base.versions.get(table.name, table.version) != table.version:
                units |= {u for k in table.kinds for u in work.parts.get(f"{FACTS}/{k}", {})}
            units |= _closing(work.parts.get(table.name, {}), calendar)
            if units:
                todo.append(partial(self._hourly, work, table, in_order(units)))
        self.steps.together(todo)
        chains: dict[str, list[View]] = {}
        for view in VIEWS:
            chains.setdefault(view.chain, []).append(view)
        # All others name nodes.
        self._views(work, chains.pop(NODES))
        self.steps.together([partial(self._chain, work, views) for views in chains.values()])
        if self._models_due():
            from holdfast.pipeline.models import MODEL_VIEWS

            for view in MODEL_VIEWS:
                if not work.parts.get(view.needs):
                    continue
                self.steps.begin(f"model {view.name}")
                work.write_view(view)

    def _hourly(self, work: Attempt, table: Hourly, units: Sequence[str]) -> None:
        self.steps.begin(f"table {table.name}")
        work.write_hourly(table, units)

    def _chain(self, work: Attempt, views: Sequence[View]) -> None:
        """Views that share work, and the fold before those of paths."""
        if views[0].chain == PATHS:
            self._fold(work)
        self._views(work, views)

    def _fold(self, work: Attempt) -> None:
        folded = set(work.changed.get("path_runs", ()))
        if self.base.versions.get("path_carry", FOLD_VERSION) != FOLD_VERSION:
            folded |= set(work.parts.get("path_runs", {}))
        if folded:
            self.steps.begin("folding paths")
            work.write_fold(in_order(folded))
            changed = {u for n in ("path_hours", "path_runs") for u in work.changed.get(n, ())}
            self.steps.begin("rolling up paths")
            work.write_rollup([u for u in in_order(changed) if u in work.parts["path_runs"]])

    def _views(self, work: Attempt, views: Sequence[View]) -> None:
        for view in views:
            if view.needs and not work.parts.get(view.needs):
                continue
            stale = any(work.changed.get(name) for name in view.inputs)
            outdated = self.base.versions.get(view.name) != view.version
            if stale or outdated or view.name not in work.parts:
                self.steps.begin(f"table {view.name}")
                work.write_view(view)

    def _models_due(self) -> bool:
        """Also when an operator has reported a repair: advice must not go on avoiding that path."""
        every_us = self.run.settings.models_every_s * 1_000_000
        due = self.run.now_us - self.base.models_us >= every_us
        return every_us > 0 and (due or self._repaired)

    def _snapshot(self, work: Attempt, entries: list[Entry], merged: Sequence[Merged]) -> Snapshot:
        self.steps.begin("publishing")
        base = self.base
        ledger = append_ledger(self.store, self.run.root, self.attempt, base.parts(LEDGER), entries)
        if self.intake.full:
            listed = (segment.day for segment in self.intake.listing.segments)
            keep = self.run.settings.retention
            ledger = forget_arrivals(ledger, listed, self.run.today, keep)
        work.parts[LEDGER] = compacted(self.store, self.run.root, self.attempt, ledger)
        return Snapshot(
            number=self.number,
            attempt=self.attempt,
            created_us=self.run.now_us,
            schema=SCHEMA,
            buckets=base.buckets,
            reconciled_us=self.run.now_us if self.intake.full else base.reconciled_us,
            models_us=self.run.now_us if self._models_due() else base.models_us,
            versions=current_versions(),
            tables=work.parts,
            stats=totals(base.stats, entries, merged),
        )


def _threads(run: RunContext, base: Snapshot, intake: Intake) -> int:
    """How many steps are made at a time. A small run is mostly planning, which is the work of one thread. In a larger
    one each step has work for all cores, and would share memory with the other."""
    small = bytes_to_read(base, intake, run.settings.look_back_days) <= SMALL_BYTES
    return 2 if small and base.number else 1


def _new_hours(good: Sequence[Entry], calendar: Calendar) -> dict[str, str]:
    """Kind to the first hour with new facts that are in time."""
    first: dict[str, str] = {}
    for entry in good:
        for hour in entry.hours:
            if not calendar.is_late(hour):
                first[entry.kind] = min(hour, first.get(entry.kind, hour))
    return first


def _closing(parts: dict[str, object] | object, calendar: Calendar) -> set[str]:
    """Days that have closed while their files are still kept per hour."""
    assert isinstance(parts, dict)
    return {u[:10] for u in parts if not is_day(u) and day_of(u) < calendar.first_open}
