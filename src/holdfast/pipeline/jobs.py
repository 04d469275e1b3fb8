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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.pipeline.engine import SMALL_BYTES, check_packages, open_engine, suited
from holdfast.pipeline.engine_words import engine_words
from holdfast.pipeline.garbage import collect_garbage, discard, new_attempt
from holdfast.pipeline.intake import Intake, bytes_to_read, look
from holdfast.pipeline.making import Made, Maker
from holdfast.pipeline.next_snapshot import is_outdated
from holdfast.pipeline.run_context import Progress, RunContext, Step
from holdfast.pipeline.run_report import RunReport, SetAside
from holdfast.pipeline.score_text import score_lines
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.snapshot import PipelineBusy, Snapshot, Snapshots
from holdfast.pipeline.storage.port import Store, for_people, join, to_path, to_uri
from holdfast.pipeline.storage.stores import Stores, is_local
from holdfast.pipeline.writer_lock import sole_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.reader import Tables

REPORT_NAME: Final = "report.html"
LOG_NAME: Final = "spark.log"
_ATTEMPTS: Final = 3
"""Nodes remove old segments when they need room; a run that loses one starts over this often."""


class PipelineFailed(HoldfastError):
    """The engine failed in the middle of a run. Tables and report are as they were before."""


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
    context = RunContext(
        tuple(to_uri(landing) for landing in given),
        to_uri(root),
        settings,
        progress or (lambda _: None),
        now or datetime.now(UTC),
    )
    return _Run(context).go(session, store)


class _Run:
    """The steps of one run, in order."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.root = context.root
        self.settings = context.settings
        self.tell = context.tell
        self.started_ns = time.monotonic_ns()

    def go(self, session: SparkSession | None, store: Store | None) -> RunReport:
        local = all(is_local(uri) for uri in [self.root, *self.context.landings])
        if store is None and (local or session is None):
            store = Stores()
        if local or session is not None:
            with sole_writer(self.root):
                return self._with_store(store or _stores(session), session)
        # Remote places can be listed only with an engine, which is therefore one for input of any size.
        with (
            open_engine(self.settings.engine, input_bytes=SMALL_BYTES + 1) as opened,
            sole_writer(self.root),
        ):
            return self._with_store(_stores(opened), opened)

    def _with_store(self, store: Store, session: SparkSession | None) -> RunReport:
        self.context.inventory(store)
        snapshots = Snapshots(store, self.root)
        base = snapshots.latest() or Snapshot(buckets=self.settings.buckets)
        number = snapshots.next_number()
        left = _ATTEMPTS
        while True:
            left -= 1
            intake = look(self.context, store, base)
            if not intake.new and not (base.number and is_outdated(base)):
                return self._report(store, base, intake, None)
            try:
                made = self._attempt(store, snapshots, base, number, intake, session)
            except PipelineFailed:
                if not left or not self._some_are_gone(store, base, intake):
                    raise
                continue
            report = self._report(store, made.snapshot, intake, made)
            collect_garbage(store, snapshots, self.context.now_us)
            return report

    def _attempt(
        self,
        store: Store,
        snapshots: Snapshots,
        base: Snapshot,
        number: int,
        intake: Intake,
        session: SparkSession | None,
    ) -> Made:
        """Make and publish a snapshot; whatever fails, nothing of it is left."""
        attempt = new_attempt(self.context.now_us)
        size = bytes_to_read(base, intake, self.settings.look_back_days)
        try:
            with self._engine(session, size) as engine:
                made = self._make(store, base, number, intake, attempt, engine)
                snapshots.publish(made.snapshot)
                return made
        except BaseException:
            discard(store, self.root, attempt)
            raise

    def _some_are_gone(self, store: Store, base: Snapshot, intake: Intake) -> bool:
        """Whether nodes have removed segments meanwhile: then another try has fewer, and may succeed."""
        there = {segment.uri for segment in look(self.context, store, base).new}
        return any(segment.uri not in there for segment in intake.new)

    @contextmanager
    def _engine(self, session: SparkSession | None, input_bytes: int) -> Iterator[SparkSession]:
        if session is not None:
            with suited(session, input_bytes):
                yield session
            return
        self.tell(Step(f"starting {self.settings.engine}", 0, 1))
        log = to_path(join(self.root, LOG_NAME)) if is_local(self.root) else None
        with open_engine(self.settings.engine, log, input_bytes) as opened:
            yield opened

    def _make(
        self,
        store: Store,
        base: Snapshot,
        number: int,
        intake: Intake,
        attempt: str,
        session: SparkSession,
    ) -> Made:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        maker = Maker(self.context, store, base, number, intake, attempt, session)
        try:
            return maker.make()
        except (PySparkException, Py4JError, ConnectionError) as failure:
            log = for_people(join(self.root, LOG_NAME))
            raise PipelineFailed(
                f"the engine failed while {maker.steps.doing}; published tables and report are unchanged. "
                f"Its log is {log}. {engine_words(failure)}"
            ) from failure

    def _report(
        self,
        store: Store,
        snapshot: Snapshot,
        intake: Intake,
        made: Made | None,
    ) -> RunReport:
        from holdfast.pipeline.reader import Tables

        tables = Tables(store, self.root, snapshot)
        page = ""
        if snapshot.number and self.settings.report:
            page = self._page(store, tables, made is not None)
        health = tables.rows("path_health", ["state"]) if tables.has("path_health") else []
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
            paths=dict(Counter(row["state"] for row in health)),
            incidents_open=sum(row["open"] for row in found),
            verdicts=tables.verdicts(),
            predictions=_scores(tables, made),
            report=page,
            seconds=round((time.monotonic_ns() - self.started_ns) / 1e9, 3),
        )

    def _page(self, store: Store, tables: Tables, new: bool) -> str:
        uri = join(self.root, REPORT_NAME)
        if new:
            self.tell(Step("report", 1, 1))
            write_report(tables, store, uri)
        return for_people(uri)


def write_report(tables: Tables, store: Store, uri: str) -> None:
    """Write the report of a snapshot."""
    from holdfast.pipeline.report import render_report

    store.replace(uri, render_report(tables).encode())


def _scores(tables: Tables, made: Made | None) -> tuple[str, ...]:
    if made is None or "prediction_scores" not in made.tables:
        return ()
    return tuple(score_lines(tables.rows("prediction_scores")))


def _stores(session: SparkSession | None) -> Stores:
    from holdfast.pipeline.storage.hadoop import HadoopStore

    if session is None:
        return Stores()
    return Stores(remote=lambda: HadoopStore(session))


__all__ = [
    "PipelineBusy",
    "PipelineFailed",
    "Progress",
    "RunReport",
    "SetAside",
    "Settings",
    "Step",
    "run_pipeline",
    "write_report",
]
