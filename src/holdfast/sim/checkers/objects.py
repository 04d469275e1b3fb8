"""The guarantees of objects, checked against a history of operations.

Every edition of an object has one content. Each acknowledged write has its own edition. A fresh read returns no edition
below one that was acknowledged before the read began. At the end, no acknowledged edition is missing.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from holdfast.sim.checkers.base import CheckFailed
from holdfast.types import Nanos

SHOWN: Final = 32


class ObjectHistory:
    """The history of one strict object. Contents are unique: no two writes have the same."""

    def __init__(self, name: str, content: bytes, replay: str = "") -> None:
        self.name = name
        self.replay = replay
        """The command that replays the run."""
        self.editions: dict[int, bytes] = {1: _mark(content)}
        """The beginning and the digest of each edition that any operation has seen."""
        self._acknowledged: list[tuple[Nanos, int]] = [(0, 1)]
        self.reads = 0
        self.writes = 0
        self.conflicts = 0

    def wrote(self, now: Nanos, edition: int, content: bytes) -> None:
        """A write was acknowledged with exactly this edition."""
        self._saw(edition, content, "write")
        self.writes += 1
        self._acknowledged.append((now, max(edition, self._acknowledged[-1][1])))

    def read(self, begun: Nanos, edition: int, content: bytes) -> None:
        """A fresh read that began at `begun`."""
        self._saw(edition, content, "read")
        self.reads += 1
        least = self.acknowledged_by(begun)
        if edition < least:
            self._fail(
                "a fresh read is not old",
                f"edition {edition} was read, {least} was acknowledged before",
                begun,
            )

    def acknowledged_by(self, when: Nanos) -> int:
        return max((edition for at, edition in self._acknowledged if at <= when), default=1)

    def ended(self, edition: int, content: bytes) -> None:
        """The final state of the object, when everything has settled."""
        self._saw(edition, content, "last read")
        least = self._acknowledged[-1][1]
        if edition < least:
            self._fail(
                "no acknowledged write is lost",
                f"edition {least} was acknowledged, and the object is at edition {edition}",
                self._acknowledged[-1][0],
            )

    def _saw(self, edition: int, content: bytes, what: str) -> None:
        mark = _mark(content)
        known = self.editions.setdefault(edition, mark)
        if known != mark:
            self._fail(
                "an edition has one content",
                f"edition {edition}: {known[:SHOWN]!r} and, by a {what}, {mark[:SHOWN]!r}",
                self._acknowledged[-1][0],
            )

    def _fail(self, invariant: str, detail: str, at: Nanos) -> None:
        raise CheckFailed(invariant, f"object {self.name}: {detail}", at, self.replay)


def _mark(content: bytes) -> bytes:
    return content[:SHOWN] + sha256(content).digest()
