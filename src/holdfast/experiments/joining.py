"""Members that join while a round runs, and stability frames piggybacked on other traffic."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.experiments.living import LivingGroup
from holdfast.experiments.network import CompiledNetwork
from holdfast.experiments.points import Network
from holdfast.experiments.routes import next_links
from holdfast.experiments.topology import draw_topology
from holdfast.stability.config import PROTOCOLS, StabilityConfig
from holdfast.stability.hypercube import neighbours
from holdfast.types import MILLISECOND, Nanos

MICROSECOND: Final = 1_000
OTHER_BYTES: Final = 1_000
"""Size of an application's message."""
NEWCOMER: Final = 1_000_000
"""A new member installs a snapshot, so it has more than the minimum."""


class JoinPoint(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="join",
    tag_field="kind",
):
    """A view of `nodes` members in which another one joins periodically."""

    protocol: str = "cube"
    nodes: int
    joins: int
    every_us: int
    """The interval between two joins; ignored with 0 joins."""
    mean_degree: float = 8.0
    seed: int = 1

    @property
    def key(self) -> str:
        return msgspec.json.encode(self).decode()

    def check(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise MisuseError(f"{self.protocol!r} is not a protocol: {', '.join(PROTOCOLS)}")
        if self.nodes < 2 or self.joins < 0 or self.every_us < 1:
            raise MisuseError(
                "a group needs at least two members, and the interval between joins must be positive"
            )


class RidePoint(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="ride",
    tag_field="kind",
):
    """One round of the cube while every member periodically sends something to each neighbour."""

    nodes: int
    every_us: int
    ride: bool
    mean_degree: float = 8.0
    seed: int = 1

    @property
    def key(self) -> str:
        return msgspec.json.encode(self).decode()

    def check(self) -> None:
        if self.nodes < 2 or self.every_us < 1:
            raise MisuseError(
                "a group needs at least two members, and the interval between messages must be positive"
            )


def _group(protocol: str, nodes: int, degree: float, seed: int) -> LivingGroup:
    topology = draw_topology(Network(nodes, min(1.0, degree / (nodes - 1)), seed))
    network = CompiledNetwork(topology, next_links(topology), seed)
    return LivingGroup(StabilityConfig(protocol=protocol), network, nodes)


def run_joins(point: JoinPoint) -> dict[str, Any]:
    """The time until the first members know what all of them had at the start, in any view."""
    point.check()
    group = _group(point.protocol, point.nodes + point.joins, point.mean_degree, point.seed)
    done: dict[int, Nanos] = {}

    def commit(size: int, index: int, now: Nanos) -> None:
        view = group.view(index, size)
        for node in range(size):
            group.enter(node, view, now)
            if index == 1 or node == size - 1:
                group.report(node, 100 + node if index == 1 else NEWCOMER, now)

    def look(now: Nanos) -> None:
        for node in range(point.nodes):
            if node not in done and group.detectors[node].stable[0] >= 100:
                done[node] = now
        group.at(now + MILLISECOND // 10, look)

    group.at(0, partial(commit, point.nodes, 1))
    for number in range(1, point.joins + 1):
        when = number * point.every_us * MICROSECOND
        group.at(when, partial(commit, point.nodes + number, 1 + number))
    group.at(0, look)
    group.run(lambda: len(done) == point.nodes)
    last_join = point.joins * point.every_us * MICROSECOND
    return {
        "first_ns": min(done.values()),
        "last_ns": max(done.values()),
        "last_join_ns": last_join,
        "packets": group.packets,
        "refused": sum(sum(d.refused.values()) for d in group.detectors),
    }


def run_ride(point: RidePoint) -> dict[str, Any]:
    """The time until all members know what all had, and the number of separate packets needed."""
    point.check()
    group = _group("cube", point.nodes, point.mean_degree, point.seed)
    every_ns = point.every_us * MICROSECOND
    done: dict[int, Nanos] = {}

    def speak(node: int, now: Nanos) -> None:
        for target in neighbours(point.nodes, node):
            group.send_other(node, target, OTHER_BYTES, point.ride, now)
        group.at(now + every_ns, partial(speak, node))

    def begin(now: Nanos) -> None:
        view = group.view(1, point.nodes)
        for node in range(point.nodes):
            group.enter(node, view, now)
            group.report(node, 100 + node, now)

    def look(now: Nanos) -> None:
        for node, detector in enumerate(group.detectors):
            if node not in done and detector.stable[0] >= 100:
                done[node] = now
        group.at(now + MILLISECOND // 10, look)

    began = 20 * MILLISECOND
    for node in range(point.nodes):
        # Members send at different times, and already before the round.
        group.at(node * every_ns // point.nodes, partial(speak, node))
    group.at(began, begin)
    group.at(began, look)
    group.run(lambda: len(done) == point.nodes)
    rode = sum(detector.status(0).rode for detector in group.detectors)
    return {
        "first_ns": min(done.values()) - began,
        "last_ns": max(done.values()) - began,
        "packets": group.packets,
        "rode": rode,
    }
