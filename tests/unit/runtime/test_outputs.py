"""Outputs: none is left out, whatever comes while one is under way, fails, or finds nobody yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

import pytest

from holdfast.errors import MisuseError
from holdfast.group.ports import (
    Output,
    OutputsReady,
    OutputsRefused,
    OutputsSent,
    OutputsTaken,
    SendOutputs,
    StopOutputs,
)
from holdfast.runtime import outputs as outputs_module
from holdfast.runtime.outputs import CALL_NS, OutputDesk

UNIT = "replica/book"


def order(first: int, last: int) -> SendOutputs:
    outputs = tuple(Output(k, 0, "printer", b"%d" % k) for k in range(first, last + 1))
    return SendOutputs(UNIT, "printer", outputs)


async def done(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 any check will do, so there is no event
        await asyncio.sleep(0)


async def rounds() -> None:
    for _ in range(5):
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


def ready(first: int, last: int, group_epoch: int = 7) -> OutputsReady:
    outputs = tuple(Output(k, 0, "", b"%d" % k, group_epoch) for k in range(first, last + 1))
    return OutputsReady("book", outputs, group_epoch)


def test_outputs_wait_for_a_listener_and_for_one_that_failed() -> None:
    """That they were taken is said only when they were."""
    heard: list[int] = []
    taken: list[tuple[int, int]] = []
    failures = [RuntimeError("not now")]

    def answer(unit: str, item: OutputsSent | OutputsTaken) -> None:
        assert isinstance(item, OutputsTaken)
        assert unit == "outputs"
        taken.append((item.group_epoch, item.position))

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
        desk.take(ready(1, 1, group_epoch=8))
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
        await rounds()
        assert not printed
        desk.send_with("book", send)
        await done(lambda: printed == [1, 2])
        desk.close()

    asyncio.run(run())


def test_a_former_leader_sends_no_outputs() -> None:
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


async def waits(output: Output) -> None:
    """Not what a listener is, and what a sender is."""


def returns(output: Output) -> None:
    """The other way round."""


class Async:
    async def __call__(self, output: Output) -> None: ...

    async def method(self, output: Output) -> None: ...


@wraps(waits)
def wrapped(output: Output) -> Awaitable[None]:
    return waits(output)


@pytest.mark.parametrize("call", [waits, partial(waits), Async(), Async().method])
def test_a_coroutine_function_cannot_listen_and_can_send(call: Any) -> None:
    """It would do nothing, and its outputs count as taken."""
    desk = OutputDesk(lambda *_: None)
    with pytest.raises(MisuseError, match="book must not be a coroutine function"):
        desk.listen("book", call)
    desk.send_with("book", call)
    desk.send_with("book", wrapped)


@pytest.mark.parametrize("call", [returns, partial(returns), [].append])
def test_a_plain_function_cannot_send_and_can_listen(call: Any) -> None:
    """It would be called with the first output for ever."""
    desk = OutputDesk(lambda *_: None)
    with pytest.raises(MisuseError, match="book must be an `async def`"):
        desk.send_with("book", call)
    desk.listen("book", call)


def test_a_callback_whose_coroutine_is_not_awaited_has_taken_nothing() -> None:
    """A task is under way by itself; a coroutine that nobody awaits never is."""
    heard: list[int] = []
    taken: list[int] = []

    async def handle(output: Output) -> None:
        heard.append(output.position)

    async def run() -> None:
        desk = OutputDesk(lambda _, item: taken.append(item.position))
        desk.listen("book", lambda output: handle(output))  # noqa: PLW0108 it is the case
        desk.take(ready(1, 2))
        assert not taken
        desk.listen("book", lambda output: asyncio.ensure_future(handle(output)))
        await done(lambda: heard == [1, 2])
        assert taken == [2]
        desk.close()

    asyncio.run(run())


def test_a_program_ends_while_a_sender_is_active_and_the_next_one_sends_again() -> None:
    """Somebody cancels all tasks, as `asyncio.run` does in the end: that is no failure to be tried again."""
    tried: list[int] = []
    gates: list[asyncio.Event] = []

    async def send(output: Output) -> None:
        tried.append(output.position)
        await gates[0].wait()

    async def run() -> None:
        gates.append(asyncio.Event())
        desk = OutputDesk(lambda *_: None)
        desk.send_with("book", send)
        desk.take(order(1, 2))
        await done(lambda: tried == [1])
        (task,) = desk._tasks.values()
        task.cancel()
        await rounds()
        if not task.cancelled():
            desk.close()  # or this test would not end
        assert task.cancelled()
        gates[0].set()
        desk.take(order(1, 2))
        await done(lambda: tried == [1, 1, 2])
        gates[0].clear()
        desk.take(order(3, 3))
        await done(lambda: tried[-1] == 3)

    asyncio.run(run())
    assert tried == [1, 1, 2, 3]


def test_a_listener_that_takes_its_time_lets_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called with some, and goes on after whatever else waits; nothing overtakes. What it was called with
    is taken, whatever comes of the rest."""
    now = [0]
    monkeypatch.setattr(outputs_module, "monotonic_ns", lambda: now[0])
    heard: list[Any] = []
    taken: list[int] = []

    def listen(output: Output) -> None:
        heard.append(output.position)
        now[0] += CALL_NS // 2

    async def run() -> None:
        desk = OutputDesk(lambda _, item: taken.append(item.position))
        desk.listen("book", listen)
        desk.take(ready(1, 5))
        asyncio.get_running_loop().call_soon(heard.append, "other")
        desk.take(ready(6, 6))
        assert (heard, taken) == ([1, 2], [2])
        await done(lambda: taken[-1] == 6)
        assert (heard, taken) == ([1, 2, 3, 4, "other", 5, 6], [2, 4, 6])
        desk.take(ready(7, 9))
        desk.close()
        await rounds()
        assert heard[-2:] == [7, 8]

    asyncio.run(run())


