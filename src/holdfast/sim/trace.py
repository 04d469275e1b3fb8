"""A record with one line per step, and a digest of it. Two runs are the same if their digests are."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TextIO

LINES_KEPT = 200
"""How much of the end is kept for the message of a failed check."""


class Trace:
    """A deterministic record of a run. A world without one runs faster."""

    def __init__(self, file: TextIO | None = None, kept: int = LINES_KEPT) -> None:
        self._hash = blake2b(digest_size=16)
        self._file = file
        self.lines = 0
        self.tail: deque[str] = deque(maxlen=kept)

    def line(self, now: int, who: str, what: str) -> None:
        """One step: time, host (or `-`), text."""
        text = f"{now} {who} {what}\n"
        self.lines += 1
        self._hash.update(text.encode())
        self.tail.append(text)
        if self._file is not None:
            self._file.write(text)

    def digest(self) -> str:
        """Digest of every line so far."""
        return self._hash.hexdigest()
