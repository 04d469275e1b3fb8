"""A whole domain of real nodes in a world: the same cores that production runs, on simulated machines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.group.ports import SourceRoom
from holdfast.sim.checkers import Bounds, Checker, DeadlinesMove, DeliveryOrder, NoFailures
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.ledger import Converged, Ledger, Load, Sender
from holdfast.sim.port import Core, HostContext
from holdfast.sim.profile import HostProfile
from holdfast.sim.scenario import Scenario
from holdfast.sim.trace import Trace
from holdfast.sim.world import World
from holdfast.types import SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.node.config import NodeConfig

DOMAIN = "sim"
PORT = 7400
MTU = 1500


class GroupPlan(msgspec.Struct, frozen=True):
    """A group of the first nodes of a cluster; every node sends to it."""

    name: str = "book"
    voters: int = 3
    load: Load = Load()
    durability: Literal["memory", "durable"] = "memory"
    delivery: Literal["safe", "fast"] = "safe"


def make_core(context: HostContext, config: NodeConfig) -> Core:
    """A real node on a simulated machine: the one place that knows how a core is made."""
    from holdfast.node.core import NodeCore
    from holdfast.stores.identity import open_identity

    identity = open_identity(context.store, partial(context.entropy, 16))
    stored = {table: context.load(table) for table in NodeCore.tables(config)}
    return NodeCore(
        config, identity.node, identity.incarnation, context.seed, context.entropy, stored
    )


def node_name(number: int) -> str:
    return f"n{number}"


def address(subnet: int, number: int) -> tuple[str, int]:
    """Loopback addresses, which plain mode asks for; nothing is ever sent to them."""
    return f"127.{subnet}.{number >> 8}.{number & 255}", PORT


class Cluster:
    """Nodes `n1` to `nK` with an adapter on every subnet, groups, a load, and every check there is."""

    def __init__(
        self,
        seed: int,
        nodes: int = 5,
        subnets: tuple[str, ...] = ("red", "blue"),
        groups: tuple[GroupPlan, ...] = (GroupPlan(),),
        secure: bool = False,
        *,
        scenario: Scenario | None = None,
        until_ns: Nanos = 30 * SECOND,
        quiet_ns: Nanos = 10 * SECOND,
        profile: HostProfile | None = None,
        trace: Trace | None = None,
        facts: FactBook | None = None,
        checkers: tuple[Checker, ...] = (),
        replay: str = "",
    ) -> None:
        self._nodes = nodes
        self._subnets = subnets
        self._groups = groups
        self._until_ns = until_ns
        self._quiet_ns = quiet_ns
        self.world = World(
            seed, secure=secure, domain=DOMAIN, trace=trace, facts=facts, replay=replay
        )
        for subnet in subnets:
            self.world.network.subnet(subnet, mtu=MTU)
        self.senders: list[Sender] = []
        for number in range(1, nodes + 1):
            self._add_node(number, profile)
        self.order = DeliveryOrder()
        always = (self.order, NoFailures(), Bounds(), DeadlinesMove(), Converged(self.senders))
        for checker in (*always, *checkers):
            self.world.check(checker)
        self.scenario = scenario

    def _add_node(self, number: int, profile: HostProfile | None) -> None:
        name = node_name(number)
        boot = partial(make_core, config=self.config(number))
        host = self.world.add_host(name, boot, profile, lambda _: Ledger())
        for index, subnet in enumerate(self._subnets, 1):
            self.world.network.attach(host, subnet, subnet, address(index, number))
        senders = [
            Sender(host, group.name, group.load, self._until_ns - self._quiet_ns)
            for group in self._groups
        ]
        self.senders += senders
        host.on(SourceRoom, lambda host, effect: _tell_room(senders, host, effect))

    def config(self, number: int) -> NodeConfig:
        """The configuration of one node, as its file would say it."""
        from holdfast.node.config import AdapterConfig, GroupSection, NodeConfig, SecurityConfig

        adapters = []
        for index, subnet in enumerate(self._subnets, 1):
            host, port = address(index, number)
            adapters.append(AdapterConfig(subnet, f"{host}:{port}", subnet, mtu=MTU))
        first = [address(index, 1) for index, _ in enumerate(self._subnets, 1)]
        groups = []
        for group in self._groups:
            voters = tuple(map(node_name, range(1, min(group.voters, self._nodes) + 1)))
            groups.append(
                GroupSection(
                    group.name, voters, durability=group.durability, delivery=group.delivery
                )
            )
        return NodeConfig(
            domain=DOMAIN,
            name=node_name(number),
            join=tuple(f"{host}:{port}" for host, port in first),
            adapter=tuple(adapters),
            security=SecurityConfig(mode="tls" if self.world.secure else "plain"),
            group=tuple(groups),
        )

    # -- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all nodes and let senders and the scenario begin."""
        for host in self.world.hosts.values():
            host.start()
        for sender in self.senders:
            sender.begin()
        if self.scenario is not None:
            self.scenario.schedule(self.world)

    def run(self) -> dict[str, Any]:
        """The whole run, with every check; what it came to."""
        self.start()
        self.world.run(self._until_ns)
        self.world.finish()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """What happened, in figures. Nothing in it depends on the machine that simulates."""
        world = self.world
        paths = world.network.paths()
        return {
            "seed": world.seed,
            "nodes": self._nodes,
            "simulated_s": world.now / SECOND,
            "events": world.events,
            "turns": sum(host.turns for host in world.hosts.values()),
            "packets_sent": sum(path.sent for path in paths),
            "packets_lost": sum(path.lost for path in paths),
            "delivered": self.order.delivered,
            "starts": sum(host.boots for host in world.hosts.values()),
            "states": {host.name: host.state for host in world.hosts.values()},
            "trace": world.trace.digest() if world.trace is not None else None,
        }


def _tell_room(senders: list[Sender], host: Host, effect: SourceRoom) -> None:
    for sender in senders:
        sender.room(host, effect)
