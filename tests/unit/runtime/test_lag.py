"""Two nodes beside a busy loop: a processor that is not there is no fault of the network."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.unit.runtime.pairs import eventually, pair

from holdfast.runtime.node import Node

LOOKS = 30


@contextmanager
def busy() -> Iterator[None]:
    """A thread that takes the interpreter for 15 ms whenever a node makes a system call: its turns take long, and what
    they send leaves late."""
    over = Event()

    def spin() -> None:
        while not over.is_set():
            pass

    before = sys.getswitchinterval()
    thread = Thread(target=spin)
    sys.setswitchinterval(0.015)
    thread.start()
    try:
        yield
    finally:
        over.set()
        sys.setswitchinterval(before)
        thread.join()


def alarms(node: Node) -> list[str]:
    return [incident["text"] for incident in node.status()["incidents"]]


def test_a_busy_processor_is_no_fault_of_a_path() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            seen: list[str] = []
            late: list[int] = []

            def enough() -> bool:
                seen.extend(alarms(ann) + alarms(ben))
                late.append(min(ann.status()["lag_ms"], ben.status()["lag_ms"]))
                return len(late) >= LOOKS and max(late) >= 10

            with busy():
                await eventually(enough)
            assert seen == []

    asyncio.run(run())
