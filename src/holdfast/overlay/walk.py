"""Walking a tree: node after node is asked for its neighbours on it (seed: 'GetTreeNodes')."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.overlay.frames import EDGES, SEARCH
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import node_of
from holdfast.overlay.topology import Topology
from holdfast.overlay.waves import Result, Waves
from holdfast.types import NodeId

NODES_MAX: Final = 10_000
AT_ONCE: Final = 64

Nodes = tuple[tuple[bytes, tuple[bytes, ...]], ...]


class TreeWalk:
    def __init__(self, hub: Hub, waves: Waves, topology: Topology, tree: bytes) -> None:
        self._hub = hub
        self._waves = waves
        self._topology = topology
        self._tree = tree
        self._found: dict[bytes, tuple[bytes, ...]] = {}
        self._asked: dict[bytes, bool] = {}
        self._queue: list[bytes] = []
        self._open = 0
        self._complete = True
        self._done: Callable[[Nodes, bool], None] = lambda *_: None

    def start(self, neighbours: list[NodeId], done: Callable[[Nodes, bool], None]) -> None:
        self._done = done
        self._asked[self._hub.me] = True
        self._learn(self._hub.me, list(neighbours))
        self._next()

    def _learn(self, node: bytes, neighbours: list[NodeId]) -> None:
        self._found[node] = tuple(neighbours)
        for other in neighbours:
            if other not in self._asked and len(self._asked) < NODES_MAX:
                self._asked[other] = True
                self._queue.append(other)

    def _next(self) -> None:
        while self._queue and self._open < AT_ONCE:
            node = self._queue.pop(0)
            frame = self._waves.wave(SEARCH, self._tree, "*", op=EDGES)
            sends = self._waves.directed(frame, node)
            if not sends:
                self._complete = False
                continue
            self._open += 1
            self._waves.begin(frame, sends, partial(self._answered, node))
        if not self._open:
            self._done(tuple(self._found.items()), self._complete)

    def _answered(self, node: bytes, result: Result) -> None:
        self._open -= 1
        if result.failed or result.seen:
            self._complete = False
        else:
            self._learn(node, [NodeId(node_of(peer)) for peer in result.met])
        self._next()
