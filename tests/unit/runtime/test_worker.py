"""The thread that an application works in, and how it says how far it has come."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from queue import Queue
from typing import Any

import msgspec
import pytest

from holdfast import Batch, Context, Replica
from holdfast.errors import MisuseError
from holdfast.group.application import FAILED, TEXT_MAX
from holdfast.group.frames import StreamId
from holdfast.group.ports import (
    AppFailed,
    Applied,
    Apply,
    Output,
    Restored,
    RestoreState,
    SnapshotTaken,
    TakeSnapshot,
)
from holdfast.runtime import worker as worker_module
from holdfast.runtime.worker import QUICK_MESSAGES, QUICK_NS, REPORT_NS, AppWorker


class Gated(Replica):
    """Does not begin before it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def apply(self, batch: Batch, context: Context) -> None:
        assert self.gate.wait(10)

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None: ...


def job(index: int, messages: int = 1) -> Apply:
    batch = Batch(index, StreamId(b"s" * 16, 1, 0), index, [memoryview(b"x")] * messages)
    return Apply("replica/book", index, 0, batch, 1)


def reports(monkeypatch: pytest.MonkeyPatch, step_ns: int) -> list[int]:
    """The entries up to which five are reported as applied, when the clock shows `step_ns` more at each look."""
    clock = count(0, step_ns) if step_ns else iter(lambda: 7, 8)
    monkeypatch.setattr(worker_module, "monotonic_ns", lambda: next(clock))
    got: Queue[Any] = Queue()
    application = Gated()
    worker = AppWorker("book", application, got.put)
    for index in range(1, 6):
        worker.submit([job(index)])
    application.gate.set()
    found: list[int] = []
    while not found or found[-1] < 5:
        answer = got.get(timeout=10)
        assert isinstance(answer, Applied)
        found.append(answer.index)
    assert worker.close()
    return found


def test_a_slow_application_is_seen_to_move_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reports(monkeypatch, 2 * REPORT_NS) == [1, 2, 3, 4, 5]


def test_what_a_quick_application_applied_is_reported_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first may have been taken before the others were there."""
    assert len(reports(monkeypatch, 0)) <= 3


class Quick(Replica):
    """Notes in which thread it is called, and may be made to look slow."""

    quick = True

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def apply(self, batch: Batch, context: Context) -> None:
        self.threads.append(threading.get_ident())

    def snapshot(self) -> bytes:
        assert self.gate.wait(10)
        return b"state"

    def restore(self, state: bytes) -> None: ...


def test_a_quick_application_is_called_where_the_messages_are() -> None:
    got: Queue[Any] = Queue()
    application = Quick()
    worker = AppWorker("book", application, got.put)
    worker.submit([job(1), job(2)])
    assert application.threads == [threading.get_ident()] * 2
    assert got.get_nowait() == Applied(2, 2)
    assert worker.close()


def test_a_quick_application_is_never_called_by_two_threads_at_once() -> None:
    """While its thread takes a state, what comes waits there for its turn; then the short way is free again."""
    got: Queue[Any] = Queue()
    application = Quick()
    application.gate.clear()
    worker = AppWorker("book", application, got.put)
    worker.submit([TakeSnapshot("replica/book", 1, 7)])
    worker.submit([job(8)])
    assert not application.threads
    application.gate.set()
    assert got.get(timeout=10) == SnapshotTaken(1, 7, b"state")
    assert got.get(timeout=10) == Applied(8, 1)
    assert threading.get_ident() not in application.threads
    assert any(worker._handed == worker._finished for _ in range(10_000_000))
    worker.submit([job(9)])
    assert application.threads[-1] == threading.get_ident()
    assert worker.close()


def test_one_that_says_it_is_quick_and_is_not_gets_a_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = count(0, QUICK_NS)
    monkeypatch.setattr(worker_module, "monotonic_ns", lambda: next(clock))
    got: Queue[Any] = Queue()
    application = Quick()
    worker = AppWorker("book", application, got.put)
    worker.submit([job(1)])
    assert "is marked quick" in caplog.text
    worker.submit([job(2)])
    while (answer := got.get(timeout=10)).index < 2:
        pass
    assert answer == Applied(2, 1)
    assert [thread == threading.get_ident() for thread in application.threads] == [True, False]
    assert worker.close()


def test_very_many_messages_at_once_are_for_the_thread_of_a_quick_application() -> None:
    """A batch is one call, which nothing can interrupt."""
    got: Queue[Any] = Queue()
    application = Quick()
    worker = AppWorker("book", application, got.put)
    worker.submit([job(1, QUICK_MESSAGES)])
    worker.submit([job(2, QUICK_MESSAGES), job(3)])
    assert got.get(timeout=10).index == 1
    while got.get(timeout=10).index < 3:
        pass
    here = [thread == threading.get_ident() for thread in application.threads]
    assert here == [True, False, False]
    assert worker.close()


def test_what_a_quick_application_has_no_time_for_is_done_by_its_thread_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop is not held up by a long list of jobs, each of which is short."""
    now = [0]
    monkeypatch.setattr(worker_module, "monotonic_ns", lambda: now[0])
    places: list[int] = []

    class Slower(Quick):
        def apply(self, batch: Batch, context: Context) -> None:
            super().apply(batch, context)
            places.append(batch.position)
            now[0] += QUICK_NS // 3

    got: Queue[Any] = Queue()
    application = Slower()
    worker = AppWorker("book", application, got.put)
    worker.submit([job(index) for index in range(1, 51)])
    worker.submit([job(51)])
    index = 0
    while index < 51:
        answer = got.get(timeout=10)
        assert isinstance(answer, Applied)
        assert answer.index > index
        index = answer.index
    assert places == list(range(1, 52))
    here = [thread == threading.get_ident() for thread in application.threads]
    assert here == [True] * 4 + [False] * 47
    assert worker.close()


