"""One flow, alive or dead: by its basics, against their promises, and with the patience that its loss asks for."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.health.frames import Heartbeat
from holdfast.health.probing.evidence import compound_loss, miss_weight, patience, threshold
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.metrics import LossRate, RoundTrip, Throughput
from holdfast.types import MILLISECOND, SECOND

PERIOD = 100 * MILLISECOND
EVIDENCE = threshold(10, 2000, 10)


class Sender:
    def __init__(self, loss: float = 0.0, seed: int = 1) -> None:
        self.live = Liveness(0, PERIOD)
        self.share = loss
        self.cut = False
        self.now = 0
        self.n = 0
        self.rng = Random(seed)
        self.died = 0

    def tick(self) -> None:
        self.now += PERIOD
        self.n += 1
        if not self.cut and self.rng.random() >= self.share:
            self.live.basic(Heartbeat(self.n, self.now, PERIOD), self.now)
        self.died += self.live.silent(self.now, EVIDENCE)

    def run(self, seconds: float) -> Sender:
        for _ in range(round(seconds * 10)):
            self.tick()
        return self

    def until_dead(self) -> float:
        self.cut = True
        begin = self.now
        while self.live.alive:
            self.tick()
        return (self.now - begin) / SECOND


@cache
def deaths(loss: float, paths: int) -> int:
    return sum(Sender(loss, seed).run(3600).died for seed in range(paths))


def test_a_clean_path_that_falls_silent_is_dead_within_a_second() -> None:
    """H8: as many basics as the domain's budget of false alarms asks for."""
    sender = Sender().run(60)
    assert sender.until_dead() <= 0.6
    sender.cut = False
    sender.tick()
    assert sender.live.alive


@pytest.mark.parametrize(("loss", "paths"), [(0.001, 5), (0.01, 5), (0.05, 5), (0.2, 5)])
def test_loss_alone_does_not_kill_a_path(loss: float, paths: int) -> None:
    """Invariant 7. Three in a row are lost every 16 seconds at 20 % loss; that is no death."""
    assert deaths(loss, paths) == 0


def test_a_lossy_path_that_falls_silent_is_dead_within_a_bounded_time() -> None:
    assert Sender(loss=0.5).run(60).until_dead() <= 4.1


def test_a_flow_that_is_never_heard_is_dead_after_the_grace_and_said_so_once() -> None:
    live = Liveness(0, PERIOD)
    verdicts = [live.silent(now * PERIOD, EVIDENCE) for now in range(1, 12)]
    assert verdicts.count(True) == 1


def test_silence_is_held_against_the_promise_and_not_against_what_we_expect() -> None:
    """Throttling: each basic promises the latest time of its successor."""
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, 10 * SECOND), 0)
    assert not live.silent(40 * SECOND, EVIDENCE)
    assert live.silent(90 * SECOND, EVIDENCE)


def test_silence_is_held_against_what_was_announced_where_that_is_longer() -> None:
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, PERIOD), 0)
    live.announced_ns = 10 * SECOND
    assert not live.silent(40 * SECOND, EVIDENCE)


def test_a_sender_that_keeps_no_promise_is_followed_by_what_is_observed() -> None:
    """H13: receivers follow a changed period by an announced change and by observing."""
    live = Liveness(0, PERIOD)
    for n in range(1, 40):
        live.basic(Heartbeat(n, 0, PERIOD), n * 3 * PERIOD)
        assert not live.silent((n + 1) * 3 * PERIOD, EVIDENCE)
    assert not live.silent(39 * 3 * PERIOD + 10 * PERIOD, EVIDENCE)


def test_the_senders_grace_is_respected() -> None:
    """H1: a basic carries its parameters."""
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, PERIOD, grace=20), 0)
    assert not live.silent(19 * PERIOD, EVIDENCE)
    assert live.silent(21 * PERIOD, EVIDENCE)


def test_an_own_pause_accuses_no_path_and_buys_no_time() -> None:
    """Health: a node credits its own lag."""
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, PERIOD), 0)
    live.excuse(3 * SECOND, 3 * SECOND)
    assert not live.silent(3 * SECOND, EVIDENCE)
    live.basic(Heartbeat(2, 0, PERIOD), 4 * SECOND)
    live.excuse(4 * SECOND, 3 * SECOND)
    assert live.silent(4 * SECOND + 8 * PERIOD, EVIDENCE), "time that lies ahead is not excused"


def test_an_own_pause_does_not_change_when_a_basic_was_heard() -> None:
    """The echo carries how long ago that was; a wrong age would be a wrong round trip at the peer."""
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, PERIOD), 1000)
    live.excuse(3 * SECOND, 3 * SECOND)
    assert live.heard_at == 1000


