"""One run of the pipeline: from segments in landing directories to a published snapshot and a report.

1. List recent landing folders and compare them with the ledger.
2. Examine new segments on the executors; the outcome of each goes into the ledger.
3. Merge the good ones into the fact store: this gives the dirty units.
4. Make hourly tables again for dirty units, fold paths forward from the first of them, rebuild the views.
5. Publish one snapshot that names all files, then write the report, then remove garbage.

The same segments give the same rows, in however many runs and in whatever order they arrive. A failure before step 5
leaves everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.pipeline.check import GONE, KEPT, Verdict
from holdfast.pipeline.engine import DEFAULT_ENGINE, check_engine, check_packages, open_engine
from holdfast.pipeline.garbage import collect_garbage, discard, new_attempt
from holdfast.pipeline.ingest import FACTS, Merged, examine, merge
from holdfast.pipeline.landings import Listing, Segment, list_segments
from holdfast.pipeline.ledger import LEDGER, Entry, append_ledger, compacted, read_ledger
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.score_text import score_lines
from holdfast.pipeline.sealing import Reported
from holdfast.pipeline.snapshot import PipelineBusy, Snapshot, Snapshots
from holdfast.pipeline.storage.port import Missing, Store, for_people, join, to_path, to_uri
from holdfast.pipeline.storage.stores import Stores, is_local
from holdfast.pipeline.tables import FOLD_TABLES, FOLD_VERSION, HOURLY, VIEWS
from holdfast.pipeline.units import Calendar, Retention, day_of, in_order, is_day
from holdfast.pipeline.work import Attempt
from holdfast.telemetry.facts import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.reader import Tables

REPORT_NAME: Final = "report.html"
LOG_NAME: Final = "spark.log"
LOOK_BACK_DAYS: Final = 30
RECENT_DAYS: Final = 2
"""Landing folders of this many days are listed in every run."""
RECONCILE_US: Final = 24 * 3600 * 1_000_000
"""How often all landing folders are listed."""
BUCKETS: Final = 4
_ATTEMPTS: Final = 3
"""Nodes remove old segments when they need room; a run that loses one starts over this often."""


class PipelineFailed(HoldfastError):
    """The engine failed in the middle of a run. Tables and report are as they were before."""


class Step(msgspec.Struct, frozen=True):
    """What a run is doing, for a progress bar."""

    text: str
    done: int
    total: int


Progress = Callable[[Step], None]


class SetAside(msgspec.Struct, frozen=True):
    """A segment that is not used, and why."""

    path: str
    outcome: str
    reason: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a run works. `buckets` counts only for the first run of an output directory."""

    engine: str = DEFAULT_ENGINE
    look_back_days: int = LOOK_BACK_DAYS
    retention: Retention = Retention()
    buckets: int = BUCKETS
    reconcile: bool = False
    """List all landing folders, not only the recent ones."""
    report: bool = True
    models_every_s: int = 0
    """How often localisation, predictions and busy windows are made again; 0 for never."""
    inventory: str = ""
    """A CSV file: where adapters are plugged in. Localisation then also names switches, ports and realms."""

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.look_back_days < 1:
            raise MisuseError(
                f"a look-back of {self.look_back_days} days holds nothing; nothing was done"
            )
        if not 1 <= self.buckets <= 4096:
            raise MisuseError(f"{self.buckets} buckets are not from 1 to 4096; nothing was done")


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did and found."""

    nothing_new: bool
    snapshot: int
    segments: int
    """Segments in the ledger that are in use."""
    segments_new: int
    facts: int
    """Facts that this run added to the fact store."""
    duplicates: int
    conflicts: int
    too_late: int
    """Segments with facts that are too old to change tables."""
    units_changed: tuple[str, ...]
    tables_changed: tuple[str, ...]
    set_aside: tuple[SetAside, ...]
    """Segments that this run did not take."""
    strange: tuple[str, ...]
    paths: dict[str, int]
    """How many paths are `ok`, have a `soft error`, are `dead`."""
    incidents_open: int
    verdicts: dict[str, str]
    """Group to the verdict on its deliveries."""
    predictions: tuple[str, ...]
    """Precision, recall and calibration, in words, if this run made predictions."""
    report: str
    seconds: float
    reported: tuple[Reported, ...] = ()
    """Up to when each node has reported, if they were asked to seal before the run."""


class _Intake(msgspec.Struct, frozen=True):
    """The segments that this run looks at."""

    listing: Listing
    new: tuple[Segment, ...]
    known: dict[str, Entry]
    full: bool


def run_pipeline(
    landings: str | Path | Sequence[str | Path],
    root: str | Path,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    session: SparkSession | None = None,
    store: Store | None = None,
    now: datetime | None = None,
) -> RunReport:
    """Bring the tables under `root` up to date with the segments under `landings`.

    `session` is used instead of the engine of the settings, and is not stopped. `now` is the wall clock.
    """
    settings = settings or Settings()
    check_packages()
    given = [landings] if isinstance(landings, str | Path) else list(landings)
    run = _Run(
        [to_uri(landing) for landing in given],
        to_uri(root),
        settings,
        progress or (lambda _: None),
        now or datetime.now(UTC),
    )
    return run.go(session, store)


class _Run:
    """The steps of one run, with what they share."""

    def __init__(
        self, landings: list[str], root: str, settings: Settings, tell: Progress, now: datetime
    ) -> None:
        self.landings = landings
        self.root = root
        self.settings = settings
        self.tell = tell
        self.now = now
        self.now_us = int(now.timestamp() * 1_000_000)
        self.today = now.astimezone(UTC).date()
        self.started_ns = time.monotonic_ns()

    def go(self, session: SparkSession | None, store: Store | None) -> RunReport:
        local = all(is_local(uri) for uri in [self.root, *self.landings])
        if store is None and (local or session is None):
            store = Stores()
        if local or session is not None:
            with sole_writer(self.root):
                return self._with_store(store or _stores(session), session)
        # Remote places can be listed only with an engine.
        with open_engine(self.settings.engine) as opened, sole_writer(self.root):
            return self._with_store(_stores(opened), opened)

    def inventory(self, store: Store) -> tuple[str, ...]:
        """The lines of the inventory, checked before an engine is started."""
        from holdfast.pipeline.transforms.risk_groups import parse_inventory

        if not self.settings.inventory:
            return ()
        uri = to_uri(self.settings.inventory)
        try:
            lines = tuple(store.read(uri).decode("utf-8-sig").splitlines())
        except (Missing, UnicodeDecodeError):
            raise MisuseError(
                f"the inventory {for_people(uri)} is not there, or is not text; nothing was done"
            ) from None
        parse_inventory(lines, {})
        return lines

    def _with_store(self, store: Store, session: SparkSession | None) -> RunReport:
        self.inventory(store)
        snapshots = Snapshots(store, self.root)
        base = snapshots.latest() or Snapshot(buckets=self.settings.buckets)
        number = snapshots.next_number()
        left = _ATTEMPTS
        while True:
            left -= 1
            intake = self._look(store, base)
            if not intake.new and not (base.number and _outdated(base)):
                return self._report(store, snapshots, base, intake, None)
            try:
                made = self._attempt(store, snapshots, base, number, intake, session)
            except PipelineFailed:
                if not left or not self._some_are_gone(store, base, intake):
                    raise
                continue
            report = self._report(store, snapshots, made.snapshot, intake, made)
            collect_garbage(store, snapshots, self.now_us)
            return report

    def _attempt(
        self,
        store: Store,
        snapshots: Snapshots,
        base: Snapshot,
        number: int,
        intake: _Intake,
        session: SparkSession | None,
    ) -> _Made:
        """Make and publish a snapshot; whatever fails, nothing of it is left."""
        attempt = new_attempt(self.now_us)
        try:
            with self._engine(session, intake) as engine:
                made = self._make(store, base, number, intake, attempt, engine)
                snapshots.publish(made.snapshot)
                return made
        except BaseException:
            discard(store, self.root, attempt)
            raise

    def _some_are_gone(self, store: Store, base: Snapshot, intake: _Intake) -> bool:
        """Whether nodes have removed segments meanwhile: then another try has fewer, and may succeed."""
        there = {segment.uri for segment in self._look(store, base).new}
        return any(segment.uri not in there for segment in intake.new)

    # -- 1: what is there ----------------------------------------------------------------------------------------

    def _look(self, store: Store, base: Snapshot) -> _Intake:
        self.tell(Step("listing", 0, 1))
        due = self.now_us - base.reconciled_us >= RECONCILE_US
        full = self.settings.reconcile or due or not base.number or base.schema < SCHEMA
        since = None if full else self.today - timedelta(days=RECENT_DAYS - 1)
        listing = list_segments(store, self.landings, since)
        days = sorted({segment.day for segment in listing.segments})
        known = read_ledger(store, self.root, base.parts(LEDGER), days)
        new = tuple(
            segment
            for segment in listing.segments
            if (entry := known.get(segment.uri)) is None or not entry.settles(segment, self.now_us)
        )
        return _Intake(listing, new, known, full)

    @contextmanager
    def _engine(self, session: SparkSession | None, intake: _Intake) -> Iterator[SparkSession]:
        if session is not None:
            yield session
            return
        self.tell(Step(f"starting {self.settings.engine}", 0, 1))
        log = to_path(join(self.root, LOG_NAME)) if is_local(self.root) else None
        size = sum(segment.size for segment in intake.new)
        with open_engine(self.settings.engine, log, size) as opened:
            yield opened

    # -- 2 to 4 --------------------------------------------------------------------------------------------------

    def _make(
        self,
        store: Store,
        base: Snapshot,
        number: int,
        intake: _Intake,
        attempt: str,
        session: SparkSession,
    ) -> _Made:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        maker = _Maker(self, store, base, number, intake, attempt, session)
        try:
            return maker.make()
        except (PySparkException, Py4JError, ConnectionError) as failure:
            said = str(failure).strip().partition("JVM stacktrace")[0][:1000]
            log = for_people(join(self.root, LOG_NAME))
            raise PipelineFailed(
                f"the engine failed while {maker.doing}; published tables and report are unchanged. "
                f"Its log is {log}. {said}"
            ) from failure

    # -- 5 -------------------------------------------------------------------------------------------------------

    def _report(
        self,
        store: Store,
        snapshots: Snapshots,
        snapshot: Snapshot,
        intake: _Intake,
        made: _Made | None,
    ) -> RunReport:
        from holdfast.pipeline.reader import Tables

        tables = Tables(store, self.root, snapshot)
        page = ""
        if snapshot.number and self.settings.report:
            page = self._page(store, tables, made is not None)
        health = tables.rows("path_health", ["state"]) if tables.has("path_health") else []
        states: dict[str, int] = {}
        for row in health:
            states[row["state"]] = states.get(row["state"], 0) + 1
        found = tables.rows("incidents", ["open"]) if tables.has("incidents") else []
        return RunReport(
            nothing_new=made is None,
            snapshot=snapshot.number,
            segments=snapshot.stats.get("segments", 0),
            segments_new=len(intake.new),
            facts=made.facts if made else 0,
            duplicates=made.duplicates if made else 0,
            conflicts=made.conflicts if made else 0,
            too_late=made.too_late if made else 0,
            units_changed=made.units if made else (),
            tables_changed=made.tables if made else (),
            set_aside=made.set_aside if made else (),
            strange=intake.listing.strange,
            paths=states,
            incidents_open=sum(row["open"] for row in found),
            verdicts=tables.verdicts(),
            predictions=_scores(tables, made),
            report=page,
            seconds=round((time.monotonic_ns() - self.started_ns) / 1e9, 3),
        )

    def _page(self, store: Store, tables: object, new: bool) -> str:
        from holdfast.pipeline.reader import Tables
        from holdfast.pipeline.report import render_report

        assert isinstance(tables, Tables)
        uri = join(self.root, REPORT_NAME)
        if new:
            self.tell(Step("report", 1, 1))
            store.replace(uri, render_report(tables).encode())
        return for_people(uri)


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of steps 2 to 4."""

    snapshot: Snapshot
    facts: int
    duplicates: int
    conflicts: int
    too_late: int
    units: tuple[str, ...]
    tables: tuple[str, ...]
    set_aside: tuple[SetAside, ...]


