"""Losses in outages are distinguished from losses by chance, and from short bursts (H15)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from holdfast.health.probing.metrics import LossWindow
from holdfast.health.probing.outages import Outages
from holdfast.types import MILLISECOND, SECOND, Nanos

PERIOD = 100 * MILLISECOND
QUICK = 12 * MILLISECOND + 500_000
"""The interval of heartbeats while the listener asks for more of them."""
ASKED = 1500 * MILLISECOND


class Flow:
    """One flow whose listener asks for more heartbeats after each loss, and judges ten times a second."""

    def __init__(self, lost: Callable[[Nanos], bool]) -> None:
        self.now: Nanos = 0
        self.window = LossWindow()
        self._lost = lost
        self._number = self._heard_number = 0
        self._heard_at = self._quick_until = self._rolled_at = 0

    @property
    def outages(self) -> Outages:
        return self.window.outages

    def run(self, until: Nanos, stop: Callable[[LossWindow], bool] = lambda _: False) -> bool:
        while self.now < until:
            self.now += QUICK if self.now < self._quick_until else PERIOD
            self._number += 1
            if not self._lost(self.now):
                self._arrived()
            if self.now - self._rolled_at >= PERIOD:
                self._rolled_at = self.now
                self.window.roll(self.now, excused=False)
            if stop(self.window):
                return True
        return False

    def _arrived(self) -> None:
        gap = self._number - self._heard_number
        if gap > 1:
            interval_ns = (self.now - self._heard_at) // gap
            first, last = self._heard_number + 1, self._number - 1
            self.window.missing(first, last, self.now, interval_ns=interval_ns)
            self._quick_until = self.now + ASKED
        self.window.heard += 1
        self._heard_at, self._heard_number = self.now, self._number


def interrupted(off_ms: int, on_ms: int, start_ms: int = 2000) -> Callable[[Nanos], bool]:
    def lost(now: Nanos) -> bool:
        age_ms = now // MILLISECOND - start_ms
        return age_ms >= 0 and age_ms % (off_ms + on_ms) < off_ms

    return lost


def by_chance(share: float, seed: int) -> Callable[[Nanos], bool]:
    rng = Random(seed)
    return lambda _: rng.random() < share


def in_bursts(length_ms: int, seed: int) -> Callable[[Nanos], bool]:
    """Bursts of a random length up to this one, about three times a second."""
    rng, begins, ends = Random(seed), 0, 0

    def lost(now: Nanos) -> bool:
        nonlocal begins, ends
        while now >= ends:
            begins = ends + rng.randint(100, 500) * MILLISECOND
            ends = begins + rng.randint(1, length_ms) * MILLISECOND
        return now >= begins

    return lost


@pytest.mark.parametrize(
    ("off_ms", "on_ms"),
    [(300, 300), (200, 1000), (150, 500), (200, 200), (450, 200), (500, 100), (300, 3000)],
)
def test_a_path_that_is_interrupted_again_and_again_is_not_called_lossy_first(
    off_ms: int, on_ms: int
) -> None:
    flow = Flow(interrupted(off_ms, on_ms))
    flow.run(60 * SECOND, lambda window: window.lossy or window.outages.lasting_ns > 0)
    assert flow.now <= (2000 + 6 * (off_ms + on_ms) + 500) * MILLISECOND
    assert flow.outages.lasting_ns == pytest.approx(off_ms * MILLISECOND, rel=0.3)
    assert flow.outages.every_ns == pytest.approx((off_ms + on_ms) * MILLISECOND, rel=0.3)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_loss_by_chance_is_not_called_an_outage(share: float, seed: int) -> None:
    flow = Flow(by_chance(share, seed))
    assert not flow.run(60 * SECOND, lambda window: window.outages.lasting_ns > 0)
    assert flow.window.lossy


@pytest.mark.parametrize("seed", range(5))
def test_bursts_of_a_few_packets_are_loss(seed: int) -> None:
    flow = Flow(in_bursts(90, seed))
    assert not flow.run(60 * SECOND, lambda window: window.outages.lasting_ns > 0)
    assert flow.window.lossy


def test_one_outage_is_neither() -> None:
    flow = Flow(interrupted(400, 600_000))
    assert not flow.run(60 * SECOND, lambda window: window.lossy or window.outages.lasting_ns > 0)


def test_outages_end_with_what_was_lost_in_them() -> None:
    flow = Flow(lambda now: now < 6 * SECOND and interrupted(300, 300)(now))
    flow.run(6 * SECOND)
    assert flow.outages.lasting_ns > 0
    flow.run(10 * SECOND)
    assert (flow.outages.lasting_ns, flow.window.lossy) == (0, False)
    assert not flow.run(30 * SECOND, lambda window: window.lossy)
