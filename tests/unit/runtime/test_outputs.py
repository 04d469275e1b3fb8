"""Outputs: none is left out, whatever comes while one is under way, fails, or finds nobody yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.group.ports import (
    Output,
    OutputsReady,
    OutputsSent,
    OutputsTaken,
    SendOutputs,
    StopOutputs,
)
from holdfast.runtime.outputs import OutputDesk

UNIT = "replica/book"


def order(first: int, last: int) -> SendOutputs:
    outputs = tuple(Output(k, 0, "printer", b"%d" % k) for k in range(first, last + 1))
    return SendOutputs(UNIT, "printer", outputs)


async def done(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 any check will do, so there is no event
        await asyncio.sleep(0)


def test_nothing_is_left_out_whatever_is_under_way_or_fails() -> None:
    """To report a later one would say that those in between have arrived as well."""
    printed: list[int] = []
    reported: list[int] = []
    failures = [RuntimeError("no paper")]

    def sent(_: str, item: OutputsSent | OutputsTaken) -> None:
        reported.append(item.position)

    async def send(output: Output) -> None:
        await asyncio.sleep(0)
        if output.position == 3 and failures:
            raise failures.pop()
        printed.append(output.position)

    async def run() -> None:
        desk = OutputDesk(sent)
        desk.take(order(1, 1))
        assert not printed, "nobody sends them yet"
        desk.send_with("book", send)
        await asyncio.sleep(0)
        desk.take(order(2, 2))
        desk.take(order(3, 4))
        desk.take(order(1, 4))
        await done(lambda: len(printed) == 4)
        desk.take(order(5, 6))
        await done(lambda: len(reported) == 6)
        desk.close()

    asyncio.run(run())
    assert printed == reported == [1, 2, 3, 4, 5, 6]


def ready(first: int, last: int, history: int = 7) -> OutputsReady:
    outputs = tuple(Output(k, 0, "", b"%d" % k) for k in range(first, last + 1))
    return OutputsReady("book", outputs, history)


def test_outputs_wait_for_a_listener_and_for_one_that_failed() -> None:
    """That they were taken is said only when they were."""
    heard: list[int] = []
    taken: list[tuple[int, int]] = []
    failures = [RuntimeError("not now")]

    def answer(unit: str, item: OutputsSent | OutputsTaken) -> None:
        assert isinstance(item, OutputsTaken)
        assert unit == "outputs"
        taken.append((item.history, item.position))

    def listen(output: Output) -> None:
        if output.position == 3 and failures:
            raise failures.pop()
        heard.append(output.position)

    async def run() -> None:
        desk = OutputDesk(answer)
        desk.take(ready(1, 2))
        assert not taken, "nobody listens yet"
        desk.listen("book", listen)
        assert (heard, taken) == ([1, 2], [(7, 2)])
        desk.take(ready(1, 4))
        desk.take(ready(5, 5))
        assert (heard, taken) == ([1, 2], [(7, 2)])
        await done(lambda: len(taken) == 2)
        assert (heard, taken[1]) == ([1, 2, 3, 4, 5], (7, 5))
        desk.take(ready(4, 5))
        assert taken[2] == (7, 5), "whoever asks again is told again"
        desk.take(ready(1, 1, history=8))
        assert (heard[-1], taken[3]) == (1, (8, 1))
        desk.close()

    asyncio.run(run())


def test_a_sender_that_is_cancelled_from_within_is_tried_again_and_can_be_replaced() -> None:
    printed: list[int] = []

    async def cancelled(_: Output) -> None:
        raise asyncio.CancelledError

    async def send(output: Output) -> None:
        printed.append(output.position)

    async def run() -> None:
        desk = OutputDesk(lambda *_: None)
        desk.send_with("book", cancelled)
        desk.take(order(1, 2))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not printed
        desk.send_with("book", send)
        await done(lambda: printed == [1, 2])
        desk.close()

    asyncio.run(run())


def test_who_does_not_lead_any_more_sends_no_more() -> None:
    tried: list[int] = []

    async def fail(output: Output) -> None:
        tried.append(output.position)
        raise RuntimeError("no paper")

    async def run() -> None:
        desk = OutputDesk(lambda *_: None)
        desk.send_with("book", fail)
        desk.take(order(1, 3))
        await done(lambda: bool(tried))
        desk.take(StopOutputs(UNIT))
        await done(lambda: not desk._tasks)
        assert tried == [1]
        desk.close()

    asyncio.run(run())


def test_a_listener_may_name_another_one() -> None:
    heard: list[tuple[str, int]] = []

    async def run() -> None:
        desk = OutputDesk(lambda *_: None)

        def first(output: Output) -> None:
            desk.listen("book", lambda later: heard.append(("second", later.position)))
            heard.append(("first", output.position))

        desk.listen("book", first)
        desk.take(ready(1, 3))
        assert heard == [("first", 1), ("second", 2), ("second", 3)]
        desk.close()

    asyncio.run(run())
