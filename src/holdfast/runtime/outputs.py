"""What applications of groups say to the outside, between the driver and those who listen or carry it further."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.group.ports import Output, OutputsReady, OutputsSent, SendOutputs

log = logging.getLogger("holdfast")

Listener = Callable[[Output], None]
Send = Callable[[Output], Awaitable[None]]


class OutputDesk:
    """Hands outputs that arrived to listeners, and outputs for foreign destinations to whoever sends them."""

    def __init__(self, sent: Callable[[str, OutputsSent], None]) -> None:
        self._sent = sent
        self._listeners: dict[str, Listener] = {}
        self._senders: dict[str, Send] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """One at a time for each destination: a second order to send comes while the first is under way."""

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
        key = (group, effect.destination)
        task = self._tasks.get(key)
        if send is not None and (task is None or task.done()):
            self._tasks[key] = asyncio.get_running_loop().create_task(self._send(effect, send))

    async def _send(self, effect: SendOutputs, send: Send) -> None:
        for output in effect.outputs:
            try:
                await send(output)
            except Exception as error:  # noqa: BLE001 the application's own; what was not sent is sent again
                log.warning(
                    "an output to %s failed, and is sent again: %s", effect.destination, error
                )
                return
            self._sent(effect.unit, OutputsSent(effect.destination, output.position, output.k))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
