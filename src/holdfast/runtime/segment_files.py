"""Files of the collection: the telemetry that a node offers, and the targets of advice and collected segments.

Names come from peers. A name that is not exactly that of a segment, or of an edition, is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from holdfast.collect.frames import NAMES_MAX, PIECE_BYTES

_SEGMENT: Final = re.compile(
    r"[a-z_]{1,32}/day=\d{4}-\d\d-\d\d/[0-9a-f]{32}-\d{1,12}-\d{1,12}\.parquet"
)
_EDITION: Final = re.compile(r"\d{8,12}\.parquet")
ADVICE_BYTES_MAX: Final = 64 << 20
EDITIONS_KEPT: Final = 4


class Refused(ValueError):
    """A request was refused; the message gives the reason."""


def list_segments(landing: Path, after: str) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Names and sizes of sealed segments after a name, and whether there are more."""
    names = sorted(
        name
        for path in landing.glob("*/day=*/*.parquet")
        if _SEGMENT.fullmatch(name := path.relative_to(landing).as_posix()) and name > after
    )
    found: list[tuple[str, int]] = []
    for name in names[:NAMES_MAX]:
        try:
            found.append((name, (landing / name).stat().st_size))
        except OSError:
            continue  # removed in the meantime, because of the size limit
    return tuple(found), len(names) > NAMES_MAX


def read_piece(landing: Path, name: str, offset: int) -> bytes:
    """Bytes of a segment. Raises `Refused`."""
    if not _SEGMENT.fullmatch(name) or offset < 0:
        raise Refused(f"{name!r} is not the name of a segment")
    try:
        with (landing / name).open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)
    except OSError as failure:
        raise Refused(f"{name}: {failure.strerror}") from None


def segment_target(directory: Path, node: str, name: str) -> Path:
    """The path for a collected segment of a node. Raises `Refused`."""
    if not _SEGMENT.fullmatch(name) or not Path(name).name.startswith(f"{node}-"):
        raise Refused(f"{name!r} is not the name of a segment of {node}")
    return directory / node / "landing" / name


def put_whole(target: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".part")
    temporary.write_bytes(content)
    temporary.replace(target)


class AdviceInbox:
    """Assembles an edition that arrives in pieces, one at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""
        self._content = bytearray()

    def take(self, name: str, offset: int, size: int, data: bytes) -> None:
        """One piece, in order; the last one makes the edition visible. Raises `Refused`."""
        if not _EDITION.fullmatch(name) or not 0 < size <= ADVICE_BYTES_MAX:
            raise Refused(f"{name!r} is not an edition of advice")
        if offset == 0:
            self._name, self._content = name, bytearray()
        if name != self._name or offset != len(self._content) or offset + len(data) > size:
            raise Refused(f"a piece of {name} is out of order")
        self._content += data
        if len(self._content) == size:
            self._finish(name)

    def _finish(self, name: str) -> None:
        from holdfast.recording.advice import decode_advice

        content, self._content, self._name = bytes(self._content), bytearray(), ""
        try:
            decode_advice(content)
        except ValueError as damage:
            raise Refused(str(damage)) from None
        put_whole(self._directory / name, content)
        editions = sorted(
            p for p in self._directory.glob("*.parquet") if _EDITION.fullmatch(p.name)
        )
        for old in editions[:-EDITIONS_KEPT]:
            old.unlink(missing_ok=True)
