"""The results of a sweep on disk, one line of JSON each, so that an interrupted sweep can be resumed.

A line is written and synced before the next points run. An incomplete last line is caused by a crash or a full disk; it
is ignored, and removed by the next write.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import HoldfastError


class SweepStopped(HoldfastError):
    """The sweep cannot continue. Results up to here are kept; the same command resumes it."""


class Record(msgspec.Struct, frozen=True):
    """One task of a sweep: its result, or the error."""

    task: str
    result: dict[str, Any] | None = None
    error: str = ""


class Journal:
    """The records of one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Record]:
        """The latest record of each task."""
        if not self.path.exists():
            return {}
        lines = self.path.read_bytes().split(b"\n")
        decode = msgspec.json.Decoder(Record).decode
        found: dict[str, Record] = {}
        for number, line in enumerate(lines[:-1], 1):
            try:
                record = decode(line)
            except msgspec.MsgspecError as problem:
                raise SweepStopped(
                    f"line {number} of {self.path} is not a result ({problem}); nothing was run. "
                    "Remove the line, or use another directory"
                ) from None
            found[record.task] = record
        return found

    def append(self, records: Sequence[Record]) -> None:
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                self._drop_torn_line(file)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise SweepStopped(
                f"cannot write {self.path}: {problem.strerror or problem}; results before these {len(records)} are "
                "kept. Make room and run the same command again"
            ) from problem

    @staticmethod
    def _drop_torn_line(file: Any) -> None:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.seek(whole)
