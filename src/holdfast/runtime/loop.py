"""The event loop of `holdfast node`: uvloop if it is installed (`pip install holdfast[speed]`), otherwise that of
asyncio.

An application that runs a `Node` itself uses its own loop, and its own scheduling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.runtime.time_slice import ask_for_short_slice

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop factory of this process."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on that loop, in short turns of the processor."""
    ask_for_short_slice()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
