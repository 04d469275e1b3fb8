"""What a run did and found, for the caller, `--json` and the terminal."""

from __future__ import annotations

import msgspec

from holdfast.pipeline.sealing import Reported


class SetAside(msgspec.Struct, frozen=True):
    """A segment that is not used, and why."""

    path: str
    outcome: str
    reason: str


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
