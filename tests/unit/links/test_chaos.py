"""Everything at once: nodes die, pause and come back, paths break in every way; then it is quiet, and all is well."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, permutations
from random import Random

import pytest
from tests.support.seeds import seeds
from tests.unit.links.harness import World

from holdfast.health.subsystem import HealthService
from holdfast.links.subsystem import LinkService
from holdfast.types import MILLISECOND

SETTLE_S = 10
"""Invariant 8: after the last fault, within a stated time."""


class Storm:
    """Does one bad thing after the other to a world, all from one seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Random(seed)
        self.names = list(world.nodes)
        self.number = 0

    def step(self) -> None:
        deeds: list[Callable[[str, str], None]] = [
            self._kill_or_start,
            self._restart,
            self._pause,
            self._cut,
            self._cut_some,
            self._weather,
            self._limit,
            self._stall,
            self._break,
            self._damage,
            lambda *_: self.calm(),
        ]
        self.rng.choice(deeds)(*self.rng.sample(self.names, 2))
        for _ in range(5):
            self._talk(*self.rng.sample(self.names, 2))
        self.world.run(self.rng.choice([0.01, 0.3, 1, 4]))

    def calm(self) -> None:
        """Every path is as new."""
        for path in self.world.all_paths():
            path.cut(False)
            path.over = path.damage = path.jitter_ns = 0
            path.loss = path.duplicate = path.corrupt = 0.0
            path.delay_ns = MILLISECOND // 20
        for end in self.world.network.streams.values():
            end.stalled = False

    def _talk(self, a: str, b: str) -> None:
        core = self.world.nodes[a].core
        if core is not None and core.service(LinkService).link(self.world.nodes[b].id) is not None:
            size = self.rng.choice([0, 100, 5000])
            batch = [(self.number + k).to_bytes(4, "big") + bytes(size) for k in range(3)]
            self.number += 3
            self.world.send(a, b, batch)

    def _kill_or_start(self, a: str, _: str) -> None:
        if self.world.nodes[a].core is None:
            self.world.start(a)
        else:
            self.world.kill(a, silent=self.rng.random() < 0.5)

    def _restart(self, a: str, _: str) -> None:
        if self.world.nodes[a].core is not None:
            self.world.restart(a)

    def _pause(self, a: str, _: str) -> None:
        self.world.pause(a, self.rng.choice([50, 500, 2500, 4000]) * MILLISECOND)

    def _cut(self, a: str, b: str) -> None:
        for adapter in ("red", "blue"):
            self.world.path(a, b, adapter).cut()

    def _cut_some(self, a: str, b: str) -> None:
        path = self.world.path(a, b, self._adapter())
        path.cut_udp, path.cut_tcp = (self.rng.random() < 0.5 for _ in range(2))

    def _weather(self, a: str, b: str) -> None:
        path, choice = self.world.path(a, b, self._adapter()), self.rng.choice
        path.loss, path.duplicate = choice([0, 0.1, 0.4]), choice([0, 0.3])
        path.jitter_ns, path.corrupt = choice([0, 30]) * MILLISECOND, choice([0, 0, 0.1])
        path.delay_ns = choice([1, 400]) * MILLISECOND // 20

    def _limit(self, a: str, b: str) -> None:
        self.world.path(a, b, self._adapter()).over = self.rng.choice([0, 700, 300])

    def _stall(self, a: str, b: str) -> None:
        for end in self.world.network.stream_ends(a, b):
            if self.rng.random() < 0.5:
                end.stalled = self.rng.random() < 0.7

    def _break(self, a: str, b: str) -> None:
        for end in self.world.network.stream_ends(a, b):
            if self.rng.random() < 0.5:
                self.world.network._break(end)

    def _damage(self, a: str, b: str) -> None:
        self.world.path(a, b, self._adapter()).damage = 1

    def _adapter(self) -> str:
        return self.rng.choice(["red", "blue"])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("seed", seeds(range(4), range(4, 16)))
def test_after_any_storm_all_nodes_are_linked_and_nothing_was_doubled_or_overtaken(
    sealed: bool, seed: int
) -> None:
    """Invariants 6 to 10, as far as links and health go."""
    world = World(3, sealed=sealed, seed=seed)
    storm = Storm(world, seed)
    for _ in range(40):
        storm.step()
    for name, node in world.nodes.items():
        if node.core is None:
            world.start(name)
    storm.calm()
    world.run_until(world.settled, SETTLE_S)
    for a, b in permutations(world.nodes, 2):
        numbers = [int.from_bytes(message[:4], "big") for message in world.messages(a, b)]
        assert all(x < y for x, y in pairwise(numbers)), f"{b} to {a}"
    for a, b in permutations(world.nodes, 2):
        world.send(a, b, [b"end"])
    world.run(5)
    assert all(world.messages(a, b)[-1] == b"end" for a, b in permutations(world.nodes, 2))
    tables = [
        {
            key: (row.alive, row.size)
            for key, row in world.core(name).service(HealthService).health.table.rows.items()
        }
        for name in world.nodes
    ]
    assert all(table == tables[0] for table in tables)
    assert all(alive and size in (0, 1500) for alive, size in tables[0].values())