class _Maker:
    """Steps 2 to 4."""

    def __init__(
        self,
        run: _Run,
        store: Store,
        base: Snapshot,
        number: int,
        intake: _Intake,
        attempt: str,
        session: SparkSession,
    ) -> None:
        self.run, self.store, self.base, self.number = run, store, base, number
        self.intake, self.attempt, self.session = intake, attempt, session
        self.doing = "starting"
        self._repaired = False
        self._done = 0
        self._total = 6 + len(HOURLY) + len(VIEWS)

    def make(self) -> _Made:
        self._step("examining segments")
        verdicts = examine(self.session, self.intake.new, self.run.now_us)
        entries = [self._entry(segment, verdicts.get(segment.uri)) for segment in self.intake.new]
        good = [entry for entry in entries if entry.outcome == KEPT]
        calendar = self._calendar(good)
        work = Attempt(
            self.session, self.store, self.run.root, self.attempt, calendar,
            self.run.settings.look_back_days, self.run.now, {n: dict(p) for n, p in self.base.tables.items()},
            inventory=self.run.inventory(self.store),
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
        self._drop_old(work, calendar)
        snapshot = self._snapshot(work, entries, merged)
        late = sum(1 for entry in good if any(calendar.is_late(hour) for hour in entry.hours))
        return _Made(
            snapshot=snapshot,
            facts=sum(m.rows - m.duplicates - m.conflicts for m in merged),
            duplicates=sum(m.duplicates for m in merged),
            conflicts=sum(m.conflicts for m in merged),
            too_late=late if self.base.number else 0,
            units=tuple(in_order({unit for units in dirty.values() for unit in units})),
            tables=tuple(sorted(name for name, units in work.changed.items() if units)),
            set_aside=set_aside,
        )

    def _step(self, text: str) -> None:
        self.doing = text
        self.run.tell(Step(text, min(self._done, self._total), self._total))
        self._done += 1

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
        dirty: dict[str, set[str]] = {}
        merged: list[Merged] = []
        for kind in COLUMNS:
            entries = [entry for entry in good if entry.kind == kind]
            table = f"{FACTS}/{kind}"
            hours = {hour for entry in entries for hour in entry.hours}
            units = {calendar.unit_of(hour) for hour in hours}
            units |= _closing(work.parts.get(table, {}), calendar)
            if not units:
                continue
            self._step(f"storing {kind} facts")
            done = merge(
                self.session, self.store, self.run.root, self.attempt, kind, work.parts.get(table, {}),
                [entry.path for entry in entries], units, calendar, self.base.buckets,
            )  # fmt: skip
            work.parts[table] = done.parts
            merged.append(done)
            in_time = {u for u in done.units if not self.base.number or not calendar.is_late(u)}
            dirty[kind] = in_time
        self._repaired = bool(dirty.get("repair"))
        return dirty, merged

    def _tables(self, work: Attempt, dirty: dict[str, set[str]], calendar: Calendar) -> None:
        for table in HOURLY:
            units = {unit for kind in table.kinds for unit in dirty.get(kind, ())}
            if self.base.versions.get(table.name, table.version) != table.version:
                units |= {u for k in table.kinds for u in work.parts.get(f"{FACTS}/{k}", {})}
            units |= _closing(work.parts.get(table.name, {}), calendar)
            if units:
                self._step(f"table {table.name}")
                work.write_hourly(table, in_order(units))
        folded = set(work.changed.get("path_runs", ()))
        if self.base.versions.get("path_carry", FOLD_VERSION) != FOLD_VERSION:
            folded |= set(work.parts.get("path_runs", {}))
        if folded:
            self._step("folding paths")
            work.write_fold(in_order(folded))
            changed = {u for n in ("path_hours", "path_runs") for u in work.changed.get(n, ())}
            self._step("rolling up paths")
            work.write_rollup([u for u in in_order(changed) if u in work.parts["path_runs"]])
        for view in VIEWS:
            if view.needs and not work.parts.get(view.needs):
                continue
            stale = any(work.changed.get(name) for name in view.inputs)
            outdated = self.base.versions.get(view.name) != view.version
            if stale or outdated or view.name not in work.parts:
                self._step(f"table {view.name}")
                work.write_view(view)
        if self._models_due():
            from holdfast.pipeline.models import MODEL_VIEWS

            for view in MODEL_VIEWS:
                if not work.parts.get(view.needs):
                    continue
                self._step(f"model {view.name}")
                work.write_view(view)

    def _models_due(self) -> bool:
        """Also when an operator has reported a repair: advice must not go on avoiding that path."""
        every_us = self.run.settings.models_every_s * 1_000_000
        due = self.run.now_us - self.base.models_us >= every_us
        return every_us > 0 and (due or self._repaired)

    def _drop_old(self, work: Attempt, calendar: Calendar) -> None:
        """Retention per layer: parts that are too old are named no more, and become garbage."""
        keep = self.run.settings.retention
        limits = dict.fromkeys([t.name for t in HOURLY] + list(FOLD_TABLES), keep.rollup_days)
        limits["incident_history"] = keep.incident_days
        limits |= {f"{FACTS}/{kind}": keep.raw_days for kind in COLUMNS}
        for name, days in limits.items():
            first = calendar.newest - timedelta(days=days - 1)
            parts = work.parts.get(name, {})
            for unit in [unit for unit in parts if day_of(unit) < first]:
                del parts[unit]

    def _snapshot(self, work: Attempt, entries: list[Entry], merged: Sequence[Merged]) -> Snapshot:
        self._step("publishing")
        base = self.base
        ledger = append_ledger(self.store, self.run.root, self.attempt, base.parts(LEDGER), entries)
        work.parts[LEDGER] = compacted(self.store, self.run.root, self.attempt, ledger)
        stats = dict(base.stats)
        for name, number in (
            ("segments", sum(entry.outcome == KEPT for entry in entries)),
            ("segments_seen", len(entries)),
            ("rows_in", sum(entry.rows for entry in entries if entry.outcome == KEPT)),
            ("rows_merged", sum(done.rows for done in merged)),
            ("duplicates", sum(done.duplicates for done in merged)),
            ("conflicts", sum(done.conflicts for done in merged)),
            ("disordered", sum(entry.disordered for entry in entries)),
            *(
                (f"outcome_{outcome}", sum(entry.outcome == outcome for entry in entries))
                for outcome in sorted({entry.outcome for entry in entries})
            ),
        ):
            stats[name] = stats.get(name, 0) + number
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
            stats=stats,
        )


