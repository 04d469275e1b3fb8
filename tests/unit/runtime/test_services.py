"""Locks, barriers and zones of real nodes on loopback, through the public API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.conformance.worlds import free_port

from holdfast import Batch, Context, Fence, Node, Replica, parse_config
from holdfast.errors import BarrierBroken, LockLost, MisuseError, NotAccepted, StaleToken
from holdfast.group.config import GroupConfig
from holdfast.group.services.ports import ServiceNotice
from holdfast.group.services.values import Outcome
from holdfast.runtime.services import Lock, ServiceBook
from holdfast.types import SECOND

if TYPE_CHECKING:
    from holdfast.runtime.driver import Driver

PATIENCE_S = 60
FILE = """
domain = "services"
name = "{name}"
join = ["127.0.0.1:{join}"]
[security]
mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
[[group]]
name = "book"
voters = ["a", "b"]
zones = {{ east = ["a", "b"] }}
[[group]]
name = "loose"
voters = ["a", "b"]
mode = "availability"
"""


class Book(Replica):
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, batch: Batch, context: Context) -> None:
        self.lines += [bytes(message) for message in batch.messages]

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass


@asynccontextmanager
async def nodes() -> AsyncIterator[dict[str, Node]]:
    """Two nodes with replicas, and one without."""
    join = free_port(["127.0.0.1"])
    made: dict[str, Node] = {}
    for name in ("a", "b", "s"):
        port = join if name == "a" else free_port(["127.0.0.1"])
        config = parse_config(FILE.format(name=name, join=join, port=port), "test")
        made[name] = Node(config, {"book": Book(), "loose": Book()})
    async with asyncio.timeout(PATIENCE_S):
        for node in made.values():
            await node.start()
        try:
            yield made
        finally:
            for node in made.values():
                await node.stop()


def test_locks_barriers_and_zones_of_real_nodes() -> None:
    asyncio.run(_locks_barriers_and_zones_of_real_nodes())


async def _locks_barriers_and_zones_of_real_nodes() -> None:
    async with nodes() as made:
        groups = {name: node.group("book") for name, node in made.items()}
        tokens: list[int] = []

        async def use(name: str) -> None:
            async with groups[name].lock("till", lease=5) as token:
                assert token > max(tokens, default=0)
                tokens.append(token)

        await asyncio.gather(*map(use, groups))
        assert len(tokens) == 3

        met = await asyncio.gather(*(g.barrier("gate", parties=3) for g in groups.values()))
        assert len(set(met)) == 1

        barriers = [groups[name].barrier("steps", parties=2, phases=2) for name in ("a", "s")]
        for _ in range(2):
            await asyncio.gather(*barriers)
        assert [barrier.phase for barrier in barriers] == [2, 2]

        await groups["s"].subgroup("east").send(b"to the east")
        await groups["s"].flush()


def test_a_cancelled_request_lets_the_next_one_through_and_breaks_a_barrier() -> None:
    asyncio.run(_a_cancelled_request_lets_the_next_one_through_and_breaks_a_barrier())


async def _a_cancelled_request_lets_the_next_one_through_and_breaks_a_barrier() -> None:
    async with nodes() as made:
        first, second = made["a"].group("book"), made["s"].group("book")
        lock = first.lock("till", lease=5)
        token = await lock.acquire()
        assert lock.held
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await second.lock("till", lease=5).acquire()
        await lock.release(token)
        async with second.lock("till", lease=5) as later:
            assert later > token

        with pytest.raises(NotAccepted, match="9 parties"):
            await first.barrier("huge", parties=9)
        waiting = asyncio.ensure_future(first.barrier("gate", parties=3).wait())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await second.barrier("gate", parties=3)
        with pytest.raises(BarrierBroken, match="gone"):
            await waiting


def test_bad_requests_are_refused_and_a_stopped_node_says_so() -> None:
    asyncio.run(_bad_requests_are_refused_and_a_stopped_node_says_so())


async def _bad_requests_are_refused_and_a_stopped_node_says_so() -> None:
    async with nodes() as made:
        group, loose = made["a"].group("book"), made["a"].group("loose")
        for lease in (0, -1, 1e9, float("nan"), "5"):
            with pytest.raises(MisuseError, match="lease"):
                group.lock("till", lease=lease)  # type: ignore[arg-type]
        for name in ("", "x" * 65, 7):
            with pytest.raises(MisuseError, match="name of a lock"):
                group.lock(name)  # type: ignore[arg-type]
        for parties in (0, -1, 5000, 2.5):
            with pytest.raises(MisuseError, match="parties"):
                group.barrier("gate", parties=parties)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="availability mode"):
            loose.lock("till")
        with pytest.raises(MisuseError, match="availability mode"):
            loose.barrier("gate", parties=2)
        with pytest.raises(MisuseError, match="no zone 'west'"):
            group.subgroup("west")
        with pytest.raises(MisuseError, match="must not start with"):
            group.try_send(b"x", topic="@east")
        lock = group.lock("till", lease=5)
        with pytest.raises(MisuseError, match="not held"):
            await lock.release()
        token = await lock.acquire()
        with pytest.raises(StaleToken):
            await lock.release(token - 1)
        with pytest.raises(MisuseError, match="requested by this handle"):
            await lock.acquire()
        await made["a"].stop()
        assert "stop" in await lock.wait_lost()
        with pytest.raises(LockLost):
            await lock.release()


class Asked:
    """Stands for the driver: keeps what a handle asks for. The test answers."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def answer(self, _unit: str, item: Any) -> None:
        self.items.append(item)

    def clock(self) -> int:
        return 0


