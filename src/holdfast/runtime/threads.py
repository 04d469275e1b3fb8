"""Runs work that must neither block the event loop nor wait for threads that an application keeps busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def aside(call: Callable[[], T]) -> T:
    """Run it in a separate thread: those of the event loop may all be used by an application."""
    executor = ThreadPoolExecutor(1, "holdfast-node")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)


async def to_its_end(call: Callable[[], T]) -> T:
    """Run it in a thread and wait until it is done, even if cancelled: what it opens must be closed."""
    task = asyncio.ensure_future(aside(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # a second cancellation waits as well
                await asyncio.wait([task])
        raise
