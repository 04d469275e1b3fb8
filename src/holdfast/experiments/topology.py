"""Random networks, as created by the paper's generator: each pair of nodes has a link with the same probability.

This is the flat random method of GT-ITM. A graph that is not connected gets links until it is: the components are
taken in the order of their lowest node, and each is joined to the earlier ones by one link between random nodes. The
number of such links is part of the result, because below a mean degree of about log n it shapes the topology.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.errors import HoldfastError
from holdfast.experiments.compiling import compiled
from holdfast.experiments.points import DELAY_NS_MAX, Network

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class Disconnected(HoldfastError):
    """Some nodes of a topology cannot reach others, so no round would end. The point was not run."""


class Topology(msgspec.Struct, frozen=True):
    """Directed links, sorted by their source and then by their target."""

    nodes: int
    start: Longs
    """The links of node v are `start[v]` to `start[v + 1]`."""
    to: Ints
    delay_ns: Longs
    """The same in both directions of a link."""
    lossy: Longs
    """Of 2**32 packets, how many the link loses."""
    joins: int
    """Links that were added to connect the components."""

    @property
    def links(self) -> int:
        """Links with two directions each."""
        return len(self.to) // 2

    def neighbours(self, node: int) -> list[int]:
        found: list[int] = self.to[self.start[node] : self.start[node + 1]].tolist()
        return found


def draw_topology(network: Network) -> Topology:
    """The random topology. Only size, density and seed shape it, so protocols run on the same networks."""
    seed = [network.seed, network.nodes, round(network.probability * 1e9)]
    random = np.random.default_rng(seed)
    low, high = _draw_pairs(network.nodes, network.probability, random)
    labels = components(network.nodes, low, high)
    joins = _joins(labels, random)
    if joins and not network.joined:
        raise Disconnected(
            f"the random graph of {network.nodes} nodes with edge probability {network.probability:g} and seed "
            f"{network.seed} has {len(joins) + 1} components; the point was not run. Let components be joined, "
            "or use more links"
        )
    if joins:
        extra = np.array(joins, np.int64)
        low, high = np.concatenate([low, extra[:, 0]]), np.concatenate([high, extra[:, 1]])
    delay = random.integers(0, DELAY_NS_MAX + 1, len(low))
    loss = np.full(len(low), parts_of(network.loss), np.int64)
    return make_topology(network.nodes, low, high, delay, loss, len(joins))


def parts_of(probability: float) -> int:
    """A probability in the unit of `Topology.lossy`."""
    return round(probability * 2**32)


def make_topology(
    nodes: int, low: Longs, high: Longs, delay: Longs, loss: Longs, joins: int = 0
) -> Topology:
    """A topology of the links between `low` and `high`."""
    source, target = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((target, source))
    start = np.searchsorted(source[order], np.arange(nodes + 1))
    both = lambda values: np.concatenate([values, values])[order]
    return Topology(
        nodes, start.astype(np.int64), target[order].astype(np.int32), both(delay), both(loss), joins
    )  # fmt: skip


def _draw_pairs(nodes: int, probability: float, random: np.random.Generator) -> tuple[Longs, Longs]:
    """The linked pairs: their number is binomial, and all pairs are equally likely."""
    pairs = nodes * (nodes - 1) // 2
    wanted = int(random.binomial(pairs, probability))
    if pairs <= 4 * wanted:
        chosen = np.sort(random.permutation(pairs)[:wanted])
    else:
        chosen = np.unique(random.integers(0, pairs, wanted))
        while len(chosen) < wanted:
            more = random.integers(0, pairs, wanted - len(chosen))
            chosen = np.unique(np.concatenate([chosen, more]))
    high = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2).astype(np.int64)
    high += high * (high + 1) // 2 <= chosen  # The root is rounded, by one at most.
    high -= high * (high - 1) // 2 > chosen
    return chosen - high * (high - 1) // 2, high


@compiled
def _find(parent: Any, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def components(nodes: int, low: Any, high: Any) -> Any:
    """For every node the lowest node of its component."""
    parent = np.arange(nodes)
    for k in range(len(low)):
        a, b = _find(parent, low[k]), _find(parent, high[k])
        if a < b:
            parent[b] = a
        else:
            parent[a] = b
    for node in range(nodes):
        parent[node] = _find(parent, node)
    return parent


def _joins(labels: Longs, random: np.random.Generator) -> list[tuple[int, int]]:
    """A link from a random node of each component to a random node of the earlier ones."""
    order = np.argsort(labels, kind="stable")
    firsts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    bounds = [*firsts.tolist(), len(labels)]
    found: list[tuple[int, int]] = []
    for begin, end in pairwise(bounds[1:]):
        one = int(order[random.integers(0, begin)])
        other = int(order[random.integers(begin, end)])
        found.append((one, other))
    return found
