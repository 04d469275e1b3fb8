"""What applications of groups say to the outside, between the driver and those who listen or carry it further."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.group.ports import Output, OutputsReady, OutputsSent, SendOutputs

log = logging.getLogger("holdfast")

Listener = Callable[[Output], None]
Send = Callable[[Output], Awaitable[None]]
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
"""After a failure an output is tried again, later each time."""


class OutputDesk:
    """Hands outputs that arrived to listeners, and outputs for foreign destinations to whoever sends them."""

    def __init__(self, sent: Callable[[str, OutputsSent], None]) -> None:
        self._sent = sent
        self._listeners: dict[str, Listener] = {}
        self._senders: dict[str, Send] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._waiting: dict[tuple[str, str], deque[Output]] = {}
        """What one task for each destination sends, in order. That one has arrived says the same of all before it, so
        none may be left out, whatever fails."""

    def listen(self, group: str, callback: Listener) -> None:
        self._listeners[group] = callback

    def send_with(self, group: str, send: Send) -> None:
        self._senders[group] = send

    def take(self, effect: OutputsReady | SendOutputs) -> None:
        if isinstance(effect, OutputsReady):
            listener = self._listeners.get(effect.group)
            for output in effect.outputs if listener is not None else ():
                assert listener is not None
                listener(output)
            return
        group = effect.unit.partition("/")[2]
        send = self._senders.get(group)
        if send is None or not effect.outputs:
            return
        key = (group, effect.destination)
        waiting = self._waiting.get(key)
        if waiting is not None:
            # An order to send again comes while it is under way.
            last = (waiting[-1].position, waiting[-1].k)
            waiting.extend(one for one in effect.outputs if (one.position, one.k) > last)
            return
        waiting = self._waiting[key] = deque(effect.outputs)
        task = asyncio.get_running_loop().create_task(self._send(effect.unit, key, waiting, send))
        self._tasks[key] = task

    async def _send(
        self, unit: str, key: tuple[str, str], waiting: deque[Output], send: Send
    ) -> None:
        delay_s = RETRY_S
        while waiting:
            output = waiting[0]
            try:
                await send(output)
            except Exception as error:  # noqa: BLE001 the application's own
                log.warning("an output to %s failed, and is sent again: %s", key[1], error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            delay_s = RETRY_S
            if len(waiting) == 1:
                del self._waiting[key]
            waiting.popleft()
            self._sent(unit, OutputsSent(output.destination, output.position, output.k))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
