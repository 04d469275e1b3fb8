"""How many turns and packets a message costs all nodes: what follows a delivery takes cores from the next message."""

from __future__ import annotations

from typing import Any

from tests.unit.links.harness import Node, World

from holdfast.group.config import source_unit
from holdfast.group.ports import Applied, Apply, Multicast
from holdfast.types import MILLISECOND

NAMES = ("n1", "n2", "n3", "n4")
GROUP = f'[[group]]\nname = "g"\nvoters = {list(NAMES)}'.replace("'", '"')


class Applying(World):
    """Every replica has an application, which answers after 5 ms, as a thread does."""

    applied = 0

    def _effect(self, node: Node, effect: Any) -> None:
        if not isinstance(effect, Apply):
            super()._effect(node, effect)
            return
        self.applied += len(effect.batch.messages)
        done = Applied(effect.index, sum(map(len, effect.batch.messages)))
        self.at(self.now + 5 * MILLISECOND, lambda: self.turn(node.name, [(effect.unit, done)]))


def cost(world: Applying, gap_ms: float, messages: int) -> tuple[float, float]:
    """Turns and packets of all nodes per gap of this length, with a message in each or (0) without."""
    gaps = messages or 40
    turns, packets = (
        sum(node.turns for node in world.nodes.values()),
        sum(world.network.sent.values()),
    )
    for _ in range(gaps):
        if messages:
            world.turn("n2", [(source_unit("g"), Multicast([bytes(1000)]))])
        world.run(gap_ms / 1000)
    turns = sum(node.turns for node in world.nodes.values()) - turns
    return turns / gaps, (sum(world.network.sent.values()) - packets) / gaps


def test_a_lone_message_costs_few_turns_and_packets_besides_those_that_deliver_it() -> None:
    """Of four nodes: 13 turns deliver it, in 12 packets, some of which carry other news as well."""
    world = Applying(4, more=GROUP, adapters=("red",))
    world.run_until(world.settled)
    world.run(3)
    for gap_ms, turns_max, packets_max in ((2.5, 18.5, 14.0), (20.5, 42.0, 19.0)):
        idle, busy = cost(world, gap_ms, 0), cost(world, gap_ms, 40)
        assert busy[0] - idle[0] < turns_max, gap_ms
        assert busy[1] - idle[1] < packets_max, gap_ms
    world.run(1)
    assert world.applied == 80 * 4
