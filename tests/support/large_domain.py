"""Domains of many production nodes in the simulator, in which no node has a link to every other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.dialog.config import Settings
from holdfast.dialog.ports import (
    Answer,
    Event,
    Listen,
    Open,
    Resolve,
    Resolved,
    Send,
    Take,
    dialog_unit,
)
from holdfast.dialog.subsystem import DialogService, OpenStore
from holdfast.group.ports import Multicast
from holdfast.group.section import GroupSection
from holdfast.links.link import LinkMachine
from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig
from holdfast.node.core import NodeCore
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.overlay.config import OverlaySection
from holdfast.overlay.ids import tree_id
from holdfast.overlay.ports import (
    OVERLAY,
    AnswerMessage,
    Connected,
    ConnectTo,
    Delivered,
    Ended,
    FindInstances,
    FoundInstances,
    OpenPort,
    Published,
    PublishRole,
    SendToRole,
)
from holdfast.overlay.subsystem import OverlayService
from holdfast.sim.checkers import NoFailures
from holdfast.sim.checkers.declared import declared_checkers
from holdfast.sim.cluster import address, make_core, node_name
from holdfast.sim.ledger import Ledger
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, SECOND, NodeId

STORE = "default"
TREE = tree_id("tree")
START_EVERY = 20 * MILLISECOND


class LargeDomain:
    def __init__(
        self, seed: int, nodes: int, groups: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """`groups`: the replicas of each group. Only they have its section."""
        self.world = World(seed, domain="large")
        self.world.network.subnet("red", mtu=1500)
        self.names = [node_name(k) for k in range(1, nodes + 1)]
        self.ledgers: dict[str, Ledger] = {}
        self.dialogs: dict[str, DialogUser] = {}
        self.roles: dict[str, RoleUser] = {}
        for checker in (*declared_checkers(SUBSYSTEMS), NoFailures()):
            self.world.check(checker)
        for k, name in enumerate(self.names, 1):
            config = self._config(k, name, groups or {})
            host = self.world.add_host(
                name, partial(make_core, config=config), None, partial(self._application, name)
            )
            self.world.network.attach(host, "red", "red", address(1, k))
            user = self.dialogs[name] = DialogUser(self, name)
            host.on(Answer, user.answered)
            host.on(Resolve, user.resolve)
            host.on(Event, user.event)
            roles = self.roles[name] = RoleUser(self, name)
            host.on(Delivered, roles.delivered)
            for effect in (Published, Ended, FoundInstances, Connected):
                host.on(effect, roles.ended)
            self.world.at(k * START_EVERY, lambda _, host=host: host.start())  # type: ignore[misc]

    def _config(self, k: int, name: str, groups: Mapping[str, tuple[str, ...]]) -> NodeConfig:
        host, port = address(1, k)
        first, first_port = address(1, 1)
        # A low limit avoids links between all nodes while the domain grows, which would slow the simulator down.
        sections: dict[str, Any] = {"overlay": OverlaySection(mesh_all_up_to=8)}
        mine = tuple(GroupSection(g, r) for g, r in groups.items() if name in r)
        if mine:
            sections["group"] = mine
        adapter = AdapterConfig(
            "red", f"{host}:{port}", "red", mtu=1500, transports=("tcp",), measure=()
        )
        return NodeConfig(
            domain="large",
            name=name,
            data="on the simulated disk",
            join=(f"{first}:{first_port}",),
            adapter=(adapter,),
            security=SecurityConfig(mode="plain"),
            sections=sections,
        )

    def _application(self, name: str, unit: str) -> Ledger:
        ledger = self.ledgers[name] = Ledger(())
        return ledger

    # -- queries -------------------------------------------------------------------------------------------------

    def core(self, name: str) -> NodeCore:
        core = self.world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def id(self, name: str) -> NodeId:
        return self.core(name).me.node

    def links(self, name: str) -> list[str]:
        """The members with which a node has a session."""
        core = self.core(name)
        machines = [core.turns.machine(unit) for unit in core.turns.units()]
        peers = [m.peer for m in machines if isinstance(m, LinkMachine) and m.up_since is not None]
        names = {self.id(other): other for other in self.names if self.world.host(other).alive}
        return sorted(names[peer] for peer in peers if peer in names)

    def mesh(self, name: str) -> list[str]:
        """The neighbours of a node in the mesh of the overlay."""
        wanted = self.core(name).service(OverlayService).machine.mesh.wanted()
        return sorted(other for other in self.names if self.id(other) in wanted)

    def reachable(self, name: str) -> int:
        status = self.core(name).service(OverlayService).machine.topology.status()
        return int(status["reachable"])

    def form(self, limit_s: int = 60) -> None:
        """Run until every node reaches every other over the mesh."""
        alive = [name for name in self.names if self.world.host(name).alive] or self.names

        def formed() -> bool:
            if not all(self.world.host(name).alive for name in self.names):
                return False
            return all(self.reachable(name) == len(self.names) for name in self.names)

        end = self.world.now + limit_s * SECOND
        while self.world.now < end:
            self.world.run_for(SECOND)
            if formed():
                return
        reached = {name: self.reachable(name) for name in alive}
        raise AssertionError(f"the domain did not form: {reached}")

    def give(self, name: str, unit: str, item: Any) -> None:
        assert self.world.host(name).give(unit, item), f"{name} refused {type(item).__name__}"

    def multicast(self, name: str, group: str, messages: list[bytes]) -> None:
        self.give(name, f"source/{group}", Multicast(messages, ()))


class DialogUser:
    """An application that opens and serves dialogs on one node."""

    def __init__(self, domain: LargeDomain, name: str) -> None:
        self._domain = domain
        self._name = name
        self._token = 0
        self.answers: dict[int, Any] = {}
        self.events: list[Event] = []

    def use_store(self) -> None:
        """Open a store on a separate disk."""
        store = OpenStore(STORE, self._name.encode().ljust(8, b"."), 1, {}, 64 << 20)
        self._domain.core(self._name).service(DialogService).opened(store)

    def request(self, kind: type, **fields: Any) -> int:
        self._token += 1
        self._domain.give(self._name, dialog_unit(STORE), kind(token=self._token, **fields))
        return self._token

    def listen(self, service: str) -> int:
        table = self._domain.core(self._name).service(DialogService).table
        table.services[service] = dialog_unit(STORE)
        return self.request(Listen, service=service, settings=Settings(store=STORE))

    def open(self, node: str, service: str) -> int:
        uri = f"holdfast://{node}/{service}"
        return self.request(Open, uri=uri, settings=Settings(store=STORE))

    def send(self, dialog: bytes, bodies: list[bytes]) -> int:
        return self.request(Send, dialog=dialog, bodies=bodies)

    def take(self, dialog: bytes, count: int) -> int:
        return self.request(Take, dialog=dialog, count=count)

    def answered(self, _: Any, effect: Answer) -> None:
        self.answers[effect.token] = effect.value

    def event(self, _: Any, effect: Event) -> None:
        self.events.append(effect)

    def resolve(self, host: Any, effect: Resolve) -> None:
        name = effect.uri.removeprefix("holdfast://").partition("/")[0]
        nodes = [bytes(self._domain.id(name))]
        host.give(effect.unit, Resolved(effect.dialog, effect.attempt, nodes))


class RoleUser:
    """An application that answers every message for a role with the name of its node."""

    def __init__(self, domain: LargeDomain, name: str) -> None:
        self._domain = domain
        self._name = name
        self._op = 0
        self.got: list[bytes] = []
        self.done: dict[int, Any] = {}

    def _request(self, kind: type, *fields: Any, **options: Any) -> int:
        self._op += 1
        self._domain.give(self._name, OVERLAY, kind(self._op, *fields, **options))
        return self._op

    def publish(self, role: str, **options: Any) -> int:
        self._domain.give(self._name, OVERLAY, OpenPort(1))
        return self._request(PublishRole, TREE, role, **options)

    def request(self, role: str, data: bytes, tree: bytes = TREE) -> int:
        return self._request(SendToRole, tree, role, data, 1, aggregate=True)

    def find(self, role: str) -> int:
        return self._request(FindInstances, TREE, role)

    def connect(self, found: FoundInstances) -> int:
        return self._request(ConnectTo, found.locations)

    def delivered(self, host: Any, effect: Delivered) -> None:
        self.got.append(effect.data)
        host.give(OVERLAY, AnswerMessage(effect.token, self._name.encode()))

    def ended(self, _: Any, effect: Any) -> None:
        self.done[effect.op] = effect
