"""Links as a subsystem: sessions with peers over all paths, and the directory of members.

directory                the members of the domain, and the links
link/<peer>              datagrams and channels to one peer
multicast/<adapter>      the multicast group of an adapter
acceptor                 flows that belong to no link yet
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

from holdfast.errors import PeerUnknown
from holdfast.links.acceptor import AcceptorMachine
from holdfast.links.directory import DIRECTORY, MEMBERS, DirectoryMachine, Mesh
from holdfast.links.link import LinkMachine
from holdfast.links.metrics import link_metrics
from holdfast.links.multicast import MulticastMachine
from holdfast.links.ports import (
    ACCEPTOR,
    MULTICAST,
    CloseFlow,
    FlowLost,
    Leave,
    PeerDown,
    Reannounce,
    SessionEnded,
    link_unit,
    multicast_unit,
)
from holdfast.links.session_table import SessionTable
from holdfast.machine import Failure, Machine, Result
from holdfast.subsystem import Assembly, NodeConfig, Service, Subsystem, Table
from holdfast.subsystem.config import split_address
from holdfast.telemetry.facts import LinkFact
from holdfast.types import Nanos, NodeId
from holdfast.wire.frames import MemberInfo, Members
from holdfast.wire.seal import KEY

LINKS_MAX: Final = 2_000


class LinkService(Service):
    """All links of a node."""

    def __init__(self, node: Assembly) -> None:
        self._node = node
        me = node.me
        self.session_table = SessionTable(node.rng("sessions"), node.flow_owners)
        self.mesh: Mesh | None = None
        """Determines the neighbours; set by health."""
        self.living: Callable[[], Container[bytes]] | None = None
        """The nodes that are known to be alive, if there are members without a link; set with `mesh`."""
        self.always_linked: list[str] = []
        """Names of members that always have a link; higher subsystems add to it before units are built."""
        self.acceptor: AcceptorMachine
        self.directory: DirectoryMachine
        """The last directory that was built: after it has stopped, its records can still be read."""
        self._links: dict[str, LinkMachine] = {}
        self._orphans: list[LinkMachine] = []
        """Links that failed in this turn, and whose flows and sessions must be ended."""
        multicasts = me.sealed and any(a.multicast for a in me.adapters)
        self._multicast_key = node.entropy(KEY) if multicasts else b""
        """The key with which this node seals its multicast packets; every peer receives it over TLS."""

    def units(self) -> Iterable[str]:
        yield ACCEPTOR
        for adapter in self._node.me.adapters:
            if adapter.multicast:
                yield multicast_unit(adapter.name)
        yield DIRECTORY

    def build(self, unit: str) -> Machine | None:
        node, me = self._node, self._node.me
        kind, _, name = unit.partition("/")
        if kind == ACCEPTOR:
            join = tuple(split_address(address, "join") for address in node.config.join)
            self.acceptor = AcceptorMachine(
                me, join, self.session_table, self.spawn, node.rng(unit), node.now
            )
            return self.acceptor
        if kind == DIRECTORY:
            self.directory = DirectoryMachine(
                me,
                self.spawn if node.config.mesh == "all" else _spawn_nothing,
                node.stored(MEMBERS),
                node.now,
                self.mesh,
                tuple(dict.fromkeys(self.always_linked)),
                self._drop,
            )
            return self.directory
        if unit.startswith(MULTICAST):
            adapter = me.adapter(name)
            assert adapter is not None
            return MulticastMachine(
                me, adapter, self._multicast_key, node.routes, node.subscribers, node.now
            )
        if kind == "link":
            old = node.turns.machine(unit)
            assert isinstance(old, LinkMachine)
            self._orphans.append(old)
            return self._make_link(unit, old.member)
        return None

    def _make_link(self, unit: str, member: MemberInfo) -> LinkMachine:
        node = self._node
        made = self._links[unit] = LinkMachine(
            node.me,
            member,
            self.session_table,
            node.routes,
            node.subscribers,
            node.rng(unit),
            node.entropy,
            node.now,
            self._multicast_key,
        )
        return made

    def spawn(self, now: Nanos, member: MemberInfo) -> bool:
        """Ensure that there is a link to a member; False if that is not possible."""
        unit, turns = link_unit(member.node), self._node.turns
        if turns.machine(unit) is not None:
            return True
        if unit in turns.stopped or len(self._links) >= LINKS_MAX:
            return False
        turns.add(unit, self._make_link(unit, member))
        return True

    def _drop(self, peer: NodeId) -> None:
        """The link to a peer rests: neither end needs it."""
        unit = link_unit(peer)
        self._node.turns.drop(unit)
        self._links.pop(unit, None)
        self.session_table.close(unit)

    # -- failures and the end ------------------------------------------------------------------------------------

    def unit_failed(self, failure: Failure, result: Result) -> None:
        """To its peers, a failed unit looks like a restarted one."""
        node, turns = self._node, self._node.turns
        if failure.unit in node.subscribers and not failure.stopped:
            for unit in turns.units():
                if unit.startswith(("link/", MULTICAST)):
                    turns.post(unit, Reannounce(failure.unit))
        gone = self._links.pop(failure.unit, None) if failure.stopped else None
        if gone is not None:
            self.session_table.close(failure.unit)
            if gone not in self._orphans:
                self._orphans.append(gone)
        orphans, self._orphans = self._orphans, []
        for link in orphans:
            self._end(link, result)

    def _end(self, link: LinkMachine, result: Result) -> None:
        post, subscribers, why = self._node.turns.post, self._node.subscribers, "its link failed"
        for flow in link.flows.values():
            result.effects.append(CloseFlow(flow.flow, why))
            for unit in subscribers.of(FlowLost):
                post(unit, FlowLost(link.peer, flow.flow, why))
        if link.up_since is not None:
            result.effects.append(SessionEnded(link.peer, why, link.unacked))
            for unit in subscribers.of(PeerDown):
                post(unit, PeerDown(link.peer, why))

    def last_inputs(self) -> Iterable[tuple[str, Any]]:
        return [(unit, Leave()) for unit in self._node.turns.units() if unit.startswith("link/")]

    # -- for other subsystems and the status ---------------------------------------------------------------------

    def link(self, peer: bytes) -> LinkMachine | None:
        machine = self._node.turns.machine(link_unit(peer))
        return machine if isinstance(machine, LinkMachine) else None

    def members(self) -> list[MemberInfo]:
        """All members, this node included."""
        return [self._node.me.member, *self.directory.members.values()]

    def member_id(self, name: str) -> NodeId:
        """The id of the member `name`; raises `PeerUnknown`."""
        names = {member.name: member.node for member in self.members()}
        if name not in names:
            domain, known = self._node.me.domain, ", ".join(sorted(names))
            raise PeerUnknown(
                f"no member of domain {domain!r} is called {name!r}; there are {known}"
            )
        return NodeId(names[name])

    def member(self, node: bytes) -> MemberInfo:
        return next(member for member in self.members() if member.node == node)

    def subnets(self) -> list[str]:
        """The subnets of all members."""
        subnets = {adapter.subnet: True for member in self.members() for adapter in member.adapters}
        return sorted(subnets)

    def name_of(self, node: bytes) -> str:
        """The name of a member, for display."""
        return self.directory.name_of(node)

    def subnet_of(self, node: bytes, adapter: str) -> str:
        return self.directory.subnet_of(node, adapter)

    def status(self, now: Nanos) -> Mapping[str, Any]:
        members = self.directory.status(now)
        if self.living is not None and self.mesh is not None and self.mesh.sparse:
            alive = self.living()
            for member in members:
                if member["state"] in ("joining", "known"):
                    member["state"] = "up" if bytes.fromhex(member["id"]) in alive else "known"
        links = map(self._node.turns.machine, self._node.turns.units())
        return {
            "members": members,
            "joining": self.acceptor.joining(now),
            "links": [link.status() for link in links if isinstance(link, LinkMachine)],
        }


def _spawn_nothing(_now: Nanos, _member: MemberInfo) -> bool:
    return False


def _tables(_config: NodeConfig) -> tuple[Table, ...]:
    return (Table(MEMBERS, kept=True),)


LINK_SUBSYSTEM: Final = Subsystem(
    name="links",
    service=LinkService,
    layers=("acceptor", "links", "directory"),
    frames={Members: lambda _: (DIRECTORY,)},
    facts=(LinkFact,),
    tables=_tables,
    metrics=link_metrics,
    edge="holdfast.runtime.links:LinkEdge",
    sim_edge="holdfast.sim.edges:SimLinkEdge",
)