def test_messages_without_a_listener_are_kept_within_a_bound_and_the_rest_comes_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A group that somebody listens to is not concerned, however many others there are."""
    monkeypatch.setattr(outputs_module, "UNHEARD_MAX", 10 * outputs_module.OVERHEAD)
    answers: list[Any] = []
    heard: list[int] = []

    def foreign(group: str) -> OutputsReady:
        return OutputsReady(group, (Output(1, 0, "", b""),), 7)

    async def run() -> None:
        desk = OutputDesk(lambda _, item: answers.append(item))
        for k in range(100):
            desk.take(foreign(f"x{k}"))
        assert answers == [OutputsRefused(f"x{k}", 7) for k in range(10, 100)]
        assert len(desk._arrived) == len(desk._last) == 10
        assert caplog.text.count("there is no listener for outputs of x10, and no more") == 1
        answers.clear()
        desk.take(ready(1, 2))
        assert answers == [OutputsRefused("book", 7)]
        desk.listen("book", lambda output: heard.append(output.position))
        desk.take(OutputsReady("book", ready(3, 3).outputs, 7, after=(2, 0)))
        assert not heard, "what was refused comes first"
        desk.take(ready(1, 3))
        assert (heard, answers[1:]) == ([1, 2, 3], [OutputsTaken("book", 7, 3, 0)])
        for k in range(10):
            desk.listen(f"x{k}", lambda output: heard.append(output.position))
        assert not desk._arrived
        desk.take(foreign("x50"))
        assert len(answers) == 12, "there is room again"
        desk.close()

    asyncio.run(run())


def test_no_callback_is_called_after_the_end() -> None:
    """What comes now nobody could write down, so it would come again; another node sends what is left."""
    called: list[int] = []
    answers: list[Any] = []
    go_on = asyncio.Event()

    async def stubborn(output: Output) -> None:
        called.append(output.position)
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            await go_on.wait()

    def hear(output: Output) -> None:
        called.append(output.position)

    async def run() -> None:
        desk = OutputDesk(lambda _, item: answers.append(item))
        desk.send_with("book", stubborn)
        desk.take(order(1, 3))
        desk.take(ready(7, 8))
        await rounds()
        desk.close()
        await rounds()
        desk.take(order(4, 5))
        desk.take(ready(9, 9))
        desk.listen("book", hear)
        desk.send_with("book", stubborn)
        await rounds()
        desk.open()
        go_on.set()
        await rounds()
        assert called == [1]
        assert answers == [OutputsSent("printer", 1, 0)], "that one has arrived"
        desk.take(order(2, 2))
        desk.take(ready(1, 1))
        await rounds()
        assert called == [1, 1, 2]
        desk.close()

    asyncio.run(run())
