"""The event loop of nodes: uvloop where it is installed (`pip install holdfast[speed]`), asyncio's otherwise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOP: Final = "HOLDFAST_LOOP"
"""The environment variable that chooses: `asyncio` or `uvloop`."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop of this process."""
    if os.environ.get(LOOP, "uvloop") == "uvloop":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop
    return asyncio.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on the loop that suits this process."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
