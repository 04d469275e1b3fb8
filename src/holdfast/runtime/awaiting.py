"""Callbacks of applications that must not be coroutine functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable, iscoroutine, iscoroutinefunction


def is_async(call: Callable[..., object]) -> bool:
    """Whether a call returns an awaitable and does nothing until it is awaited."""
    return iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004 not whether


def refuse_awaitable(result: object) -> None:
    """The result of a listener is ignored, unless it is work that has not started."""
    if isawaitable(result) and not asyncio.isfuture(result):
        if iscoroutine(result):
            result.close()
        raise TypeError(
            f"it returned a {type(result).__name__} that is not awaited: it did nothing"
        )
