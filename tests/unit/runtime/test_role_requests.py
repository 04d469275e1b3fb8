"""A `Request` with several tasks that wait on it: some for its end, some for the next reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from holdfast.errors import NodeStopped
from holdfast.overlay.ids import node_of, numbered
from holdfast.overlay.ports import Ended, Replied
from holdfast.runtime.roles import Roles
from holdfast.runtime.roles_handles import Outcome, Request, RoleReply

LEFT, RIGHT = numbered(b"l" * 16, 1, 1), numbered(b"r" * 16, 1, 1)
STEPS_MAX = 10
"""Turns of the loop within which every waiter that was woken has run."""


class Desk:
    """Stands for `node.roles`: notes what is cancelled."""

    tracing = None

    def __init__(self) -> None:
        self.cancelled: list[int] = []

    def name_of(self, node: bytes) -> str:
        return node[:1].decode()

    def reply_of(self, instance: bytes, data: bytes, granted: str = "") -> RoleReply:
        return RoleReply(data, instance, self.name_of(node_of(instance)), granted)

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def cancel(self, op: int) -> None:
        self.cancelled.append(op)


def ended(kind: str = "done", *replies: tuple[bytes, bytes]) -> Ended:
    ids = tuple(instance for instance, _ in replies)
    return Ended(7, kind, b"q" * 32, ids, ids, replies=replies)


def run(story: Callable[[Request, Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk()
        async with asyncio.timeout(10):
            await story(Request(cast("Roles", desk), 7, "role"), desk)

    asyncio.run(main())


async def settle() -> None:
    for _ in range(STEPS_MAX):
        await asyncio.sleep(0)


async def collect(request: Request) -> list[bytes]:
    return [reply.data async for reply in request]


def both(request: Request) -> tuple[asyncio.Task[Outcome], asyncio.Task[list[bytes]]]:
    return asyncio.ensure_future(request.wait()), asyncio.ensure_future(collect(request))


def test_a_task_that_waits_and_one_that_iterates_both_end() -> None:
    """Replies that came before wake the iteration alone; the last one travels with the end."""

    async def story(request: Request, desk: Desk) -> None:
        waiting, iterating = both(request)
        await settle()
        request.give(Replied(7, LEFT, b"one"))
        await settle()
        assert not waiting.done(), "a reply is no end"
        assert not iterating.done()
        request.end(ended("done", (RIGHT, b"two")))
        await settle()
        assert waiting.done()
        assert iterating.done()
        outcome = await waiting
        assert [reply.data for reply in outcome.replies] == [b"one", b"two"]
        assert await iterating == [b"one", b"two"]
        assert request.outcome is outcome
        assert desk.cancelled == []

    run(story)


def test_every_task_that_waits_gets_the_same_outcome() -> None:
    async def story(request: Request, _: Desk) -> None:
        waiting = [asyncio.ensure_future(request.wait()) for _ in range(3)]
        await settle()
        request.end(ended("not_found"))
        await settle()
        assert [task.done() for task in waiting] == [True] * 3
        outcomes = [await task for task in waiting]
        assert outcomes == [request.outcome] * 3
        assert await request.wait() is request.outcome, "also after the end"
        assert await collect(request) == []

    run(story)


@pytest.mark.parametrize("first", ["wait", "iterate"])
def test_a_task_that_is_cancelled_cancels_the_request_and_the_other_learns_its_end(
    first: str,
) -> None:
    async def story(request: Request, desk: Desk) -> None:
        waiting, iterating = both(request)
        await settle()
        tasks: tuple[asyncio.Task[Any], asyncio.Task[Any]] = (waiting, iterating)
        cancelled, other = tasks if first == "wait" else tasks[::-1]
        cancelled.cancel()
        await settle()
        assert cancelled.cancelled()
        assert desk.cancelled == [7], "once"
        assert not other.done(), "the nodes that have the message were only told"
        request.end(ended("cancelled"))
        await settle()
        assert other.done()
        result = await other
        assert (result == []) if first == "wait" else (result.kind == "cancelled")
        assert desk.cancelled == [7]

    run(story)


def test_a_request_that_has_ended_is_not_cancelled_any_more() -> None:
    """The task is cancelled in the turn in which the end came: its waiter is done, and is not told twice."""

    async def story(request: Request, desk: Desk) -> None:
        waiting, iterating = both(request)
        await settle()
        waiting.cancel()
        iterating.cancel()
        request.end(ended())
        await settle()
        assert waiting.cancelled()
        assert iterating.cancelled()
        assert desk.cancelled == []
        assert (await request.wait()).kind == "done"

    run(story)


def test_an_error_ends_the_task_that_waits_and_the_one_that_iterates() -> None:
    async def story(request: Request, desk: Desk) -> None:
        waiting, iterating = both(request)
        await settle()
        request.give(Replied(7, LEFT, b"one"))
        error = NodeStopped("the node is not running")
        request.halt(error)
        await settle()
        for task in (waiting, iterating):
            assert task.done()
            assert task.exception() is error
        with pytest.raises(NodeStopped):
            await request.wait()
        request.cancel()
        assert desk.cancelled == [], "there is nothing left to cancel"

    run(story)


def test_replies_that_came_before_an_error_are_iterated_first() -> None:
    async def story(request: Request, _: Desk) -> None:
        request.give(Replied(7, LEFT, b"one"))
        request.halt(NodeStopped("the node is not running"))
        assert (await anext(request)).data == b"one"
        with pytest.raises(NodeStopped):
            await anext(request)

    run(story)
