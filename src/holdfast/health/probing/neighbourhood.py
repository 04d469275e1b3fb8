"""Which nodes exchange heartbeats: all, a ring, or an incomplete hypercube, chosen per subnet.

In a large domain, no node can measure every path. All members order the members of a subnet by id, so no agreement is
needed. Dead neighbours keep their place and are retried, and the nodes that would be neighbours without them are
neighbours as well. Every shape is symmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, Literal

from holdfast.subsystem import LocalNode
from holdfast.types import NodeId
from holdfast.wire.frames import MemberInfo

ShapeName = Literal["all", "ring", "hypercube"]
RING_SUCCESSORS: Final = 2


def ring_of(count: int, place: int, successors: int) -> list[int]:
    """The places of the `successors` members that come after, and of as many before."""
    near = range(1, min(successors, count - 1) + 1)
    return sorted({(place + step) % count for k in near for step in (k, -k)} - {place})


def cube_of(count: int, place: int) -> list[int]:
    """The neighbours of one place in the incomplete hypercube of `count` members.

    Where a corner of the cube has no member, its neighbours are joined in pairs. Every member has as many neighbours as
    the cube has dimensions, or one less, and the diameter is that of a complete cube.
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
    """The neighbours of this node in each of its subnets, for the known members."""

    def __init__(
        self,
        me: LocalNode,
        shapes: Mapping[str, ShapeName] | None = None,
        successors: int = RING_SUCCESSORS,
    ) -> None:
        """Subnets that are not in `shapes` use `all`."""
        self.me = me
        self.version = 0
        """Increases whenever neighbours may have changed."""
        self._shapes = dict(shapes or {})
        self._successors = successors
        self._members: dict[NodeId, tuple[str, ...]] = {}
        self._dead: dict[bytes, bool] = {}
        self._needed: dict[bytes, bool] = {}
        self._found: dict[str, tuple[NodeId, ...]] = {}
        self._everybody: tuple[NodeId, ...] | None = None
        self._plan: Container[bytes] | None = None
        self._plan_known = False
        self.subnets = tuple(dict.fromkeys(adapter.subnet for adapter in me.adapters))
        self.plan: Callable[[], Container[bytes] | None] | None = None
        """From the overlay: the members that this node links to in a large domain; None while it links to all. Subnets
        of shape `all` follow it."""

    def _planned(self) -> Container[bytes] | None:
        """Asked once until something changes: to compute it takes time in a large domain."""
        if not self._plan_known:
            self._plan_known = True
            self._plan = self.plan() if self.plan is not None else None
        return self._plan

    def replan(self) -> None:
        """The plan may have changed."""
        self._changed()

    def members(self) -> list[NodeId]:
        """All other members that share a subnet with this node."""
        return list(self._members)

    @property
    def sparse(self) -> bool:
        """Whether there are members of our subnets that are not our neighbours."""
        if any(self.shape(subnet) != "all" for subnet in self.subnets):
            return True
        return self._planned() is not None

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
        """Set the members that are believed dead."""
        dead = {node: True for node in nodes if node in self._members}
        if dead != self._dead:
            self._dead = dead
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._found.clear()
        self._everybody = None
        self._plan_known = False

    # -- neighbours ----------------------------------------------------------------------------------------------

    def peers(self, subnet: str) -> tuple[NodeId, ...]:
        """The heartbeat neighbours of this node on a subnet, ordered by id."""
        if subnet not in self._found:
            self._found[subnet] = self._find(subnet)
        return self._found[subnet]

    def everybody(self) -> tuple[NodeId, ...]:
        """The neighbours on any of our subnets, ordered by id."""
        if self._everybody is None:
            union = {peer: True for subnet in self.subnets for peer in self.peers(subnet)}
            self._everybody = tuple(sorted(union))
        return self._everybody

    def need(self, node: bytes) -> None:
        """An application uses this member: its paths are in use."""
        self._needed[node] = True

    def probes(self, subnet: str, peer: NodeId) -> bool:
        """Whether the paths to a peer on a subnet are probed: those to neighbours, and those of any other link, because
        they are in use."""
        if self.shape(subnet) == "all" or peer in self.peers(subnet):
            return True
        return peer in self._needed or peer not in self.everybody()

    def _find(self, subnet: str) -> tuple[NodeId, ...]:
        if subnet not in self.subnets:
            return ()
        members = sorted([n for n, subnets in self._members.items() if subnet in subnets])
        if self.shape(subnet) == "all":
            planned = self._planned()
            return tuple(n for n in members if planned is None or n in planned)
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
