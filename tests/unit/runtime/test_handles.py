"""Handles alone: what they accept is never too much for the unit behind them, and everybody who waits gets his turn.

Units and the queue in front of them are the real ones; the loop that drives them is the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.group import GroupConfig, SourceMachine
from holdfast.group.ports import SourceRoom
from holdfast.links.channel_out import ChannelOut
from holdfast.links.ports import SendChannel
from holdfast.machine import Intake, Outbox
from holdfast.runtime.driver import BATCH_BYTES
from holdfast.runtime.handles import QUEUE_BYTES, Channel, Group
from holdfast.types import DATA, NodeId

ME, PEER = NodeId(b"m" * 16), NodeId(b"p" * 16)
WINDOW = 4 << 20
BACKLOG = 12
"""Turns that an input waits for, as the bound of the intake allows."""


class Loop:
    """What the runtime is to a handle, with so many arrivals in the queue that everything waits for some turns."""

    def __init__(self, backlog: int = 0) -> None:
        self.intake = Intake()
        self._backlog = backlog
        for _ in range(backlog):
            self._arrival()

    def wake(self) -> None:
        """Turns take place when the test says so."""

    def _arrival(self) -> None:
        self.intake.force(DATA, "nobody", None, BATCH_BYTES)

    def turn(self, handle: Any, take: Callable[[list[Any]], None]) -> None:
        if self._backlog:
            self._arrival()
        handle.hand_over()
        items = [item for unit, item in self.intake.take(BATCH_BYTES) if unit != "nobody"]
        take(items)


class Bench:
    """A group's handle and the source behind it; `frees`: all replicas have at once what is sent."""

    def __init__(self, backlog: int = 0, frees: bool = True, **settings: Any) -> None:
        config = GroupConfig("g", ("n1",), "n1", window_bytes=WINDOW, **settings)
        self.config = config
        self.loop: Any = Loop(backlog)
        self.source = self.make_source(0)
        self.group = Group(self.loop, config)
        self.frees = frees

    def make_source(self, stream: int) -> SourceMachine:
        return SourceMachine(
            config=self.config, node=ME, name="s", incarnation=7, rng=Random(1), stream=stream
        )

    def turn(self) -> None:
        self.loop.turn(self.group, self._take)

    def _take(self, items: list[Any]) -> None:
        out = Outbox()
        self.source.up(1, items, out)
        if self.frees:
            self.free(out)
        for effect, _ in out.effects:
            if isinstance(effect, SourceRoom):
                self.group.queued(effect.held, effect.taken)

    def free(self, out: Outbox) -> None:
        """Every replica has what was sent so far."""
        last = self.source.status()["last"]
        assert isinstance(last, int)
        self.source._free(last)
        self.source.up(1, [], out)


def test_what_a_group_accepted_is_not_refused_later_however_long_it_waits_for_its_turn() -> None:
    """SPEC invariant 9: when a queue is full the sender is told, nothing vanishes."""
    bench = Bench(BACKLOG, frees=False)
    accepted = 0
    for turn in range(5 * BACKLOG):
        # A little at first, so that the source speaks of its room in each turn, and then everything that is taken.
        if turn < BACKLOG + 2:
            accepted += bench.group.try_send(b"t" * 100)
        else:
            while bench.group.try_send(b"x" * 60_000):
                accepted += 1
        bench.turn()
    bench.frees = True
    for _ in range(5 * BACKLOG):
        bench.turn()
    status = bench.source.status()
    assert status["refused"] == 0
    assert status["last"] == accepted > WINDOW // 2 // 60_004


def test_what_waits_on_the_way_to_a_channel_counts_as_waiting() -> None:
    loop: Any = Loop(BACKLOG)
    channel, out = Channel(loop, PEER, 16), ChannelOut(16)
    accepted = 0

    def take(items: list[Any]) -> None:
        for item in items:
            assert isinstance(item, SendChannel)
            out.write(item.messages)
        channel.queued(out.waiting_bytes, out.given_bytes)

    for turn in range(5 * BACKLOG):
        if turn < BACKLOG + 2:
            accepted += channel.try_send(b"t" * 100)
        else:
            while channel.try_send(b"x" * 60_000):
                accepted += 1
        loop.turn(channel, take)
        assert channel._bytes + channel._queued <= QUEUE_BYTES + 4
    for _ in range(2 * BACKLOG):
        loop.turn(channel, take)
    assert out.messages == accepted
    assert 0 < out.waiting_bytes <= QUEUE_BYTES, "nothing has left, and no more was let in"