def handle() -> tuple[Asked, ServiceBook, Lock]:
    asked = Asked()
    book = ServiceBook(cast("Driver", asked), GroupConfig("book", ("a", "b")))
    return asked, book, Lock(book, "till", 5)


def told(book: ServiceBook, outcome: Outcome, token: int = 0, why: str = "") -> None:
    book.take(ServiceNotice("services/book", 1, outcome, token, 0, why, 5 * SECOND))


def test_a_lock_is_not_released_before_it_is_held_nor_twice_at_once() -> None:
    """Each call waits for its own answer: a second one must not take the answer of the first."""

    async def story() -> None:
        _, book, lock = handle()
        acquiring = asyncio.ensure_future(lock.acquire())
        await asyncio.sleep(0)
        with pytest.raises(MisuseError, match="is not held"):
            await lock.release()
        told(book, Outcome.HELD, 7)
        assert await acquiring == 7
        releasing = asyncio.ensure_future(lock.release())
        await asyncio.sleep(0)
        with pytest.raises(MisuseError, match="is being released"):
            await lock.release()
        told(book, Outcome.RELEASED)
        await releasing
        assert not lock.token

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_lock_that_is_lost_before_its_holder_runs_again_is_lost() -> None:
    """The event loop was blocked from the grant until the lease had run out."""

    async def story() -> None:
        _, book, lock = handle()
        acquiring = asyncio.ensure_future(lock.acquire())
        await asyncio.sleep(0)
        told(book, Outcome.HELD, 7)
        told(book, Outcome.EXPIRED, why="its lease has run out")
        assert await acquiring == 7
        assert not lock.held
        assert await lock.wait_lost() == "its lease has run out"
        with pytest.raises(LockLost, match="its lease has run out"):
            await lock.release()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_fence_refuses_lower_tokens_and_what_is_no_token() -> None:
    fence = Fence()
    fence.admit(5)
    fence.admit(5)
    fence.admit(9)
    for bad in (8, 0, -1, True, "9", None):
        with pytest.raises(StaleToken):
            fence.admit(bad)  # type: ignore[arg-type]
    assert fence.token == 9
