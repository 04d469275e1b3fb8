"""Room in the buffers: the quota of one dialog, the budget of a store, and what waits for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from holdfast.dialog.ports import Send
from holdfast.types import NEVER, Nanos

WAITING_MAX: Final = 1024
"""Sends of one dialog that wait for room. One more is refused."""


class Quota:
    """The send buffer's quota of one dialog."""

    __slots__ = ("bytes_max", "messages_max", "reserved", "reserved_bytes", "waiting")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.reserved: dict[bytes, tuple[int, int]] = {}
        """Messages and bytes of tentative sends, by transaction."""
        self.reserved_bytes = 0
        self.waiting: deque[Send] = deque()

    def fits(self, count: int, size: int, buffered: int, buffered_bytes: int) -> bool:
        """Whether the messages fit beside what is buffered and what is reserved."""
        reserved = sum(n for n, _ in self.reserved.values()) if self.reserved else 0
        return (
            buffered + reserved + count <= self.messages_max
            and buffered_bytes + self.reserved_bytes + size <= self.bytes_max
        )

    def ever_fits(self, count: int, size: int, tx: bytes) -> bool:
        """Whether waiting can help: what a transaction itself reserved stays until it ends."""
        # rule: D-11d
        own, own_bytes = self.reserved.get(tx, (0, 0))
        return own + count <= self.messages_max and own_bytes + size <= self.bytes_max

    def reserve(self, tx: bytes, count: int, size: int) -> None:
        own, own_bytes = self.reserved.get(tx, (0, 0))
        self.reserved[tx] = own + count, own_bytes + size
        self.reserved_bytes += size

    def release(self, tx: bytes) -> None:
        _, size = self.reserved.pop(tx, (0, 0))
        self.reserved_bytes -= size

    def expired(self, now: Nanos) -> Iterator[Send]:
        """Sends whose time to wait is over; they wait no more."""
        late = [send for send in self.waiting if send.deadline <= now]
        if late:
            self.waiting = deque(send for send in self.waiting if send.deadline > now)
        return iter(late)

    def cancel(self, token: int) -> bool:
        before = len(self.waiting)
        self.waiting = deque(send for send in self.waiting if send.token != token)
        return len(self.waiting) < before

    def next_deadline(self) -> Nanos:
        return min((send.deadline for send in self.waiting), default=NEVER)


class Budget:
    """Bytes that the dialogs of one store may reserve. A dialog opens only when its reserved minimum fits."""

    __slots__ = ("_reserved", "bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._reserved: dict[bytes, int] = {}

    def reserve(self, dialog: bytes, size: int) -> bool:
        """Reserve for both buffers of a dialog; False when there is no room."""
        if self.used + size > self.bytes_max:
            return False
        self.force(dialog, size)
        return True

    def force(self, dialog: bytes, size: int) -> None:
        """A dialog that existed before the budget was lowered keeps what it has."""
        self.release(dialog)
        self._reserved[dialog] = size
        self.used += size

    def release(self, dialog: bytes) -> None:
        self.used -= self._reserved.pop(dialog, 0)
