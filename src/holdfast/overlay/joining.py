"""Getting on all trees: a node that joins asks its first neighbour for the trees that it knows.

A route that is copied counts one hop more than the neighbour's, under the same sequence number: it cannot make a
loop. A role that the neighbour has not built is not built here either (rule 7).
"""

from __future__ import annotations

import msgspec

from holdfast.overlay.builder import Builder
from holdfast.overlay.checks import sound_found
from holdfast.overlay.frames import AskTrees, TreeInfo, Trees
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import is_role, is_tree
from holdfast.overlay.trees import TreeCache
from holdfast.types import NodeId

FOUND_MAX = 64


class Joining:
    def __init__(self, hub: Hub, cache: TreeCache, builder: Builder) -> None:
        self._hub = hub
        self._cache = cache
        self._builder = builder
        self._asked: dict[NodeId, bool] = {}

    def ask(self, peer: NodeId) -> None:
        if self._hub.config.join_trees_max > 0:
            self._asked[peer] = True
            self._hub.send(peer, AskTrees(self._hub.config.join_trees_max))

    def asked(self, peer: NodeId, frame: AskTrees) -> None:
        neighbour = self._hub.neighbours[peer]
        if neighbour.given_trees:
            self._hub.count("trees_given_already")
            return
        neighbour.given_trees = True
        limit = min(max(frame.limit, 0), self._hub.config.join_trees_max)
        infos: list[TreeInfo] = []
        for tree in reversed(self._cache.all()):  # the most recently used first
            for role in tree.roles.values():
                found = tuple(
                    route.found()
                    for route in role.routes.values()
                    if not route.dummy and route.link != peer
                )[:FOUND_MAX]
                built = self._builder.built(tree.id, role.name)
                # rule: O-7d
                if found and built:
                    infos.append(TreeInfo(tree.id, role.name, built, found))
            if len(infos) >= limit:
                break
        if infos:
            self._hub.send(peer, Trees(tuple(infos[:limit])))

    def received(self, peer: NodeId, frame: Trees) -> None:
        if not self._asked.pop(peer, False) or len(frame.trees) > self._hub.config.join_trees_max:
            self._hub.count("trees_unasked")
            return
        for info in frame.trees:
            # rule: O-7e
            if not is_tree(info.tree) or not is_role(info.role) or not info.built:
                continue
            for found in info.found[:FOUND_MAX]:
                if sound_found(found):
                    nearer = msgspec.structs.replace(found, hops=found.hops + 1)
                    self._builder.add_route(info.tree, info.role, nearer, peer)
