"""A small deterministic world for links: real node cores over a fake network, in virtual time, by one seed.

Every node has adapters of the same names (`red`, `blue`); adapters of one name reach each other. `World.path` gives
one direction of one of these paths, to be broken. Nothing here sleeps, and the same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tests.support.virtual_network import VirtualTime
from tests.unit.links.fakenet import Network, Path

from holdfast.health.config import HealthConfig
from holdfast.health.frames import PathRow
from holdfast.health.subsystem import HealthService
from holdfast.links.link import LinkMachine
from holdfast.links.ports import (
    ACCEPTOR,
    Identity,
    PortReady,
    PortRefused,
    PortRoom,
    SendChannel,
    SendRaw,
    SessionEnded,
    link_unit,
)
from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure, Put, Result
from holdfast.node.config import parse_config
from holdfast.node.core import NodeCore
from holdfast.telemetry.facts import LinkFact, PathFact
from holdfast.types import NEVER, SECOND, Nanos, NodeId

DOMAIN = "lab"
START: Nanos = 1000 * SECOND
"""Where a monotonic clock stands is anybody's guess, but not at zero."""
TURNS_AT_ONCE = 200


class Node:
    """A node that runs, or did."""

    def __init__(self, name: str, number: int, text: str) -> None:
        self.name = name
        self.id = NodeId(bytes([number]) * 16)
        self.text = text
        self.incarnation = 0
        self.core: NodeCore | None = None
        self.armed_at: Nanos = NEVER
        self.paused_until: Nanos = 0
        self.turns = 0
        self.messages: list[tuple[NodeId, int, bytes]] = []
        """What came by channel for ports: peer, port, message."""
        self.datagrams: list[tuple[NodeId, int, bytes]] = []
        self.refused: list[PortRefused] = []
        self.ended: list[SessionEnded] = []
        self.room: dict[tuple[NodeId, int], int] = {}
        self.facts: list[Any] = []
        self.failures: list[Failure] = []
        self.store: dict[str, dict[bytes, bytes]] = {}
        """What is durable: kept when the node is killed."""


