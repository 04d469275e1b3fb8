"""The alarm of a driver: a short wait without polling."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic_ns
from typing import Any

import pytest

from holdfast.machine import Result
from holdfast.node.config import NodeConfig
from holdfast.runtime import driver as module
from holdfast.runtime.alarm import open_alarm
from holdfast.runtime.driver import AT_ONCE_NS, Driver
from holdfast.runtime.loop import run
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a timer of Linux")
WAIT_NS = 300 * MICROSECOND


def test_an_alarm_rings_once_and_not_early_and_can_be_set_again() -> None:
    async def main() -> None:
        rang: list[int] = []
        again = asyncio.Event()

        def ring() -> None:
            rang.append(monotonic_ns())
            again.set()

        alarm = open_alarm(asyncio.get_running_loop(), ring)
        assert alarm is not None
        for after_ns in (WAIT_NS, 0, 3 * MILLISECOND):
            again.clear()
            begin = monotonic_ns()
            alarm.set(60 * SECOND)
            alarm.set(after_ns)
            async with asyncio.timeout(10):
                await again.wait()
            assert rang[-1] - begin >= after_ns
        assert len(rang) == 3
        alarm.set(1)
        alarm.close()
        alarm.close()
        await asyncio.sleep(0)
        assert len(rang) == 3

    run(main())


class Core:
    """Has one deadline that is close, after its first turn."""

    def __init__(self) -> None:
        self.config = NodeConfig(domain="unit", name="ann")
        self.turns: list[int] = []
        self.deadline = NEVER
        self.done = asyncio.Event()

    def lagged(self, _lag_ns: int) -> None: ...

    def start(self, _now: int) -> Result:
        return Result(0, [], [], [], [], more=False)

    def turn(self, _now: int, _inputs: Any) -> Result:
        self.turns.append(monotonic_ns())
        first = len(self.turns) == 1
        self.deadline = self.turns[0] + WAIT_NS if first else NEVER
        if not first:
            self.done.set()
        return Result(len(self.turns), [], [], [], [], more=False)

    def next_deadline(self) -> int:
        return self.deadline


@pytest.mark.parametrize("has_alarm", [True, False])
def test_a_close_deadline_is_met_and_without_polling_if_there_is_an_alarm(
    has_alarm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WAIT_NS < AT_ONCE_NS
    if not has_alarm:
        monkeypatch.setattr(module, "open_alarm", lambda *_: None)
    polls: list[int] = []

    class Watched(Driver):
        def _look(self) -> None:
            polls.append(monotonic_ns())
            super()._look()

    async def main() -> None:
        core = Core()
        nothing: Any = lambda *_: None
        driver = Watched(core, nothing, nothing, nothing)  # type: ignore[arg-type]  # all that a turn needs
        driver.start()
        driver.wake()
        async with asyncio.timeout(10):
            await core.done.wait()
        assert core.turns[1] - core.turns[0] >= WAIT_NS
        assert (len(polls) == 0) is has_alarm
        driver.halt()

    run(main())
