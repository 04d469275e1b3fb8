"""Replies that were given, by request id: a re-send is answered, not performed again (rule 18).

An entry exists from the moment of delivery, `running`, and for the request's lifetime. A full cache refuses new
requests; it never evicts, because an evicted entry would let a re-send be performed twice.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.frames import Part
from holdfast.types import SECOND, Nanos


class CachedReply:
    __slots__ = ("finished", "outcome", "parts", "until", "waiters")

    def __init__(self, until: Nanos) -> None:
        self.until = until
        self.finished = False
        self.outcome = 0
        self.parts: tuple[Part, ...] = ()
        self.waiters: tuple[Callable[[CachedReply], None], ...] = ()
        """Later attempts of the same request that came while it was running."""

    def finish(self, outcome: int) -> None:
        self.finished = True
        self.outcome = outcome
        if self.waiters:
            waiters, self.waiters = self.waiters, ()
            for waiter in waiters:
                waiter(self)


class ReplyCache:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[tuple[bytes, bytes], CachedReply] = {}
        self._slots: dict[int, list[tuple[bytes, bytes]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, request: bytes, instance: bytes, now: Nanos) -> CachedReply | None:
        entry = self._entries.get((request, instance))
        # rule: O-18a
        return entry if entry is not None and entry.until > now else None

    def open(self, request: bytes, instance: bytes, now: Nanos, until: Nanos) -> CachedReply | None:
        """None when the cache is full."""
        if len(self._entries) >= self._limit:
            self.sweep(now)
            # rule: O-18b
            if len(self._entries) >= self._limit:
                return None
        entry = self._entries[request, instance] = CachedReply(until)
        keys = self._slots.get(until // SECOND)
        if keys is None:
            self._slots[until // SECOND] = [(request, instance)]
        else:
            keys.append((request, instance))
        return entry

    def sweep(self, now: Nanos) -> None:
        """Drop what has expired. The keys are in slots of a second: a sweep touches only what it removes."""
        entries = self._entries
        for slot in [slot for slot in self._slots if slot <= now // SECOND]:
            later = []
            for key in self._slots.pop(slot):
                entry = entries.get(key)
                if entry is None or entry.until // SECOND != slot:
                    continue
                if entry.until <= now:
                    del entries[key]
                else:
                    later.append(key)
            if later:
                self._slots[slot] = later
