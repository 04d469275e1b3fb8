"""The facts of all hosts, kept as recorded, and written in the format of real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.types import Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host

FACTS_MAX: Final = 5_000_000


class Life(msgspec.Struct):
    """One process of one host, within which facts are numbered."""

    host: str
    node_hex: str
    incarnation: int
    wall_offset_ns: Nanos
    facts: list[Any]


class FactBook:
    """Collects facts in memory, up to a bound; the rest is counted."""

    def __init__(self, facts_max: int = FACTS_MAX) -> None:
        self._facts_max = facts_max
        self._lives: dict[tuple[str, int], Life] = {}
        self.count = 0
        self.lost = 0

    def record(self, host: Host, facts: list[Any]) -> None:
        room = self._facts_max - self.count
        if len(facts) > room:
            self.lost += len(facts) - room
            facts = facts[:room]
        key = (host.name, host.boots)
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _begin(host)
        life.facts.extend(facts)
        self.count += len(facts)

    def of(self, kind: type, host: str = "") -> Iterator[Any]:
        """Facts of one kind, of one host or of all, in recording order per host."""
        for life in self._lives.values():
            if host in ("", life.host):
                yield from (fact for fact in life.facts if isinstance(fact, kind))

    def lives(self) -> Iterator[Life]:
        """Every process with its facts, in recording order."""
        yield from self._lives.values()

    def write(self, directory: Path) -> list[Path]:
        """Write everything as sealed segments, as the nodes would have done."""
        from holdfast.recording.segment_writer import MemorySegments

        paths: list[Path] = []
        for life in self._lives.values():
            segments = MemorySegments(
                life.node_hex, life.host, life.incarnation, life.wall_offset_ns
            )
            segments.record(life.facts)
            paths.extend(segments.write(directory))
        return paths


def _begin(host: Host) -> Life:
    """A core with an identity (`me`) uses it; any other is named after its host."""
    me = getattr(host.core, "me", None)
    node_hex = me.node.hex() if me else host.name.encode().hex().ljust(32, "0")[:32]
    incarnation = me.incarnation if me else host.boots
    return Life(host.name, node_hex, incarnation, host.wall_offset_ns, [])
