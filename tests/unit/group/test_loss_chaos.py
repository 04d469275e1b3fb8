"""Losses, answers of every kind, and everything else that breaks, at the same time, by seed."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.seeds import seeds
from tests.unit.group.harness import World, ready

from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.types import MILLISECOND, SECOND

ANSWERS = (
    None,
    DROP,
    RECOVER,
    SUSPEND,
    RECOVER.otherwise(DROP).within(0.05),
    RECOVER.otherwise(SUSPEND).within(0.05),
    IGNORE(("stream",), count=7),
    IGNORE(("priority",), seconds=0.1),
    IGNORE(("topic",), count=3),
    IGNORE(("source",), seconds=0.05, resync=True),
    RECOVER.and_ignore(("topic", "priority"), count=4),
)


class LossChaos:
    """Sends datagrams with priorities, topics and requests while nodes restart and are cut apart; then all heals."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"loss chaos/{seed}")
        self.world = World(
            seed,
            voters=self.rng.choice((3, 3, 5)),
            sources=2,
            transport="datagram",
            datagram_loss=self.rng.choice((0.02, 0.1, 0.3)),
            loss=self.rng.choice((0.0, 0.02)),
            reorder=self.rng.random() < 0.5,
            priorities=3,
            window_bytes=64_000,
            payload_bytes=1000,
            recover_ns=50 * MILLISECOND,
            seek_ns=5 * MILLISECOND,
            gone_ns=100 * MILLISECOND,
            close_delay_ns=50 * MILLISECOND,
        )
        self.questions = 0

    def answer(self, info: LossInfo) -> Action | None:
        self.questions += 1
        assert info.count == sum(last - first + 1 for first, last in info.lost)
        assert info.attempt >= 1
        return self.rng.choice(ANSWERS)

    def run(self) -> None:
        world, rng = self.world, self.rng
        world.start()
        self._ask_here()
        ready(world, 30 * SECOND)
        for step in range(120):
            for name in ("s1", "s2", "n1"):
                if name in world.hosts and world.hosts[name].source.held < 40_000:
                    note = {"priority": rng.randint(-1, 2), "topic": rng.choice(("", "a", "b"))}
                    if rng.random() < 0.1:
                        note |= {"request": b"r%d" % rng.randint(0, 20)}
                    if rng.random() < 0.1:
                        note |= {"resync": True}
                    size = rng.choice((10, 300))
                    world.send(name, [b"%d" % step + b"." * size] * rng.randint(1, 4), **note)
            self._break()
            world.run(rng.randint(1, 15) * MILLISECOND)
        world.heal_all()
        world.datagram_loss = world.loss = 0.0
        ready(world, 60 * SECOND)
        self._settle()

    def _ask_here(self) -> None:
        for host in self.world.hosts.values():
            host.on_loss = self.answer

    def _break(self) -> None:
        world, chance = self.world, self.rng.random()
        if chance < 0.05:
            world.cut(*self.rng.sample(world.names, 2))
        elif chance < 0.15:
            world.heal_all()
        elif chance < 0.19:
            name = self.rng.choice(world.names)
            whole = all(h.status["memory"] == "whole" for h in world.hosts.values() if h.replica)
            if whole or name.startswith("s"):
                world.restart(name)
                self._ask_here()

    def _settle(self) -> None:
        """After the last fault every replica has everything that the leader's sources say to exist, in one order."""
        world = self.world

        def even() -> bool:
            rows = [h.status for h in world.hosts.values() if h.replica]
            applied = {row["applied"] for row in rows} | {row["last"] for row in rows}
            held = sum(h.source.held for h in world.hosts.values())
            return len(applied) == 1 and not any(row["gaps"] for row in rows) and not held

        world.run_until(even, 60 * SECOND)
        world.check()
        states = [host.app.got for host in world.hosts.values() if host.replica]
        assert all(state == states[0] for state in states)


@pytest.mark.parametrize("seed", seeds(range(15), range(15, 60)))
def test_replicas_agree_whatever_is_answered_and_buffers_are_empty_in_the_end(seed: int) -> None:
    """docs/design/architecture.md, invariants 1, 2, 8 and 9 with decisions about losses."""
    chaos = LossChaos(seed)
    chaos.run()
    delivered = list(chaos.world.hosts["n2"].app.got)
    assert len(delivered) > 50
