"""What applications of groups say to the outside, between the driver and those who listen or carry it further."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.group.config import replica_unit
from holdfast.group.ports import Output, OutputsReady, OutputsSent, SendOutputs

log = logging.getLogger("holdfast")

Listener = Callable[[Output], None]
Send = Callable[[Output], Awaitable[None]]
_Key = tuple[str, str]
"""A replica's unit, and a destination of its outputs."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
"""After a failure an output is tried again, later each time."""


class OutputDesk:
    """Hands outputs that arrived to listeners, and outputs for foreign destinations to whoever sends them."""

    def __init__(self, sent: Callable[[str, OutputsSent], None]) -> None:
        self._sent = sent
        self._listeners: dict[str, Listener] = {}
        self._senders: dict[str, Send] = {}
        self._waiting: dict[_Key, deque[Output]] = {}
        """What is to be sent, in order, by one task for each destination. That one output has arrived says the same of
        all before it. So none may be left out: not when more come while one is under way, not when one fails, and not
        because nobody sends them yet."""
        self._tasks: dict[_Key, asyncio.Task[None]] = {}

    def listen(self, group: str, callback: Listener) -> None:
        self._listeners[group] = callback

    def send_with(self, group: str, send: Send) -> None:
        self._senders[group] = send
        for key in list(self._waiting):
            if key[0] == replica_unit(group):
                self._begin(key, send)

    def take(self, effect: OutputsReady | SendOutputs) -> None:
        if isinstance(effect, OutputsReady):
            listener = self._listeners.get(effect.group)
            for output in effect.outputs if listener is not None else ():
                assert listener is not None
                listener(output)
            return
        key = (effect.unit, effect.destination)
        waiting = self._waiting.setdefault(key, deque())
        # Some may be ordered again while they wait.
        last = _id(waiting[-1]) if waiting else (0, 0)
        waiting.extend(output for output in effect.outputs if _id(output) > last)
        send = self._senders.get(effect.unit.partition("/")[2])
        if send is not None:
            self._begin(key, send)

    def _begin(self, key: _Key, send: Send) -> None:
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._work(key, send))
            self._tasks[key] = task

    async def _work(self, key: _Key, send: Send) -> None:
        unit, destination = key
        waiting = self._waiting[key]
        delay_s = RETRY_S
        while waiting:
            output = waiting[0]
            try:
                await send(output)
            except Exception as error:  # noqa: BLE001 the application's own
                log.warning("an output to %s failed, and is sent again: %s", destination, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            delay_s = RETRY_S
            waiting.popleft()
            self._sent(unit, OutputsSent(destination, output.position, output.k))
        del self._waiting[key], self._tasks[key]

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


def _id(output: Output) -> tuple[int, int]:
    return output.position, output.k
