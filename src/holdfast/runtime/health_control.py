"""Health requests of the control socket, such as `{"do": "health", "what": "find", "size": 4000}`.

`watch` takes several requests: the first one opens a subscription and returns its number, each later one waits for
changes. A subscription without requests for a minute is closed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.runtime.health import Health, PathSnapshot, Subscription
from holdfast.types import SECOND, Nanos

WAIT_S_MAX: Final = 20.0
FORGOTTEN_NS: Final = 60 * SECOND
NEWS_AT_ONCE: Final = 500
WATCHERS_MAX: Final = 16


class _Watcher:
    def __init__(self, subscription: Subscription, now: Nanos) -> None:
        self.subscription = subscription
        self.asked_at = now


class HealthControl:
    """The handler of `health` requests."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._watchers: dict[int, _Watcher] = {}
        self._numbers = count(1)
        self._whats: dict[str, Callable[..., Any]] = {
            "table": lambda: {"paths": health.table()},
            "incidents": lambda: {"incidents": health.incidents()},
            "find": lambda **how: {"found": health.find(**how)},
            "values": lambda subnet: {"values": health.values(subnet)},
            "report": lambda adapter: {"report": health.report(adapter)},
            "explain": lambda sender, listener: {"paths": health.explain(sender, listener)},
            "history": self._history,
            "reset": lambda **how: {"reset": health.reset(**how)},
            "tune": self._tune,
            "watch": self._watch,
        }

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request.get("what", "table")
        if what not in self._whats:
            raise MisuseError(f"unknown health request {what!r}; known: {', '.join(self._whats)}")
        fields = {key: value for key, value in request.items() if key not in ("do", "what")}
        try:
            answer = self._whats[what](**fields)
        except TypeError as error:
            raise MisuseError(f"health {what}: {error}; nothing was done") from None
        if inspect.isawaitable(answer):
            answer = await answer
        plain: dict[str, Any] = msgspec.to_builtins(answer)
        return plain

    def _history(self, since_s: float = 0, **how: Any) -> dict[str, Any]:
        since = timedelta(seconds=since_s) if since_s else None
        return {"history": self._health.history(since=since, **how)}

    def _tune(self, **how: Any) -> dict[str, Any]:
        self._health.tune(**how)
        return {"tuned": True}

    async def _watch(
        self, watcher: int = 0, wait_s: float = WAIT_S_MAX, **wanted: Any
    ) -> dict[str, Any]:
        now = monotonic_ns()
        self._forget(now)
        if not watcher:
            if len(self._watchers) >= WATCHERS_MAX:
                raise MisuseError(
                    f"there are already {WATCHERS_MAX} watching programs; nothing was opened"
                )
            watcher = next(self._numbers)
            self._watchers[watcher] = _Watcher(self._health.subscribe(**wanted), now)
        known = self._watchers.get(watcher)
        if known is None:
            raise MisuseError(
                f"watch {watcher} was closed: there was no request for a minute; start again"
            )
        news = await _take(known.subscription, min(max(wait_s, 0), WAIT_S_MAX))
        known.asked_at = monotonic_ns()
        return {"watcher": watcher, "news": news}

    def _forget(self, now: Nanos) -> None:
        for number, watcher in list(self._watchers.items()):
            if now - watcher.asked_at > FORGOTTEN_NS:
                watcher.subscription.close()
                del self._watchers[number]


async def _take(subscription: Subscription, wait_s: float) -> list[dict[str, Any]]:
    """The changes so far; waits for the first one."""
    news: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(wait_s):
            while len(news) < NEWS_AT_ONCE and (not news or subscription.waiting):
                item = await anext(subscription)
                kind = "snapshot" if isinstance(item, PathSnapshot) else "change"
                news.append({"kind": kind, **msgspec.to_builtins(item)})
    except TimeoutError:
        pass  # nothing has changed, or there is no more
    return news
