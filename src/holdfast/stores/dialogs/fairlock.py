"""A lock that is given in the order in which it was asked for, with a time limit for waiting."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """Alternates the store's writer and the application's transactions: neither starves the other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for the lock."""
        return len(self._waiting)

    def acquire(self, timeout_s: float = -1) -> bool:
        """Wait for the lock; False when the time is over."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(None if timeout_s < 0 else timeout_s):
            return True
        with self._guard:
            if turn.is_set():
                return True  # Given in the last moment.
            self._waiting.remove(turn)
            return False

    def release(self) -> None:
        with self._guard:
            assert self._held, "only a holder releases"
            if self._waiting:
                # Handed on, never free in between: one that comes now waits behind the others.
                # rule: D-10a
                self._waiting.popleft().set()
            else:
                self._held = False
