"""Open segments: append-only files of checksummed Arrow frames.

Each frame is `u32 length, u32 crc32 of length and payload, payload`, little-endian. The first payload is an Arrow
schema with the origin of the facts; each further one is a record batch. A process that is killed during a write leaves
only a torn tail. Nothing is synced, so a power failure may lose the last seconds.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from struct import Struct
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.recording.columns import Origin, origin_of, with_origin
from holdfast.recording.losses import UNKNOWN

_HEAD: Final = Struct("<II")
_LENGTH: Final = Struct("<I")


class FrameFile:
    """A segment that is being written."""

    def __init__(self, path: Path, schema: pa.Schema, origin: Origin) -> None:
        """Create the file. After an `OSError` it does not exist."""
        self.path = path
        self.size = 0
        self.rows = 0
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._write(with_origin(schema, origin).serialize())
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch, or raise `OSError` and leave the file as it was."""
        self._write(batch.serialize())
        self.rows += batch.num_rows

    def close(self) -> None:
        os.close(self._handle)

    def _write(self, payload: pa.Buffer) -> None:
        view = memoryview(payload)
        frame = memoryview(b"".join((_HEAD.pack(len(view), checksum(view)), view)))
        at = self.size
        try:
            while frame:
                written = os.pwrite(self._handle, frame, at)
                frame = frame[written:]
                at += written
        except OSError:
            # The next frame overwrites the partial one in any case; this keeps the file readable until then.
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self.size)
            raise
        self.size = at


class Hole(msgspec.Struct, frozen=True):
    """Damaged or torn bytes, and the fact numbers that are missing because of them."""

    first: int
    last: int
    size: int


class Contents(msgspec.Struct, frozen=True):
    """The readable contents of a segment. Without a readable start there is no origin and nothing else."""

    origin: Origin | None
    schema: Any
    batches: list[Any]
    holes: list[Hole]


def read_frames(path: Path) -> Contents:
    """All frames with a valid checksum; never raises because of the contents."""
    data = path.read_bytes()
    payloads, damaged = _split(memoryview(data))
    if not payloads or payloads[0] is None:
        return Contents(None, None, [], [Hole(0, UNKNOWN, len(data))])
    schema = pa.ipc.read_schema(pa.py_buffer(payloads[0]))
    origin = origin_of(schema)
    batches: list[pa.RecordBatch] = []
    holes: list[Hole] = []
    after, open_hole = origin.first, 0
    for payload, size in zip(payloads[1:], damaged[1:], strict=True):
        if payload is None:
            open_hole += size
            continue
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        numbers = batch.column(0)
        if open_hole:
            holes.append(Hole(after, numbers[0].as_py() - 1, open_hole))
            open_hole = 0
        after = numbers[len(numbers) - 1].as_py() + 1
        batches.append(batch)
    if open_hole:
        holes.append(Hole(after, UNKNOWN, open_hole))
    return Contents(origin, schema, batches, holes)


def _split(data: memoryview) -> tuple[list[memoryview | None], list[int]]:
    """Payloads in order, None for a damaged one, and the size of each in bytes."""
    payloads: list[memoryview | None] = []
    sizes: list[int] = []
    at = 0
    while at < len(data):
        length = stop = 0
        crc = 0
        if at + _HEAD.size <= len(data):
            length, crc = _HEAD.unpack_from(data, at)
            stop = at + _HEAD.size + length
        if not length or stop > len(data):
            # A torn tail, or zeros left by a power failure: nothing behind it can be found.
            payloads.append(None)
            sizes.append(len(data) - at)
            break
        payload = data[at + _HEAD.size : stop]
        payloads.append(payload if checksum(payload) == crc else None)
        sizes.append(stop - at)
        at = stop
    return payloads, sizes


def checksum(payload: memoryview) -> int:
    """Covers the length too, so zeros are not a valid frame."""
    return zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))
