"""The history of this node's own paths: every state change, in memory and in the store, both bounded.

Times are wall-clock times, so that 'no size error in the past 30 days' survives a restart. In addition to the changes
there is one mark per error class and path, because old changes are removed but the time of the last error must not be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.health.classify import CLASSES
from holdfast.health.frames import PathRow
from holdfast.health.table.path_table import NAME_MAX, PathKey
from holdfast.health.table.values import ErrorMark, PathChange
from holdfast.machine import Erase, Outbox, Put
from holdfast.types import Nanos
from holdfast.wire.codec import encode

PATH_HISTORY: Final = "path_history"
"""The store table."""
CHANGES_PER_PATH: Final = 200
CHANGES_MAX: Final = 20_000
MARKS_MAX: Final = 20_000
NOTE_MAX: Final = 500


_changes: Final = msgspec.msgpack.Decoder(PathChange)
_marks: Final = msgspec.msgpack.Decoder(ErrorMark)


class PathHistory:
    """Changes of the paths from and to this node."""

    def __init__(
        self,
        stored: Iterable[tuple[bytes, bytes]] = (),
        per_path: int = CHANGES_PER_PATH,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        self._per_path = per_path
        self._changes_max = changes_max
        self._changes: dict[PathKey, deque[PathChange]] = {}
        self._marks: dict[tuple[PathKey, str], ErrorMark] = {}
        self._count = 0
        self._number = 0
        for key, value in stored:
            self._restore(key, value)

    def _restore(self, key: bytes, value: bytes) -> None:
        try:
            if key[:1] == b"c":
                change = _changes.decode(value)
                self._changes.setdefault(change.path, deque()).append(change)
                self._count += 1
                self._number = max(self._number, change.number)
            else:
                mark = _marks.decode(value)
                self._marks[(mark.path, mark.error_class)] = mark
        except msgspec.DecodeError:
            return  # of a version that we cannot read

    # -- what happens --------------------------------------------------------------------------------------------

    def note(
        self, at_ns: Nanos, path: PathKey, row: PathRow, errors: tuple[str, ...], out: Outbox
    ) -> PathChange:
        """The state of one packet kind on a path has changed."""
        change = PathChange(self._number + 1, at_ns, path, row.transport, row, errors)
        self._add(change, out)
        return change

    def reset(self, at_ns: Nanos, path: PathKey, by: str, note: str, out: Outbox) -> PathChange:
        """Clear the history of a repaired path. The reset itself is recorded."""
        for change in self._changes.pop(path, ()):
            self._count -= 1
            _erase(_change_key(change.number), out)
        for key in [key for key in self._marks if key[0] == path]:
            _erase(_mark_key(self._marks.pop(key)), out)
        change = PathChange(
            self._number + 1, at_ns, path, "", None, (), by[:NAME_MAX], note[:NOTE_MAX]
        )
        self._add(change, out)
        return change

    def _add(self, change: PathChange, out: Outbox) -> None:
        self._number = change.number
        kept = self._changes.setdefault(change.path, deque())
        kept.append(change)
        self._count += 1
        out.write(Put(PATH_HISTORY, _change_key(change.number), encode(change)))
        if len(kept) > self._per_path:
            self._drop(change.path, out)
        elif self._count > self._changes_max:
            # From the path with the most entries: a path that never changes must not lose its only entry.
            self._drop(max(self._changes, key=lambda path: len(self._changes[path])), out)

    def _drop(self, path: PathKey, out: Outbox) -> None:
        change = self._changes[path].popleft()
        self._count -= 1
        if not self._changes[path]:
            del self._changes[path]
        _erase(_change_key(change.number), out)

    def mark(self, at_ns: Nanos, path: PathKey, errors: tuple[str, ...], out: Outbox) -> None:
        """The confirmed current error classes of a path: the start and end of each is recorded."""
        for error_class in CLASSES:
            known = self._marks.get((path, error_class))
            lasting = error_class in errors
            if known is None and (not lasting or len(self._marks) >= MARKS_MAX):
                continue
            if known is not None and known.lasting == lasting:
                continue
            mark = ErrorMark(path, error_class, at_ns, lasting)
            self._marks[(path, error_class)] = mark
            out.write(Put(PATH_HISTORY, _mark_key(mark), encode(mark)))

    def repair(self) -> list[Put]:
        """A unit raised in the middle of an update. Returns everything as writes, because those of the failed update
        were discarded with it."""
        self._changes = {path: changes for path, changes in self._changes.items() if changes}
        kept = [change for changes in self._changes.values() for change in changes]
        self._count = len(kept)
        self._number = max([self._number, *(change.number for change in kept)])
        return [
            *(Put(PATH_HISTORY, _change_key(c.number), encode(c)) for c in kept),
            *(Put(PATH_HISTORY, _mark_key(mark), encode(mark)) for mark in self._marks.values()),
        ]

    # -- what is asked -------------------------------------------------------------------------------------------

    def last_error_ns(self, path: PathKey, error_class: str, now_ns: Nanos = 0) -> Nanos | None:
        """When the path last had this error class, in wall-clock time: `now_ns` if it has it now, None if it never had,
        or not since its history was reset."""
        mark = self._marks.get((path, error_class))
        if mark is None:
            return None
        return max(now_ns, mark.at_ns) if mark.lasting else mark.at_ns

    def paths(self) -> list[PathKey]:
        """Paths with any history."""
        return list(dict.fromkeys([*self._changes, *(path for path, _ in self._marks)]))

    def errors_of(self, path: PathKey, now_ns: Nanos) -> dict[str, Nanos]:
        """The error classes that a path ever had, with the last time."""
        found = {name: self.last_error_ns(path, name, now_ns) for name in CLASSES}
        return {name: at for name, at in found.items() if at is not None}

    def changes(
        self,
        path: PathKey | None = None,
        error_class: str = "",
        since_ns: Nanos = 0,
        limit: int = CHANGES_MAX,
    ) -> list[PathChange]:
        """Changes, oldest first: of one path or all, with one error class or any, not before a time."""
        kept = self._changes.get(path, ()) if path is not None else self._everything()
        found = [
            change
            for change in kept
            if change.at_ns >= since_ns and (not error_class or error_class in change.errors)
        ]
        return found[-limit:] if limit else []

    def _everything(self) -> list[PathChange]:
        changes = [change for kept in self._changes.values() for change in kept]
        return sorted(changes, key=lambda change: change.number)


def _change_key(number: int) -> bytes:
    return b"c" + number.to_bytes(8, "big")


def _mark_key(mark: ErrorMark) -> bytes:
    return b"e" + encode((mark.path, mark.error_class))


def _erase(key: bytes, out: Outbox) -> None:
    out.write(Erase(PATH_HISTORY, key, key + b"\x00"))
