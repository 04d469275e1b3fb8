"""Records the inputs of failed units in `<data dir>/failures`.

Everything is bounded: an input may be a snapshot of a gigabyte, and a turn can have thousands of inputs.
"""

from __future__ import annotations

import logging
import reprlib
from pathlib import Path
from time import time_ns
from typing import Any, Final

import msgspec

from holdfast.machine import Failure

BYTES_SHOWN: Final = 2048
"""The maximum per byte string: a usual packet is shown completely."""
INPUT_CHARS_MAX: Final = 16 << 10
FILE_CHARS_MAX: Final = 1 << 20
FILES_MAX: Final = 100
"""The oldest make room for others."""

log = logging.getLogger("holdfast")


class _Short(reprlib.Repr):
    """`repr` that never builds the text of a large object completely."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxdeque = 16
        self.maxstring = self.maxother = self.maxlong = 512

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, bytes | bytearray | memoryview):
            more = f"... {len(x)} bytes" if len(x) > BYTES_SHOWN else ""
            return f"{bytes(x[:BYTES_SHOWN])!r}{more}"
        if isinstance(x, msgspec.Struct):
            return self._struct(x, level)
        return super().repr1(x, level)

    def _struct(self, x: msgspec.Struct, level: int) -> str:
        if level <= 0:
            return f"{type(x).__name__}(...)"
        fields = (f"{f}={self.repr1(getattr(x, f), level - 1)}" for f in x.__struct_fields__)
        return f"{type(x).__name__}({', '.join(fields)})"


def text_of(failure: Failure) -> str:
    """The error and the inputs that led to it, one per line."""
    short = _Short()
    lines = [
        f"{short.repr(failure.error)} at {failure.at}",
        *getattr(failure.error, "__notes__", []),
    ]
    size = 0
    for number, item in enumerate(failure.inputs):
        if size >= FILE_CHARS_MAX:
            lines.append(f"... and {len(failure.inputs) - number} more inputs")
            break
        line = short.repr(item)
        lines.append(line if len(line) <= INPUT_CHARS_MAX else line[:INPUT_CHARS_MAX] + "...")
        size += len(lines[-1])
    return "\n".join(lines) + "\n"


def write_down(directory: Path, failure: Failure) -> None:
    """Called off the event loop. A failure to write is logged: nothing else depends on it."""
    try:
        directory.mkdir(exist_ok=True)
        for old in sorted(directory.glob("*.txt"))[: 1 - FILES_MAX]:
            old.unlink()
        name = f"{time_ns()}-{failure.unit.replace('/', '_')}.txt"
        (directory / name).write_text(text_of(failure), errors="backslashreplace")
    except Exception as error:  # noqa: BLE001 whatever prevents it, the node continues
        log.warning(
            "the inputs of the failed unit %s cannot be written to %s and are lost: %r",
            failure.unit,
            directory,
            error,
            extra={
                "event": "failure_record_lost",
                "subsystem": "node",
                "unit": failure.unit,
                "error": repr(error),
            },
        )