class World(VirtualTime):
    """Nodes `n1`, `n2`, ...; all join by n1's red adapter."""

    def __init__(
        self,
        count: int = 2,
        *,
        sealed: bool = False,
        adapters: tuple[str, ...] = ("red", "blue"),
        transports: str = '"tcp", "udp"',
        mtu: int = 1500,
        measure: tuple[str, ...] = (),
        health: HealthConfig | None = None,
        seed: int = 1,
        more: str = "",
        tune: Callable[[NodeCore], None] = lambda _core: None,
    ) -> None:
        """`more` is added to every node's configuration; `tune` is called with every core before it starts."""
        super().__init__(START)
        self._tune = tune
        self.rng = Random(seed)
        self.network = Network(self, mtu)
        self.nodes: dict[str, Node] = {}
        self.puppets: dict[str, list[Any]] = {}
        """What reached addresses behind which there is no node, but a test."""
        self.sealed = sealed
        self.health = health
        self.strict = True
        """A machine that raises fails the test, unless a test has switched this off."""
        self._look = (adapters, transports, mtu)
        self._more = more
        self._measure = ", ".join(f'"{kind}"' for kind in measure)
        for number in range(1, count + 1):
            self.add(f"n{number}", number)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        number: int,
        *,
        join: str = "127.0.1.1:7400",
        domain: str = DOMAIN,
        adapters: tuple[str, ...] | None = None,
        start: bool = True,
    ) -> Node:
        names, transports, mtu = self._look
        text = "\n".join(
            [
                f'domain = "{domain}"\nname = "{name}"\njoin = ["{join}"]\n[security]',
                'mode = "tls"\nauthority = "a"\ncertificate = "c"\nkey = "k"'
                if self.sealed
                else 'mode = "plain"',
                *(
                    f'[[adapter]]\nname = "{adapter}"\naddress = "127.0.{index}.{number}:7400"\n'
                    f"transports = [{transports}]\nmtu = {mtu}\n"
                    f"measure = [{self._measure}]"
                    for index, adapter in enumerate(adapters or names, 1)
                ),
                self._more,
            ]
        )
        node = self.nodes[name] = Node(name, number, text)
        if start:
            self.start(name)
        return node

    def start(self, name: str, *, node_id: NodeId | None = None) -> None:
        """Start a node, or start it again as its next incarnation."""
        node = self.nodes[name]
        node.id = node_id or node.id
        node.incarnation += 1
        node.armed_at = NEVER
        config = parse_config(node.text)
        seed = self.rng.getrandbits(32)
        entropy = Random(seed).randbytes
        node.core = NodeCore(
            config,
            node.id,
            node.incarnation,
            seed,
            entropy,
            {table: sorted(rows.items()) for table, rows in node.store.items()},
            self.now,
            tunables={"health": self.health},
        )
        self._tune(node.core)
        for adapter in node.core.me.adapters:
            place = (name, adapter.name)
            self.network.addresses[place] = (adapter.host, adapter.port)
            self.network.adapters[(adapter.host, adapter.port)] = place
        if self.sealed:
            self.network.identities.setdefault(name, Identity(b"", name, config.domain))
        self._done(node, node.core.start(self.now))

    def kill(self, name: str, *, silent: bool = False) -> None:
        self.nodes[name].core = None
        self.network.vanish(name, silent)

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def pause(self, name: str, length: Nanos) -> None:
        """The process gets no time: what happens to it waits."""
        node = self.nodes[name]
        node.paused_until = max(node.paused_until, self.now + length)

    def core(self, name: str) -> NodeCore:
        core = self.nodes[name].core
        assert core is not None, f"{name} does not run"
        return core

    def link(self, name: str, peer: str) -> LinkMachine:
        link = self.core(name).service(LinkService).link(self.nodes[peer].id)
        assert link is not None, f"{name} has no link to {peer}"
        return link

    def path(self, sender: str, listener: str, adapter: str = "red") -> Path:
        return self.network.path((sender, adapter), (listener, adapter))

    def all_paths(self) -> list[Path]:
        places = list(self.network.addresses)
        return [
            self.network.path(a, b) for a in places for b in places if a[0] != b[0] and a[1] == b[1]
        ]

    # -- doing ---------------------------------------------------------------------------------------------------

    def send(self, name: str, peer: str, messages: list[bytes], port: int = 16) -> None:
        self.turn(name, [(link_unit(self.nodes[peer].id), SendChannel(port, messages))])

    def send_raw(self, name: str, peer: str, messages: list[bytes], port: int = 16) -> None:
        self.turn(name, [(link_unit(self.nodes[peer].id), SendRaw(port, messages))])

    def turn(self, name: str, inputs: Iterable[tuple[str, Any]]) -> None:
        node = self.nodes[name]
        if node.core is not None:
            self._done(node, node.core.turn(self.now, inputs))

    def run(self, seconds: float) -> None:
        """Let this much time pass."""
        self.pass_time(round(seconds * SECOND))

    def run_until(self, condition: Callable[[], bool], seconds: float = 30) -> float:
        """Run until something is so; how many seconds that took."""
        return self.pass_until(condition, round(seconds * SECOND)) / SECOND

    # -- seeing --------------------------------------------------------------------------------------------------

    def up(self, name: str, peer: str) -> bool:
        core, other = self.nodes[name].core, self.nodes[peer]
        link = core.service(LinkService).link(other.id) if core else None
        return link is not None and link.up_since is not None

    def all_up(self) -> bool:
        running = [name for name, node in self.nodes.items() if node.core]
        return all(self.up(a, b) for a in running for b in running if a != b)

    def settled(self) -> bool:
        """Every link is up and every flow between running nodes is agreed, once for each pair of adapters."""
        running = [name for name, node in self.nodes.items() if node.core]
        adapters, transports, _ = self._look
        expected = len(adapters) * len(transports.split(","))
        for a in running:
            for b in running:
                if a != b and (
                    not self.up(a, b)
                    or sum(f.ready and not f.closing for f in self.link(a, b).flows.values())
                    != expected
                    or len(self.link(a, b).flows) != expected
                ):
                    return False
        return True

    def messages(self, name: str, peer: str, port: int = 16) -> list[bytes]:
        sender = self.nodes[peer].id
        return [m for p, number, m in self.nodes[name].messages if (p, number) == (sender, port)]

    def link_events(self, name: str, event: str) -> list[LinkFact]:
        facts = self.nodes[name].facts
        return [f for f in facts if isinstance(f, LinkFact) and f.event == event]

    def path_changes(self, name: str) -> list[PathFact]:
        facts = self.nodes[name].facts
        return [f for f in facts if isinstance(f, PathFact) and f.event == "change"]

    def row(
        self, at: str, sender: str, listener: str, adapter: str = "red", transport: str = "udp"
    ) -> PathRow | None:
        """What a node's table says of one path."""
        key = (self.nodes[sender].id, adapter, self.nodes[listener].id, adapter, transport)
        return self.core(at).service(HealthService).health.table.rows.get(key)

    # -- for the network -----------------------------------------------------------------------------------------

    def give(self, node: str, item: Any) -> None:
        """An event of the network reaches a node, now or when it gets to run."""
        if node in self.puppets:
            self.puppets[node].append(item)
            return
        core = self.nodes[node].core
        self.at(self.now, lambda: self._given(node, core, item))

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def spread(self, width: int) -> int:
        return self.rng.randrange(width)

    # -- inside --------------------------------------------------------------------------------------------------

    def _given(self, name: str, core: NodeCore | None, item: Any) -> None:
        node = self.nodes[name]
        if core is None or node.core is not core:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until, lambda: self._given(name, core, item))
            return
        self._done(node, core.turn(self.now, [(ACCEPTOR, item)]))

    def _wake(self, node: Node, core: NodeCore, armed_at: Nanos) -> None:
        if node.core is not core or node.armed_at != armed_at:
            return
        node.armed_at = NEVER
        if node.paused_until > self.now:
            node.armed_at = node.paused_until
            self.at(node.armed_at, lambda: self._wake(node, core, node.armed_at))
        elif core.next_deadline() <= self.now:
            self._done(node, core.turn(self.now, []))
        else:
            self._arm(node)

    def _done(self, node: Node, result: Result) -> None:
        core = node.core
        assert core is not None
        for _ in range(TURNS_AT_ONCE):
            node.turns += 1
            node.facts.extend(result.facts)
            for failure in result.failures:
                if self.strict:
                    raise failure.error
                node.failures.append(failure)
            for write in result.writes:
                table = node.store.setdefault(write.table, {})
                if isinstance(write, Put):
                    table[write.key] = write.value
                    continue
                for key in [key for key in table if write.first <= key < write.stop]:
                    del table[key]
            for effect in result.effects:
                self._effect(node, effect)
            released = core.written(result.number) if result.writes else False
            if not result.more and not released:
                self._arm(node)
                return
            result = core.turn(self.now, [])
        raise AssertionError(f"{node.name} never comes to rest")

    def _effect(self, node: Node, effect: Any) -> None:
        if isinstance(effect, PortReady):
            log = node.messages if effect.channel else node.datagrams
            log.extend((effect.peer, effect.port, bytes(m)) for m in effect.messages)
        elif isinstance(effect, PortRoom):
            node.room[(effect.peer, effect.port)] = effect.queued
        elif isinstance(effect, PortRefused):
            node.refused.append(effect)
        elif isinstance(effect, SessionEnded):
            node.ended.append(effect)
        else:
            self.network.effect(node.name, effect)

    def _arm(self, node: Node) -> None:
        assert node.core is not None
        deadline = node.core.next_deadline()
        if deadline < node.armed_at and deadline < NEVER:
            node.armed_at = armed = max(deadline, self.now)
            core = node.core
            self.at(armed, lambda: self._wake(node, core, armed))


def connected(count: int = 2, **options: Any) -> World:
    """A world in which everybody is linked to everybody, on all paths."""
    world = World(count, **options)
    world.run_until(world.settled)
    world.run(1)
    return world
