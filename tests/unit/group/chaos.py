"""One run full of faults, by seed: loss, doubles, reordering, cuts, restarts of followers, leader and sources."""

from __future__ import annotations

from random import Random

from tests.unit.group.harness import World, leader, leading, node_id, ready, settle

from holdfast.types import MILLISECOND


class Chaos:
    """Sends all the time while things break, one memory at a time; then everything heals and is compared."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.rng = Random(f"chaos/{seed}")
        rng = self.rng
        self.steps = steps
        self.restarts = {"leader": 0, "follower": 0, "source": 0}
        self.cuts = 0
        self.world = World(
            seed,
            voters=rng.choice((2, 3, 3, 4, 5)),
            learners=rng.choice((0, 0, 1)),
            sources=rng.choice((0, 1, 2)),
            loss=rng.choice((0.0, 0.02, 0.2)),
            double=rng.choice((0.0, 0.1)),
            reorder=rng.random() < 0.5,
            window_bytes=64_000,
            payload_bytes=1000,
        )
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        """By sender and its life."""

    def run(self) -> World:
        world = self.world
        world.start()
        ready(world)
        for step in range(self.steps):
            self._send(step)
            self._break()
            world.run(self.rng.randint(1, 20) * MILLISECOND)
        world.heal_all()
        world.run_until(lambda: leading(world), 60_000 * MILLISECOND)
        survivors = [life for life in self.sent if self._lives(life)]
        complete = {life: len(self.sent[life]) for life in survivors}
        end = world.now + 120_000 * MILLISECOND
        while not self._all_delivered(complete):
            assert world.now < end, f"not delivered by all:\n{world.describe()}"
            world.run(20 * MILLISECOND)
        settle(world, 0)
        self._check_sent()
        return world

    def _lives(self, life: tuple[str, int]) -> bool:
        name, incarnation = life
        return name in self.world.hosts and self.world.hosts[name].incarnation == incarnation

    def _send(self, step: int) -> None:
        names = [name for name in self.world.names if name in self.world.hosts]
        for name in self.rng.sample(names, self.rng.randint(0, len(names))):
            host = self.world.hosts[name]
            if host.source.held > 40_000:
                continue
            size = self.rng.choice((0, 10, 300))
            count = self.rng.randint(1, 8)
            batch = [
                f"{name}/{host.incarnation}/{step}/{k}".encode() + b"." * size for k in range(count)
            ]
            self.sent.setdefault((name, host.incarnation), []).extend(batch)
            self.world.send(name, batch)

    def _break(self) -> None:
        rng, world = self.rng, self.world
        chance = rng.random()
        if chance < 0.10:
            a, b = rng.sample(world.names, 2)
            world.cut(a, b)
            self.cuts += 1
        elif chance < 0.20:
            world.heal_all()
        elif chance < 0.26 and self._all_whole():
            name = rng.choice(world.names)
            role = (
                "leader"
                if name == leader(world)
                else "follower"
                if name in world.config.replicas
                else "source"
            )
            self.restarts[role] += 1
            world.restart(name)

    def _all_whole(self) -> bool:
        """Only one memory may be lost at a time: more is more than the group promises to survive."""
        return leading(self.world) and all(
            host.status["memory"] == "whole" for host in self.world.hosts.values() if host.replica
        )

    def _delivered(self, name: str) -> dict[str, list[bytes]]:
        by_stream: dict[str, list[bytes]] = {}
        for item in self.world.hosts[name].app.got:
            by_stream.setdefault(item.stream, []).append(item.message)
        return by_stream

    def _all_delivered(self, complete: dict[tuple[str, int], int]) -> bool:
        for host in self.world.hosts.values():
            if host.replica is None:
                continue
            if len(host.app.got) < sum(complete.values()):
                return False
            got = self._delivered(host.name)
            for (name, life), count in complete.items():
                label = f"{self.world.hosts[name].id.hex()}/{life}/0"
                if len(got.get(label, ())) < count:
                    return False
        return True

    def _check_sent(self) -> None:
        """What was delivered of each stream is what was sent; of a source that died some may be missing, for all."""
        skipped = self.world.skipped()
        for host in self.world.hosts.values():
            if host.replica is None:
                continue
            numbers: dict[str, int] = {}
            for item in host.app.got:
                numbers[item.stream] = item.number
            for (name, life), messages in self.sent.items():
                label = f"{node_id(name).hex()}/{life}/0"
                if self._lives((name, life)):
                    assert not any(stream == label for stream, _ in skipped), "a living source lost"
                got = [(it.number, it.message) for it in host.app.got if it.stream == label]
                sent = [
                    (number, message)
                    for number, message in enumerate(messages, 1)
                    if number <= numbers.get(label, 0) and (label, number) not in skipped
                ]
                assert got == sent, f"{host.name} has something else of {name}/{life}"


class Amnesia(Chaos):
    """Restarts at any moment, as long as one voter keeps a whole memory: the group may halt, but never disagree."""

    def run(self) -> World:
        world = self.world
        world.start()
        ready(world)
        for step in range(self.steps):
            self._send(step)
            self._break()
            if self.rng.random() < 0.3:
                self._forget()
            world.run(self.rng.randint(1, 20) * MILLISECOND)
            if step % 10 == 0:
                world.heal_all()
        world.check()
        return world

    def _forget(self) -> None:
        name = self.rng.choice(self.world.config.voters)
        others = [other for other in self.world.config.voters if other != name]
        if any(self.world.hosts[other].status["memory"] == "whole" for other in others):
            self.restarts["leader" if name == leader(self.world) else "follower"] += 1
            self.world.restart(name)
