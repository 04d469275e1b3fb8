"""One run of the pipeline: from the segments in the landing directories to published tables and a report.

Incremental: a segment is checked once, and a table is made again only when the segments it is made of have changed.
A table is made from all segments of the look-back. Idempotent: a run's name comes from what its segments contain, so
the same segments give the same run, and a run that is published already is not made again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.pipeline.engine import DEFAULT_ENGINE, check_engine, check_packages, open_engine
from holdfast.pipeline.publish import announce, run_dir, sole_writer, stage
from holdfast.pipeline.quarantine import Gone, SetAside, Unfit, check, set_aside
from holdfast.pipeline.reader import read_manifest, read_table
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.sources import (
    LOOK_BACK_DAYS,
    Listing,
    Segment,
    list_segments,
    literally,
    read_facts,
    within_look_back,
)
from holdfast.pipeline.state import Known, State, load_state, save_state
from holdfast.pipeline.tables import TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPORT_NAME: Final = "report.html"
LOG_NAME: Final = "spark.log"
_ATTEMPTS: Final = 3
"""Nodes remove old segments when they like; a run that loses one starts over this often."""


class PipelineFailed(HoldfastError):
    """The engine failed in the middle of a run. Tables and report are as they were before."""


class Step(msgspec.Struct, frozen=True):
    """What a run is doing, for a progress bar."""

    text: str
    done: int
    total: int


Progress = Callable[[Step], None]


class TableReport(msgspec.Struct, frozen=True):
    rows: int
    run: str
    changed: bool


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did and found."""

    nothing_new: bool
    segments: int
    """Segments in the look-back that can be used."""
    segments_new: int
    facts: int
    days_changed: tuple[str, ...]
    """Days with segments that came, changed or went since the last run."""
    set_aside: tuple[SetAside, ...]
    strange: tuple[str, ...]
    """What lies in the landing directories and is no segment of a known kind."""
    tables: dict[str, TableReport]
    paths: dict[str, int]
    """How many paths are `ok`, have a `soft error`, are `dead`."""
    verdicts: dict[str, str]
    """Group to the verdict on its deliveries."""
    report: str
    """Path of the HTML report; empty if nothing was ever recorded."""
    seconds: float


class _Intake(msgspec.Struct, frozen=True):
    """The segments of this run, checked."""

    segments: tuple[Segment, ...]
    state: State
    new: int
    days_changed: tuple[str, ...]
    set_aside: tuple[SetAside, ...]
    strange: tuple[str, ...]

    def run_ids(self) -> dict[str, str]:
        contents = [(s.kind, s.day, self.state.files[s.path].digest) for s in self.segments]
        return {table.name: table.run_id(contents) for table in TABLES}


def run_pipeline(
    landing: Path | Sequence[Path],
    root: Path,
    engine: str = DEFAULT_ENGINE,
    progress: Progress | None = None,
    *,
    session: SparkSession | None = None,
    look_back_days: int = LOOK_BACK_DAYS,
    today: date | None = None,
) -> RunReport:
    """Bring the tables and the report under `root` up to date with the segments under `landing`, one or several.

    `session` is used instead of `engine`, and is not stopped, if it is given. `today` only guards against days that
    lie in the future.
    """
    check_engine(engine)
    if look_back_days < 1:
        raise MisuseError(f"a look-back of {look_back_days} days holds nothing; nothing was done")
    check_packages()
    started_ns = time.monotonic_ns()
    tell = progress or (lambda _: None)
    landings = [landing] if isinstance(landing, Path) else list(landing)
    root = root.resolve()
    day = today or datetime.now(UTC).date()
    aside: list[SetAside] = []
    attempt = 0
    with sole_writer(root):
        while True:
            attempt += 1
            intake = _take_in(root, list_segments(landings), look_back_days, day, tell)
            aside += intake.set_aside
            stale = _stale_tables(root, intake)
            try:
                _make_tables(root, stale, intake, engine, session, tell)
                break
            except PipelineFailed:
                if attempt == _ATTEMPTS or not _some_are_gone(intake.segments):
                    raise
        report = _report(root, tell)
    seconds = (time.monotonic_ns() - started_ns) / 1e9
    return _run_report(root, intake, tuple(aside), {t.name for t in stale}, report, seconds)


def _take_in(
    root: Path, listing: Listing, look_back_days: int, today: date, tell: Progress
) -> _Intake:
    """Check what is new, set aside what is bad, remember both."""
    before = load_state(root).files
    wanted = within_look_back(listing.segments, look_back_days, today)
    files: dict[str, Known] = {}
    good: list[Segment] = []
    aside: list[SetAside] = []
    new = 0
    for done, segment in enumerate(wanted):
        known = before.get(segment.path)
        if known is None or not known.fits(segment):
            tell(Step("checking segments", done, len(wanted)))
            new += 1
            known = _examine(root, segment, aside)
        if known is None:
            continue
        files[segment.path] = known
        if not known.problem:
            good.append(segment)
    state = State(files)
    if files != before:
        save_state(root, state)
    days = _days_changed(before, files)
    return _Intake(tuple(good), state, new, days, tuple(aside), listing.strange)


