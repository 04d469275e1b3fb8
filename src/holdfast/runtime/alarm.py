"""An alarm of the event loop with the resolution of the kernel.

Timers of event loops count in milliseconds. A wait of 0.3 ms would take up to 2 ms with one, and polling the clock
instead keeps a core busy, which other processes may need at that moment. Linux has timers that are file descriptors.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from holdfast.types import SECOND, Nanos

_CLOCK_MONOTONIC: Final = 1


class _Spec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """One alarm, set again as often as required."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], None], libc: Any, file: int
    ) -> None:
        self._loop = loop
        self._call = call
        self._set_time = libc.timerfd_settime
        self._file = file
        self._spec = _Spec()
        self._pointer = ctypes.byref(self._spec)
        loop.add_reader(file, self._rings)

    def set(self, after_ns: Nanos) -> None:
        """Call once after this time, and no longer at an earlier setting."""
        self._spec.value_s, self._spec.value_ns = divmod(max(1, after_ns), SECOND)
        self._set_time(self._file, 0, self._pointer, None)

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            self._loop.remove_reader(file)
            os.close(file)

    def _rings(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was set again meanwhile
        self._call()


def open_alarm(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Alarm | None:
    """An alarm of this loop; None if the system has none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError, NotImplementedError):
        libc = ctypes.CDLL(None, use_errno=True)
        file = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if file >= 0:
            try:
                return Alarm(loop, call, libc, file)
            except NotImplementedError:
                os.close(file)
    return None
