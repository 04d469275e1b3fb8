"""Which telemetry segments there are, and how Spark reads them.

    <landing>/<kind>/day=YYYY-MM-DD/<node>-<incarnation>-<seq>.parquet

The day is that of sealing, so a segment never joins a day that is long over, however old the facts in it are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.schemas import COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_BACK_DAYS: Final = 30
_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")
_GLOB_SIGNS = re.compile(r"([\\{}\[\]*?])")


class Segment(msgspec.Struct, frozen=True, order=True):
    """One file that a node has sealed."""

    kind: str
    day: str
    path: str
    """Absolute."""
    size: int
    mtime_ns: int


class Listing(msgspec.Struct, frozen=True):
    """What lies in the landing directories. `strange` names what is no segment of a known kind; it is left alone."""

    segments: tuple[Segment, ...]
    strange: tuple[str, ...]


def list_segments(landings: Iterable[Path]) -> Listing:
    """All segments of known kinds, sorted. Drafts (a leading dot or underscore) are not there yet."""
    segments: list[Segment] = []
    strange: list[str] = []
    for landing in sorted({path.resolve() for path in landings}):
        for kind_dir in _folders(landing):
            if kind_dir.name not in COLUMNS:
                strange.append(f"{kind_dir}: a kind of fact that this version does not know")
                continue
            for day_dir in _folders(kind_dir):
                if not _is_day(day_dir.name):
                    strange.append(f"{day_dir}: not a day")
                    continue
                segments += _segments(kind_dir.name, day_dir)
    return Listing(tuple(sorted(segments)), tuple(strange))


def within_look_back(segments: Sequence[Segment], days: int, today: date) -> tuple[Segment, ...]:
    """The segments of the last `days` days, counted from the newest segment.

    Not from today, so the same segments give the same tables whenever they are read. But a day in the future, from
    a node whose clock is wrong, must not push all others out.
    """
    if not segments:
        return ()
    newest = max(segment.day for segment in segments)
    oldest = min(date.fromisoformat(newest), today) - timedelta(days=days - 1)
    return tuple(segment for segment in segments if date.fromisoformat(segment.day) >= oldest)


def read_facts(session: SparkSession, kind: str, paths: Sequence[str]) -> DataFrame:
    """The facts of one kind. Columns that a segment does not have are empty."""
    if not paths:
        # Nothing that Spark itself knows to be nothing: it plans no work for it.
        columns = (f"CAST(NULL AS {column.spark}) AS `{column.name}`" for column in COLUMNS[kind])
        return session.sql(f"SELECT {', '.join(columns)} WHERE false")
    return session.read.schema(spark_schema(kind)).parquet(*map(literally, paths))


def literally(path: str) -> str:
    """A path as Spark must be given it: it takes one for a pattern, also where a name only looks like one."""
    return _GLOB_SIGNS.sub(r"\\\1", path)


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(
        path for path in parent.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    )


def _is_day(name: str) -> bool:
    match = _DAY.fullmatch(name)
    if match is None:
        return False
    try:
        date.fromisoformat(match[1])
    except ValueError:
        return False
    return True


def _segments(kind: str, day_dir: Path) -> list[Segment]:
    found: list[Segment] = []
    for path in day_dir.glob("*.parquet"):
        if path.name.startswith((".", "_")):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # The node has made room on its disk in this very moment.
        day = day_dir.name.removeprefix("day=")
        found.append(Segment(kind, day, str(path), status.st_size, status.st_mtime_ns))
    return found
