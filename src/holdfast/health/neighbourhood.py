"""Who heartbeats with whom: everybody, a ring, or an incomplete hypercube, chosen for each subnet.

In a large domain nobody can measure every path. Every member orders the members of a subnet in the same way (by
their ids) and takes its place among them, so all agree without a word. Neighbours that are known to be dead keep
their place, so that they are tried again, and those who would be neighbours without them are neighbours as well.
Every shape is symmetric: who is my neighbour has me for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from holdfast.links.config import Self
from holdfast.types import NodeId
from holdfast.wire.frames import MemberInfo

ShapeName = Literal["all", "ring", "hypercube"]
RING_SUCCESSORS: Final = 2


def ring_of(count: int, place: int, successors: int) -> list[int]:
    """The places of the `successors` members that come after, and of as many before."""
    near = range(1, min(successors, count - 1) + 1)
    return sorted({(place + step) % count for k in near for step in (k, -k)} - {place})


def cube_of(count: int, place: int) -> list[int]:
    """The neighbours of one place of the incomplete hypercube of `count` members.

    Where a corner of the cube has no member, its neighbours are joined with each other in pairs: so every member
    has as many neighbours as the cube has dimensions, or one less, and the cube stays as narrow as a whole one.
    """
    dimensions = (count - 1).bit_length()
    found = {place ^ 1 << k for k in range(dimensions) if place ^ 1 << k < count}
    for k in range(dimensions):
        corner = place ^ 1 << k
        if corner < count:
            continue
        around = sorted(corner ^ 1 << j for j in range(dimensions) if corner ^ 1 << j < count)
        around = around[len(around) % 2 :]  # an odd one is left out
        half = len(around) // 2
        for low, high in zip(around[:half], around[half:], strict=True):
            if place in (low, high):
                found.add(high if place == low else low)
    return sorted(found - {place})


class Neighbourhood:
    """The neighbours of this node in each of its subnets, as the domain is known to be now."""

    def __init__(
        self,
        me: Self,
        shapes: Mapping[str, ShapeName] | None = None,
        successors: int = RING_SUCCESSORS,
    ) -> None:
        """Subnets that `shapes` does not name are of shape `all`."""
        self.me = me
        self.version = 0
        """Grows whenever somebody's neighbours may have changed."""
        self._shapes = dict(shapes or {})
        self._successors = successors
        self._members: dict[NodeId, tuple[str, ...]] = {}
        self._dead: dict[bytes, bool] = {}
        self._needed: dict[bytes, bool] = {}
        self._found: dict[str, tuple[NodeId, ...]] = {}
        self._everybody: tuple[NodeId, ...] | None = None
        self.subnets = tuple(dict.fromkeys(adapter.subnet for adapter in me.adapters))

    @property
    def sparse(self) -> bool:
        """Whether there are members of our subnets that are not our neighbours."""
        return any(self.shape(subnet) != "all" for subnet in self.subnets)

    def shape(self, subnet: str) -> ShapeName:
        return self._shapes.get(subnet, "all")

    # -- the domain ----------------------------------------------------------------------------------------------

    def joined(self, member: MemberInfo) -> None:
        subnets = tuple(dict.fromkeys(adapter.subnet for adapter in member.adapters))
        if member.node != self.me.node and self._members.get(NodeId(member.node)) != subnets:
            self._members[NodeId(member.node)] = subnets
            self._changed()

    def left(self, node: bytes) -> None:
        if self._members.pop(NodeId(node), None) is not None:
            self._changed()

    def died(self, nodes: Iterable[bytes]) -> None:
        """These, and no others, are believed dead."""
        dead = {node: True for node in nodes if node in self._members}
        if dead != self._dead:
            self._dead = dead
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._found.clear()
        self._everybody = None

    # -- neighbours ----------------------------------------------------------------------------------------------

    def peers(self, subnet: str) -> tuple[NodeId, ...]:
        """With whom this node heartbeats on a subnet, in the order of their ids."""
        if subnet not in self._found:
            self._found[subnet] = self._find(subnet)
        return self._found[subnet]

    def everybody(self) -> tuple[NodeId, ...]:
        """The neighbours on any of our subnets, in the order of their ids."""
        if self._everybody is None:
            union = {peer: True for subnet in self.subnets for peer in self.peers(subnet)}
            self._everybody = tuple(sorted(union))
        return self._everybody

    def need(self, node: bytes) -> None:
        """An application talks to this member: its paths are in use."""
        self._needed[node] = True

    def probes(self, subnet: str, peer: NodeId) -> bool:
        """Whether what passes is measured on the paths to a peer on a subnet: with neighbours, and wherever there
        is a link for another reason, because then the path is in use."""
        if self.shape(subnet) == "all" or peer in self.peers(subnet):
            return True
        return peer in self._needed or peer not in self.everybody()

    def _find(self, subnet: str) -> tuple[NodeId, ...]:
        if subnet not in self.subnets:
            return ()
        members = sorted([n for n, subnets in self._members.items() if subnet in subnets])
        if self.shape(subnet) == "all":
            return tuple(members)
        found = set(self._neighbours(subnet, members))
        if any(node in self._dead for node in members):
            found.update(self._neighbours(subnet, [n for n in members if n not in self._dead]))
        return tuple(sorted(found))

    def _neighbours(self, subnet: str, others: list[NodeId]) -> list[NodeId]:
        order = sorted([*others, self.me.node])
        place = order.index(self.me.node)
        if self.shape(subnet) == "ring":
            places = ring_of(len(order), place, self._successors)
        else:
            places = cube_of(len(order), place)
        return [order[k] for k in places]
