"""The parts of the overlay, each created with the parts that it depends on.

the map       which links there are, and which nodes are reached over them
the trees     routes to roles: built by publishing, found by search, rebuilt when a message needs them
the messages  requests and replies on the trees, listeners, roles that move, direct connections
the sessions  what begins and ends with a link
"""

from __future__ import annotations

from holdfast.machine import Machine
from holdfast.overlay.builder import Builder
from holdfast.overlay.direct import Direct
from holdfast.overlay.flow import Flow
from holdfast.overlay.grants import Grants
from holdfast.overlay.hoptimes import HopTimes
from holdfast.overlay.hub import Hub
from holdfast.overlay.instrumentation import Instrumentation
from holdfast.overlay.joining import Joining
from holdfast.overlay.listeners import Listeners
from holdfast.overlay.mesh import MeshPlan
from holdfast.overlay.partition import Cuts, Partition
from holdfast.overlay.readiness import Readiness
from holdfast.overlay.recovery import Recoveries
from holdfast.overlay.registrar import Registrar
from holdfast.overlay.roles import LocalRoles
from holdfast.overlay.router import Router
from holdfast.overlay.search import Search
from holdfast.overlay.sessions import Sessions
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import Waves
from holdfast.types import Nanos


class Parts(Machine):
    def __init__(self, hub: Hub, now: Nanos) -> None:
        self.hub = hub
        hub.now = now
        self._make_map(hub)
        self._make_trees(hub)
        self._make_messages(hub)
        self._make_sessions(hub)
        self._connect()

    def _make_map(self, hub: Hub) -> None:
        self.mesh = MeshPlan(hub.me, hub.config)
        self.topology = Topology(hub)
        self.readiness = Readiness(hub, self.topology)
        self.times = HopTimes(hub.config)
        self.waves = Waves(hub, self.topology, self.times)

    def _make_trees(self, hub: Hub) -> None:
        topology, waves = self.topology, self.waves
        local = self.local = LocalRoles(hub.config.local_roles_max)
        cache = self.cache = TreeCache(hub.config)
        self.cuts = Cuts(hub, topology, cache)
        self.partition = Partition(hub, topology, self.cuts)
        builder = self.builder = Builder(hub, topology, waves, cache, local, self.cuts)
        search = self.search = Search(hub, topology, waves)
        self.registrar = Registrar(
            hub, topology, waves, cache, local, builder, search, self.readiness
        )
        self.recoveries = Recoveries(hub, waves, cache, local, builder, search, self.registrar)

    def _make_messages(self, hub: Hub) -> None:
        cache, local, builder = self.cache, self.local, self.builder
        self.listeners = Listeners(hub)
        self.flow = Flow(hub)
        router = self.router = Router(
            hub, self.waves, cache, local, builder, self.recoveries, self.listeners, self.flow
        )
        self.grants = Grants(
            hub,
            self.topology,
            cache,
            local,
            builder,
            self.search,
            self.registrar,
            router,
            router.deliveries,
        )
        self.direct = Direct(hub, router, self.mesh_needs)

    def _make_sessions(self, hub: Hub) -> None:
        self.joining = Joining(hub, self.cache, self.builder)
        self.sessions = Sessions(
            hub,
            self.topology,
            self.partition,
            self.builder,
            self.waves,
            self.router,
            self.flow,
            self.joining,
            self.direct,
        )
        self.inspect = Instrumentation(
            hub,
            self.topology,
            self.cache,
            self.local,
            self.builder,
            self.router,
            self.waves,
            self.search,
            self.direct,
            self.partition,
            self.recoveries,
        )

    def _connect(self) -> None:
        """What a part needs of another that is made after it."""
        self.registrar.ping = self.direct.ping
        self.registrar.settle = self.partition.settle
        self.partition.healed = self.registrar.healed

    def mesh_needs(self, node: bytes) -> bool:
        return node in self.mesh.wanted()
