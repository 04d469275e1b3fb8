"""Frames that a source has sent, with two marks: *held* by every member, and *applied* by every member.

Bytes are forgotten as soon as every member holds them and a committed entry covers them: then any other member can send
them again, and the source is not needed. The window moves only when they are applied, or a slow application would not
slow the source down (rule 1 of stability in docs/design/stability.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator

from holdfast.group.streams.values import PIECE_OVERHEAD, SentFrame


class SentFrames:
    """The sent frames of one stream that not all members have applied."""

    __slots__ = (
        "_frames",
        "_lasts",
        "_unapplied",
        "applied",
        "forgotten",
        "kept",
        "last",
        "unapplied",
    )

    def __init__(self) -> None:
        self._frames: list[SentFrame] = []
        self._lasts: list[int] = []
        """Last numbers of `_frames`, for searching."""
        self._unapplied: deque[tuple[int, int]] = deque()
        """(last number, size) of each frame in the window, including those whose bytes are forgotten."""
        self.last = 0
        self.forgotten = 0
        """Every member holds the numbers up to this one. Their bytes are forgotten."""
        self.applied = 0
        """Every member has applied the numbers up to this one. They have left the window."""
        self.kept = 0
        """Bytes in memory, as replicas count them."""
        self.unapplied = 0
        """Bytes in the window."""

    @property
    def in_flight(self) -> int:
        """Bytes in the window, without the overhead of each frame."""
        return self.unapplied - PIECE_OVERHEAD * len(self._unapplied)

    def add(self, frame: SentFrame) -> None:
        last, size = frame.last, frame.size
        self._frames.append(frame)
        self._lasts.append(last)
        self._unapplied.append((last, size))
        self.last = last
        self.kept += size
        self.unapplied += size

    def find(self, ranges: tuple[tuple[int, int], ...], budget: int) -> list[SentFrame]:
        """The frames that contain these numbers, each once, of about `budget` bytes."""
        found: list[SentFrame] = []
        reached = self.forgotten
        for first, last in ranges:
            for frame in self._from(max(first, reached + 1)):
                if frame.first > last or budget <= 0:
                    break
                found.append(frame)
                reached = frame.last
                budget -= frame.block_size
        return found

    def _from(self, number: int) -> Iterator[SentFrame]:
        for at in range(bisect_left(self._lasts, number), len(self._frames)):
            yield self._frames[at]

    def hold(self, upto: int) -> None:
        """Every member holds the numbers up to `upto`: forget their bytes."""
        if not self.forgotten < upto <= self.last:
            return
        # rule: S-1a
        self.forgotten = upto
        gone = bisect_right(self._lasts, upto)
        self.kept -= sum([frame.size for frame in self._frames[:gone]])
        del self._frames[:gone], self._lasts[:gone]

    def apply(self, upto: int) -> None:
        """Every member has applied the numbers up to `upto`: they leave the window."""
        if not self.applied < upto <= self.last:
            return
        self.hold(upto)
        self.applied = upto
        window = self._unapplied
        while window and window[0][0] <= upto:
            self.unapplied -= window.popleft()[1]
