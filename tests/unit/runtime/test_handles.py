"""Handles alone: what they accept is never too much for the unit behind them, and everybody who waits gets his turn.

Units and the queue in front of them are the real ones; the loop that drives them is the test's.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import MisuseError, NodeStopped
from holdfast.group import GroupConfig, SourceMachine
from holdfast.group.frames import Freed
from holdfast.group.ports import SourceRoom
from holdfast.links.channel_out import ChannelOut
from holdfast.links.ports import Received, SendChannel
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
        self.core = SimpleNamespace(service=lambda _kind: SimpleNamespace(link=lambda _peer: None))
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
        freed = Freed(self.config.name, ((self.source.stream, last),))
        self.source.up(1, [Received(ME, [freed], 1)], out)


def test_what_a_group_accepted_is_not_refused_later_however_long_it_waits_for_its_turn() -> None:
    """docs/design/architecture.md, invariant 9: when a queue is full the sender is told, nothing vanishes."""
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


async def _steps(count: int = 5) -> None:
    """Let everybody go on who can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _shares(
    bench: Bench, senders: list[Callable[[], Awaitable[int]]], turns: int
) -> list[int]:
    """So many bytes each of these has sent, who never do anything else."""
    sent = [0] * len(senders)

    async def pour(number: int) -> None:
        while True:
            sent[number] += await senders[number]()

    tasks = [asyncio.create_task(pour(number)) for number in range(len(senders))]
    for _ in range(turns):
        await _steps(2)
        bench.turn()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bench.source.status()["refused"] == 0
    return sent


def test_all_senders_to_a_group_get_their_share() -> None:
    """Also who has large messages, and who asks with `try_send` and waits with `writable`."""

    async def run() -> None:
        bench = Bench()
        group = bench.group

        def sender(size: int) -> Callable[[], Awaitable[int]]:
            async def send() -> int:
                await group.send(bytes(size))
                return size

            return send

        def asker(size: int) -> Callable[[], Awaitable[int]]:
            async def send() -> int:
                while not group.try_send(bytes(size)):
                    await group.writable(size)
                return size

            return send

        senders = [sender(1000), sender(1000), sender(900_000), asker(1000), asker(1000)]
        sent = await _shares(bench, senders, 100)
        assert min(sent) * 3 > max(sent) > 10 * WINDOW, sent

    asyncio.run(run())


def test_a_late_waiter_is_served_after_earlier_ones() -> None:
    async def run() -> None:
        bench = Bench(frees=False)
        group = bench.group
        while group.try_send(bytes(10_000)):
            pass
        order: list[int] = []

        async def send(number: int, size: int) -> None:
            await group.send(bytes(size))
            order.append(number)

        tasks = [asyncio.create_task(send(k, size)) for k, size in enumerate((1_000_000, 10, 10))]
        await _steps()
        bench.frees = True
        bench.turn()
        tasks.append(asyncio.create_task(send(3, 10)))
        assert not group.try_send(b"overtakes"), "there is room, and others wait for it"
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]
        assert group.try_send(b"now")

    asyncio.run(run())


@pytest.mark.parametrize("set_free", [False, True])
def test_a_waiter_that_gives_up_makes_way_for_the_next(set_free: bool) -> None:
    """Nobody speaks of room again: whoever comes next must be looked at when the first one goes."""

    async def run() -> None:
        loop: Any = Loop()
        channel = Channel(loop, PEER, 16)
        channel.queued(3 << 20, 0)
        first = asyncio.create_task(channel.send(bytes(6 << 20)))
        second = asyncio.create_task(channel.send(b"small"))
        third = asyncio.create_task(channel.writable())
        await _steps()
        channel.queued((1 if set_free else 3) << 20, 0)
        first.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(second, third)
        assert first.cancelled()
        assert channel._messages == [b"small"]
        assert not channel._waiters

    asyncio.run(run())


def test_a_waiter_for_room_is_not_woken_for_room_that_does_not_fit() -> None:
    async def run() -> None:
        loop: Any = Loop()
        channel = Channel(loop, PEER, 16)
        channel.queued(3 << 20, 0)
        attempts = 0

        async def pour() -> None:
            nonlocal attempts
            while not channel.try_send(bytes(6 << 20)):
                attempts += 1
                assert attempts < 100, "it never gives the event loop back"
                await channel.writable()

        tasks = [asyncio.create_task(pour()) for _ in range(2)]
        await _steps(50)
        before = attempts
        assert before == 2
        channel.queued((3 << 20) - 1, 0)
        await _steps(50)
        assert attempts == before + 1, "once for each time that the channel speaks"
        channel.queued(0, 0)
        await _steps(50)
        channel.hand_over()
        channel.queued(0, channel._handed)
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["channel", "group"])
def test_a_view_of_wide_items_counts_by_its_bytes(kind: str) -> None:
    async def run() -> None:
        loop: Any = Loop()
        config = GroupConfig("g", ("n1",), window_bytes=2 * QUEUE_BYTES)
        handle = Channel(loop, PEER, 16) if kind == "channel" else Group(loop, config)
        wide: Any = memoryview(array("d", bytes(3 << 20)))
        handle.queued(6 << 20, 0)
        sends = asyncio.create_task(handle.send(wide))
        await _steps()
        assert not sends.done()
        assert handle._waiters[0][1] == wide.nbytes
        handle.queued(1 << 20, 0)
        async with asyncio.timeout(10):
            await sends
        assert handle._messages == [bytes(3 << 20)]

    asyncio.run(run())


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0.5},
        {"priority": True},
        {"priority": "0"},
        {"priority": 3},
        {"priority": -1},
        {"topic": b"rain"},
        {"topic": "\ud800"},
        {"request": "id"},
        {"request": 7},
        {"resync": 1},
        {"resync": "yes"},
    ],
)
def test_what_is_said_of_a_message_has_its_type(options: dict[str, Any]) -> None:
    bench = Bench(priorities=3)
    assert bench.group.try_send(b"before", priority=2, topic="rain", request=b"r", resync=True)
    with pytest.raises(MisuseError, match="nothing was sent"):
        bench.group.try_send(b"wrong", **options)
    bench.turn()
    assert bench.source.status()["last"] == 1


def test_each_waiting_call_gets_an_error_of_its_own() -> None:
    """One for all would remember everybody who ever got it, with all that he wanted to send."""

    async def run() -> None:
        bench = Bench(frees=False)
        while bench.group.try_send(bytes(100_000)):
            pass
        waiting = [asyncio.create_task(bench.group.send(bytes(100_000))) for _ in range(2)]
        await asyncio.sleep(0)
        bench.group.end(NodeStopped("the node has stopped"))
        got = await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(2):
            with pytest.raises(NodeStopped, match="has stopped") as refused:
                bench.group.try_send(b"too late")
            got.append(refused.value)
            with pytest.raises(NodeStopped, match="has stopped") as refused:
                await bench.group.writable()
            got.append(refused.value)
        assert len({id(error) for error in got}) == len(got) == 6

    asyncio.run(run())
