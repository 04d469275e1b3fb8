"""One run full of faults, by seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.unit.group.harness import FAST, Host, World, leader, leading, node_id, ready, settle

from holdfast.group.frames import (
    Append,
    AppendResponse,
    Freed,
    JoinRequest,
    JoinResponse,
    VoteResponse,
)
from holdfast.group.loss.actions import DROP, RECOVER, SUSPEND, Action
from holdfast.group.ports import AddReplica, HandOver, RemoveReplica
from holdfast.types import MILLISECOND, SECOND

MODES = ("majority", "majority", "availability")
FAULTS = {
    "cut": 10, "isolate": 5, "heal": 13, "drop": 6, "deliver": 6, "remove": 20, "add": 20, "hand over": 4, "pause": 4,
    "resume": 4, "restart": 8, "hang": 5, "no state": 3, "slow": 3, "be well": 9,
}  # fmt: skip
"""What `Moves` does, and how often."""
CHOICES: tuple[Action, ...] = (
    DROP, RECOVER, RECOVER.otherwise(DROP), RECOVER.otherwise(SUSPEND), SUSPEND,
    DROP.and_ignore(by=("stream",), count=5), RECOVER.and_ignore(by=("stream",), seconds=0.2),
)  # fmt: skip
"""What an application of `Losses` says about lost messages."""


class Chaos:
    """Sends all the time while things break, one memory at a time; then everything heals and is compared."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.rng = Random(f"chaos/{seed}")
        self.steps = steps
        self.restarts = {"leader": 0, "follower": 0, "source": 0}
        self.cuts = 0
        self.world = self._draw(seed)
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        """By sender and its life."""

    def _draw(self, seed: int) -> World:
        rng = self.rng
        return World(
            seed,
            voters=rng.choice((2, 3, 3, 4, 5)),
            learners=rng.choice((0, 0, 1)),
            sources=rng.choice((0, 1, 2)),
            loss=rng.choice((0.0, 0.02, 0.2)),
            double=rng.choice((0.0, 0.1)),
            reorder=rng.random() < 0.5,
            **FAST,
        )

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
            host.replica.memory == "whole" for host in self.world.hosts.values() if host.replica
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


class Relayed(Chaos):
    """The same in a group whose learners get messages from other replicas."""

    def _draw(self, seed: int) -> World:
        rng = self.rng
        return World(
            seed,
            voters=rng.choice((1, 2, 3, 4)),
            learners=rng.choice((2, 3, 6)),
            sources=rng.choice((0, 1, 2)),
            loss=rng.choice((0.0, 0.02, 0.1)),
            double=rng.choice((0.0, 0.1)),
            reorder=rng.random() < 0.5,
            relay_from=2,
            durability=rng.choice(("memory", "memory", "durable")),
            **FAST,
        )


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


