"""Which packets of a burst are missing tells a narrow path from one that loses packets by chance."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.health.frames import Heartbeat
from holdfast.health.probing.congestion import ENDS_MIN, Congestion
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.metrics import BURST_NS, CROWD_MISSES, CROWD_OVER_NS, Crowd
from holdfast.types import MICROSECOND, MILLISECOND, SECOND

PERIOD = 100 * MILLISECOND
SIZE = 1500


class Path:
    """Every second heartbeat follows two datagrams. `passes` decides for each packet of a burst, by its place."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.n = 0
        self.live = Liveness(self.now, PERIOD)
        self.congestion = Congestion(self.now)
        self.late_ns = 0

    def run(self, seconds: float, passes: list[float], seed: int = 1) -> Path:
        """`passes`: how likely the first datagram, the second one, and their heartbeat pass. A heartbeat that is alone
        passes as the first datagram does."""
        rng = Random(seed)
        for _ in range(round(seconds * 10)):
            self.now += PERIOD
            self.n += 1
            if self.n % 2:
                self._heartbeat(rng.random() < passes[0], 0)
            else:
                came = [rng.random() < chance for chance in passes]
                self._burst(came)
            held = not self.live.window.lossy and self.congestion.holds_loss(self.now)
            self.live.window.roll(self.now, self.congestion.limit_kbps > 0, held)
        return self

    def _burst(self, came: list[bool]) -> None:
        pair = self.now // MILLISECOND
        for number in (0, 1):
            if came[number]:
                at = self.now + self.late_ns + number * MICROSECOND
                self.congestion.datagram(pair, SIZE, at, self.live)
                self.congestion.arrived(SIZE)
        self._heartbeat(came[2], pair)
        calmly = came[2] and not all(came) and not self.late_ns
        self.congestion.look(self.now + 2 * PERIOD, self.live, missed=False, calmly=calmly)

    def _heartbeat(self, came: bool, pair: int) -> None:
        if came:
            at = self.now + (self.late_ns if pair else 0)
            self.live.basic(Heartbeat(self.n, self.now, PERIOD), at)
            if pair:
                self.congestion.heartbeat(pair)


def test_a_policer_that_drops_the_end_of_each_burst_is_a_limit() -> None:
    path = Path().run(2, [1, 1, 1])
    assert path.congestion.limit_kbps == 0
    path.run(3, [1, 0.5, 0])
    assert path.congestion.limit_kbps > 0


def test_loss_is_not_claimed_while_a_policer_may_explain_it() -> None:
    path = Path().run(2, [1, 1, 1])
    assert not path.congestion.holds_loss(path.now)
    path.run(0.6, [1, 0.5, 0])
    assert path.congestion.holds_loss(path.now)
    assert path.congestion.limit_kbps == 0, f"{ENDS_MIN} rounds must show it"


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.2, 0.36, 0.5])
@pytest.mark.parametrize("seed", range(20))
def test_loss_by_chance_is_no_policer(loss: float, seed: int) -> None:
    path = Path().run(20, [1 - loss] * 3, seed)
    assert path.congestion.limit_kbps == 0


def test_rounds_that_wait_and_lose_their_heartbeat_are_a_limit() -> None:
    path = Path().run(2, [1, 1, 1])
    path.late_ns = 60 * MILLISECOND
    path.run(2, [1, 1, 0])
    assert path.congestion.limit_kbps > 0


def test_a_heartbeat_that_overtakes_its_datagrams_is_not_missing() -> None:
    congestion, live = Congestion(0), Liveness(0, PERIOD)
    for pair in range(1, 30):
        congestion.heartbeat(pair)
        congestion.datagram(pair, SIZE, pair * PERIOD, live)
        congestion.look((pair + 2) * PERIOD, live, missed=False, calmly=False)
    assert congestion.limit_kbps == 0
    assert not congestion.holds_loss(32 * PERIOD)


def test_a_pause_in_which_nothing_arrives_says_nothing_of_what_fills_a_path() -> None:
    """A message of 1200 bytes takes 0.3 s at 32 kbit/s: the path is full of data, not dead."""
    congestion = Congestion(0)
    now = 10 * SECOND
    for size in (0, 5000, 5000, 5000):
        congestion.carried(now, size)
        now += 200 * MILLISECOND
    assert congestion.by_data


