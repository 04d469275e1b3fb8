"""Which segments lie in the landing directories.

    <landing>/<kind>/day=YYYY-MM-DD/<node>-<incarnation>-<seq>.parquet

The day is that of sealing, so a segment never joins a folder of a day that is long over, however old its facts are.
A run lists only recent folders; now and then all of them (`since` is None).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

import msgspec

from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.storage.port import Store, for_people, join

_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")
_HIDDEN = (".", "_")


class Segment(msgspec.Struct, frozen=True, order=True):
    """One file that a node has sealed. `day` is the arrival day: its folder's."""

    kind: str
    day: str
    uri: str
    size: int
    mtime_ms: int

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]


class Listing(msgspec.Struct, frozen=True):
    """Segments, and what is no segment of a known kind (`strange`): it is left alone."""

    segments: tuple[Segment, ...]
    strange: tuple[str, ...]


def list_segments(store: Store, landings: Iterable[str], since: date | None = None) -> Listing:
    """All segments of known kinds in folders of `since` and later, sorted. Names with a leading dot are drafts."""
    segments: list[Segment] = []
    strange: list[str] = []
    for landing in sorted(set(landings)):
        for kind in _visible(store.folders(landing)):
            folder = join(landing, kind)
            if kind not in COLUMNS:
                strange.append(
                    f"{for_people(folder)}: a kind of fact that this version does not know"
                )
                continue
            for name in _visible(store.folders(folder)):
                day = parse_day(name)
                if day is None:
                    strange.append(f"{for_people(join(folder, name))}: not a day")
                elif since is None or day >= since:
                    found, deeper = _segments(store, kind, day.isoformat(), join(folder, name))
                    segments += found
                    strange += deeper
    return Listing(tuple(sorted(segments)), tuple(strange))


def parse_day(name: str) -> date | None:
    """The day of a folder `day=YYYY-MM-DD`."""
    match = _DAY.fullmatch(name)
    if match is None:
        return None
    try:
        return date.fromisoformat(match[1])
    except ValueError:
        return None


def _segments(store: Store, kind: str, day: str, folder: str) -> tuple[list[Segment], list[str]]:
    """The segments of a folder, and the folders in it that hold files as well."""
    segments: list[Segment] = []
    deeper: set[str] = set()
    for stat in store.files(folder):
        name = stat.uri.removeprefix(folder).lstrip("/")
        if name.startswith(_HIDDEN) or not name.endswith(".parquet"):
            continue
        if "/" in name:
            deeper.add(join(folder, name.partition("/")[0]))
        else:
            segments.append(Segment(kind, day, stat.uri, stat.size, stat.mtime_ms))
    told = [
        f"{for_people(inner)}: segments lie directly in the folder of their day, not below it"
        for inner in sorted(deeper)
    ]
    return segments, told


def _visible(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(_HIDDEN)]