class Moves(Chaos):
    """Replicas come and go all the time, while paths, processes and memories fail; every mode. In the end everything
    heals, and the members must agree and go on, wherever that is promised."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        super().__init__(seed, steps)
        rng, world = self.rng, self.world
        self.binding = world.config.delivery == "safe" and world.config.mode == "majority"
        """What was delivered stays in the order."""
        world.snapshot_ns = rng.choice((0, 0, 30, 300)) * MILLISECOND
        world.restore_ns = rng.choice((0, 0, 30, 300)) * MILLISECOND
        self.much = rng.random() < 0.4
        """More is sent than buffers have room for."""
        self.replicas = [name for name in world.names if not name.startswith("s")]
        self.moves = 0

    def _draw(self, seed: int) -> World:
        self.kind = self.rng.choice(("durable", "careful", "careless"))
        """`careful`: a memory is lost only when all are whole and nothing is under way. `careless`: at any time, and
        then the group may halt."""
        return World(seed, **self._settings())

    def _settings(self) -> dict[str, Any]:
        rng = self.rng
        return FAST | {
            "voters": rng.choice((1, 2, 2, 2, 3, 3, 4)),
            "learners": rng.choice((0, 0, 1)),
            "joiners": rng.choice((0, 1, 2)),
            "sources": rng.choice((0, 1)),
            "loss": rng.choice((0.0, 0.0, 0.02)),
            "reorder": rng.random() < 0.3,
            "patience_ns": SECOND,
            "durability": "durable" if self.kind == "durable" else "memory",
            "delivery": rng.choice(("safe", "safe", "fast")),
            "mode": rng.choice(MODES),
        }

    def run(self) -> World:
        world = self.world
        world.start()
        ready(world)
        for step in range(self.steps):
            self._send(step)
            if self.much:
                self._send_much(step)
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self._break()
            self._give_in()
            world.run(
                int(self.rng.choice((1, 3, 10, 30, 100, 300)) * self.rng.random()) * MILLISECOND
            )
        self._heal()
        self._check()
        if self.kind != "careless":
            self._go_on()
            self._agree()
        self._check()
        return world

    def _send_much(self, step: int) -> None:
        for name, host in self.world.hosts.items():
            if self.rng.random() < 0.3 and host.source.held < 40_000:
                self.world.send(name, [f"{name}/{step}/{k}".encode().ljust(900) for k in range(20)])

    def _be_well(self) -> None:
        for host in self.world.hosts.values():
            host.frozen = host.no_state = False
            host.slowness = 1

    def _heal(self) -> None:
        world = self.world
        world.drop = None
        self._be_well()
        for name in world.paused:
            world.resume(name)
        world.heal_all()
        for name in world.names:
            if name not in world.hosts:
                world.start(name)
        self._give_in()

    def _give_in(self) -> None:
        """Where sides decide for themselves, some messages are gone for good."""
        if self.world.config.mode == "availability":
            for host in self.world.hosts.values():
                host.on_loss = lambda _: RECOVER.otherwise(DROP)

    def _check(self) -> None:
        assert len(self.world.events("founded")) == 1, "a second group was founded"
        if self.binding:
            self.world.check()

    # -- faults ------------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        rng, world = self.rng, self.world
        name = rng.choice(self.replicas)
        kind = rng.choices(tuple(FAULTS), tuple(FAULTS.values()))[0]
        if kind == "cut":
            world.cut(*rng.sample(world.names, 2)) if len(world.names) > 1 else None
        elif kind == "isolate":
            world.isolate(name)
        elif kind == "heal":
            world.heal_all()
        elif kind == "drop":
            world.drop = self._some_frames()
        elif kind == "deliver":
            world.drop = None
        elif kind in ("remove", "add", "hand over"):
            self._move(kind, name)
        elif kind == "pause" and name in world.hosts and name not in world.paused:
            world.pause(name)
        elif kind == "resume":
            for paused in world.paused:
                world.resume(paused)
        elif kind == "restart":
            self._restart(name)
        elif kind == "be well":
            self._be_well()
        elif name in world.hosts:
            host = world.hosts[name]
            host.frozen = host.frozen or kind == "hang"
            host.no_state = host.no_state or kind == "no state"
            host.slowness = rng.choice((10, 100)) if kind == "slow" else host.slowness

    def _some_frames(self) -> Callable[[str, str, Any], bool]:
        kinds = self.rng.choice(
            (
                (Append,),
                (AppendResponse,),
                (VoteResponse,),
                (Append, AppendResponse),
                (Freed,),
                (JoinResponse, JoinRequest),
            )
        )
        who, to = self.rng.choice(self.world.names), self.rng.choice(("", *self.world.names))
        return lambda sender, target, frame: (
            sender == who and to in ("", target) and isinstance(frame, kinds)
        )

    def _move(self, kind: str, name: str) -> None:
        rng, world = self.rng, self.world
        running = [one for one in self.replicas if one in world.hosts]
        if not running or (self.kind == "careful" and not self._is_calm()):
            return
        # What is under way to the leader is not seen, and a careful one forgets nothing then.
        at = leader(world) if rng.random() < 0.7 or self.kind == "careful" else ""
        at = at or rng.choice(running)
        item: Any = HandOver()
        if kind != "hand over":
            item = (
                RemoveReplica(name) if kind == "remove" else AddReplica(name, rng.random() < 0.75)
            )
        self.moves += 1
        world.inject(at, item)

    def _restart(self, name: str) -> None:
        world = self.world
        if name not in world.hosts:
            world.start(name)
            return
        if self.kind == "careful":
            world.run(MILLISECOND)
        if not self._may_forget(name):
            return
        if name in world.paused:
            world.forget_paused(name)
        self.restarts["leader" if name == leader(world) else "follower"] += 1
        if self.kind == "careful" or self.rng.random() < 0.5:
            world.restart(name)
        else:
            world.kill(name)

    def _may_forget(self, name: str) -> bool:
        """Never the last memory of the first voters, or the group is founded again, and rightly so."""
        world = self.world
        if self.kind == "durable":
            return True
        others = [one for one in world.config.voters if one != name and one in world.hosts]
        if not any(world.hosts[one].status["memory"] == "whole" for one in others):
            return False
        if self.kind == "careless":
            return world.config.mode == "majority" or self._is_one()
        return self._is_calm() and self._is_one() and self._voters() != [name]

    def _voters(self) -> list[str]:
        view = self.world.hosts[leader(self.world)].status["view"] if leader(self.world) else ()
        return [member["name"] for member in view if member["part"] == "voter"]

    def _is_calm(self) -> bool:
        """All voters are here with whole memories, and no change of the view is under way."""
        hosts = self.world.hosts
        logs = [host.replica.inspect().log for host in hosts.values() if host.replica]
        return (
            leading(self.world)
            and all(n in hosts and hosts[n].status["memory"] == "whole" for n in self._voters())
            and not any(
                host.status["state"] == "suspended" for host in hosts.values() if host.replica
            )
            and all(log.view_index <= log.commit for log in logs)
            and not any(
                host.frozen or host.no_state or host.slowness > 1 for host in hosts.values()
            )
        )

    def _is_one(self) -> bool:
        """Nobody is cut off, or believes to be in another view."""
        world = self.world
        if world.config.mode == "majority":
            return True
        replicas = [host for host in world.hosts.values() if host.replica]
        views = {str(host.status["view"]) for host in replicas if host.status["view"]}
        leaders = [host for host in replicas if host.status["state"] == "leading"]
        whole = world.is_healed and world.drop is None and not world.paused
        return whole and len(views) == len(leaders) == 1

    # -- the end -----------------------------------------------------------------------------------------------------

    def _members(self) -> list[Host]:
        at = leader(self.world)
        view = self.world.hosts[at].status["view"] if at else ()
        return [self.world.hosts[member["name"]] for member in view]

    def _go_on(self) -> None:
        """Something that is sent now is delivered by all members."""
        world, end = self.world, self.world.now + 60 * SECOND
        last = b""
        while not last or not self._have(last):
            assert world.now < end, f"nothing is delivered:\n{world.describe()}"
            name = self.rng.choice(list(world.hosts))
            if world.hosts[name].source.held < 40_000:
                last = f"in the end {world.now}".encode()
                world.send(name, [last])
            until = world.now + 2 * SECOND
            while world.now < until and not self._have(last):
                world.run(20 * MILLISECOND)

    def _have(self, message: bytes) -> bool:
        members = self._members()
        return bool(members) and all(message in host.messages[-50:] for host in members)

    def _agree(self) -> None:
        world, end = self.world, self.world.now + 20 * SECOND
        while not self._same():
            assert world.now < end, f"members disagree:\n{world.describe()}"
            world.run(50 * MILLISECOND)

    def _same(self) -> bool:
        members = self._members()
        leaders = {host.status["leader"] for host in members}
        return len(leaders) == 1 and all(host.app.got == members[0].app.got for host in members)


class Losses(Moves):
    """Datagrams are lost besides, applications choose anything about it, and say something about each message."""

    choices = CHOICES

    def _settings(self) -> dict[str, Any]:
        rng = self.rng
        return super()._settings() | {
            "sources": 1,
            "transport": "datagram",
            "loss": 0.0,
            "datagram_loss": rng.choice((0.01, 0.1, 0.3)),
            "message_log_bytes": rng.choice((0, 1 << 20)),
            "gone_ns": rng.choice((100, 5000)) * MILLISECOND,
            "recover_ns": 50 * MILLISECOND,
            "seek_ns": 5 * MILLISECOND,
            "close_delay_ns": 50 * MILLISECOND,
        }

    def _heal(self) -> None:
        self.choices = (RECOVER.otherwise(DROP),)
        super()._heal()

    def _give_in(self) -> None:
        for host in self.world.hosts.values():
            host.on_loss = lambda _: self.rng.choice(self.choices)
            host.says = lambda message: [("node:s1", b"re: " + message), ("printer", message)]

    def _check(self) -> None:
        super()._check()
        if self.binding and self.kind != "careless":
            ids = [(output.position, output.k) for output in self.world.hosts["s1"].outputs]
            assert ids == sorted(set(ids)), "an output came twice, or not in order"
