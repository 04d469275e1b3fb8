"""The stack as a picture: which machines make a node, and what they may see of each other.

    source/<g>  replica/<g>      layers 5, 6   groups, and where their outputs arrive (outputs)
    keeper                       layer 4       everybody's verdicts, history, alarms, clients
    directory                    layer 3       who is in the domain
    health, stress               layer 2       what each path carries
    link/<peer> ...              layer 1       datagrams and channels
    multicast/<adapter> ...      layer 1       what reaches everybody at once
    door                         layer 0       flows that belong to nobody yet

A driver (sockets or simulator) feeds `turn` and does what the result says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from holdfast.errors import MisuseError, PeerUnknown
from holdfast.group.config import GROUP_FRAMES, SINK, log_unit, units_for
from holdfast.group.journal import journal_tables
from holdfast.group.messagelog import MessageLog, log_tables
from holdfast.group.replica import ReplicaMachine
from holdfast.group.sink import TABLE as OUTPUTS
from holdfast.group.sink import SinkMachine
from holdfast.group.source import SourceMachine
from holdfast.health.config import HealthConfig
from holdfast.health.history import PATH_HISTORY, History
from holdfast.health.keeper import KeeperMachine
from holdfast.health.monitor import HEALTH, HealthMachine
from holdfast.health.neighbourhood import Neighbourhood
from holdfast.health.placement import Placement
from holdfast.health.ports import KEEPER
from holdfast.health.queries import incidents, main_states
from holdfast.health.stress import STRESS, StressMachine
from holdfast.health.table import PathTable
from holdfast.links.config import Self
from holdfast.links.directory import DIRECTORY, MEMBERS, DirectoryMachine
from holdfast.links.door import DoorMachine
from holdfast.links.inlet import Route
from holdfast.links.link import LinkMachine
from holdfast.links.multicast import MulticastMachine
from holdfast.links.ports import (
    DOOR,
    MULTICAST,
    Arrived,
    CloseFlow,
    FlowLost,
    Leave,
    PeerDown,
    Reannounce,
    SessionEnded,
    link_unit,
    multicast_unit,
)
from holdfast.links.sessions import Sessions
from holdfast.machine import Machine, Result, Turns
from holdfast.node.config import NodeConfig, split_address
from holdfast.telemetry.facts import NodeFact
from holdfast.types import Nanos, NodeId
from holdfast.wire import frames as f
from holdfast.wire.frames import MemberInfo
from holdfast.wire.seal import KEY

LINKS_MAX = 2_000
PATHS_SHOWN = 1_000
"""Paths in a status; the whole table of a large domain is what `holdfast health` shows."""

Rows = list[tuple[bytes, bytes]]


_HEALTH = (HEALTH,)
_KEEPER = (KEEPER,)
_DIRECTORY = (DIRECTORY,)
_STRESS = (STRESS,)

ROUTES: Mapping[type, Route] = {
    f.Basic: lambda _: _HEALTH,
    f.Probe: lambda _: _HEALTH,
    f.PathRows: lambda _: _KEEPER,
    f.TableDigest: lambda _: _KEEPER,
    f.AskRows: lambda _: _KEEPER,
    f.Signature: lambda _: _HEALTH,
    f.Heeded: lambda _: _HEALTH,
    f.Notice: lambda _: _HEALTH,
    f.Settled: lambda _: _HEALTH,
    f.Confirm: lambda _: _HEALTH,
    f.Members: lambda _: _DIRECTORY,
    f.StressOrder: lambda _: _STRESS,
    f.StressProbe: lambda _: _STRESS,
    f.StressCounts: lambda _: _STRESS,
    f.StressReport: lambda _: _STRESS,
    **dict.fromkeys(GROUP_FRAMES, units_for),
}


class NodeCore:
    """One node without IO."""

    def __init__(
        self,
        config: NodeConfig,
        node: NodeId,
        incarnation: int,
        seed: int,
        entropy: Callable[[int], bytes],
        stored: Mapping[str, Rows] | None = None,
        now: Nanos = 0,
        health: HealthConfig | None = None,
        wall_offset_ns: Nanos = 0,
    ) -> None:
        """`health` replaces the tunables of the preset; `wall_offset_ns` added to `now` is the time of day."""
        self.config = config
        self._health = health or config.health
        self.me = Self(
            node=node,
            name=config.name,
            domain=config.domain,
            incarnation=incarnation,
            adapters=config.adapters(),
            sealed=config.security.mode == "tls",
            timing=config.timing,
        )
        self._seed = seed
        self._entropy = entropy
        self._stored = stored or {}
        self._now = now
        self._listeners: list[str] = []
        self._links: dict[str, LinkMachine] = {}
        """As they were made last, by unit."""
        self._orphans: list[LinkMachine] = []
        multicasts = self.me.sealed and any(a.multicast for a in self.me.adapters)
        self._multicast_key = entropy(KEY) if multicasts else b""
        """With which this node seals what it multicasts; every peer gets it over TLS."""
        self._streams_begun: dict[str, int] = {}
        # As they were made last: one that has stopped still says what it knew.
        self.directory: DirectoryMachine
        self.health: HealthMachine
        self.keeper: KeeperMachine
        self.stress: StressMachine
        self.sessions = Sessions(self._rng("sessions"))
        # These outlive the units that use them: one that is rebuilt goes on where it was.
        self.table = PathTable(node, incarnation)
        self.neighbourhood = Neighbourhood(self.me, config.shapes)
        self.history = History(self._stored.get(PATH_HISTORY, []))
        self._wall_offset_ns = wall_offset_ns
        self.placement = Placement(node, self.me.sealed, self.history)
        self.placement.wall_offset_ns = wall_offset_ns
        for needs in config.needs_of_traffic():
            self.placement.set(needs)
        self.turns = Turns(self._build)
        self.groups = {group.name: group for group in config.groups()}
        for unit in self._fixed_units():
            self._listeners.append(unit)
            machine = self._build(unit)
            assert machine is not None
            self.turns.add(unit, machine)
        self._listeners.remove(DOOR)
        # What only the first of their units may begin with is theirs now, and may be large.
        rebuilt = (MEMBERS, OUTPUTS, PATH_HISTORY)
        self._stored = {table: rows for table, rows in self._stored.items() if table in rebuilt}

    @staticmethod
    def tables(config: NodeConfig) -> list[str]:
        """The tables of the store that must be loaded before a core can be made."""
        replicas = [group for group in config.groups() if config.name in group.replicas]
        logs = [group.name for group in replicas if group.message_log_bytes]
        return [
            MEMBERS,
            OUTPUTS,
            PATH_HISTORY,
            *(table for group in replicas for table in journal_tables(group)),
            *(table for name in logs for table in log_tables(name)),
        ]

    def _fixed_units(self) -> Iterable[str]:
        yield DOOR
        yield HEALTH
        yield STRESS
        for adapter in self.me.adapters:
            if adapter.multicast:
                yield multicast_unit(adapter.name)
        yield DIRECTORY
        yield KEEPER
        yield SINK
        for group in self.groups.values():
            yield f"source/{group.name}"
            if self.config.name in group.replicas:
                yield f"replica/{group.name}"
                if group.message_log_bytes:
                    yield log_unit(group.name)

    def _rng(self, unit: str) -> Random:
        """Chance for one unit: the same for the same seed, node and unit, and nothing else."""
        text = f"{self._seed}/{self.me.node.hex()}/{self.me.incarnation}/{unit}".encode()
        return Random(crc32(text) << 32 | crc32(text[::-1]))

    def _build(self, unit: str) -> Machine | None:
        """A fresh machine for a unit: at the start, and when it failed."""
        me, rng = self.me, self._rng(unit)
        kind, _, name = unit.partition("/")
        if kind == DOOR:
            join = tuple(split_address(address, "join") for address in self.config.join)
            return DoorMachine(me, join, self.sessions, self._spawn, rng, self._now)
        if kind == HEALTH:
            mtus = {adapter.name: adapter.mtu for adapter in self.config.adapter}
            self.health = HealthMachine(
                me, self._health, mtus, self.placement, self.table, self.neighbourhood
            )
            return self.health
        if kind == STRESS:
            mtus = {adapter.name: adapter.mtu for adapter in self.config.adapter}
            self.stress = StressMachine(me.node, self._health, mtus)
            return self.stress
        if kind == DIRECTORY:
            self.directory = self._directory()
            return self.directory
        if kind == KEEPER:
            self.keeper = KeeperMachine(
                self.table,
                self.neighbourhood,
                self,
                self.history,
                self._health.rows_ns,
                self._wall_offset_ns,
            )
            return self.keeper
        if kind == "messages":
            return MessageLog(self.groups[name], me.node, dict(self._stored))
        if kind == SINK:
            return SinkMachine(me.node, self._stored.get(OUTPUTS, []))
        if kind == "source":
            # One that failed begins another stream: its numbers start again at 1.
            stream = self._streams_begun.get(name, 0)
            self._streams_begun[name] = stream + 1
            return SourceMachine(
                config=self.groups[name],
                node=me.node,
                name=me.name,
                incarnation=me.incarnation,
                rng=rng,
                stream=stream,
            )
        if kind == "replica":
            if self.turns.machine(unit) is not None:
                # The others count on what it acknowledged, and that was in the memory that it just lost.
                raise MisuseError(
                    f"a replica cannot be rebuilt while its node runs: restart node {me.name}"
                )
            return ReplicaMachine(
                config=self.groups[name],
                node=me.node,
                name=me.name,
                incarnation=me.incarnation,
                rng=rng,
                stored=self._stored,
            )
        if unit.startswith(MULTICAST):
            adapter = me.adapter(name)
            assert adapter is not None
            key = self._multicast_key
            return MulticastMachine(me, adapter, key, ROUTES, self._listeners, self._now)
        if kind == "link":
            old = self.turns.machine(unit)
            assert isinstance(old, LinkMachine)
            self._orphans.append(old)
            return self._link(unit, old.member)
        return None

    def _directory(self) -> DirectoryMachine:
        return DirectoryMachine(
            self.me,
            self._spawn if self.config.mesh == "all" else _spawn_nothing,
            self._stored.get(MEMBERS, []),
            self._now,
            self.neighbourhood,
            tuple(dict.fromkeys(n for g in self.groups.values() for n in (*g.voters, *g.learners))),
            self._drop,
        )

    def _link(self, unit: str, member: MemberInfo) -> LinkMachine:
        made = self._links[unit] = LinkMachine(
            self.me,
            member,
            self.sessions,
            ROUTES,
            self._listeners,
            self._rng(unit),
            self._entropy,
            self._now,
            self._multicast_key,
        )
        return made

    def _spawn(self, now: Nanos, member: MemberInfo) -> bool:
        """Make sure that there is a link to a member; False when there cannot be one."""
        unit = link_unit(member.node)
        if self.turns.machine(unit) is not None:
            return True
        if unit in self.turns.stopped or len(self.turns.units()) >= LINKS_MAX:
            return False
        self._now = now
        self.turns.add(unit, self._link(unit, member))
        return True

    def _drop(self, peer: NodeId) -> None:
        """The link to a peer rests: nobody needs it."""
        unit = link_unit(peer)
        self.turns.drop(unit)
        self._links.pop(unit, None)
        self.sessions.close(unit)

    # -- the driver's side ---------------------------------------------------------------------------------------

    def start(self, now: Nanos) -> Result:
        """The first turn."""
        self._now = now
        result = self.turns.run(now, [])
        result.facts.append(NodeFact(now, "start", f"incarnation {self.me.incarnation}"))
        return result

    def turn(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> Result:
        self._now = now
        owners = self.sessions.owners
        # What came in on a flow that a link has goes straight there: the door would only pass it on.
        straight = [
            (owners.get(item.flow, unit), item) if type(item) is Arrived else (unit, item)
            for unit, item in inputs
        ]
        result = self.turns.run(now, straight)
        if result.failures:
            self._mend(now, result)
        return result

    def _mend(self, now: Nanos, result: Result) -> None:
        """A unit failed: to its neighbours it is as if it had restarted."""
        for failure in result.failures:
            event = "unit_stopped" if failure.stopped else "unit_failed"
            result.facts.append(NodeFact(now, event, f"{failure.unit}: {failure.error!r}"))
            if failure.unit in self._listeners and not failure.stopped:
                for unit in self.turns.units():
                    if unit.startswith(("link/", MULTICAST)):
                        self.turns.post(unit, Reannounce(failure.unit))
            gone = self._links.pop(failure.unit, None) if failure.stopped else None
            if gone is not None:
                self.sessions.close(failure.unit)
                if gone not in self._orphans:
                    self._orphans.append(gone)
        orphans, self._orphans = self._orphans, []
        for link in orphans:
            if link.up_since is not None:
                result.effects.append(SessionEnded(link.peer, "its link failed", link.unacked))
            for flow in link.flows.values():
                result.effects.append(CloseFlow(flow.flow, "its link failed"))
            for unit in self._listeners:
                for flow in link.flows.values():
                    self.turns.post(unit, FlowLost(link.peer, flow.flow, "its link failed"))
                if link.up_since is not None:
                    self.turns.post(unit, PeerDown(link.peer, "its link failed"))
        result.more = True

    def stop(self, now: Nanos) -> Result:
        """The last turn of a node that stops on purpose: everybody is told."""
        links = [unit for unit in self.turns.units() if unit.startswith("link/")]
        return self.turn(now, [(unit, Leave()) for unit in links])

    def written(self, turn: int) -> bool:
        return self.turns.written(turn)

    def next_deadline(self) -> Nanos:
        return self.turns.next_deadline()

    # -- for people ----------------------------------------------------------------------------------------------

    def members(self) -> list[MemberInfo]:
        """Everybody, this node included."""
        return [self.me.member, *self.directory.members.values()]

    def member_id(self, name: str) -> NodeId:
        """The id of the member called `name`; raises `PeerUnknown`."""
        names = {member.name: member.node for member in self.members()}
        if name not in names:
            known = ", ".join(sorted(names))
            raise PeerUnknown(
                f"no member of domain {self.me.domain!r} is called {name!r}; there are {known}"
            )
        return NodeId(names[name])

    def member(self, node: bytes) -> MemberInfo:
        return next(member for member in self.members() if member.node == node)

    def subnets(self) -> list[str]:
        """The subnets that any member is on."""
        subnets = {adapter.subnet: True for member in self.members() for adapter in member.adapters}
        return sorted(subnets)

    def name_of(self, node: bytes) -> str:
        """The name of a member, for people."""
        machine = self.turns.machine(DIRECTORY)
        return machine.name_of(node) if isinstance(machine, DirectoryMachine) else node[:4].hex()

    def subnet_of(self, node: bytes, adapter: str) -> str:
        machine = self.turns.machine(DIRECTORY)
        if isinstance(machine, DirectoryMachine):
            return machine.subnet_of(node, adapter)
        return adapter

    def link(self, peer: bytes) -> LinkMachine | None:
        machine = self.turns.machine(link_unit(peer))
        return machine if isinstance(machine, LinkMachine) else None

    def status(self, now: Nanos) -> dict[str, Any]:
        """Everything that the page and `holdfast status` show of the core."""
        machines = list(map(self.turns.machine, self.turns.units()))
        links = [m for m in machines if isinstance(m, LinkMachine)]
        sources = [m for m in machines if isinstance(m, SourceMachine)]
        groups = []
        for name in self.groups:
            replica = self.turns.machine(f"replica/{name}")
            if isinstance(replica, ReplicaMachine):
                groups.append(_group_status(name, replica.status()))
        paths, left_out = main_states(self.keeper, now, PATHS_SHOWN)
        return {
            "members": self._members(now),
            "paths": msgspec.to_builtins(paths),
            "paths_left_out": left_out,
            "incidents": msgspec.to_builtins(incidents(self.keeper, now)),
            "links": [link.status() for link in links],
            "groups": groups,
            "sources": [source.status() for source in sources],
            "stopped_units": list(self.turns.stopped),
        }

    def _members(self, now: Nanos) -> list[dict[str, Any]]:
        """The directory, with what the table knows of members that this node has no link to."""
        members = self.directory.status(now)
        if self.neighbourhood.sparse:
            alive = self.table.living()
            for member in members:
                if member["state"] in ("joining", "known"):
                    member["state"] = "up" if bytes.fromhex(member["id"]) in alive else "known"
        return members


def _spawn_nothing(_now: Nanos, _member: MemberInfo) -> bool:
    return False


def _group_status(name: str, status: dict[str, Any]) -> dict[str, Any]:
    peers = [{"name": peer, **progress} for peer, progress in status["peers"].items()]
    return {"name": name, **status, "peers": peers, "digest": f"{status['digest']:08x}"}
