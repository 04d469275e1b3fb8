"""The unit `keeper`: holds the table, spreads it, remembers what happened to our paths, raises alarms, tells clients.

It stands apart from the unit that measures, because it writes: what a unit sends waits for its writes, and a
verdict must not wait for a disk.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from holdfast.health.alarms import Alarms
from holdfast.health.classify import MULTICAST, PROTOCOL, SoftError, errors_of, text_of
from holdfast.health.history import History
from holdfast.health.neighbourhood import Neighbourhood
from holdfast.health.ports import HEALTH, Fresh, ResetHistory, Roster, RowsHeard, WallClock
from holdfast.health.spread import Spreader
from holdfast.health.subscriptions import Subscribe, Subscriptions, Taken, Unsubscribe
from holdfast.health.table import PathKey, PathTable, state_of
from holdfast.health.throttle import Interest
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import MemberLeft, NeighboursChanged, PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import NEVER, SECOND, Nanos, NodeId
from holdfast.wire.frames import AskRows, PathRow, PathRows, TableDigest

SETTLE_NS: Final = 1 * SECOND


class KeeperMachine(Machine):
    """Unit `keeper`, layer 4."""

    layer: ClassVar[int] = 4

    def __init__(
        self,
        table: PathTable,
        neighbourhood: Neighbourhood,
        roster: Roster,
        history: History,
        period_ns: Nanos,
        wall_offset_ns: Nanos = 0,
    ) -> None:
        self.table = table
        self.neighbourhood = neighbourhood
        self.roster = roster
        self.history = history
        self.spreader = Spreader(table, neighbourhood.everybody, period_ns)
        self.alarms = Alarms()
        self.subscriptions = Subscriptions(roster.subnet_of)
        self._watched: dict[str, int] = {}
        self.wall_offset_ns = wall_offset_ns
        self._compare_at: Nanos = NEVER
        """When to compare tables with a neighbour again."""
        self._paths: dict[PathKey, dict[str, PathRow]] = {}
        self._incarnations: dict[bytes, int] = {}
        self._unsettled: dict[PathKey, Nanos] = {}
        """Paths that must be looked at again at a time: what one kind of packets lacks, the others may lack soon."""
        table.fresh.clear()
        for key, row in table.rows.items():  # of before this unit was rebuilt
            self._paths.setdefault(key[:4], {})[key[4]] = row

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            match item:
                case Received():
                    self._received(now, item, out)
                case Fresh():
                    pass  # what the table has fresh is looked at below
                case PeerUp():
                    self._incarnations[item.peer] = item.member.incarnation
                    self.table.forget(item.peer, item.member.incarnation)
                    self.spreader.joined(item.peer, out)
                    self._compare_at = min(self._compare_at, now + self.spreader.period_ns)
                    self._wake_at(self._compare_at)
                case PeerDown():
                    self._peer_down(now, item)
                case ResetHistory():
                    wall = now + self.wall_offset_ns
                    self.history.reset(wall, item.path, item.by, item.note, out)
                    out.up(HEALTH, item)  # traffic trusts the path again, too
                case WallClock():
                    self.wall_offset_ns = item.offset_ns
                case _:
                    self._client(now, item, out)
        self._look(now, out)
        self.spreader.flush(out)

    def _received(self, now: Nanos, item: Received, out: Outbox) -> None:
        told: list[PathRow] = []
        for frame in item.frames:
            match frame:
                case PathRows():
                    news = self.spreader.take(now, item.peer, frame, out)
                    told += [row for row in news if row.sender == self.table.me]
                case TableDigest():
                    self.spreader.compare(item.peer, frame, out)
                case AskRows():
                    self.spreader.answer(item.peer, frame, out)
        if told:
            out.up(HEALTH, RowsHeard(tuple(told)))
        departed, self.spreader.departed = self.spreader.departed, []
        for edition in departed:
            self._withdraw(edition.listener, now)
            out.up(DIRECTORY, MemberLeft(NodeId(edition.listener), edition.incarnation))

    def _peer_down(self, now: Nanos, item: PeerDown) -> None:
        self.spreader.up.pop(item.peer, None)
        if item.left or item.resting:
            self._withdraw(item.peer, now)
        if item.left:
            edition = self.table.left(item.peer, self._incarnations.get(item.peer, 0))
            if edition is not None:
                self.spreader.announce(edition)

    def _withdraw(self, sender: bytes, now: Nanos) -> None:
        if self.table.withdraw(sender, now):
            self.spreader.publish([])

    def _client(self, now: Nanos, item: Any, out: Outbox) -> None:
        rows = self.table.rows.values()
        match item:
            case Subscribe():
                self.subscriptions.subscribe(now, item, rows, self._last_changes, out)
                self._tell_interest(out)
            case Unsubscribe():
                self.subscriptions.unsubscribe(item.client)
                self._tell_interest(out)
            case Taken():
                self.subscriptions.taken(now, item, rows, out)

    def _tell_interest(self, out: Outbox) -> None:
        """What is watched is measured more often."""
        watchers = self.subscriptions.watchers()
        for subnet in dict.fromkeys((*self._watched, *watchers)):
            if watchers.get(subnet, 0) != self._watched.get(subnet, 0):
                out.up(HEALTH, Interest(subnet, watchers.get(subnet, 0)))
        self._watched = watchers

    def _last_changes(self, count: int) -> list[Any]:
        return self.history.changes(limit=count)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self.deadline = NEVER
        if now >= self._compare_at:
            self._compare_at = now + self.spreader.period_ns
            self.spreader.tick(out)
        due = [path for path, at in self._unsettled.items() if at <= now]
        for path in (*due, *self.alarms.calm(now)):
            self._unsettled.pop(path, None)
            self._alarm(now, path, out)
        for at in self._unsettled.values():
            self._wake_at(at)
        if self.spreader.up:
            self._wake_at(self._compare_at)
        elif self.alarms.restless:
            self._wake_at(now + 10 * SECOND)

    def _wake_at(self, deadline: Nanos) -> None:
        self.deadline = min(self.deadline, deadline)

    # -- what has changed ----------------------------------------------------------------------------------------

    def _look(self, now: Nanos, out: Outbox) -> None:
        """Everything that changed in the table since the last look, in order."""
        if not self.table.fresh:
            return
        fresh, self.table.fresh[:] = list(self.table.fresh), ()
        own: list[PathRow] = []
        lives = False
        for before, after in fresh:
            row = after or before
            assert row is not None
            if after is not None and after.listener == self.table.me:
                own.append(after)
            self._index(row, after)
            self.subscriptions.changed(now, before, after, out)
            if before is not None and after is not None and state_of(before) == state_of(after):
                continue
            lives = lives or (before is not None and before.alive) != (
                after is not None and after.alive
            )
            self._state(now, row, after, out)
        if own:
            self.spreader.publish(own)
        if lives and self.neighbourhood.sparse:
            self._who_lives(out)

    def _index(self, row: PathRow, after: PathRow | None) -> None:
        path = path_of(row)
        if after is not None:
            self._paths.setdefault(path, {})[row.transport] = after
            return
        kinds = self._paths.get(path, {})
        kinds.pop(row.transport, None)
        if not kinds:
            self._paths.pop(path, None)

    def _state(self, now: Nanos, row: PathRow, after: PathRow | None, out: Outbox) -> None:
        """A path is in another state: alarms, and for our own paths history."""
        path = path_of(row)
        sound = not self.errors(path, flapping=False)
        if after is not None:
            self.alarms.turned(now, path, sound)
        self._alarm(now, path, out)
        self._alarm(
            now, reverse_of(path), out
        )  # the direction of what is wrong there may be known now
        if after is not None and self.table.me in (row.sender, row.listener):
            classes = _classes(self.errors(path, self.alarms.flapping(now, path)))
            self.history.note(now + self.wall_offset_ns, path, after, classes, out)

    def _alarm(self, now: Nanos, path: PathKey, out: Outbox) -> None:
        errors = self._settled(now, path, self.errors(path, self.alarms.flapping(now, path)))
        if self.table.me in (path[0], path[2]) and path in self._paths:
            self.history.mark(now + self.wall_offset_ns, path, _classes(errors), out)
        for report in self.alarms.update(now, path, errors):
            if path[2] != self.table.me:
                continue  # its listener records it
            text = text_of(report.alarm.error, *self.ends(path))
            out.fact(NodeFact(now, "alarm" if report.raised else "alarm_over", text))
        if self.alarms.restless:
            self._wake_at(now + 10 * SECOND)

    def _settled(
        self, now: Nanos, path: PathKey, errors: tuple[SoftError, ...]
    ) -> tuple[SoftError, ...]:
        """Without errors that may turn out to be others: when a path dies, its kinds of packets do not all fall
        silent in the same moment, and the first must not be taken for filtered."""
        settled: list[SoftError] = []
        for error in errors:
            at = self.table.since.get((*path, error.kind), now) + SETTLE_NS
            if error.error_class in (PROTOCOL, MULTICAST) and now < at:
                self._unsettled[path] = at
                self._wake_at(at)
            else:
                settled.append(error)
        return tuple(settled)

    def _who_lives(self, out: Outbox) -> None:
        alive = self.table.living()
        spoken_of = {key[0]: True for key in self.table.rows}
        version = self.neighbourhood.version
        self.neighbourhood.died(node for node in spoken_of if node not in alive)
        if self.neighbourhood.version != version:
            out.up(DIRECTORY, NeighboursChanged())

    # -- for people ----------------------------------------------------------------------------------------------

    def rows_of(self, path: PathKey) -> dict[str, PathRow]:
        """What the listener of a path says, by kind of packets."""
        return self._paths.get(path, {})

    def paths(self) -> list[PathKey]:
        return sorted(self._paths)

    def errors(self, path: PathKey, flapping: bool) -> tuple[SoftError, ...]:
        """What is wrong with a path."""
        return errors_of(self.rows_of(path), self.rows_of(reverse_of(path)), flapping)

    def ends(self, path: PathKey) -> tuple[str, str]:
        """Both ends of a path, for people."""
        sender, sender_adapter, listener, listener_adapter = path
        name_of = self.roster.name_of
        return f"{name_of(sender)}/{sender_adapter}", f"{name_of(listener)}/{listener_adapter}"


def path_of(row: PathRow) -> PathKey:
    return row.sender, row.sender_adapter, row.listener, row.listener_adapter


def reverse_of(path: PathKey) -> PathKey:
    return path[2], path[3], path[0], path[1]


def _classes(errors: tuple[SoftError, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(error.error_class for error in errors))
