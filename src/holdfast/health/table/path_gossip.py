"""The unit `path_gossip`: holds and distributes the path table, records history, raises alarms, serves subscribers.

It is separate from the measuring unit because it writes: output of a unit waits for its writes, and a verdict must not
wait for a disk.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from holdfast.health.classify import (
    DEAD,
    FLAPPING,
    FLOWS,
    MULTICAST,
    PROTOCOL,
    SIZE,
    SoftError,
    text_of,
)
from holdfast.health.facts import RepairFact
from holdfast.health.frames import PathRow, PathRows, RowsRequest, TableDigest
from holdfast.health.ports import HEALTH, Fresh, ResetHistory, Roster, RowsHeard, WallClock
from holdfast.health.probing.neighbourhood import Neighbourhood
from holdfast.health.probing.state import BORROWED
from holdfast.health.probing.values import Interest
from holdfast.health.table.alarms import Alarms
from holdfast.health.table.anti_entropy import AntiEntropy
from holdfast.health.table.directions import Directions
from holdfast.health.table.path_history import PathHistory
from holdfast.health.table.path_table import PathKey, PathTable, state_of
from holdfast.health.table.subscriptions import Subscriptions
from holdfast.health.table.values import Subscribe, Taken, Unsubscribe
from holdfast.health.verdict import Vector, Verdict, find_errors, judge, vector_of
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import MemberLeft, NeighboursChanged, PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos, NodeId

SETTLE_NS: Final = 600 * MILLISECOND
TCP_SETTLE_NS: Final = 4 * SECOND
FLOWS_SETTLE_NS: Final = 1500 * MILLISECOND
RECONNECT_NS: Final = 300 * MILLISECOND
CAST_SETTLE_NS: Final = 700 * MILLISECOND
RETEST_NS: Final = 30 * SECOND
"""After a path has come back, each kind of packets has this time to be heard before it is called filtered; and after
it has died, the opposite direction has this time to die as well before 'one way' is claimed. A TCP connection is opened
again with growing pauses, and two flows of a path find out one after the other what passes."""


PATHS_MAX: Final = 200_000


class PathGossipMachine(Machine):
    """Unit `path_gossip`."""

    layer: ClassVar[str] = "table"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(
        self,
        table: PathTable,
        neighbourhood: Neighbourhood,
        roster: Roster,
        history: PathHistory,
        period_ns: Nanos,
        wall_offset_ns: Nanos = 0,
    ) -> None:
        self.table = table
        self.neighbourhood = neighbourhood
        self.roster = roster
        self.history = history
        self.anti_entropy = AntiEntropy(table, neighbourhood.everybody, period_ns)
        self.alarms = Alarms()
        self._directions = Directions()
        self.subscriptions = Subscriptions(roster.subnet_of)
        self._watched: dict[str, int] = {}
        self.wall_offset_ns = wall_offset_ns
        self._compare_at: Nanos = NEVER
        """When to compare tables with a neighbour again."""
        self._paths: dict[PathKey, dict[str, PathRow]] = {}
        self._incarnations: dict[bytes, int] = {}
        self._back_at: dict[PathKey, Nanos] = {}
        """When something was last heard of a path on which nothing of its kind had been heard."""
        self._unsettled: dict[PathKey, Nanos] = {}
        """Paths to check again at a given time: what one packet kind lacks, the others may lack soon."""
        table.fresh.clear()
        for key, row in table.rows.items():  # from before this unit was rebuilt
            self._paths.setdefault(key[:4], {})[key[4]] = row

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            match item:
                case Received():
                    self._received(now, item, out)
                case Fresh():
                    pass  # fresh rows of the table are processed below
                case PeerUp():
                    self._incarnations[item.peer] = item.member.incarnation
                    self.table.forget(item.peer, item.member.incarnation)
                    self.anti_entropy.joined(item.peer, out)
                    self._compare_at = min(self._compare_at, now + self.anti_entropy.period_ns)
                    self._wake_at(self._compare_at)
                case PeerDown():
                    self._peer_down(now, item)
                case ResetHistory():
                    wall = now + self.wall_offset_ns
                    self.history.reset(wall, item.path, item.by, item.note, out)
                    out.up(HEALTH, item)  # traffic trusts the path again as well
                    out.fact(self._repair(now, item))
                case WallClock():
                    self.wall_offset_ns = item.offset_ns
                case _:
                    self._client(now, item, out)
        self._look(now, out)
        self.anti_entropy.flush(out)

    def _repair(self, now: Nanos, item: ResetHistory) -> RepairFact:
        sender, adapter, listener, remote = item.path
        subnet = self.roster.subnet_of(listener, remote)
        return RepairFact(
            now, sender.hex(), adapter, listener.hex(), remote, subnet, item.by, item.note
        )

    def _received(self, now: Nanos, item: Received, out: Outbox) -> None:
        told: list[PathRow] = []
        for frame in item.frames:
            match frame:
                case PathRows():
                    news = self.anti_entropy.take(now, item.peer, frame, out)
                    told += [row for row in news if row.sender == self.table.me]
                case TableDigest():
                    self.anti_entropy.compare(item.peer, frame, out)
                case RowsRequest():
                    self.anti_entropy.answer(item.peer, frame, out)
        if told:
            out.up(HEALTH, RowsHeard(tuple(told)))
        departed, self.anti_entropy.departed = self.anti_entropy.departed, []
        for edition in departed:
            self._withdraw(edition.listener, now)
            out.up(DIRECTORY, MemberLeft(NodeId(edition.listener), edition.incarnation))

    def _peer_down(self, now: Nanos, item: PeerDown) -> None:
        self.anti_entropy.up.pop(item.peer, None)
        if item.left or item.resting:
            self._withdraw(item.peer, now)
        if item.left:
            edition = self.table.left(item.peer, self._incarnations.get(item.peer, 0))
            if edition is not None:
                self.anti_entropy.announce(edition)

    def _withdraw(self, sender: bytes, now: Nanos) -> None:
        if self.table.withdraw(sender, now):
            self.anti_entropy.publish([])

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
        """Subscribed paths are measured more often."""
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
            self._compare_at = now + self.anti_entropy.period_ns
            self.anti_entropy.tick(out)
        due = [path for path, at in self._unsettled.items() if at <= now]
        for path in (*due, *self.alarms.calm(now)):
            self._unsettled.pop(path, None)
            self._alarm(now, path, out)
        for at in self._unsettled.values():
            self._wake_at(at)
        if self.anti_entropy.up:
            self._wake_at(self._compare_at)
        elif self.alarms.restless:
            self._wake_at(now + 10 * SECOND)

    def _wake_at(self, deadline: Nanos) -> None:
        self.deadline = min(self.deadline, deadline)

    # -- what has changed ----------------------------------------------------------------------------------------

    def _look(self, now: Nanos, out: Outbox) -> None:
        """Everything that changed in the table since the last call, in order."""
        if not self.table.fresh:
            return
        fresh, self.table.fresh[:] = list(self.table.fresh), ()
        own: list[PathRow] = []
        lives = False
        for (
            before,
            after,
        ) in fresh:  # all of them first: a path dies with all its kinds in one batch
            row = after or before
            assert row is not None
            self._index(row, after)
            if after is not None and after.alive and not (before is not None and before.alive):
                self._came_back(now, path_of(row))
        for before, after in fresh:
            row = after or before
            assert row is not None
            if after is not None and after.listener == self.table.me:
                own.append(after)
            self.subscriptions.changed(now, before, after, out)
            if before is not None and after is not None and state_of(before) == state_of(after):
                self._refresh(now, path_of(row), out)
                continue
            lives = lives or (before is not None and before.alive) != (
                after is not None and after.alive
            )
            self._state(now, row, after, out)
        if own:
            self.anti_entropy.publish(own)
        if lives and self.neighbourhood.sparse:
            self._who_lives(out)

    def _refresh(self, now: Nanos, path: PathKey, out: Outbox) -> None:
        """A figure has drifted: an incident that states it states the new one."""
        if path in self.alarms.active:
            self._alarm(now, path, out)

    def _came_back(self, now: Nanos, path: PathKey) -> None:
        """Something is heard on a path again, and the rest may follow in a moment."""
        for way in (path, reverse_of(path)):
            if way in self._back_at or len(self._back_at) < PATHS_MAX:
                self._back_at[way] = now

    def _index(self, row: PathRow, after: PathRow | None) -> None:
        path = path_of(row)
        if after is not None:
            self._paths.setdefault(path, {})[row.transport] = after
            return
        kinds = self._paths.get(path, {})
        kinds.pop(row.transport, None)
        if not kinds:
            self._paths.pop(path, None)
            self._back_at.pop(path, None)

    def _state(self, now: Nanos, row: PathRow, after: PathRow | None, out: Outbox) -> None:
        """The state of a path has changed: alarms, and for our own paths history."""
        path = path_of(row)
        errors = self._alarm(now, path, out)
        self._alarm(now, reverse_of(path), out)  # its direction may be known now
        if after is not None and self.table.me in (row.sender, row.listener):
            self.history.note(now + self.wall_offset_ns, path, after, _classes(errors), out)

    def _alarm(self, now: Nanos, path: PathKey, out: Outbox) -> tuple[SoftError, ...]:
        """Look at what is wrong with a path now; what of that can be claimed."""
        errors = self._settled(now, path, self.errors(path, flapping=False))
        if not errors:
            self._directions.forget(path)
        if path in self._paths:
            self.alarms.turned(now, path, errors)
        flapping = [e for e in self.errors_now(now, path) if e.error_class == FLAPPING]
        errors = (*errors, *flapping)
        if self.table.me in (path[0], path[2]) and path in self._paths:
            self.history.mark(now + self.wall_offset_ns, path, _classes(errors), out)
        for report in self.alarms.update(now, path, errors):
            if path[2] != self.table.me:
                continue  # its listener records it
            text = text_of(report.alarm.error, *self.ends(path))
            out.fact(NodeFact(now, "alarm" if report.raised else "alarm_over", text))
        if self.alarms.restless:
            self._wake_at(now + 10 * SECOND)
        return errors

    def errors_now(self, now: Nanos, path: PathKey) -> tuple[SoftError, ...]:
        """What is wrong with a path, flapping included."""
        flapping = self.alarms.flapping
        return self.errors(path, flapping(now, path), flapping(now, reverse_of(path)))

    def _settled(
        self, now: Nanos, path: PathKey, errors: tuple[SoftError, ...]
    ) -> tuple[SoftError, ...]:
        """Without errors that may turn out to be others a moment later, and without a direction that may."""
        settled: list[SoftError] = []
        for error in errors:
            if error.error_class in (PROTOCOL, MULTICAST):
                settle_ns = TCP_SETTLE_NS if error.kind == "tcp" else SETTLE_NS
                at = self._back_at.get(path, now - settle_ns) + settle_ns
                if (
                    error.kind == "tcp"
                ):  # a stuck connection is replaced: the next one shows whether TCP passes
                    at = max(at, self.table.since.get((*path, "tcp"), now) + RECONNECT_NS)
                if error.kind in BORROWED:  # a limit of all packets shows there first
                    at = max(at, self._of_its_own(now, path, error))
            elif error.error_class == SIZE and error.kind in BORROWED:
                at = self._of_its_own(now, path, error)
            elif error.error_class == FLOWS:
                at = self.table.since.get((*path, error.kind), now) + FLOWS_SETTLE_NS
            elif error.error_class == DEAD:
                since = (self.table.since.get((*path, kind), now) for kind in self.rows_of(path))
                at = max(since, default=now) + SETTLE_NS
            else:
                at = now
            if now >= at:
                settled.append(self._with_direction(now, path, error))
                continue
            self._unsettled[path] = min(at, self._unsettled.get(path, NEVER))
            self._wake_at(at)
            if error.error_class == DEAD:
                settled.append(msgspec.structs.replace(error, one_way=None))
        return tuple(settled)

    def _with_direction(self, now: Nanos, path: PathKey, error: SoftError) -> SoftError:
        """The error with the direction that can be claimed now."""
        if error.error_class == DEAD:
            return error  # it has waited for its direction
        active = self.alarms.active.get(path, {})
        since = self.table.since.get((*path, error.kind), now)
        settled, again_at = self._directions.settle(now, path, error, active, since)
        if again_at < NEVER:
            self._unsettled[path] = min(again_at, self._unsettled.get(path, NEVER))
            self._wake_at(again_at)
        return settled

    def _of_its_own(self, now: Nanos, path: PathKey, error: SoftError) -> Nanos:
        """When a filter or a limit of fragments or multicast can be claimed. A limit of all packets stops them as well:
        what failed before datagrams changed last may have failed with them, and is tried again only now and then."""
        since, datagrams = (
            self.table.since.get((*path, kind), now) for kind in (error.kind, "udp")
        )
        claimed = (error.error_class, error.kind) in self.alarms.active.get(path, {})
        if datagrams > since and not claimed:
            return datagrams + RETEST_NS
        return since + CAST_SETTLE_NS

    def _who_lives(self, out: Outbox) -> None:
        alive = self.table.living()
        spoken_of = {key[0]: True for key in self.table.rows}
        version = self.neighbourhood.version
        self.neighbourhood.died(node for node in spoken_of if node not in alive)
        if self.neighbourhood.version != version:
            out.up(DIRECTORY, NeighboursChanged())

    # -- for people ----------------------------------------------------------------------------------------------

    def rows_of(self, path: PathKey) -> dict[str, PathRow]:
        """The rows of a path, by packet kind."""
        return self._paths.get(path, {})

    def paths(self) -> list[PathKey]:
        return sorted(self._paths)

    def errors(
        self, path: PathKey, flapping: bool, reverse_flapping: bool = False
    ) -> tuple[SoftError, ...]:
        """What is wrong with a path."""
        there, back = self.vectors(path), self.vectors(reverse_of(path))
        return find_errors(there, back, flapping, reverse_flapping)

    def verdict(self, now: Nanos, path: PathKey) -> Verdict:
        """Whether a path is fine."""
        back = reverse_of(path)
        return judge(
            self.vectors(path),
            self.vectors(back),
            flapping=self.alarms.flapping(now, path),
            reverse_flapping=self.alarms.flapping(now, back),
        )

    def vectors(self, path: PathKey) -> list[Vector]:
        """The attribute values of a path, one vector for each kind of packets."""
        stale = path[2] not in self.table.living()
        return [vector_of(row, stale) for row in self.rows_of(path).values()]

    def ends(self, path: PathKey) -> tuple[str, str]:
        """Both ends of a path, for display."""
        sender, sender_adapter, listener, listener_adapter = path
        name_of = self.roster.name_of
        return f"{name_of(sender)}/{sender_adapter}", f"{name_of(listener)}/{listener_adapter}"


def path_of(row: PathRow) -> PathKey:
    return row.sender, row.sender_adapter, row.listener, row.listener_adapter


def reverse_of(path: PathKey) -> PathKey:
    return path[2], path[3], path[0], path[1]


def _classes(errors: tuple[SoftError, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(error.error_class for error in errors))
