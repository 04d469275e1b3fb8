"""Nothing about losses that a peer sends, however absurd, gets out of a replica or a sink."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.unit.group.harness import GROUP, World, node_id, ready, settle

from holdfast.group.frames import (
    Append,
    Entry,
    Idle,
    LossQuery,
    LossReply,
    MessageMetadata,
    Outputs,
    OutputsAck,
    Payload,
    StreamId,
)
from holdfast.group.log.entries import Closed, Decided, Ignoring, Marked, Opened, Resumed, Skipped
from holdfast.group.log.replicated_log import is_sound
from holdfast.group.loss.criteria import Criterion
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND
from holdfast.wire.blocks import pack_block

NUMBERS = (-1, 0, 1, 2, 3, 5, 40, 1 << 20, (1 << 60) - 1, 1 << 62)


class Hostile:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        source = node_id("s1")
        self.streams = [StreamId(source, 1, 0), StreamId(source, 2, 0), StreamId(b"x", -1, 5)]

    def number(self) -> int:
        return self.rng.choice(NUMBERS)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.number(), self.number()) for _ in range(self.rng.randint(0, 90)))

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number() for _ in range(self.rng.randint(0, 18)))

    def about(self) -> MessageMetadata | None:
        rng = self.rng
        if rng.random() < 0.2:
            return None
        return MessageMetadata(
            rng.randbytes(rng.choice((0, 1, 2, 9))),
            self.numbers(),
            self.numbers()[:5],
            self.numbers()[:5],
            tuple("t" * rng.choice((0, 1, 300)) for _ in range(rng.choice((0, 1, 2, 300)))),
            rng.randbytes(rng.choice((0, 1, 2))),
            tuple((self.number(), rng.randbytes(rng.choice((0, 4, 80)))) for _ in range(rng.randint(0, 2))),
            self.numbers()[:2],
        )  # fmt: skip

    def data(self) -> bytes:
        rng = self.rng
        stream = rng.choice(self.streams)
        pick: list[Any] = [
            Skipped("dropped", self.number()),
            Opened(stream, self.number()),
            Closed(stream, self.number()),
            Ignoring(Criterion(rng.randbytes(rng.choice((0, 3, 16))), stream, "t", self.number())),
            Resumed(self.number(), "x"),
            Marked("d", self.number(), self.number()),
            Decided(stream, self.pairs(), self.number(), "n1", "x", "y"),
        ]
        return rng.choice((b"", rng.randbytes(5), msgspec.msgpack.encode(rng.choice(pick))))

    def entry(self) -> Entry:
        rng, number = self.rng, self.number
        stream = rng.choice((None, *self.streams))
        kind = rng.randint(-1, 12)
        return Entry(
            number(), number(), number(), number(), kind, stream, number(), number(), self.data()
        )  # fmt: skip

    def frame(self) -> Any:
        rng, number = self.rng, self.number
        stream = rng.choice(self.streams)
        kind = rng.randrange(7)
        if kind == 0:
            block = memoryview(pack_block([b"x"] * rng.choice((1, 2))))
            return Payload(
                GROUP, stream, number(), rng.choice((1, 2)), number(), block, self.about()
            )
        if kind == 1:
            return Idle(GROUP, stream, number(), number(), number(), self.about())
        if kind == 2:
            return LossQuery(GROUP, number(), stream, self.pairs())
        if kind == 3:
            return LossReply(GROUP, number(), stream, self.pairs(), rng.randbytes(9), self.pairs())
        if kind == 4:
            items = tuple((number(), number(), b"x") for _ in range(rng.randint(0, 3)))
            return Outputs(GROUP, number(), (number(), number()), (number(), number()), items)
        if kind == 5:
            return OutputsAck(GROUP, number(), number(), number())
        entries = tuple(self.entry() for _ in range(3))
        return Append(GROUP, number(), number(), number(), number(), entries, 0, number())


@pytest.mark.parametrize("seed", range(5))
def test_frames_about_losses_never_raise(seed: int) -> None:
    world = World(seed, voters=3, sources=1, priorities=3, transport="datagram")
    world.start()
    ready(world)
    hostile = Hostile(seed)
    for step in range(300):
        target = hostile.rng.choice(("n1", "n2"))
        sender = hostile.rng.choice(("n3", "s1", "s9"))
        world.inject(target, Received(node_id(sender), [hostile.frame()], world.now))
        if step % 10 == 0:
            world.run(3 * MILLISECOND)
    world.run(100 * MILLISECOND)
    assert not world.failures


@pytest.mark.parametrize("seed", range(5))
def test_entries_that_make_no_sense_are_not_taken(seed: int) -> None:
    hostile = Hostile(seed)
    for _ in range(3000):
        is_sound(hostile.entry())
    world = World(seed, voters=3, sources=1)
    world.start()
    ready(world)
    world.send("s1", [b"a"])
    settle(world, 1)
