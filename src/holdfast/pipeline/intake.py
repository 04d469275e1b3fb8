"""Step 1 of a run: which segments are in the landing folders, and which of them are new."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from holdfast.pipeline.landings import Listing, Segment, list_segments
from holdfast.pipeline.ledger import LEDGER, Entry, read_ledger
from holdfast.pipeline.run_context import RunContext, Step
from holdfast.pipeline.snapshot import Snapshot
from holdfast.pipeline.storage.port import Store
from holdfast.pipeline.tables import VIEWS
from holdfast.pipeline.units import day_of
from holdfast.pipeline.work import CARRY
from holdfast.telemetry.facts import SCHEMA

RECENT_DAYS: Final = 2
"""Landing folders of this many days are listed in every run."""
RECONCILE_US: Final = 24 * 3600 * 1_000_000
"""How often all landing folders are listed."""


class Intake(msgspec.Struct, frozen=True):
    """The segments that a run looks at."""

    listing: Listing
    new: tuple[Segment, ...]
    known: dict[str, Entry]
    full: bool


def look(run: RunContext, store: Store, base: Snapshot) -> Intake:
    """List the landing folders and compare them with the ledger."""
    run.tell(Step("listing", 0, 1))
    due = run.now_us - base.reconciled_us >= RECONCILE_US
    full = run.settings.reconcile or due or not base.number or base.schema < SCHEMA
    since = None if full else run.today - timedelta(days=RECENT_DAYS - 1)
    listing = list_segments(store, run.landings, since)
    days = sorted({segment.day for segment in listing.segments})
    known = read_ledger(store, run.root, base.parts(LEDGER), days)
    new = tuple(
        segment
        for segment in listing.segments
        if (entry := known.get(segment.uri)) is None or not entry.settles(segment, run.now_us)
    )
    return Intake(listing, new, known, full)


def bytes_to_read(base: Snapshot, intake: Intake, look_back_days: int) -> int:
    """About how much a run reads: new segments, and what views are made of. Most facts stay unread."""
    tables = {name for view in VIEWS for name in view.inputs} - {CARRY, "path_runs"}
    parts = [part for name in tables for part in base.parts(name).items()]
    newest = max((day_of(unit) for unit, _ in parts if unit), default=None)
    read = (
        file.size
        for unit, part in parts
        for file in part.files
        if unit and newest and (newest - day_of(unit)).days < look_back_days
    )
    return sum(segment.size for segment in intake.new) + sum(read)