def test_probes_that_arrive_without_heartbeats_show_a_full_queue_but_not_on_a_lossy_path() -> None:
    """Probes are sent first and fill a short queue. Where loss is by chance, heartbeats arrive without probes, too."""
    now = 10 * SECOND
    live, congestion = Liveness(now, PERIOD), Congestion(now)
    live.basic(Heartbeat(1, now, PERIOD), now)
    congestion.datagram(1, SIZE, now + PERIOD // 2, live)
    assert not congestion.outlives(now + 5 * PERIOD, live)
    congestion.datagram(2, SIZE, now + 4 * PERIOD, live)
    assert congestion.outlives(now + 5 * PERIOD, live)
    congestion.look(now + 5 * PERIOD, live, missed=False, calmly=True)
    assert not congestion.outlives(now + 5 * PERIOD, live)


@pytest.mark.parametrize("losing", [False, True])
def test_misses_on_a_path_that_seems_to_lose_packets_at_any_time_are_no_full_queue(
    losing: bool,
) -> None:
    """Loss is claimed only after a while; until then, data that arrives beside missing heartbeats shows nothing."""
    now = 10 * SECOND
    live, congestion = Liveness(now, PERIOD), Congestion(now)
    live.window.suspected = losing
    congestion.look(now, live, missed=False, calmly=True)
    for _ in range(5):
        now += 4 * PERIOD
        congestion.look(now, live, missed=True, calmly=False)
    assert (congestion.limit_kbps == 0) is losing


def limit_with(carried_bytes_per_s: int) -> int:
    """Pairs arrive at the speed of a line of 120 Mbit/s, and packets are missing."""
    now = 1000 * SECOND
    congestion = Congestion(now)
    for step in range(12):
        now += 250 * MILLISECOND
        congestion.carried(now, carried_bytes_per_s * (step + 1) // 4)
        for part in (0, 1):
            congestion.arrived(SIZE)
            congestion.datagram(step, SIZE, now + part * 100 * MICROSECOND, None)
        congestion.heartbeat(step)
        congestion.look(now, None, missed=step >= 8, calmly=False)
    return congestion.limit_kbps


def test_the_limit_of_a_policer_is_not_the_speed_of_the_line() -> None:
    """Packets that a policer lets pass are as fast as ever: a limit of 193 Mbit/s was stated for 30 packets a
    second."""
    assert 0 < limit_with(20_000) <= 200


def test_the_limit_of_a_line_that_data_fills_is_its_speed() -> None:
    assert limit_with(12_000_000) == pytest.approx(120_000, rel=0.1)


def narrow(kbps: int) -> Crowd:
    crowd = Crowd()
    for _ in range(CROWD_MISSES):
        crowd.missed(100 * SECOND)
    assert crowd.look(100 * SECOND, 0, kbps)
    return crowd


def test_a_limit_ends_when_a_burst_of_probes_passes() -> None:
    """It was stated for half a minute after its end, because almost nothing was sent that could have shown that."""
    crowd, now = narrow(250), 100 * SECOND + BURST_NS
    crowd.burst_passed(now)
    assert not crowd.look(now, 0, 8), "one that was not asked for: it may have been sent before"
    assert not crowd.wants_burst(now - 1)
    assert crowd.wants_burst(now)
    assert not crowd.wants_burst(now + 1)
    crowd.burst_passed(now + SECOND)
    assert crowd.look(now + SECOND, 0, 8)
    assert crowd.limit_kbps == 0


@pytest.mark.parametrize(("kbps", "seconds"), [(32, 30), (112, 20), (250, 8.96), (4000, 4)])
def test_bursts_take_a_twentieth_of_a_narrow_path(kbps: int, seconds: float) -> None:
    crowd, now = narrow(kbps), 100 * SECOND + BURST_NS
    assert crowd.wants_burst(now)
    crowd.missed(now)
    assert not crowd.wants_burst(now + round(seconds * SECOND) - 1)
    assert crowd.wants_burst(now + round(seconds * SECOND))


def test_bursts_are_not_believed_after_the_limit_showed_again() -> None:
    """A line that lets bursts pass at full speed is as narrow as before."""
    crowd, now = narrow(250), 100 * SECOND + BURST_NS
    assert crowd.wants_burst(now)
    crowd.burst_passed(now)
    assert crowd.look(now, 0, 8)
    for _ in range(CROWD_MISSES):
        crowd.missed(now + SECOND)
    assert crowd.look(now + SECOND, 0, 250)
    assert not crowd.wants_burst(now + 20 * SECOND)
    assert crowd.look(now + SECOND + CROWD_OVER_NS, 0, 8), "time ends it"
