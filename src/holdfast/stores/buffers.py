"""Facts on their way out of the node: numbered, bounded, cheap for the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.stores.columns import Layout, LostFact
from holdfast.telemetry.facts import KINDS, Fact

BUFFER_FULL: Final = "buffer full"


class Taken(msgspec.Struct, frozen=True):
    """Facts of one kind, numbered from `first`; the `dropped` numbers after them did not fit."""

    kind: str
    layout: Layout | None
    """None when this is no fact that can be written."""
    first: int
    facts: list[Fact]
    dropped: int


class _Buffer:
    __slots__ = ("dropped", "facts", "first", "kind", "layout")

    def __init__(self, kind: str, layout: Layout | None) -> None:
        self.kind = kind
        self.layout = layout
        self.first = 0
        self.facts: list[Fact] = []
        self.dropped = 0


class Buffers:
    """Facts by kind. One thread records, another takes.

    The number of a fact is its place: nothing is computed for it until it is taken. That works because the buffers
    only become full and only become empty, so what is dropped comes after all that is kept.
    """

    def __init__(self, rows_max: int) -> None:
        self.rows = 0
        self.recorded = 0
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._buffers: dict[type, _Buffer] = {}
        self._kinds = {LostFact.kind}
        self._append: dict[type, Callable[[Fact], None]] = {}
        for fact in KINDS:
            self._adopt(fact)

    def record(self, facts: Sequence[Fact]) -> int:
        """Number the facts and keep them, or drop those that do not fit. Gives the rows that wait."""
        with self._lock:
            self.recorded += len(facts)
            room = self._rows_max - self.rows
            if len(facts) > room:
                self._drop(facts[room:])
                facts = facts[:room]
            append = self._append
            for fact in facts:
                try:
                    append[type(fact)](fact)
                except KeyError:
                    self._adopt(type(fact)).facts.append(fact)
            self.rows += len(facts)
            return self.rows

    def take(self) -> list[Taken]:
        """Everything that waits, by kind."""
        with self._lock:
            taken = []
            for fact, buffer in self._buffers.items():
                facts, dropped = buffer.facts, buffer.dropped
                if not facts and not dropped:
                    continue
                taken.append(Taken(buffer.kind, buffer.layout, buffer.first, facts, dropped))
                buffer.first += len(facts) + dropped
                buffer.facts, buffer.dropped = [], 0
                self._append[fact] = buffer.facts.append
            self.rows = 0
            return taken

    def _drop(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            buffer = self._buffers.get(type(fact)) or self._adopt(type(fact))
            buffer.dropped += 1

    def _adopt(self, fact: type) -> _Buffer:
        """Make room for a kind that was not met before. What cannot be written is kept apart, to be reported."""
        kind = str(getattr(fact, "kind", fact.__name__))
        layout: Layout | None = None
        if issubclass(fact, Fact) and kind not in self._kinds:
            try:
                layout = Layout(fact)
                self._kinds.add(kind)
            except MisuseError:
                layout = None
        buffer = self._buffers[fact] = _Buffer(kind, layout)
        self._append[fact] = buffer.facts.append
        return buffer
