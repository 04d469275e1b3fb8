"""Facts on their way to the disk: numbered, bounded, cheap for the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.node.subsystems import fact_types
from holdfast.recording.columns import Layout, LostFact
from holdfast.telemetry.facts import Fact

BUFFER_FULL: Final = "buffer full"


class Taken(msgspec.Struct, frozen=True):
    """Facts of one kind, numbered from `first`; the `dropped` numbers after them did not fit."""

    kind: str
    layout: Layout | None
    """None if this is not a valid fact."""
    first: int
    facts: list[Fact]
    dropped: int


class _Buffer:
    __slots__ = ("_seen", "dropped", "every", "facts", "first", "kind", "layout")

    def __init__(self, kind: str, layout: Layout | None) -> None:
        self.kind = kind
        self.layout = layout
        self.first = 0
        self.facts: list[Fact] = []
        self.dropped = 0
        self.every = 1
        self._seen = 0

    def taker(self) -> Callable[[Fact], None]:
        """What takes a fact in: the list itself, or a sampler."""
        return self.facts.append if self.every == 1 else self._take_some

    def _take_some(self, fact: Fact) -> None:
        if getattr(fact, "event", "") != "sample":
            self.facts.append(fact)
            return
        self._seen += 1
        if self._seen % self.every == 0:
            self.facts.append(fact)


class Buffers:
    """Facts by kind. One thread records, another takes.

    The number of a fact is its position; nothing is computed for it until it is taken. This works because the buffers
    only fill up and are emptied completely, so dropped facts come after all kept ones.
    """

    def __init__(self, rows_max: int) -> None:
        self.rows = 0
        self.recorded = 0
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._buffers: dict[type, _Buffer] = {}
        self._kinds = {LostFact.kind}
        self._append: dict[type, Callable[[Fact], None]] = {}
        for fact in fact_types():
            self._adopt(fact)

    def record(self, facts: Sequence[Fact]) -> int:
        """Number the facts and keep them, or drop those that do not fit. Returns the number of waiting rows."""
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
                self._append[fact] = buffer.taker()
            self.rows = 0
            return taken

    def sample(self, kind: str, every: int) -> None:
        """From now on keep one of `every` facts of a kind whose `event` is `sample`; every 1 keeps all.

        Changes are always kept. Facts that are left out get no number: they are not lost.
        """
        with self._lock:
            for fact, buffer in self._buffers.items():
                if (
                    buffer.kind == kind
                    and buffer.layout is not None
                    and "event" in buffer.layout.names
                ):
                    buffer.every = every
                    self._append[fact] = buffer.taker()

    def _drop(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            buffer = self._buffers.get(type(fact)) or self._adopt(type(fact))
            buffer.dropped += 1

    def _adopt(self, fact: type) -> _Buffer:
        """Add a new kind. Invalid facts are kept separately, to be reported."""
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