def _scores(tables: Tables, made: _Made | None) -> tuple[str, ...]:
    if made is None or "prediction_scores" not in made.tables:
        return ()
    return tuple(score_lines(tables.rows("prediction_scores")))


def current_versions() -> dict[str, int]:
    """Table to the version of its transform."""
    return (
        {table.name: table.version for table in HOURLY}
        | dict.fromkeys(FOLD_TABLES, FOLD_VERSION)
        | {view.name: view.version for view in VIEWS}
    )


def _outdated(base: Snapshot) -> bool:
    return base.versions != current_versions() or base.schema < SCHEMA


def _closing(parts: dict[str, object] | object, calendar: Calendar) -> set[str]:
    """Days that have closed while their files are still kept per hour."""
    assert isinstance(parts, dict)
    return {u[:10] for u in parts if not is_day(u) and day_of(u) < calendar.first_open}


def _stores(session: SparkSession | None) -> Stores:
    from holdfast.pipeline.storage.hadoop import HadoopStore

    if session is None:
        return Stores()
    return Stores(remote=lambda: HadoopStore(session))


@contextmanager
def sole_writer(root: str) -> Iterator[None]:
    """Hold a local output directory for one run, so that a second one stops early. The lock ends with the process.

    It saves work and is not needed for safety: creating the snapshot is exclusive.
    """
    if not is_local(root):
        yield
        return
    import fcntl

    folder = to_path(root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineBusy(
                f"another run writes to {folder} right now; nothing was done. Try again when it is done"
            ) from None
        yield


__all__ = [
    "PipelineBusy",
    "PipelineFailed",
    "RunReport",
    "SetAside",
    "Settings",
    "Step",
    "run_pipeline",
]
