"""The time slice that the scheduler of the kernel gives to a process that runs a node.

A process that has waited for a packet competes with processes that compute. Linux from 6.12 on lets a process ask for
shorter turns of the processor, which it then gets sooner; its share of the processor stays the same. A turn of a node
takes a tenth of a millisecond, so it rarely needs the default slice of some milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from typing import Final

from holdfast.types import MICROSECOND, Nanos

SLICE_NS: Final = 400 * MICROSECOND
"""Several turns of a node. Half of that, or less, causes more changes between processes than it saves waiting."""
_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""The numbers of the system calls `sched_setattr` and `sched_getattr`."""


class _Attributes(ctypes.Structure):
    """`struct sched_attr`."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def slice_of_this_thread() -> Nanos:
    """The slice that this thread has asked for, or that its kernel gives to all; 0 if the kernel does not tell."""
    found = _read()
    return found.runtime if found is not None else 0


def ask_for_short_slice() -> bool:
    """Ask for short turns of the processor, for this thread and those that it starts. False if that is not possible, or
    if someone has chosen another policy for this process, such as real time."""
    found = _read()
    if found is None or found.policy != os.SCHED_OTHER:
        return False
    found.runtime = SLICE_NS
    return _call(0, found, 0)


def _read() -> _Attributes | None:
    found = _Attributes()
    return found if _call(1, found, ctypes.sizeof(found), 0) else None


def _call(which: int, attributes: _Attributes, *rest: int) -> bool:
    numbers = _CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        return False
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.syscall(numbers[which], 0, ctypes.byref(attributes), *rest) == 0)
    return False
