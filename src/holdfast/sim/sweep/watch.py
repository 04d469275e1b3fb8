"""Records what nodes report about their paths during a trial, and how traffic is affected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.health.subsystem import HealthService
from holdfast.health.table.path_gossip import PathGossipMachine
from holdfast.health.table.queries import incidents
from holdfast.links.link import LinkMachine
from holdfast.links.ports import DATAGRAMS, PortReady, SendChannel, SendRaw, link_unit
from holdfast.sim.sweep.draw import NODES, PAYLOAD, Path
from holdfast.types import MILLISECOND, Nanos

if TYPE_CHECKING:
    from holdfast.node.core import NodeCore
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

SIZE: Final = 1200
EVERY_NS: Final = 50 * MILLISECOND
SAMPLE_NS: Final = 50 * MILLISECOND
PORT: Final = 20
_STAMP: Final = 12


class Claim(msgspec.Struct, frozen=True):
    """A node's report of an error of a path."""

    path: Path
    error_class: str
    kind: str
    one_way: bool | None
    value: int


class Seen(msgspec.Struct):
    """When an error was first and last reported, in milliseconds since the fault."""

    first_ms: int
    last_ms: int


class Incident(msgspec.Struct, frozen=True):
    """One incident as shown to a user."""

    place: str
    error_class: str


def core_of(host: Host) -> NodeCore:
    from holdfast.node.core import NodeCore

    assert isinstance(host.core, NodeCore)
    return host.core


def gossip_of(core: NodeCore) -> PathGossipMachine:
    return core.service(HealthService).path_gossip


class Opinions:
    """Samples the reports of every running node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._from: Nanos = 0
        self.claims: dict[str, dict[Claim, Seen]] = {name: {} for name in NODES}
        self.incidents: dict[str, list[Incident]] = {}
        self.ids: dict[bytes, str] = {}

    def begin(self) -> None:
        """The fault begins now."""
        self._from = self._world.now
        self.ids = {core_of(host).me.node: name for name, host in self._world.hosts.items()}
        self._world.at(self._world.now + SAMPLE_NS, self._sample)

    @property
    def age_ms(self) -> int:
        return (self._world.now - self._from) // MILLISECOND

    def _sample(self, _: None) -> None:
        for name, host in self._world.hosts.items():
            if host.alive:
                self._look(name, core_of(host))
        self._world.at(self._world.now + SAMPLE_NS, self._sample)

    def _look(self, name: str, core: NodeCore) -> None:
        seen = self.claims[name]
        for key, alarms in gossip_of(core).alarms.active.items():
            path = (self.ids[key[0]], self.ids[key[2]], key[1])
            for alarm in alarms.values():
                error = alarm.error
                claim = Claim(path, error.error_class, error.kind, error.one_way, error.value)
                known = seen.get(claim)
                if known is None:
                    seen[claim] = Seen(self.age_ms, self.age_ms)
                else:
                    known.last_ms = self.age_ms

    def now(self, name: str) -> list[Claim]:
        """The errors that a node reports now."""
        latest = [
            claim for claim, seen in self.claims[name].items() if seen.last_ms >= self.age_ms - 100
        ]
        return sorted(latest, key=lambda claim: claim.path)

    def look_at_incidents(self, now: Nanos) -> None:
        """The incidents that each node shows now."""
        for name, host in self._world.hosts.items():
            if host.alive:
                found = incidents(gossip_of(core_of(host)), now)
                self.incidents[name] = [Incident(one.place, one.error_class) for one in found]


class Traffic:
    """Messages of 1200 bytes every 50 ms between nodes, each on a channel and as a datagram."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ids: dict[bytes, str] = {}
        self._sent: dict[tuple[str, str], list[Nanos]] = {}
        self._next: dict[tuple[str, str], int] = {}
        self.stall_ns: dict[tuple[str, str], Nanos] = {}
        """The longest delivery time of a message since the fault."""
        self.datagrams: dict[tuple[str, str], list[int]] = {}
        """By pair of nodes: numbers of the datagrams that arrived."""
        self.counts = False
        for host in world.hosts.values():
            host.on(PortReady, self._arrived)

    def begin(self, pairs: list[tuple[str, str]]) -> None:
        """Send between these nodes from now on."""
        self._ids = {core_of(host).me.node: name for name, host in self._world.hosts.items()}
        self._sent = {pair: [] for pair in pairs}
        self._send(None)

    def _send(self, _: None) -> None:
        now = self._world.now
        nodes = {name: node for node, name in self._ids.items()}
        for pair, sent in self._sent.items():
            host, unit = self._world.hosts[pair[0]], link_unit(nodes[pair[1]])
            message = [_message(len(sent))]
            if host.give(unit, SendChannel(PORT, message)):
                host.give(unit, SendRaw(PORT, message))
                sent.append(now)
        self._world.at(now + EVERY_NS, self._send)

    def _arrived(self, host: Host, effect: PortReady) -> None:
        pair = (self._ids[effect.peer], host.name)
        numbers = [int.from_bytes(message[:_STAMP], "big") for message in effect.messages]
        if not effect.channel:
            self.datagrams.setdefault(pair, []).extend(numbers)
            return
        for number in numbers:
            self._next[pair] = number + 1
            self._took(pair, self._world.now - self._sent[pair][number])

    def _took(self, pair: tuple[str, str], took_ns: Nanos) -> None:
        if self.counts:
            self.stall_ns[pair] = max(self.stall_ns.get(pair, 0), took_ns)

    def subnet_of(self, sender: str, listener: str) -> str:
        """The subnet that the datagrams between two nodes use now; empty if they have no flow."""
        nodes = {name: node for node, name in self._ids.items()}
        link = core_of(self._world.hosts[sender]).turns.machine(link_unit(nodes[listener]))
        assert isinstance(link, LinkMachine)
        return link.placement(DATAGRAMS + PORT)[0].partition("/")[0]

    def lost(self) -> int:
        """The largest number of lost datagrams between two nodes."""
        return max(
            len(sent) - len(set(self.datagrams.get(pair, ()))) for pair, sent in self._sent.items()
        )

    def finish(self, dead: str) -> None:
        """Count messages in flight with their age, except those from and to a dead node."""
        for pair, sent in self._sent.items():
            waiting = sent[self._next.get(pair, 0) :]
            if waiting and dead not in pair:
                self._took(pair, self._world.now - waiting[0])
        for pair in [pair for pair in self.stall_ns if dead in pair]:
            del self.stall_ns[pair]


def _message(number: int) -> bytes:
    head = number.to_bytes(_STAMP, "big")
    return head + PAYLOAD * ((SIZE - len(head)) // len(PAYLOAD))
