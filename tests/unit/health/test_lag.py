"""A node that waits for a processor is late itself. That is no delay, no congestion and no loss of a path."""

from __future__ import annotations

from tests.unit.health.wires import EVERYTHING, Wires

from holdfast.health.frames import Heartbeat
from holdfast.health.probing.lag import STEP_NS, UNBOUNDED_NS, WINDOW_NS, OwnLag, stated_ns
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.metrics import DELAY_PACKETS, Delay
from holdfast.telemetry.facts import PathFact
from holdfast.types import MILLISECOND, SECOND

PERIOD = 100 * MILLISECOND


def figures(wires: Wires, since: int) -> list[PathFact]:
    """Claims of delay, congestion or loss."""
    return [
        fact
        for fact in wires.changes(since)
        if fact.delay_us or fact.rate_limit_kbps or fact.loss_ppm >= 20_000
    ]


def test_the_most_lag_of_the_last_seconds_counts() -> None:
    lag = OwnLag()
    lag.seen(10 * SECOND, 7_300_000)
    lag.seen(10 * SECOND + 1, 2 * MILLISECOND)
    assert (lag.ns, lag.steps) == (7_300_000, 1)
    lag.pass_time(10 * SECOND + WINDOW_NS + 2)
    assert lag.steps == 1, "heartbeats that were sent late are still on their way"
    lag.pass_time(10 * SECOND + 2 * WINDOW_NS + 4)
    assert lag.steps == 0


def test_what_a_peer_states_is_bounded() -> None:
    assert [stated_ns(n) for n in (-5, 3, 1 << 60)] == [0, 3 * STEP_NS, UNBOUNDED_NS]


def test_as_much_delay_as_a_node_was_late_is_not_one_of_the_path() -> None:
    delay, now = Delay(), 0
    for transit, lag in ((0, 0), (48, 50), (30, 30), (115, 100)):
        for _ in range(2 * DELAY_PACKETS):
            now += PERIOD
            delay.arrived(now, transit * MILLISECOND, lag * MILLISECOND)
        assert (delay.delay_us, delay.crowded) == (0, False), (transit, lag)


def test_a_delay_beyond_the_lag_of_both_nodes_is_still_found() -> None:
    delay, now = Delay(), 0
    for _ in range(20):
        now += PERIOD
        delay.arrived(now, 0)
    for _ in range(DELAY_PACKETS):
        now += PERIOD
        delay.arrived(now, 300 * MILLISECOND, 40 * MILLISECOND)
    assert 255_000 < delay.delay_us <= 260_000


def test_a_delay_does_not_end_because_a_node_becomes_busy() -> None:
    delay, now = Delay(), 0
    for transit, lag in ((0, 0), (50, 0), (60, 45)):
        for _ in range(2 * DELAY_PACKETS):
            now += PERIOD
            delay.arrived(now, transit * MILLISECOND, lag * MILLISECOND)
    assert delay.delay_us > 0


def test_a_sender_whose_turns_take_long_is_no_slow_path() -> None:
    """Heartbeats carry the time at which their turn began, and leave when it ends."""
    wires = Wires(2).run(3)
    begin = wires.now
    wires.turn_ns["n1"] = 48 * MILLISECOND
    wires.run(4)
    assert figures(wires, begin) == []


def test_a_listener_that_is_read_late_is_no_slow_path() -> None:
    """A stream has no receive times of the kernel: it arrives when it is read."""
    wires = Wires(2).run(3)
    begin = wires.now
    for _ in range(60):
        wires.pause("n1", 0.06)
        wires.run(0.07)
    assert figures(wires, begin) == []


def test_datagrams_that_wait_to_be_read_are_not_silent() -> None:
    """Finding: a node that read its sockets 0.6 s late, turn after turn, called its peers' datagrams filtered."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    begin = wires.now
    wires.backlog_ns["n1"] = 50 * MILLISECOND
    wires.run(1)
    wires.backlog_ns["n1"] = 300 * MILLISECOND
    wires.run(1)
    wires.backlog_ns["n1"] = 700 * MILLISECOND
    wires.run(4)
    assert [fact for fact in wires.changes(begin) if not fact.alive or fact.size < 1500] == []


def test_a_node_that_reads_late_still_sees_a_death() -> None:
    """As much later as it is late itself."""
    wires = Wires(2).run(3)
    wires.backlog_ns["n1"] = 300 * MILLISECOND
    wires.run(3)
    wires.faults = [lambda packet: packet[0] == "n2"]
    assert wires.run_until(lambda: not wires.row("n2", "n1", at="n1").alive) < 1.3


def test_a_node_that_is_far_too_late_accuses_no_path_of_anything_but_death() -> None:
    """What overflows its sockets was not lost on the way, and what it reads late was not slow."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    wires.backlog_ns["n1"] = 900 * MILLISECOND
    wires.run(2)
    begin = wires.now
    wires.faults = [lambda packet: packet[0] == "n2" and wires.rng.random() < 0.4]
    wires.run(6)
    assert figures(wires, begin) == []
    wires.faults = [lambda packet: packet[0] == "n2"]
    assert wires.run_until(lambda: not wires.row("n2", "n1", at="n1").alive) < 3.5


def test_what_did_not_fit_into_the_buffer_of_a_paused_node_was_not_lost_on_the_way() -> None:
    live = Liveness(0, PERIOD)
    now = n = 0
    for _ in range(20):
        for _ in range(10):
            now, n = now + PERIOD, n + 1
            live.basic(Heartbeat(n, now, PERIOD), now)
            live.window.roll(now, excused=False)
        n += 5  # those found no room
        now += 6 * PERIOD
        live.excuse(now, 5 * PERIOD)
    assert not live.window.lossy
    assert live.missed == 0


def test_gaps_of_a_node_that_ran_are_losses() -> None:
    live = Liveness(0, PERIOD)
    now = n = 0
    for _ in range(20):
        now, n = now + 6 * PERIOD, n + 6
        live.basic(Heartbeat(n, now, PERIOD), now)
        live.window.roll(now, excused=False)
    assert live.window.lossy
