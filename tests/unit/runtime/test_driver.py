"""The driver: what runs a turn at once, and what waits for the next one."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest

from holdfast.group.frames import StreamId
from holdfast.group.ports import (
    Applied,
    Apply,
    Batch,
    Output,
    SnapshotTaken,
)
from holdfast.machine import ReadTable, Result, TableRead
from holdfast.node.config import NodeConfig
from holdfast.runtime import driver as module
from holdfast.runtime.driver import ANSWER_NS, Driver
from holdfast.runtime.groups import ANSWER_BYTES, GroupEdge, _answer
from holdfast.runtime.loop import loop_factory, run
from holdfast.types import MILLISECOND, NEVER, SYNC

UNIT = "replica/book"
SMALL = Applied(1, 100)


class Core:
    """Counts turns and keeps what they were given."""

    def __init__(self) -> None:
        self.config = NodeConfig(domain="unit", name="ann")
        self.turns: list[list[Any]] = []
        self.lags: list[int] = []
        self.effects: list[Any] = []
        self.deadline = NEVER

    def lagged(self, lag_ns: int) -> None:
        self.lags.append(lag_ns)

    def start(self, _now: int) -> Result:
        return Result(0, [], [], [], [], more=False)

    def turn(self, _now: int, inputs: Any) -> Result:
        self.turns.append([item for _, item in inputs])
        self.deadline = NEVER
        return Result(len(self.turns), [], self.effects, [], [], more=False)

    def next_deadline(self) -> int:
        return self.deadline


class Worker:
    def submit(self, _job: Any) -> None:
        pass


class Clock:
    now = 10**12

    def __call__(self) -> int:
        return self.now


def with_driver(test: Callable[[Driver, Core, Clock], Any], monkeypatch: Any) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic_ns", clock)

    async def main() -> None:
        core = Core()
        nothing: Any = lambda *_: None
        edge = GroupEdge()
        driver = Driver(core, nothing, nothing, nothing, [edge])  # type: ignore[arg-type]  # all that a turn needs
        edge._driver = driver
        edge.workers[UNIT] = Worker()  # type: ignore[assignment]
        driver.start()
        await test(driver, core, clock)
        driver.halt()

    asyncio.run(main())


def from_thread(driver: Driver, *items: Any) -> None:
    def answer() -> None:
        for item in items:
            _answer(driver, UNIT, item)

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()


async def rounds() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def hand_out(driver: Driver) -> None:
    stream = StreamId(b"s" * 16, 1, 0)
    (edge,) = driver.edges
    assert isinstance(edge, GroupEdge)
    edge.effects()[Apply](Apply(UNIT, 1, 0, Batch(1, stream, 1, [memoryview(b"x")]), 1))
    edge.after_turn()


@pytest.mark.parametrize("what", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_an_application_that_cannot_be_given_its_work_takes_none_from_the_others(
    what: BaseException, monkeypatch: Any
) -> None:
    """What is left by somebody who wants the program to end is handed out by the next turn, if there is one."""

    class Broken(Worker):
        def submit(self, _job: Any) -> None:
            raise what

    class Works(Worker):
        def submit(self, job: Any) -> None:
            given.append(job)

    given: list[Any] = []

    async def test(driver: Driver, _core: Core, _clock: Clock) -> None:
        (edge,) = driver.edges
        assert isinstance(edge, GroupEdge)
        edge.workers[UNIT] = Broken()  # type: ignore[assignment]
        edge.workers["replica/other"] = Works()  # type: ignore[assignment]
        batch = Batch(1, StreamId(b"s" * 16, 1, 0), 1, [memoryview(b"x")])
        effects = [Apply(unit, 1, 0, batch, 1) for unit in (UNIT, "replica/other")]
        with nullcontext() if isinstance(what, Exception) else pytest.raises(KeyboardInterrupt):
            driver._do(Result(1, [], effects, [], [], more=False))
        driver._do(Result(2, [], [], [], [], more=False))
        assert given == [effects[1:]]

    with_driver(test, monkeypatch)


def test_that_a_little_was_applied_waits_for_the_next_turn(monkeypatch: Any) -> None:
    async def test(driver: Driver, core: Core, _clock: Clock) -> None:
        hand_out(driver)
        from_thread(driver, SMALL, Applied(2, 100))
        await rounds()
        assert not core.turns
        driver.wake()
        await rounds()
        assert core.turns == [[SMALL, Applied(2, 100)]]

    with_driver(test, monkeypatch)


@pytest.mark.parametrize(
    "urgent",
    [
        Applied(3, ANSWER_BYTES),
        Applied(3, 1, (Output(1, 0, "desk", b"x"),)),
        SnapshotTaken(1, 3, b""),
    ],
    ids=["much", "outputs", "a state"],
)
def test_an_awaited_answer_runs_a_turn_and_overtakes_nothing(urgent: Any, monkeypatch: Any) -> None:
    async def test(driver: Driver, core: Core, _clock: Clock) -> None:
        hand_out(driver)
        from_thread(driver, SMALL, urgent)
        await rounds()
        assert core.turns == [[SMALL, urgent]]

    with_driver(test, monkeypatch)


def test_an_application_that_takes_its_time_asks_for_a_turn_itself(monkeypatch: Any) -> None:
    """The turn that would have looked is over, so nobody looks any more."""

    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        hand_out(driver)
        clock.now += ANSWER_NS
        driver.wake()
        await rounds()
        assert core.turns == [[]]
        from_thread(driver, SMALL)
        await rounds()
        assert core.turns == [[], [SMALL]]

    with_driver(test, monkeypatch)


def test_a_turn_takes_place_in_time_to_look_for_answers(monkeypatch: Any) -> None:
    async def test(driver: Driver, _core: Core, clock: Clock) -> None:
        hand_out(driver)
        driver._arm()
        assert driver._timer_at == clock.now + ANSWER_NS

    with_driver(test, monkeypatch)


def test_a_timer_that_is_too_early_makes_no_turn(monkeypatch: Any) -> None:
    """Most deadlines move on before they come: the timer of the old one stays, and only looks."""

    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        core.deadline = clock.now + 10 * MILLISECOND
        driver._arm()
        timer = driver._timer
        core.deadline = clock.now + 30 * MILLISECOND
        driver._arm()
        assert driver._timer is timer
        clock.now += 10 * MILLISECOND
        driver._due()
        await rounds()
        assert not core.turns
        assert driver._timer_at == core.deadline
        clock.now = core.deadline
        driver._due()
        await rounds()
        assert len(core.turns) == 1

    with_driver(test, monkeypatch)


def test_a_deadline_that_comes_earlier_moves_the_timer(monkeypatch: Any) -> None:
    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        core.deadline = clock.now + 30 * MILLISECOND
        driver._arm()
        core.deadline = clock.now + 10 * MILLISECOND
        driver._arm()
        assert driver._timer_at == core.deadline
        assert driver._timer is not None
        assert driver._timer.when() - driver._loop.time() <= 0.011

    with_driver(test, monkeypatch)


def test_nodes_run_on_uvloop_where_it_is_installed_and_without_it_elsewhere(
    monkeypatch: Any,
) -> None:
    uvloop = pytest.importorskip("uvloop")
    assert loop_factory() is uvloop.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is asyncio.new_event_loop

    async def answer() -> int:
        return 42

    assert run(answer()) == 42


def test_what_comes_before_the_first_turn_waits_for_it() -> None:
    """A start may still fail; until it is done nothing may happen that cannot be taken back."""

    async def test() -> None:
        core = Core()
        nothing: Any = lambda *_: None
        driver = Driver(core, nothing, nothing, nothing)  # type: ignore[arg-type]  # all that a turn needs
        driver.answer(UNIT, SMALL)
        await rounds()
        driver.leave()
        assert not core.turns
        driver.start()
        await rounds()
        assert core.turns == [[SMALL]]
        driver.halt()

    asyncio.run(test())


def test_whatever_fails_around_a_turn_there_is_a_next_one(monkeypatch: Any) -> None:
    """What applications sent, what is recorded, how a unit failed; and the turn itself."""

    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        def broken(*_: Any) -> None:
            raise OSError("no room on the disk")

        def turn(_now: int, _inputs: Any) -> Result:
            core.turns.append([])
            core.deadline = clock.now + 10 * MILLISECOND
            return Result(len(core.turns), [], [], ["a fact"], ["a failure"], more=False)  # type: ignore[list-item]

        driver._record = driver._on_failure = broken
        driver._before_turn = [broken]
        core.turn = turn  # type: ignore[method-assign]
        driver.wake()
        await rounds()
        assert len(core.turns) == 1
        assert driver._timer_at == core.deadline
        core.turn = broken  # type: ignore[assignment, method-assign]
        core.deadline = clock.now + 5 * MILLISECOND
        driver._loop.set_exception_handler(lambda *_: None)
        driver.wake()
        await rounds()
        assert driver._timer_at == core.deadline

    with_driver(test, monkeypatch)


def test_a_message_log_that_was_read_is_handed_over_however_much_waits(monkeypatch: Any) -> None:
    """The log waits for it, and asks nobody again before it comes."""

    async def test(driver: Driver, core: Core, _clock: Clock) -> None:
        class Writer:
            full = False

            def load(self, *_: Any) -> Future[Any]:
                read: Future[Any] = Future()
                read.set_result([(b"key", b"value")])
                return read

        driver.use_writer(Writer())  # type: ignore[arg-type]
        while driver.intake.room(SYNC):
            driver.intake.force(SYNC, "link/x", SMALL, 8 << 20)
        driver._read_table(ReadTable("messages/book", "log/1"))
        await rounds()
        for _ in range(30):
            driver.wake()
            await rounds()
        read = [item for turn in core.turns for item in turn if isinstance(item, TableRead)]
        assert read == [TableRead("log/1", [(b"key", b"value")])]

    with_driver(test, monkeypatch)


def test_what_adapters_carry_is_recorded_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: busy windows need a load fact, with bytes, packets, the longest queue and drops."""
    from types import SimpleNamespace

    from holdfast.links.ports import FlowOpened, Transmit
    from holdfast.telemetry.facts import LoadFact
    from holdfast.transports.port import Counters
    from holdfast.types import SECOND, FlowId

    recorded: list[Any] = []

    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        driver._record = recorded.extend
        sent: list[Any] = []
        counters = Counters(dropped=3, queued_bytes_max=500)
        transport: Any = SimpleNamespace(
            counters=counters, transmit=lambda _flow, packets: sent.extend(packets)
        )
        driver.transports["red", "udp"] = transport
        driver.load.adapter("red", "lan1")
        driver.opened(FlowOpened(FlowId(1), "red", "udp", "127.0.0.1", 1, inbound=False))
        driver.arrived(FlowId(1), [memoryview(b"12345"), memoryview(b"678")], clock.now)
        driver._transmit(Transmit(FlowId(1), [b"1234567"]))
        clock.now += 61 * SECOND
        driver._run()
        (fact,) = recorded
        assert isinstance(fact, LoadFact)
        assert (fact.adapter, fact.subnet, fact.interval_ms) == ("red", "lan1", 61_000)
        assert (fact.sent_bytes, fact.sent_packets) == (7, 1)
        assert (fact.received_bytes, fact.received_packets) == (8, 2)
        assert (fact.queued_bytes, fact.drops) == (500, 3)
        clock.now += 61 * SECOND
        driver._run()
        assert recorded[1].sent_bytes == recorded[1].drops == recorded[1].queued_bytes == 0

    with_driver(test, monkeypatch)


def test_a_turn_that_is_late_or_takes_long_is_told_to_the_core(monkeypatch: Any) -> None:
    """What it sends carries the time at which it began; listeners would see a delay of the path."""

    async def test(driver: Driver, core: Core, clock: Clock) -> None:
        def work(_: Any) -> None:
            clock.now += 30_000_000

        driver.handle(Slow, work)
        core.effects = [Slow()]
        driver.wake()
        await rounds()
        assert core.lags[-1] == 30_000_000
        core.effects = []
        driver.wake()
        await rounds()
        assert core.lags[-1] == 0

    with_driver(test, monkeypatch)


class Slow:
    """An effect that takes long."""
