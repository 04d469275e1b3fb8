"""What a checker sees of a replica and of a source: the one place that looks inside them.

A sight is of one process (host and boot). Its log and its cursor are the replica's own, so they go on to say how far
it is; checkers only read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.group.config import SINK, GroupConfig
from holdfast.group.entries import View
from holdfast.group.log import Cursor, Log
from holdfast.group.replica import ReplicaMachine
from holdfast.group.rulings import NOTHING
from holdfast.group.sink import SinkMachine
from holdfast.group.source import SourceMachine
from holdfast.group.streams import Streams
from holdfast.machine import Turns
from holdfast.wire.frames import StreamId

if TYPE_CHECKING:
    from holdfast.sim.host import Host

WHOLE = "whole"
BLANK = "blank"


class Violation(Exception):
    """A book found that an invariant does not hold; the run that fed it ends with this."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Sight(msgspec.Struct, frozen=True):
    """A replica, as it is now."""

    group: str
    host: str
    boots: int
    incarnation: int
    history: int
    """The founding that its log goes back to; 0 while it knows of no group."""
    term: int
    leading: bool
    memory: str
    """`blank`, `learning` or `whole`: what its acknowledgements are worth."""
    state: str
    why: str
    log: Log
    at: Cursor
    """How far it has handed the order to its application."""
    applied: int
    outstanding: int
    waiting: int
    """Entries that wait for their messages."""
    leader: str
    view: View | None
    """Who is in the group, as far as that is decided here."""
    streams: Streams
    config: GroupConfig
    brought: dict[str, int] = {}
    """Messages that were recovered, by where they came from."""
    kept: int = 0
    """Bytes of outputs whose destinations are not known to have them."""

    @property
    def life(self) -> tuple[str, int]:
        """The process: what it has in memory ends with it."""
        return (self.host, self.boots)

    @property
    def lag(self) -> int:
        return max(0, self.log.last + self.waiting - self.applied)


class SourceSight(msgspec.Struct, frozen=True):
    """A source, as it is now."""

    group: str
    host: str
    stream: StreamId
    last: int
    freed: int
    held: int
    window: int


def look_at_replica(host: Host, machine: ReplicaMachine) -> Sight:
    core = machine._core
    return Sight(
        core.config.name,
        host.name,
        host.boots,
        core.incarnation,
        core.history,
        core.leadership.term,
        core.leadership.leading,
        machine.memory,
        machine.state,
        core.delivery.suspended or machine._leading.halted or machine._stuck,
        core.log,
        core.delivery.at,
        core.delivery.applied,
        core.delivery.outstanding,
        len(core.waiting.entries),
        core.leadership.leader,
        core.log.committed_view,
        core.streams,
        core.config,
        core.recovery.brought,
        core.delivery.kept.bytes,
    )


def look_at_source(host: Host, machine: SourceMachine) -> SourceSight:
    config = machine._config
    return SourceSight(
        config.name, host.name, machine.stream, machine._last, machine._freed, machine.held,
        config.window_bytes,
    )  # fmt: skip


def taken_outputs(host: Host, group: str) -> tuple[int, int, int]:
    """(history, position, k) of the last output of a group that a host knows to have taken."""
    turns = getattr(host.core, "turns", None)
    sink = turns.machine(SINK) if isinstance(turns, Turns) else None
    mark = sink._marks.get(group) if isinstance(sink, SinkMachine) else None
    return (mark.history, mark.position, mark.k) if mark is not None else (0, *NOTHING)


def replicas_of(host: Host) -> Iterator[ReplicaMachine]:
    for machine in _machines(host, "replica/"):
        if isinstance(machine, ReplicaMachine):
            yield machine


def sources_of(host: Host) -> Iterator[SourceMachine]:
    for machine in _machines(host, "source/"):
        if isinstance(machine, SourceMachine):
            yield machine


def _machines(host: Host, prefix: str) -> Iterator[object]:
    turns = getattr(host.core, "turns", None)
    machine_of = getattr(turns, "machine", None)
    if machine_of is None:
        return  # a toy of a test
    for group in host.core.groups:  # type: ignore[union-attr]  # what has turns is a real node
        yield machine_of(prefix + group)
