"""Edges of trees: both ends of a link know that a tree uses it (seed: 'Creating and Destroying Tree Edges').

An edge without routes is removed when both ends agree. A cycle is broken by a forced removal. A node that evicts a tree
forces the removal of all its edges and names the others to each: so the pieces find each other again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.frames import (
    EDGE_AGREE,
    EDGE_ASK,
    EDGE_CREATE,
    EDGE_EVICTED,
    EDGE_FORCED,
    EDGE_KEEP,
    EDGE_UNUSED,
    Edge,
)
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import is_node, is_tree
from holdfast.overlay.trees import Tree, TreeCache
from holdfast.types import SECOND, NodeId

OTHERS_MAX: Final = 512
LEFT_NS: Final = 2 * SECOND
"""A neighbour is heard once in this time when it says that it does not use an edge."""


class Edges:
    def __init__(
        self,
        hub: Hub,
        cache: TreeCache,
        forgotten: Callable[[Tree, NodeId, tuple[bytes, ...], bool], None],
        left: Callable[[Tree, NodeId], None],
    ) -> None:
        self._hub = hub
        self._cache = cache
        self._forgotten = forgotten
        self._left = left

    def create(self, tree: Tree, peer: NodeId) -> None:
        if peer not in tree.edges:
            tree.edges[peer] = True
            self._hub.send(peer, Edge(tree.id, EDGE_CREATE))

    def tidy(self, tree: Tree) -> None:
        """Ask to remove the edges that no route goes over from here."""
        used = tree.route_links()
        for peer in list(tree.edges):
            if peer not in used and self._hub.is_open(peer):
                self._hub.send(peer, Edge(tree.id, EDGE_ASK))

    def unused(self, tree: Tree, peer: NodeId) -> None:
        """A route moved away from this edge, and no other uses it."""
        if peer in tree.edges and self._hub.is_open(peer):
            self._hub.send(peer, Edge(tree.id, EDGE_UNUSED))

    def force(self, tree: Tree, peer: NodeId) -> None:
        tree.edges.pop(peer, None)
        if self._hub.is_open(peer):
            self._hub.send(peer, Edge(tree.id, EDGE_FORCED))

    def forget(self, tree: Tree) -> None:
        """The tree is evicted: each neighbour learns which others it may have been the way to."""
        edges = [peer for peer in tree.edges if self._hub.is_open(peer)]
        pieces: dict[bytes, bool] = dict.fromkeys(tree.edges, True)
        for role in tree.roles.values():
            for node, hint in role.lost.items():
                pieces.update(dict.fromkeys(hint or (node,), True))
        for peer in edges:
            others = tuple(other for other in pieces if other != peer)[:OTHERS_MAX]
            self._hub.send(peer, Edge(tree.id, EDGE_EVICTED, others))
        self._cache.remember(tree.id, tuple(pieces))

    def received(self, peer: NodeId, frame: Edge) -> None:
        if (
            not is_tree(frame.tree)
            or len(frame.others) > OTHERS_MAX
            or not all(is_node(other) for other in frame.others)
        ):
            self._hub.count("bad_edge")
            return
        tree = self._cache.peek(frame.tree)
        if frame.op == EDGE_CREATE:
            if tree is not None:
                tree.edges[peer] = True
            return
        if tree is None:
            if frame.op == EDGE_ASK:
                self._hub.send(peer, Edge(frame.tree, EDGE_AGREE))
            elif frame.op == EDGE_EVICTED and self._cache.remembers(frame.tree):
                self._cache.remember(frame.tree, frame.others)
            return
        used = peer in tree.route_links()
        if frame.op == EDGE_ASK:
            # rule: O-built-2a
            if not used:
                tree.edges.pop(peer, None)
            self._hub.send(peer, Edge(tree.id, EDGE_KEEP if used else EDGE_AGREE))
        elif frame.op == EDGE_AGREE and used:
            self._hub.send(peer, Edge(tree.id, EDGE_CREATE))  # a route was found meanwhile
        elif frame.op == EDGE_AGREE:
            tree.edges.pop(peer, None)
        elif frame.op in (EDGE_FORCED, EDGE_EVICTED):
            tree.edges.pop(peer, None)
            self._forgotten(tree, peer, frame.others, frame.op == EDGE_EVICTED)
        elif frame.op == EDGE_UNUSED:
            self._unused_there(tree, peer)
        elif frame.op != EDGE_KEEP:
            self._hub.count("bad_edge")

    def _unused_there(self, tree: Tree, peer: NodeId) -> None:
        """Each neighbour may say so once in a while: it makes instances link again."""
        now = self._hub.now
        if peer not in tree.edges or tree.left_at.get(peer, 0) > now:
            self._hub.count("edge_unused_ignored")
            return
        tree.left_at[peer] = now + LEFT_NS
        self._left(tree, peer)
