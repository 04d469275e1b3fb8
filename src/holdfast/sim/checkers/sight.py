"""A checker's view of a replica and of a source: the only module that reads their internals.

A sight belongs to one process (host and boot). Its log and cursor are those of the replica and stay current; checkers
only read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.group.config import OUTPUT_RECEIVER, GroupConfig
from holdfast.group.frames import StreamId
from holdfast.group.log.entries import View
from holdfast.group.log.replicated_log import Cursor, Log
from holdfast.group.log.values import NOTHING
from holdfast.group.outputs.output_receiver import OutputReceiverMachine
from holdfast.group.replica import ReplicaMachine
from holdfast.group.streams.source import SourceMachine
from holdfast.group.streams.stream_buffer import Streams
from holdfast.group.subsystem import GroupService
from holdfast.machine import Turns

if TYPE_CHECKING:
    from holdfast.sim.host import Host

WHOLE = "whole"
BLANK = "blank"


class Violation(Exception):
    """A checker found a violated invariant; the run that fed it ends with this."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Sight(msgspec.Struct, frozen=True):
    """The current state of a replica."""

    group: str
    host: str
    boots: int
    incarnation: int
    group_epoch: int
    """The group epoch of its log; 0 while it knows no group."""
    term: int
    leading: bool
    memory: str
    """`blank`, `learning` or `whole`: whether its acknowledgements count."""
    state: str
    why: str
    log: Log
    at: Cursor
    """How far it has passed the order to its application."""
    applied: int
    outstanding: int
    waiting: int
    """Entries that wait for their messages."""
    leader: str
    view: View | None
    """The members, as far as they are committed here."""
    streams: Streams
    config: GroupConfig
    brought: dict[str, int] = {}
    """Recovered messages, by origin."""
    kept: int = 0
    """Bytes of outputs that are not known to have arrived."""

    @property
    def life(self) -> tuple[str, int]:
        """The process: its memory ends with it."""
        return (self.host, self.boots)

    @property
    def lag(self) -> int:
        return max(0, self.log.last + self.waiting - self.applied)


class SourceSight(msgspec.Struct, frozen=True):
    """The current state of a source."""

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
        core.group_epoch,
        core.leadership.term,
        core.leadership.leading,
        machine.memory,
        machine.state,
        core.delivery.suspended or machine._leader.halted or machine._stuck,
        core.log,
        core.delivery.at,
        core.delivery.applied,
        core.delivery.outstanding,
        len(core.pending.entries),
        core.leadership.leader,
        core.log.committed_view,
        core.streams,
        core.config,
        core.recovery.brought,
        core.delivery.output_buffer.bytes,
    )


def look_at_source(host: Host, machine: SourceMachine) -> SourceSight:
    config = machine._config
    return SourceSight(
        config.name, host.name, machine.stream, machine._last, machine.forgotten, machine.held,
        config.window_bytes,
    )  # fmt: skip


def taken_outputs(host: Host, group: str) -> tuple[int, int, int]:
    """(epoch, position, k) of the last output of a group that a host has recorded."""
    turns = getattr(host.core, "turns", None)
    sink = turns.machine(OUTPUT_RECEIVER) if isinstance(turns, Turns) else None
    mark = sink._marks.get(group) if isinstance(sink, OutputReceiverMachine) else None
    return (mark.group_epoch, mark.position, mark.k) if mark is not None else (0, *NOTHING)


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
    service = host.core.service(GroupService)  # type: ignore[union-attr]  # what has turns is a real node
    for group in service.groups:
        yield machine_of(prefix + group)
