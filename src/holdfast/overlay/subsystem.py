"""The overlay as a subsystem: roles, trees, realms, search, direct connections.

overlay      one unit for all of it, above the directory and the health of paths
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.errors import ConfigError
from holdfast.health.subsystem import HealthService
from holdfast.links.subsystem import LinkService
from holdfast.machine import Machine
from holdfast.overlay.config import OverlayConfig, OverlaySection
from holdfast.overlay.facts import OverlayFact
from holdfast.overlay.frames import OVERLAY_FRAMES
from holdfast.overlay.machine import OverlayMachine
from holdfast.overlay.metrics import overlay_metrics
from holdfast.overlay.ports import OVERLAY
from holdfast.subsystem import Assembly, NodeConfig, Section, Service, Subsystem
from holdfast.types import Nanos
from holdfast.wire.codec import encode

MAP_NODES_MAX: Final = 128
SECTION: Final = Section[OverlaySection]("overlay", OverlaySection, OverlaySection())


class OverlayService(Service):
    def __init__(self, node: Assembly) -> None:
        self._node = node
        self.links = node.service(LinkService)
        self.config: OverlayConfig = (
            node.tunables.get("overlay") or SECTION.of(node.config).settings()
        )
        self._builds = 0
        # In a large domain the overlay says which links there are; health follows them.
        self._neighbourhood = node.service(HealthService).neighbourhood
        self._neighbourhood.plan = self._plan
        self.machine: OverlayMachine
        """As it was made last: one that has stopped still says what it knew."""

    def units(self) -> Iterable[str]:
        return (OVERLAY,)

    def build(self, unit: str) -> Machine | None:
        if unit != OVERLAY:
            return None
        node = self._node
        self._builds += (
            1  # the epoch: peers must notice that this unit has forgotten their messages
        )
        self.machine = OverlayMachine(
            node.me.node,
            node.me.incarnation,
            self._builds,
            self.config,
            node.rng(f"{unit}/{self._builds}"),
            encode,
            node.now,
        )
        self.machine.replan = self._neighbourhood.replan
        self.machine.readiness.joins = self._joins
        return self.machine

    def _joins(self) -> bool:
        """Whether this node is to meet others: those that it joins, or members that have not left."""
        directory = self.links.directory
        return self.links.acceptor.is_joining() or any(
            directory.state.get(node, ("", 0))[0] != "left" for node in directory.members
        )

    def _plan(self) -> dict[bytes, bool] | None:
        """The members that this node links to, and those whose link the overlay uses; None: to all."""
        members = self._neighbourhood.members()
        if not self._builds or len(members) < self.config.mesh_all_up_to:
            return None
        return self.machine.planned(members)

    def status(self, now: Nanos) -> Mapping[str, Any]:
        return {"overlay": {**self.machine.status(), **self._map()}}

    def _map(self) -> dict[str, Any]:
        """Nodes, realms and links as this node knows them, for the page; left out in a domain too large to draw."""
        rows = self.machine.topology.picture()
        if len(rows) > MAP_NODES_MAX:
            return {"map": [], "map_left_out": len(rows)}
        name = self.links.name_of
        nodes = [
            {
                "name": name(row.node),
                "realm": row.realm,
                "reachable": reachable,
                "peers": [name(peer) for peer in row.peers],
            }
            for row, reachable in rows
        ]
        return {"map": nodes, "map_left_out": 0}


def _check(config: NodeConfig, source: str) -> None:
    problems = SECTION.of(config).settings().problems()
    if problems:
        raise ConfigError(f"{source}: {problems[0]}")


OVERLAY_SUBSYSTEM: Final = Subsystem(
    name="overlay",
    service=OverlayService,
    layers=("overlay",),
    sections=(SECTION,),
    check=_check,
    frames=dict.fromkeys(OVERLAY_FRAMES, lambda _: (OVERLAY,)),
    facts=(OverlayFact,),
    metrics=overlay_metrics,
    edge="holdfast.runtime.roles:Roles",
    sim_edge="holdfast.sim.edges:SimOverlayEdge",
    checkers="holdfast.sim.checkers.overlay:overlay_checkers",
)
