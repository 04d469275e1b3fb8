"""The content of a write, as chunks of the size that objects use: from bytes, a file, or an async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from holdfast.objects.values import CHUNK

Data = bytes | bytearray | memoryview | Path | AsyncIterator[bytes]


class Source:
    """Gives one chunk after the other; a short one is the last."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._file: BinaryIO | None = None
        self._left = b""

    @property
    def size(self) -> int:
        """-1 when it is not known before the end."""
        if isinstance(self._data, bytes | bytearray | memoryview):
            return len(self._data)
        return self._data.stat().st_size if isinstance(self._data, Path) else -1

    async def chunk(self, index: int) -> bytes | memoryview:
        if isinstance(self._data, bytes | bytearray | memoryview):
            return memoryview(self._data)[index * CHUNK : (index + 1) * CHUNK]
        if isinstance(self._data, Path):
            return await asyncio.to_thread(self._read, index)
        return await self._collect(self._data)

    def _read(self, index: int) -> bytes:
        if self._file is None:
            assert isinstance(self._data, Path)
            self._file = self._data.open("rb")
        self._file.seek(index * CHUNK)
        return self._file.read(CHUNK)

    async def _collect(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Pieces of any size, cut into chunks."""
        parts, have = [self._left], len(self._left)
        while have < CHUNK:
            try:
                piece = await anext(pieces)
            except StopAsyncIteration:
                break
            parts.append(bytes(piece))
            have += len(piece)
        joined = b"".join(parts)
        self._left = joined[CHUNK:]
        return joined[:CHUNK]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
