"""Deactivated dialogs that were abandoned: found by an index in the store, because they are not in memory.

`quiet` lists inactive dialogs by the time since when they are inactive. A scan reads the range that is old enough and
nothing else, so dialogs that are not due cost only disk. A dialog whose partner is linked is kept and listed again
with the present time. Any other is made active and collected like those in memory.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from holdfast.dialog import collecting, loading
from holdfast.dialog.core import Core
from holdfast.dialog.ports import Rows
from holdfast.dialog.records import (
    INACTIVE,
    NUMBER_BYTES,
    QUIET,
    InactiveRow,
    after,
    decode,
    encode,
    quiet_key,
)
from holdfast.machine import Erase, Put
from holdfast.types import SECOND, Nanos

QUIET_MAX: Final = 65_536
"""Dialogs that one scan takes up. The next scan finds the others."""
REVIEWED_MAX: Final = 256
"""Dialogs that are read at a time, with a pause behind them: commits must not wait for thousands of reads."""
PAUSE: Final = SECOND


def scan(core: Core, now: Nanos) -> None:
    """Ask the store which inactive dialogs are old enough, unless an earlier scan is under way."""
    if core.quiet or core.reviews:
        return
    stop = quiet_key(core.env.wall(now) - core.env.abandoned_ns)
    core.reviews[core.read_rows([(QUIET, b"", stop)])] = b""


def arrived(core: Core, now: Nanos, rows: Rows) -> None:
    """An answer of the store: what a scan found, or one dialog of it."""
    key = core.reviews.pop(rows.token)
    if not key:
        core.quiet.extend(found for found, _ in islice(rows.tables[QUIET], QUIET_MAX))
        review(core)
        return
    _decide(core, now, key, rows.tables[INACTIVE])
    if core.quiet and not core.reviews:
        core.deadlines.set("inactive", now + PAUSE)


def review(core: Core) -> None:
    """Read the next dialogs that a scan found."""
    while core.quiet and len(core.reviews) < REVIEWED_MAX:
        key = core.quiet.popleft()
        dialog = key[NUMBER_BYTES:]
        core.reviews[core.read_rows([(INACTIVE, dialog, after(dialog))])] = key


def _decide(core: Core, now: Nanos, key: bytes, rows: list[tuple[bytes, bytes]]) -> None:
    dialog = key[NUMBER_BYTES:]
    if dialog in core.dialogs or dialog in core.parked:
        return  # It was needed meanwhile, which removes it from the index.
    row = decode(InactiveRow, rows[0][1]) if rows else None
    if row is None or quiet_key(row.since, dialog) != key:
        core.writes.append(Erase(QUIET, key, after(key)))
        return
    partner = row.dialog.partner
    if partner is not None and core.peer(partner.node).up:
        since = core.env.wall(now)
        kept = InactiveRow(row.dialog, row.position, since)
        core.writes += (
            Erase(QUIET, key, after(key)),
            Put(QUIET, quiet_key(since, dialog), b""),
            Put(INACTIVE, dialog, encode(kept)),
        )
        return
    d = loading.reactivated(core, dialog, row)
    core.add(d)
    core.run(d, now, loading.start, now)
    core.run(d, now, collecting.collect, now)
