"""Compares what was sent on a flow with what has arrived there. Both ends of a flow use it (see `delivery`)."""

from __future__ import annotations

from typing import Final

from holdfast.types import MILLISECOND, SECOND, Nanos

FRAMES_MIN: Final = 4
"""The number of packets that must be sent without any arrival."""
APART_NS: Final = 100 * MILLISECOND
"""Questions that arrive closer together were delayed on their way: nothing had time to arrive between them."""
PAUSE_NS: Final = 1 * SECOND
PAUSE_FACTOR: Final = 4
"""After a pause of that length, and so many times that of the last one, nothing that was missing before it counts."""


class DeliveryWatch:
    """Compares what was sent on a flow with what has arrived, question by question."""

    __slots__ = ("_base", "_before", "_gap_ns", "_heard_at", "_received", "_taken_at", "fails")

    def __init__(self) -> None:
        self.fails = False
        """Whether none of the packets sent recently has arrived."""
        self._heard_at: Nanos = -APART_NS
        self._taken_at: Nanos | None = None
        self._gap_ns: Nanos = 0
        """When the last question was counted, and how long after the one before it."""
        self._received = 0
        self._base = 0
        """The number of packets sent when something last arrived."""
        self._before = 0
        """The number of packets sent at the last question, which have had time to arrive."""

    def is_apart(self, now: Nanos) -> bool:
        """Whether a question that arrives now counts; False if it arrives together with another."""
        apart = not 0 <= now - self._heard_at < APART_NS
        if apart:
            self._heard_at = now
        return apart

    def take(self, now: Nanos, sent: int, received: int) -> bool:
        """One question and its answer; True when `fails` has changed."""
        before, self._before = self._before, sent
        if self._paused(now) and received == self._received:
            self._base = (
                sent  # the flow was not used: what it lost before that shows a fault of that time
            )
        if received != self._received or sent < before:
            self._received, self._base = received, sent
            changed, self.fails = self.fails, False
            return changed
        if self.fails or before - self._base < FRAMES_MIN:
            return False
        self.fails = True
        return True

    def _paused(self, now: Nanos) -> bool:
        """Whether the flow was not used for a while before this question."""
        last, self._taken_at = self._taken_at, now
        if last is None:
            return False
        usual_ns, self._gap_ns = self._gap_ns, now - last
        return self._gap_ns > max(PAUSE_NS, PAUSE_FACTOR * usual_ns)

    @property
    def doubtful(self) -> bool:
        """Whether nothing of what was sent lately had arrived by the last question, which may have overtaken it."""
        return not self.fails and self._before > self._base

    def forget(self, sent: int) -> None:
        """Start again from here."""
        self.fails = False
        self._base = self._before = sent
