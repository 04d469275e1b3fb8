"""A whole domain of nodes in a world: the production cores on simulated machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.group.frames import StreamId
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import (
    AddReplica,
    Batch,
    HandOver,
    Output,
    OutputsSent,
    RemoveReplica,
    RestartFromSurvivor,
    SendOutputs,
    SourceRoom,
)
from holdfast.group.services.ports import ServiceNotice
from holdfast.sim.checkers import (
    Bounds,
    Checker,
    DeadlinesMove,
    DeliveryOrder,
    GroupChecks,
    NoFailures,
)
from holdfast.sim.checkers.declared import declared_checkers
from holdfast.sim.checkers.groups import GroupPromise
from holdfast.sim.checkers.notes import LossesAreTold, RequestsOnce
from holdfast.sim.checkers.outputs import OutputsOnce
from holdfast.sim.checkers.services import ServiceChecks
from holdfast.sim.checkers.sight import look_at_replica, replicas_of
from holdfast.sim.coverage import Coverage
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.ledger import Chooser, Converged, Ledger, Load, Sender, spoken
from holdfast.sim.port import Core, HostContext
from holdfast.sim.profile import HostProfile
from holdfast.sim.scenario import Scenario
from holdfast.sim.seeds import chance
from holdfast.sim.trace import Trace
from holdfast.sim.visitors import Protected, Visitor
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.subsystem import NodeConfig, Subsystem

DOMAIN = "sim"
PORT = 7400
MTU = 1500
ASK_AGAIN_NS = 500 * MILLISECOND
RECOVER_S = 1.5
"""A recovery that starts with the last fault must end, twice, before the run does."""


class GroupPlan(msgspec.Struct, frozen=True):
    """A group of the first nodes of a cluster; every node sends to it."""

    name: str = "book"
    voters: int = 3
    load: Load = Load()
    learners: int = 0
    durability: Literal["memory", "durable"] = "memory"
    delivery: Literal["safe", "fast"] = "safe"
    mode: Literal["majority", "availability"] = "majority"
    transport: Literal["channel", "datagram"] = "channel"
    answers: bool = False
    """Applications answer loss questions at random; otherwise the rules of the group do."""
    rules: tuple[Rule, ...] = ()
    """The loss rules of the group."""
    gone_s: float = 30.0
    message_log_mb: int = 0
    outputs: bool = False
    """Applications create outputs for nodes and for another destination."""
    never_lead: tuple[str, ...] = ()
    stability: str = "auto"
    """The protocol that determines what all replicas have applied."""
    services: bool = False
    """Every node uses locks and a barrier of the group."""

    @property
    def voter_names(self) -> tuple[str, ...]:
        return tuple(map(node_name, range(1, self.voters + 1)))


def make_core(
    context: HostContext, config: NodeConfig, subsystems: Sequence[Subsystem] | None = None
) -> Core:
    """A production node on a simulated machine: the only place that builds a core."""
    from holdfast.node.core import NodeCore
    from holdfast.node.subsystems import SUBSYSTEMS
    from holdfast.stores.identity import open_identity

    subsystems = SUBSYSTEMS if subsystems is None else subsystems

    identity = open_identity(context.store, partial(context.entropy, 16))
    stored = {table: context.load(table) for table in NodeCore.tables(config, subsystems)}
    return NodeCore(
        config,
        identity.node,
        identity.incarnation,
        context.seed,
        context.entropy,
        stored,
        wall_offset_ns=context.wall_offset_ns,
        subsystems=subsystems,
    )


def node_name(number: int) -> str:
    return f"n{number}"


def address(subnet: int, number: int) -> tuple[str, int]:
    """Loopback addresses, as plain mode requires; nothing is sent to them."""
    return f"127.{subnet}.{number >> 8}.{number & 255}", PORT


class Cluster:
    """Nodes `n1` to `nK` with an adapter on every subnet, groups, a load, and all checkers."""

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
        multicast: bool = False,
        mtu: int = MTU,
    ) -> None:
        """`mtu`: of every adapter and subnet."""
        self._nodes = nodes
        self._multicast = multicast
        self._mtu = mtu
        self._subnets = subnets
        self._groups = groups
        self._until_ns = until_ns
        self._quiet_ns = quiet_ns
        self.world = World(
            seed, secure=secure, domain=DOMAIN, trace=trace, facts=facts, replay=replay
        )
        for subnet in subnets:
            self.world.network.subnet(subnet, mtu=mtu)
        self.senders: list[Sender] = []
        for number in range(1, nodes + 1):
            self._add_node(number, profile)
        self.coverage = Coverage()
        promises = {group.name: self._promise(group) for group in groups}
        self.groups = GroupChecks(promises, self.coverage.see)
        loose = tuple(f"replica/{name}" for name, promise in promises.items() if promise.is_loose)
        self.order = DeliveryOrder(self.groups.group_epoch, loose)
        # In a turn, the group checkers run first, and at the end the states: both explain the findings of the others.
        always: tuple[Checker, ...] = (
            Converged(self.senders, self.groups),
            self.coverage,
            self.groups,
            self.order,
            NoFailures(),
            Bounds(),
            DeadlinesMove(),
            RequestsOnce(self.groups.group_epoch, loose),
            LossesAreTold(self._priorities),
        )
        speaking = tuple(group.name for group in groups if group.outputs)
        if speaking:
            always += (OutputsOnce(speaking, self._said, self.groups),)
        self.visitors: dict[str, Visitor] = {}
        self.protected = Protected()
        always += tuple(self._serve(group) for group in groups if group.services)
        from holdfast.node.subsystems import SUBSYSTEMS

        for checker in (*always, *declared_checkers(SUBSYSTEMS), *checkers):
            self.world.check(checker)
        self.world.aliases["@leader"] = self.leader
        self.world.burst = self._burst
        self.world.ask = self._ask
        self.scenario = scenario

    def _serve(self, group: GroupPlan) -> ServiceChecks:
        """Visitors on all hosts. They leave two seconds before the end, so that all their requests are answered."""
        parties = min(3, self._nodes)
        until_ns = self._until_ns - self._quiet_ns
        for host in self.world.hosts.values():
            visitor = Visitor(host, group.name, parties, self.protected, until_ns)
            self.visitors[host.name] = visitor
            host.on(ServiceNotice, lambda host, notice: self.visitors[host.name].take(notice))
        return ServiceChecks(group.name, self.visitors, self.protected, parties, self.groups)

    def _application(self, host: str, unit: str) -> Ledger:
        for group in self._groups:
            if unit == f"replica/{group.name}" and group.answers:
                boots = self.world.hosts[host].boots
                random = chance(self.world.seed, "answers", host, unit, boots)
                return Chooser(random, self._destinations(group.name))
        return Ledger(self._destinations(unit.partition("/")[2]))

    def _destinations(self, name: str) -> tuple[str, ...]:
        """The destinations of the outputs of a group: a replica, the last node, and one that is not a node."""
        if any(group.name == name and group.outputs for group in self._groups):
            return (f"node:{node_name(1)}", f"node:{node_name(self._nodes)}", "till")
        return ()

    def _said(self, group: str, batch: Batch) -> list[Output]:
        return spoken(batch, self._destinations(group))

    def _priorities(self, group: str, stream: StreamId) -> bytes | bytearray:
        """The priorities of all messages of a stream; empty if senders give none."""
        life = (stream.source, stream.incarnation)
        for sender in self.senders:
            if sender.group == group and life in sender.priorities:
                return sender.priorities[life]
        return b""

    def _promise(self, group: GroupPlan) -> GroupPromise:
        return GroupPromise(
            self._voters(group) + self._learners(group),
            durable=group.durability == "durable",
            safe=group.delivery == "safe",
            lone=group.mode == "availability",
        )

    def _voters(self, group: GroupPlan) -> tuple[str, ...]:
        return tuple(map(node_name, range(1, min(group.voters, self._nodes) + 1)))

    def _learners(self, group: GroupPlan) -> tuple[str, ...]:
        first = group.voters + 1
        return tuple(
            map(node_name, range(first, min(group.voters + group.learners, self._nodes) + 1))
        )

    def leader(self) -> str:
        """The leader of the first group with the highest term; its first voter if there is no leader."""
        best, name = -1, node_name(1)
        for host in self.world.hosts.values():
            for machine in replicas_of(host) if host.alive else ():
                sight = look_at_replica(host, machine)
                if sight.group == self._groups[0].name and sight.leading and sight.term > best:
                    best, name = sight.term, host.name
        return name

    def _ask(self, group: str, verb: str, host: str) -> None:
        """Operator actions: ask a replica that responds; refound only if the state of a majority is lost."""
        unit = f"replica/{group}"
        match verb:
            case "add":
                self._add(host)
            case "remove":
                self.world.hosts[self.leader()].give(unit, RemoveReplica(host))
            case "hand-over":
                self.world.hosts[self.leader()].give(unit, HandOver((host,)))
            case _:
                survivor = self.groups.best_survivor(group, self.world)
                if survivor:
                    self.world.hosts[survivor].give(unit, RestartFromSurvivor(force=True))
                self.world.at(self.world.now + SECOND, self._restart_leftovers, group)

    def _add(self, host: str) -> None:
        """Request the admission of a replica until it is a member, because there may be no stable leader."""
        group = self._groups[0]
        leader = self.world.hosts[self.leader()]
        for machine in replicas_of(leader) if leader.alive else ():
            sight = look_at_replica(leader, machine)
            if sight.group == group.name and sight.leading:
                if sight.view is not None and sight.view.named(host) is not None:
                    return
                leader.give(f"replica/{group.name}", AddReplica(host, host in group.voter_names))
        self.world.at(self.world.now + ASK_AGAIN_NS, self._add, host)

    def _restart_leftovers(self, group: str) -> None:
        """Replicas of an ended group epoch stay suspended until they are restarted."""
        for name in self.groups.leftovers(group, self.world):
            self.world.hosts[name].crash()
            self.world.hosts[name].start_again()

    def _burst(self, host: str, count: int) -> None:
        for sender in self.senders:
            if sender.host_name == host:
                sender.burst(count)

    def _add_node(self, number: int, profile: HostProfile | None) -> None:
        name = node_name(number)
        boot = partial(make_core, config=self.config(number))
        host = self.world.add_host(name, boot, profile, partial(self._application, name))
        for index, subnet in enumerate(self._subnets, 1):
            self.world.network.attach(host, subnet, subnet, address(index, number))
        senders = [
            Sender(host, group.name, group.load, self._until_ns - self._quiet_ns)
            for group in self._groups
        ]
        self.senders += senders
        host.on(SendOutputs, _Till(chance(self.world.seed, "till", name)).take)
        host.on(SourceRoom, lambda host, effect: _tell_room(senders, host, effect))

    def config(self, number: int) -> NodeConfig:
        """The configuration of one node, as its file would contain it."""
        from holdfast.group.section import GroupSection
        from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig

        adapters = []
        for index, subnet in enumerate(self._subnets, 1):
            host, port = address(index, number)
            cast = f"239.81.0.{index}:7501" if self._multicast else ""
            adapters.append(
                AdapterConfig(subnet, f"{host}:{port}", subnet, mtu=self._mtu, multicast=cast)
            )
        first = [address(index, 1) for index, _ in enumerate(self._subnets, 1)]
        groups = []
        for group in self._groups:
            voters = self._voters(group)
            groups.append(
                GroupSection(
                    group.name,
                    voters,
                    learners=self._learners(group),
                    durability=group.durability,
                    delivery=group.delivery,
                    mode=group.mode,
                    transport=group.transport,
                    never_lead=group.never_lead,
                    priorities=group.load.priorities,
                    loss=group.rules,
                    gone_s=group.gone_s,
                    recover_s=RECOVER_S,
                    message_log_mb=group.message_log_mb,
                    stability=group.stability,
                )
            )
        return NodeConfig(
            domain=DOMAIN,
            name=node_name(number),
            data="on the simulated disk",
            join=tuple(f"{host}:{port}" for host, port in first),
            adapter=tuple(adapters),
            security=SecurityConfig(mode="tls" if self.world.secure else "plain"),
            sections={"group": tuple(groups)},
        )

    # -- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all nodes, the senders and the scenario."""
        for host in self.world.hosts.values():
            host.start()
        for sender in self.senders:
            sender.begin()
        for visitor in self.visitors.values():
            visitor.begin()
        if self.scenario is not None:
            self.scenario.schedule(self.world)
        calm_ns = self._until_ns - self._quiet_ns
        if self._groups and calm_ns > self.world.now:
            # Senders stop and the last fault is over: from here on everything recovers.
            self.world.at(calm_ns, lambda _: self.groups.watch_calm(self.world))

    def run(self) -> dict[str, Any]:
        """The whole run with all checks, and its result."""
        self.start()
        self.world.run(self._until_ns)
        self.world.finish()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """The run in figures, independent of the simulating machine."""
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
            "calm_ms": self._calm_ms(),
            "coverage": dict(sorted(self.coverage.counts.items())),
            "trace": world.trace.digest() if world.trace is not None else None,
        }

    def _calm_ms(self) -> int | None:
        """How long after the last fault everything had recovered."""
        quiet_from_ns = self._until_ns - self._quiet_ns
        calm_ns = self.groups.calm_ns
        return None if calm_ns == NEVER else (calm_ns - quiet_from_ns) // MILLISECOND


def _tell_room(senders: list[Sender], host: Host, effect: SourceRoom) -> None:
    for sender in senders:
        sender.room(host, effect)


class _Till:
    """Accepts outputs for destinations that are not nodes, and confirms them after a while; unconfirmed ones are sent
    again."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def take(self, host: Host, effect: SendOutputs) -> None:
        if self._random.randrange(8) == 0:
            return
        last, boots, world = effect.outputs[-1], host.boots, host.world
        answer = OutputsSent(effect.destination, last.position, last.k)

        def arrive(_: None) -> None:
            if host.boots == boots:
                host.give(effect.unit, answer)

        world.at(world.now + self._random.randint(1, 30) * MILLISECOND, arrive)