def test_a_stream_that_only_sends_again_what_it_lost_is_not_dead() -> None:
    live = Liveness(0, PERIOD, stream=True)
    live.basic(Heartbeat(1, 0, PERIOD), 0)
    assert not live.silent(1200 * MILLISECOND, EVIDENCE, alone=True)
    assert live.silent(1200 * MILLISECOND, EVIDENCE, alone=False), "datagrams are silent as well"


# -- figures -------------------------------------------------------------------------------------------------------


def test_loss_is_judged_by_a_rate() -> None:
    for loss in (0.0, 0.1, 0.3):
        assert abs(Sender(loss).run(600).live.loss.long_ppm / 1e6 - loss) < 0.07


def test_a_sender_that_restarts_its_numbers_has_not_lost_anything() -> None:
    sender = Sender().run(10)
    sender.n += 5000
    assert sender.run(1).live.loss.ppm == 0


def test_a_blackout_does_not_count_as_loss_by_chance() -> None:
    sender = Sender().run(60)
    sender.cut = True
    sender.run(2)
    sender.cut = False
    assert sender.run(0.5).live.loss.ppm < 10_000


def test_the_round_trip_leaves_out_the_time_at_the_peer() -> None:
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 7, PERIOD, 1000, 50 * MILLISECOND), 52 * MILLISECOND)
    assert 1990 <= live.trip.rtt_us <= 2000


@pytest.mark.parametrize(
    ("echo", "age"), [(1 << 60, 0), (-(1 << 60), 0), (1, 1 << 60), (1, -(1 << 62))]
)
def test_a_round_trip_that_cannot_be_is_left_out(echo: int, age: int) -> None:
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 7, PERIOD, echo, age), SECOND)
    assert live.trip.rtt_us == 0


def test_jitter_is_how_much_the_way_here_varies_whatever_the_clocks_show() -> None:
    trip, rng = RoundTrip(), Random(1)
    for n in range(300):
        trip.arrived(n * PERIOD + rng.randrange(2 * MILLISECOND), n * PERIOD - 10**15)
    assert 400 <= trip.jitter_us <= 1000
    before = trip.jitter_us
    trip.arrived(301 * PERIOD, 0)
    assert trip.jitter_us == before, "a clock that was set is no jitter"


def test_the_throughput_follows_from_how_far_packets_arrive_apart() -> None:
    """1500 bytes through 256 kbit/s take 47 ms."""
    rate = Throughput()
    for pair in range(20):
        at = pair * SECOND
        rate.arrived(pair, 576, at)
        rate.arrived(pair, 1500, at + 1500 * 8 * SECOND // 256_000)
    assert 250 <= rate.rate_kbps <= 260
    for pair in range(100, 130):
        rate.arrived(pair, 576, pair * SECOND)
        rate.arrived(pair, 1500, pair * SECOND)
    assert rate.rate_kbps == 0, "too fast to be seen"


# -- thresholds ----------------------------------------------------------------------------------------------------


def test_a_larger_domain_needs_more_evidence_for_the_same_budget() -> None:
    assert threshold(10, 100, 10) < threshold(10, 100_000, 10) < threshold(10, 100_000, 1)


def test_patience_grows_with_loss_and_has_an_end() -> None:
    waits = [patience(ppm, EVIDENCE, 3) for ppm in (1_000, 10_000, 100_000, 500_000, 1_000_000)]
    assert waits == sorted(waits)
    assert waits[-1] == 40


def test_what_becomes_many_packets_is_lost_more_often_and_its_loss_says_less() -> None:
    assert compound_loss(10_000, 1) == 10_000
    assert 65_000 < compound_loss(10_000, 7) < 70_000
    assert miss_weight(compound_loss(10_000, 7)) < miss_weight(10_000)
    assert compound_loss(1_000_000, 50) == 1_000_000


numbers = st.one_of(st.integers(-5, 200), st.integers(-(1 << 63), (1 << 64) - 1))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers)))
def test_nothing_that_a_sender_says_can_break_a_listener(
    said: list[tuple[int, int, int, int]],
) -> None:
    """Invariant 10."""
    live, now = Liveness(0, PERIOD), 0
    for n, next_ns, echo, grace in said:
        now += PERIOD
        live.basic(Heartbeat(n, n, next_ns, echo, next_ns, grace), now)
        live.silent(now, EVIDENCE)
        assert 0 < live.promise_ns <= 1 << 42
        assert 1 <= live.grace <= 100
        assert isinstance(LossRate().judged_ppm, int)
