"""The event loop of `holdfast node`: uvloop where it is installed (`pip install holdfast[speed]`), else asyncio's own.

An application that runs a `Node` itself runs it on whichever loop it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop of this process."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on that loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