@pytest.mark.parametrize(
    ("given", "complaint"), [("text", "returned str"), (ValueError("no"), "raised ValueError: no")]
)
def test_a_state_that_cannot_be_had_is_reported_and_the_application_goes_on(
    given: Any, complaint: str
) -> None:
    class Broken(Quick):
        quick = False

        def snapshot(self) -> bytes:
            if isinstance(given, Exception):
                raise given
            return given  # type: ignore[no-any-return]

    got: Queue[Any] = Queue()
    worker = AppWorker("book", Broken(), got.put)
    worker.submit([TakeSnapshot("replica/book", 1, 7), job(8)])
    taken = got.get(timeout=10)
    assert isinstance(taken, SnapshotTaken)
    assert (taken.request, taken.index, taken.data) == (1, 7, b"")
    assert complaint in taken.error
    assert got.get(timeout=10) == Applied(8, 1)
    assert worker.close()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(what: BaseException, quick: bool = False) -> Replica:
    """An application that raises whatever it is asked, until it is given a state."""

    class Fails(Quick):
        broken = True

        def apply(self, batch: Batch, context: Context) -> None:
            if self.broken:
                raise what
            super().apply(batch, context)

        def snapshot(self) -> bytes:
            raise what

        def restore(self, state: bytes) -> None:
            self.broken = False

    Fails.quick = quick
    return Fails()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (ValueError("no word: \ud800"), "ValueError: no word: \\ud800"),
        (Mute(), "Mute, whose text is not available: its __str__ raised RuntimeError"),
        (ValueError("\ud800" * 1000), "ValueError: " + "\\ud800" * 81 + "\\u"),
    ],
    ids=["no text to send", "no text at all", "long"],
)
def test_what_an_application_raises_becomes_text_that_others_can_be_told(
    what: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica tells its leader why it is suspended: what cannot be encoded would stop all its units instead."""
    monkeypatch.setattr(
        worker_module.log, "disabled", True
    )  # who runs tests may not encode it either
    got: Queue[Any] = Queue()
    worker = AppWorker("book", raising(what), got.put)
    worker.submit([TakeSnapshot("replica/book", 1, 7), job(8)])
    assert got.get(timeout=10) == SnapshotTaken(1, 7, b"", f"snapshot() raised {text}")
    assert got.get(timeout=10) == AppFailed(8, text)
    assert msgspec.msgpack.encode(text)
    assert len(text) <= TEXT_MAX
    assert worker.close()


class Panic(BaseException):
    """As extensions in other languages raise it."""


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "what",
    [
        SystemExit(1),
        asyncio.CancelledError(),
        ValueError("a bug"),
        Panic(),
        GeneratorExit(),
        Mute(),
    ],
    ids=lambda what: type(what).__name__,
)
def test_whatever_an_application_raises_suspends_its_replica_and_a_state_helps_it(
    what: BaseException, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The formatter of PySpark, which other tests install, does not survive an exception without a text.
    monkeypatch.setattr(worker_module.log, "disabled", True)
    got: Queue[Any] = Queue()
    worker = AppWorker("book", raising(what, quick), got.put)
    worker.submit([job(1)])
    answer = got.get(timeout=10)
    assert isinstance(answer, AppFailed)
    assert type(what).__name__ in answer.error
    worker.submit([job(2), TakeSnapshot("replica/book", 1, 2)])
    worker.submit([RestoreState("replica/book", 3, b"")])
    worker.submit([job(4)])
    assert got.get(timeout=10) == SnapshotTaken(1, 2, b"", FAILED), "nobody waits for it for ever"
    assert got.get(timeout=10) == Restored(3)
    assert got.get(timeout=10) == Applied(4, 1)
    assert worker.close()


def test_an_interrupt_is_the_programs_on_the_event_loop_and_the_applications_in_its_thread() -> (
    None
):
    got: Queue[Any] = Queue()
    worker = AppWorker("book", raising(KeyboardInterrupt(), quick=True), got.put)
    with pytest.raises(KeyboardInterrupt):
        worker.submit([job(1), job(2)])
    assert got.get_nowait() == AppFailed(1, "KeyboardInterrupt: ")
    assert worker.close()
    worker = AppWorker("book", raising(KeyboardInterrupt()), got.put)
    worker.submit([job(1), job(2)])
    assert got.get(timeout=10) == AppFailed(1, "KeyboardInterrupt: ")
    assert worker.close()


def test_an_applications_thread_does_not_end_before_it_is_asked_to() -> None:
    """Whatever goes wrong in it, the replica gets an answer, and a state is looked at."""
    got: Queue[Any] = Queue()
    troubles = [MemoryError()]

    def answer(item: Any) -> None:
        if troubles:
            raise troubles.pop()
        got.put(item)

    worker = AppWorker("book", Quick(), answer)
    worker._is_quick = False
    worker.submit([job(1)])
    assert got.get(timeout=10) == Applied(1, 1)
    assert got.get(timeout=10) == AppFailed(1, "MemoryError: ")
    worker.submit([RestoreState("replica/book", 3, b"")])
    assert got.get(timeout=10) == Restored(3)
    assert worker.close()


@pytest.mark.parametrize("name", ["apply", "snapshot", "restore", "on_loss", "on_decision"])
@pytest.mark.parametrize("kind", ["coroutine", "generator"])
def test_a_method_that_does_nothing_when_it_is_called_is_refused_at_the_start(
    name: str, kind: str
) -> None:
    async def waits(*_: object) -> None: ...

    def yields(*_: object) -> Any:
        yield

    application = type("Late", (Quick,), {name: waits if kind == "coroutine" else yields})()
    with pytest.raises(MisuseError, match=f"group book: {name} must be a plain function"):
        AppWorker("book", application, lambda _: None)


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_application_says_after_apply_is_refused(fails: bool) -> None:
    """It belongs to no place in the order, so nobody would ever send it."""

    class Remembers(Quick):
        def apply(self, batch: Batch, context: Context) -> None:
            context.output("printer", b"in time")
            self.context = context
            if fails:
                raise ValueError("a bug")

    got: Queue[Any] = Queue()
    application = Remembers()
    worker = AppWorker("book", application, got.put)
    worker.submit([job(1)])
    with pytest.raises(MisuseError, match="not after it has returned; nothing was sent"):
        application.context.output("printer", b"late")
    answer = got.get_nowait()
    if not fails:
        assert answer == Applied(1, 1, (Output(1, 0, "printer", b"in time"),))
    assert worker.close()
