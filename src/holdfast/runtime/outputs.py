"""Outputs of groups, between the driver and the callbacks that receive or send them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import unwrap
from time import monotonic_ns
from typing import Final

from holdfast.errors import MisuseError
from holdfast.group.config import OUTPUT_RECEIVER
from holdfast.group.ports import (
    Output,
    OutputsReady,
    OutputsRefused,
    OutputsSent,
    OutputsTaken,
    SendOutputs,
    StopOutputs,
)
from holdfast.runtime.awaiting import is_async, refuse_awaitable
from holdfast.types import MILLISECOND

log = logging.getLogger("holdfast")

Answer = OutputsSent | OutputsTaken | OutputsRefused
Listener = Callable[[Output], object]
Send = Callable[[Output], Awaitable[None]]
_Key = tuple[str, str]
"""The unit of a replica, and a destination of its outputs."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
"""After a failure an output is retried, with increasing delays."""
UNHEARD_MAX: Final = 16 << 20
"""Bytes kept for groups without a listener, of all of them together. More is refused, and sent again later."""
OVERHEAD: Final = 256
"""Counted for each output in addition to its bytes."""
CALL_NS: Final = 5 * MILLISECOND
"""Listeners run on the event loop for about this long at a time."""


class OutputDesk:
    """Passes outputs for this node to the listener here, and those for other destinations to the senders. Each result
    is reported in order and without gaps, because the delivery of one output implies that of all before it."""

    def __init__(self, answer: Callable[[str, Answer], None]) -> None:
        self._answer = answer
        self._listeners: dict[str, Listener] = {}
        self._arrived: dict[str, deque[Output]] = {}
        """Outputs not delivered yet, per group: there is no listener, or it failed."""
        self._unheard: dict[str, int] = {}
        """Bytes of outputs of groups without a listener, and of all of them together."""
        self._unheard_bytes = 0
        self._is_full = False
        """A lack of room has been reported."""
        self._last: dict[str, tuple[int, int, int]] = {}
        """The epoch of each group, and its last output that arrived."""
        self._retries: dict[str, asyncio.Handle | None] = {}
        """Groups whose listener will be called again, because it failed or has more to do, or is being called."""
        self._senders: dict[str, Send] = {}
        self._waiting: dict[_Key, deque[Output]] = {}
        """Outputs to be sent, in order, with one task per destination. They may be ordered while one is in flight,
        repeatedly, and before there is a sender."""
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._closing = False

    def listen(self, group: str, callback: Listener) -> None:
        if is_async(callback):
            raise MisuseError(
                f"the listener for outputs of {group} must not be a coroutine function; it was not "
                "registered. Let it put outputs into an `asyncio.Queue`, or start a task."
            )
        self._listeners[group] = callback
        self._unheard_bytes -= self._unheard.pop(group, 0)
        self._hand_over(group)

    def send_with(self, group: str, send: Send) -> None:
        if not is_async(unwrap(send)):
            raise MisuseError(
                f"the sender of outputs of {group} must be an `async def`: an output counts as sent "
                "when it has returned; it was not registered"
            )
        self._senders[group] = send
        for key in list(self._waiting):
            self._begin(key)

    def take(self, effect: OutputsReady | SendOutputs | StopOutputs) -> None:
        if self._closing:
            return  # the result can no longer be reported
        if isinstance(effect, OutputsReady):
            self._arrive(effect)
            return
        if isinstance(effect, StopOutputs):
            for key, waiting in self._waiting.items():
                if key[0] == effect.unit:
                    waiting.clear()  # the running call ends and finds nothing more
            return
        key = (effect.unit, effect.destination)
        waiting = self._waiting.setdefault(key, deque())
        # Some may be ordered again while they wait.
        last = _id(waiting[-1]) if waiting else (0, 0)
        waiting.extend(output for output in effect.outputs if _id(output) > last)
        self._begin(key)

    # -- for the application here --------------------------------------------------------------------------------

    def _arrive(self, effect: OutputsReady) -> None:
        group, group_epoch = effect.group, effect.group_epoch
        before = self._last.get(group, (group_epoch, 0, -1))
        if group_epoch != before[0]:
            before = (group_epoch, 0, -1)
        if effect.after > before[1:]:
            return  # those in between were refused, and arrive again before these
        # A unit that was rebuilt after a failure requests some again.
        new = [o for o in effect.outputs if _id(o) > before[1:]]
        if new and not self._has_room(group, new):
            self._answer(OUTPUT_RECEIVER, OutputsRefused(group, group_epoch))
            return
        if new:
            self._last[group] = (group_epoch, *_id(new[-1]))
        self._arrived.setdefault(group, deque()).extend(new)
        self._hand_over(group)

    def _has_room(self, group: str, outputs: list[Output]) -> bool:
        """For groups with a listener there always is: their senders wait for an answer."""
        if group in self._listeners:
            return True
        size = sum(len(output.payload) + OVERHEAD for output in outputs)
        if self._unheard_bytes + size > UNHEARD_MAX:
            if not self._is_full:
                log.warning(
                    "there is no listener for outputs of %s, and no more of them are kept",
                    group,
                    extra={"event": "outputs_full", "subsystem": "group", "group": group},
                )
            self._is_full = True
            return False
        self._unheard[group] = self._unheard.get(group, 0) + size
        self._unheard_bytes += size
        return True

    def _hand_over(self, group: str) -> None:
        if group in self._listeners and group in self._arrived and group not in self._retries:
            self._call(group)

    def _call(self, group: str, delay_s: float = RETRY_S) -> None:
        """Call the listener with arrived outputs. If it takes long, other work runs in between."""
        arrived = self._arrived[group]
        self._retries[group] = None  # not recursively from within the listener
        loop = asyncio.get_running_loop()
        until_ns = monotonic_ns() + CALL_NS
        taken: Output | None = None
        while arrived:
            try:
                refuse_awaitable(self._listeners[group](arrived[0]))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 the application's own
                log.warning(
                    "the listener for outputs of %s failed; retry in %g s: %r",
                    group,
                    delay_s,
                    error,
                    extra={
                        "event": "output_listener_failed",
                        "subsystem": "group",
                        "group": group,
                        "error": repr(error),
                    },
                )
                again_s = min(2 * delay_s, RETRY_S_MAX)
                self._retries[group] = loop.call_later(delay_s, self._call, group, again_s)
                break
            taken = arrived.popleft()
            delay_s = RETRY_S
            if arrived and monotonic_ns() >= until_ns:
                self._retries[group] = loop.call_soon(self._call, group)
                break
        else:
            del self._arrived[group], self._retries[group]
            self._answer(OUTPUT_RECEIVER, OutputsTaken(group, *self._last[group]))
            return
        if taken is not None:
            # Reported at once: these must not be delivered again, even if others fail.
            self._answer(OUTPUT_RECEIVER, OutputsTaken(group, taken.group_epoch, *_id(taken)))

    # -- for the outside -----------------------------------------------------------------------------------------

    def _begin(self, key: _Key) -> None:
        if _group_of(key) in self._senders and key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key))

    async def _work(self, key: _Key) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._send_all(key, task)
        finally:
            # However it ends, the rest is sent when it is ordered again.
            if self._tasks.get(key) is task:
                del self._tasks[key]

    async def _send_all(self, key: _Key, task: asyncio.Task[None]) -> None:
        unit, destination = key
        waiting = self._waiting[key]
        delay_s = RETRY_S
        while waiting:
            output = waiting[0]
            try:
                await self._senders[_group_of(key)](output)
            except (Exception, asyncio.CancelledError) as error:
                if self._closing or task.cancelling():
                    raise  # the node stops, or the program ends; a cancellation by the sender itself is a failure
                log.warning(
                    "an output to %s failed; retry in %g s: %r",
                    destination,
                    delay_s,
                    error,
                    extra={
                        "event": "output_failed",
                        "subsystem": "group",
                        "group": _group_of(key),
                        "destination": destination,
                        "error": repr(error),
                    },
                )
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            delay_s = RETRY_S
            if waiting and waiting[0] is output:
                waiting.popleft()
            self._answer(unit, OutputsSent(destination, output.position, output.k))
        if self._waiting.get(key) is waiting:
            del self._waiting[key]

    def close(self) -> None:
        """No more calls; listeners and senders are kept for the next start."""
        self._closing = True
        for task in self._tasks.values():
            task.cancel()
        for timer in self._retries.values():
            if timer is not None:
                timer.cancel()
        for waiting in self._waiting.values():
            waiting.clear()  # a task that ignores its cancellation finds nothing more
        self._unheard_bytes, self._is_full = 0, False
        for table in (
            self._arrived,
            self._unheard,
            self._last,
            self._retries,
            self._waiting,
            self._tasks,
        ):
            table.clear()

    def open(self) -> None:
        """Reset everything except listeners and senders."""
        self._closing = False


def _group_of(key: _Key) -> str:
    return key[0].partition("/")[2]


def _id(output: Output) -> tuple[int, int]:
    return output.position, output.k
