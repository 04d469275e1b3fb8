"""The thread that an application works in, and how it says how far it has come."""

from __future__ import annotations

import threading
from itertools import count
from queue import Queue
from typing import Any

import pytest

from holdfast import Batch, Context, Replica
from holdfast.group.ports import Applied, Apply
from holdfast.runtime import worker as worker_module
from holdfast.runtime.worker import REPORT_NS, AppWorker
from holdfast.wire.frames import StreamId


class Gated(Replica):
    """Does not begin before it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def apply(self, batch: Batch, context: Context) -> None:
        assert self.gate.wait(10)

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None: ...


def job(index: int) -> Apply:
    batch = Batch(index, StreamId(b"s" * 16, 1, 0), index, [memoryview(b"x")])
    return Apply("replica/book", index, 0, batch, 1)


def reports(monkeypatch: pytest.MonkeyPatch, step_ns: int) -> list[int]:
    """The entries up to which five are reported as applied, when the clock shows `step_ns` more at each look."""
    clock = count(0, step_ns) if step_ns else iter(lambda: 7, 8)
    monkeypatch.setattr(worker_module, "monotonic_ns", lambda: next(clock))
    got: Queue[Any] = Queue()
    application = Gated()
    worker = AppWorker("book", application, got.put)
    for index in range(1, 6):
        worker.submit(job(index))
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