def _examine(root: Path, segment: Segment, aside: list[SetAside]) -> Known | None:
    """What is known of a segment from now on; None if it is not in the landing directory any more."""
    known = Known(segment.size, segment.mtime_ns, segment.kind, segment.day)
    try:
        passed = check(segment)
    except Gone:
        return None
    except Unfit as reason:
        aside.append(set_aside(root, segment, str(reason)))
        still_there = Path(segment.path).exists()
        return msgspec.structs.replace(known, problem=str(reason)) if still_there else None
    return msgspec.structs.replace(known, rows=passed.rows, digest=passed.digest)


def _days_changed(before: dict[str, Known], now: dict[str, Known]) -> tuple[str, ...]:
    different = [
        known
        for path in before.keys() | now.keys()
        if before.get(path) != now.get(path)
        for known in (before.get(path), now.get(path))
        if known is not None
    ]
    return tuple(sorted({known.day for known in different}))


def _stale_tables(root: Path, intake: _Intake) -> list[Table]:
    """The tables that are not of these segments. Without any segment they stay: a directory may just be away."""
    if not intake.segments:
        return []
    wanted = intake.run_ids()
    stale: list[Table] = []
    for table in TABLES:
        manifest = read_manifest(root, table.name)
        if manifest is None or manifest.run != wanted[table.name]:
            stale.append(table)
    return stale


def _make_tables(
    root: Path,
    tables: Sequence[Table],
    intake: _Intake,
    engine: str,
    session: SparkSession | None,
    tell: Progress,
) -> None:
    """Stage all tables, then announce all: a failure before that leaves everything as it was."""
    if not tables:
        return
    steps = len(tables) + 2
    runs = intake.run_ids()
    tell(Step(f"starting {engine}", 0, steps))
    if session is None:
        input_bytes = sum(segment.size for segment in intake.segments)
        with open_engine(engine, root / LOG_NAME, input_bytes) as opened:
            _stage_tables(root, tables, intake, opened, tell)
    else:
        _stage_tables(root, tables, intake, session, tell)
    tell(Step("publishing", steps - 1, steps))
    for table in tables:
        announce(root, table.name, runs[table.name])


def _stage_tables(
    root: Path, tables: Sequence[Table], intake: _Intake, session: SparkSession, tell: Progress
) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    runs = intake.run_ids()
    table = tables[0]
    try:
        facts = {kind: _facts(session, kind, intake.segments) for kind in COLUMNS}
        made = lambda name: session.read.parquet(literally(str(run_dir(root, name, runs[name]))))
        for done, table in enumerate(tables, start=1):
            tell(Step(f"table {table.name}", done, len(tables) + 2))
            rows = table.build(facts, made).repartition(1).sortWithinPartitions(*table.sort)
            stage(root, table.name, runs[table.name], partial(_write, rows))
    except (PySparkException, Py4JError, ConnectionError) as failure:
        raise PipelineFailed(
            f"the engine failed at table {table.name!r}; tables and report are as they were. "
            f"What it wrote is in {root / LOG_NAME}. "
            f"{str(failure).strip().partition('JVM stacktrace')[0][:1000]}"
        ) from failure


def _facts(session: SparkSession, kind: str, segments: Iterable[Segment]) -> DataFrame:
    return read_facts(session, kind, [s.path for s in segments if s.kind == kind])


def _write(rows: DataFrame, folder: Path) -> None:
    rows.write.parquet(str(folder))


def _some_are_gone(segments: Iterable[Segment]) -> bool:
    return any(not Path(segment.path).exists() for segment in segments)


def _report(root: Path, tell: Progress) -> str:
    """Write the report unless it is of these very tables; empty if there is nothing to report on."""
    manifests = [read_manifest(root, table.name) for table in TABLES]
    runs = [manifest.run for manifest in manifests if manifest is not None]
    if len(runs) < len(TABLES):
        return ""
    path = root / REPORT_NAME
    stamp = hashlib.sha256(" ".join(runs).encode()).hexdigest()
    if not path.exists() or stamp.encode() not in path.read_bytes():
        from holdfast.pipeline.report import write_report

        tell(Step("report", len(TABLES), len(TABLES)))
        write_report(root, path, stamp)
    return str(path)


def _run_report(
    root: Path,
    intake: _Intake,
    aside: tuple[SetAside, ...],
    changed: set[str],
    report: str,
    seconds: float,
) -> RunReport:
    manifests = {table.name: read_manifest(root, table.name) for table in TABLES}
    paths: dict[str, int] = {}
    verdicts: dict[str, str] = {}
    if report:
        for state in read_table(root, "path_health", ["state"]).column("state").to_pylist():
            paths[state] = paths.get(state, 0) + 1
        audit = read_table(root, "delivery_audit", ["group", "verdict"]).to_pylist()
        verdicts = {row["group"]: row["verdict"] for row in audit}
    return RunReport(
        nothing_new=not changed,
        segments=len(intake.segments),
        segments_new=intake.new,
        facts=sum(intake.state.files[segment.path].rows for segment in intake.segments),
        days_changed=intake.days_changed,
        set_aside=aside,
        strange=intake.strange,
        tables={
            name: TableReport(manifest.rows, manifest.run, name in changed)
            for name, manifest in manifests.items()
            if manifest is not None
        },
        paths=paths,
        verdicts=verdicts,
        report=report,
        seconds=round(seconds, 3),
    )
