"""Two network namespaces with a cable between them, made by a test and gone with it. Needs root."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

_NET: Final = 0x40000000
_ALL: Final = 0x0003
_numbers = count()

T = TypeVar("T")


def possible() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def cable(mtu: int) -> Iterator[tuple[str, str]]:
    """The names of two namespaces: 10.77.0.1 and fd77::1 live in the first, 10.77.0.2 and fd77::2 in the second."""
    stem = f"hf{os.getpid()}x{next(_numbers)}"
    names = (f"{stem}a", f"{stem}b")
    for name in names:
        _ip("netns", "add", name)
    try:
        ends = ("netns", names[0]), ("netns", names[1])
        _ip("link", "add", "c0", *ends[0], "type", "veth", "peer", "name", "c0", *ends[1])
        for number, name in enumerate(names, 1):
            _ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "c0")
            _ip("-n", name, "address", "add", f"fd77::{number}/64", "dev", "c0", "nodad")
            _ip("-n", name, "link", "set", "lo", "up")
            # One segment at a time, or the tap would see what a card cuts later.
            _ip("-n", name, "link", "set", "c0", "up", "mtu", str(mtu), "gso_max_segs", "1")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _enter(name: str) -> None:
    """Move this thread into a namespace; threads that it starts follow."""
    with (Path("/run/netns") / name).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {name}")


def inside(name: str, work: Callable[[], T]) -> T:
    """Do something in a namespace: sockets stay where they were made."""
    done: list[T] = []

    def run() -> None:
        _enter(name)
        done.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return done[0]


class Loop:
    """An event loop that lives in a namespace."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True)
        self._thread.start()

    def _run(self, name: str) -> None:
        _enter(name)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Seen(msgspec.Struct, frozen=True):
    """An IPv4 packet as it crossed the cable."""

    size: int
    protocol: int
    ttl: int
    df: bool
    fragment: bool
    source: tuple[str, int]
    body: bytes
    """Everything behind the head of IP."""
    number: int
    """The same for all fragments of a packet."""

    @property
    def tcp_head(self) -> int:
        return (self.body[12] >> 4) * 4


class Tap:
    """Hears everything on the cable."""

    def __init__(self, name: str) -> None:
        self._socket = inside(name, self._open)

    @staticmethod
    def _open() -> socket.socket:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(_ALL))
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        tap.bind(("c0", _ALL))
        tap.setblocking(False)
        return tap

    def seen(self) -> list[Seen]:
        """What crossed since the last call."""
        found = []
        while True:
            try:
                data, (_, kind, *_) = self._socket.recvfrom(70_000)
            except BlockingIOError:
                return found
            if kind == 0x0800:
                found.append(_packet(data))

    def close(self) -> None:
        self._socket.close()


def _packet(data: bytes) -> Seen:
    head = (data[0] & 15) * 4
    flags = int.from_bytes(data[6:8], "big")
    size = int.from_bytes(data[2:4], "big")
    body = data[head:size]
    port = int.from_bytes(body[:2], "big") if not flags & 0x1FFF else 0
    source = (socket.inet_ntoa(data[12:16]), port)
    return Seen(
        size,
        data[9],
        data[8],
        bool(flags & 0x4000),
        bool(flags & 0x3FFF),
        source,
        body,
        int.from_bytes(data[4:6], "big"),
    )
