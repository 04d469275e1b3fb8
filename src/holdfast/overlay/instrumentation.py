"""What people and tests can see of the overlay on one node (O14)."""

from __future__ import annotations

from typing import Any

from holdfast.overlay.builder import Builder
from holdfast.overlay.direct import Direct
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import node_of
from holdfast.overlay.partition import Partition
from holdfast.overlay.recovery import Recoveries
from holdfast.overlay.roles import LocalRole, LocalRoles
from holdfast.overlay.router import Router
from holdfast.overlay.search import Search
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import Waves
from holdfast.types import NodeId


class Instrumentation:
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        router: Router,
        waves: Waves,
        search: Search,
        direct: Direct,
        partition: Partition,
        recoveries: Recoveries,
    ) -> None:
        self._hub = hub
        self._topology = topology
        self._cache = cache
        self._local = local
        self._builder = builder
        self._router = router
        self._waves = waves
        self._search = search
        self._direct = direct
        self._partition = partition
        self._recoveries = recoveries

    # -- the paper's functions ------------------------------------------------------------------------------------

    def contains_tree(self, tree: bytes) -> bool:
        return self._cache.peek(tree) is not None

    def trees(self) -> list[bytes]:
        """Ids of all trees that this node knows of."""
        return [tree.id for tree in self._cache.all()]

    def local_roles(self, tree: bytes | None = None) -> list[LocalRole]:
        return self._local.all() if tree is None else self._local.on_tree(tree)

    def neighbours(self, tree: bytes) -> list[NodeId]:
        """The neighbours of this node on a tree."""
        found = self._cache.peek(tree)
        return list(found.edges) if found is not None else []

    def remote_nodes(self, tree: bytes) -> list[bytes]:
        """Nodes that hold roles on the tree, as far as this node knows."""
        found = self._cache.peek(tree)
        if found is None:
            return []
        nodes = {node_of(i): True for role in found.roles.values() for i in role.instances()}
        return list(nodes)

    def routes(self, tree: bytes, role: str) -> dict[bytes, NodeId]:
        """The link that leads to each known instance; dummies are not listed (rule 8)."""
        found = self._cache.peek(tree)
        state = found.roles.get(role) if found is not None else None
        if state is None:
            return {}
        return {r.instance: r.link for r in state.routes.values() if not r.dummy}

    def route_links(self, tree: bytes, role: str) -> list[NodeId]:
        """All links that a message to the role takes from here, those of dummies included."""
        found = self._cache.peek(tree)
        state = found.roles.get(role) if found is not None else None
        return list(state.links()) if state is not None else []

    def built(self, tree: bytes, role: str, realm_only: bool = False) -> bool:
        found = self._cache.peek(tree)
        if found is None and self._local.get(tree, role) is None:
            return False
        return self._builder.built(tree, role, realm_only)

    def tree_built(self, tree: bytes) -> bool:
        found = self._cache.peek(tree)
        return found is not None and found.built

    def lost(self, tree: bytes, role: str) -> list[bytes]:
        found = self._cache.peek(tree)
        state = found.roles.get(role) if found is not None else None
        return list(state.lost) if state is not None else []

    def uses(self, peer: NodeId) -> bool:
        """Whether anything goes over the link to a neighbour."""
        neighbour = self._hub.neighbours.get(peer)
        if neighbour is not None and (neighbour.pending or neighbour.waves or neighbour.queue):
            return True
        return any(peer in tree.edges for tree in self._cache.all())

    # -- numbers -------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """How much this node remembers: everything here has a bound."""
        return {
            "trees": len(self._cache),
            "routes": sum(len(r.routes) for t in self._cache.all() for r in t.roles.values()),
            "local_roles": len(self._local),
            "records": self._router.records(),
            "deliveries": len(self._router.deliveries),
            "reply_cache": len(self._router.deliveries.cache),
            "seen": len(self._router.seen),
            "waves": self._waves.open_waves(),
            "recoveries": self._recoveries.running(),
            "entries": self._search.entries(),
        }

    def bounds(self) -> dict[str, int]:
        """The limits of `sizes` that the configuration sets. Trees with local roles are never evicted."""
        config = self._hub.config
        return {
            "trees": config.trees_max + len(self._local.trees()),
            "local_roles": config.local_roles_max,
            "records": config.pending_max,
            "reply_cache": config.reply_cache_max,
            "seen": config.seen_max,
            "entries": config.entries_max,
        }

    def status(self) -> dict[str, Any]:
        hub = self._hub
        return {
            "realm": hub.realm,
            "epoch": hub.epoch,
            "mesh": self._topology.status(),
            "partition": self._partition.status(),
            "neighbours": [
                {
                    "id": neighbour.peer.hex(),
                    "realm": neighbour.realm,
                    "open": neighbour.open,
                    "hop_us": neighbour.hop_ns // 1000,
                    "queued": len(neighbour.queue),
                }
                for neighbour in hub.neighbours.values()
            ],
            "roles": [
                {
                    "tree": role.tree.hex(),
                    "role": role.role,
                    "instance": role.instance.hex(),
                    "exclusive": role.exclusive,
                    "epoch": role.epoch,
                    "first": role.first,
                    "linked": role.linked,
                }
                for role in self._local.all()
            ],
            "trees": [
                {
                    "tree": tree.id.hex(),
                    "built": tree.built,
                    "edges": [peer.hex() for peer in tree.edges],
                    "roles": [
                        {
                            "role": role.name,
                            "built": self._builder.built(tree.id, role.name),
                            "instances": len(role.instances()),
                        }
                        for role in tree.roles.values()
                    ],
                }
                for tree in self._cache.all()
            ],
            "direct": self._direct.status(),
            "sizes": self.sizes(),
            "counters": dict(sorted(hub.counters.items())),
        }
