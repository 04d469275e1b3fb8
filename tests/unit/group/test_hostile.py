"""No frame, however absurd, makes a machine raise: it is ignored and counted (docs/design/architecture.md, invariant
10)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.unit.group.harness import FAST, GROUP, World, node_id, ready
from tests.unit.group.talking import started, talk

from holdfast.group import replica_unit, source_unit
from holdfast.group.frames import (
    AdminRequest,
    Append,
    AppendResponse,
    Entry,
    FeedRequest,
    Freed,
    Idle,
    JoinRequest,
    JoinResponse,
    Nack,
    Payload,
    StateChunk,
    StateRequest,
    StreamId,
    VoteRequest,
    VoteResponse,
)
from holdfast.health.frames import Heartbeat
from holdfast.links.ports import Received
from holdfast.types import SECOND
from holdfast.wire.blocks import pack_block
from holdfast.wire.codec import Rejected, decode_frame, encode

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    100,
    -1,
    -(1 << 63),
    1 << 31,
    1 << 59,
    1 << 60,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


class Forger:
    """Makes frames of all kinds with absurd, extreme and nearly right numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"hostile/{seed}")
        self.known = 0
        """The history of the group that is attacked."""
        self.streams = [
            StreamId(node_id(name), life, 0) for name in ("n1", "n2", "s1") for life in (1, 2)
        ]
        self.streams += [
            StreamId(b"", 1, 0),
            StreamId(b"x" * 40, -1, -1),
            StreamId(b"y" * 16, (1 << 64) - 1, 7),
        ]

    def number(self) -> int:
        return self.rng.choice(NUMBERS) if self.rng.random() < 0.5 else self.rng.randint(0, 60)

    def group_epoch(self) -> int:
        return self.known if self.rng.random() < 0.7 else self.number()

    def stream(self) -> StreamId:
        return self.rng.choice(self.streams)

    def entry(self) -> Entry:
        stream = self.stream() if self.rng.random() < 0.7 else None
        number = self.number
        kind = self.rng.randint(-1, 6)
        return Entry(number(), number(), number(), number(), kind, stream, number(), number())

    def block(self) -> memoryview:
        good = pack_block([b"x" * self.rng.randint(0, 9) for _ in range(self.rng.randint(0, 5))])
        if self.rng.random() < 0.5:
            return memoryview(good)
        return memoryview(self.rng.randbytes(self.rng.randint(0, 40)) + good)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.number(), self.number()) for _ in range(self.rng.randint(0, 5)))

    def marks(self) -> tuple[tuple[StreamId, int], ...]:
        return tuple((self.stream(), self.number()) for _ in range(self.rng.randint(0, 80)))

    def frame(self) -> Any:
        number, rng = self.number, self.rng
        group = GROUP if rng.random() < 0.95 else "other"
        kind = rng.randrange(14)
        if kind == 0:
            return Payload(group, self.stream(), number(), number(), number(), self.block())
        if kind == 1:
            return Idle(group, self.stream(), number(), number())
        if kind == 2:
            return Nack(group, self.stream(), self.pairs())
        if kind == 3:
            entries = tuple(self.entry() for _ in range(rng.randint(0, 4)))
            return Append(
                group, number(), number(), number(), number(), entries, number(), self.group_epoch()
            )
        if kind == 4:
            ok = rng.random() < 0.5
            return AppendResponse(
                group,
                number(),
                number(),
                ok,
                number(),
                self.marks(),
                number(),
                self.group_epoch(),
                ok,
                number(),
                commit=number(),
                held_bytes=number(),
            )
        if kind == 5:
            return StateRequest(group, number(), ((number(), number()), (0, number())), number())
        if kind == 6:
            return StateChunk(
                group,
                number(),
                number(),
                number(),
                number(),
                memoryview(rng.randbytes(50)),
                number(),
            )
        if kind == 7:
            names = ("n1", "n2", "n3")
            return Freed(group, self.marks(), number(), names, number(), self.marks())
        if kind == 8:
            return VoteRequest(
                group,
                self.group_epoch(),
                rng.randint(-1, 3),
                number(),
                number(),
                number(),
                rng.randbytes(9),
            )
        if kind == 9:
            return VoteResponse(
                group, self.group_epoch(), rng.randint(-1, 2), number(), rng.random() < 0.5
            )
        if kind == 10:
            if rng.random() < 0.5:
                return JoinRequest(group)
            action = rng.choice(("add", "resume", "", "x" * 9))
            return AdminRequest(
                group, self.group_epoch(), action, rng.choice(("n2", "", "zz")), criterion=number()
            )
        if kind == 11:
            return JoinResponse(group, self.group_epoch(), number(), "n2", rng.random() < 0.1)
        if kind == 12:
            return FeedRequest(group, rng.random() < 0.8)
        return Heartbeat(number(), number(), number())


def attack(world: World, seed: int, frames: int, senders: tuple[str, ...]) -> int:
    """Give forged frames to everybody's units, as if they came from `senders`; how many were ignored."""
    forger = Forger(seed)
    for _ in range(frames):
        replicas = [host.replica for host in world.hosts.values() if host.replica]
        forger.known = max(replica.inspect().group_epoch for replica in replicas)
        frame = decode_frame(encode(forger.frame()))
        assert not isinstance(frame, Rejected)
        target = world.hosts[forger.rng.choice(list(world.hosts))]
        sender = node_id(forger.rng.choice(senders))
        unit = forger.rng.choice((source_unit(GROUP), replica_unit(GROUP)))
        if target.replica is not None or unit == source_unit(GROUP):
            world._feed(target, unit, Received(sender, [frame], world.now))
        world.run(forger.rng.choice((0, 0, 100_000)))
    return sum(
        sum(host.status["ignored"].values()) for host in world.hosts.values() if host.replica
    )


@pytest.mark.parametrize("seed", range(8))
def test_frames_from_any_peer_never_raise_while_a_group_works(seed: int) -> None:
    """The world raises when a machine does."""
    world = started(seed, sources=1)
    talk(world, ("n1", "s1"), rounds=3)
    assert attack(world, seed, 1500, ("n1", "n2", "n3", "s1", "stranger")) > 100
    assert world.failures == []


@pytest.mark.parametrize("seed", range(4))
def test_frames_from_any_peer_never_raise_while_a_group_starts(seed: int) -> None:
    world = World(seed, sources=1, **FAST)
    world.start("n1", "n2")
    attack(world, seed, 800, ("n1", "n2", "n3", "s1", "stranger"))
    assert world.failures == []


@pytest.mark.parametrize("seed", range(4))
def test_frames_from_strangers_change_nothing(seed: int) -> None:
    world = started(seed, sources=1)
    attack(world, seed, 1500, ("stranger", "another"))
    world.run(SECOND)
    sent = talk(world, ("n1", "n2", "s1"))
    ready(world)
    world.run_until(
        lambda: all(len(host.app.got) == sent for host in world.hosts.values() if host.replica),
        10 * SECOND,
    )
    world.check()
    assert world.hosts["n1"].status["term"] == 2
