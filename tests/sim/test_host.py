"""A simulated machine: batches, deadlines, clocks, pauses, and crashes between any two steps."""

from __future__ import annotations

import pytest
from tests.sim.toys import (
    STEADY,
    Arrived,
    FlowClosed,
    FlowOpened,
    Puppet,
    open_flow,
    pair,
    puppet,
    send,
)

from holdfast.errors import MisuseError
from holdfast.links.ports import Transmit
from holdfast.machine import Put, Result
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.host import EPOCH_NS, Host
from holdfast.sim.profile import HostProfile
from holdfast.sim.world import World
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, Nanos


def lone(profile: HostProfile = STEADY, seed: int = 1) -> tuple[World, Host]:
    world = World(seed)
    host = world.add_host("n1", Puppet, profile)
    host.start()
    return world, host


def test_what_arrives_at_the_same_instant_lands_in_one_turn() -> None:
    world, host = lone()
    for number in range(5):
        host.give("unit", number)
    world.run_for(MILLISECOND)
    assert [len(turn) for turn in puppet(host).turns] == [0, 5]


def test_a_late_scheduler_puts_several_arrivals_into_one_turn() -> None:
    world, host = lone(HostProfile(turn_jitter_ns=100 * MICROSECOND))
    for number in range(1000):
        host.give("unit", number)
        world.run_for(10 * MICROSECOND)
    world.run_for(10 * MILLISECOND)
    sizes = sorted({len(turn) for turn in puppet(host).turns[1:]})
    assert puppet(host).heard == list(range(1000))
    assert len(sizes) > 3


def test_a_long_queue_is_taken_in_batches_of_many_sizes() -> None:
    world, host = lone(HostProfile(batch_max=50))
    for number in range(2000):
        host.give("unit", number)
    world.run_for(100 * MILLISECOND)
    sizes = {len(turn) for turn in puppet(host).turns[1:]}
    assert puppet(host).heard == list(range(2000))
    assert max(sizes) <= 50
    assert len(sizes) > 10


def test_a_deadline_is_met_soon_after_it_and_never_before() -> None:
    world, host = lone(HostProfile())
    core = puppet(host)
    core.deadline = host.now + 500 * MILLISECOND
    deadline = core.deadline
    host.give("unit", "look at the deadline again")
    world.run_for(SECOND)
    assert len(core.times) == 3
    assert deadline <= core.times[2] < deadline + 3 * MILLISECOND


def test_a_deadline_that_moved_away_does_not_wake() -> None:
    world, host = lone()
    core = puppet(host)
    core.deadline = host.now + 10 * MILLISECOND
    host.give("unit", 1)
    world.run_for(MILLISECOND)
    core.deadline = host.now + 100 * MILLISECOND
    world.run_for(50 * MILLISECOND)
    assert len(core.times) == 2
    world.run_for(100 * MILLISECOND)
    assert len(core.times) == 3


def test_more_work_gets_a_turn_without_an_input() -> None:
    world, host = lone()
    puppet(host).more = 4
    host.give("unit", 1)
    world.run_for(MILLISECOND)
    assert [len(turn) for turn in puppet(host).turns] == [0, 1, 0, 0, 0]


def test_hosts_have_clocks_of_their_own() -> None:
    world, n1, n2 = pair()
    assert n1.clock_ns != n2.clock_ns
    world.run_for(SECOND)
    assert n1.now == n1.clock_ns + SECOND
    assert n1.now + n1.wall_offset_ns == EPOCH_NS + SECOND


def test_a_machine_that_lost_power_has_a_new_monotonic_clock() -> None:
    world, host = lone(HostProfile())
    before = host.clock_ns
    host.crash()
    host.start()
    assert host.clock_ns == before
    host.power_off()
    world.run_for(SECOND)
    host.start()
    assert host.clock_ns != before
    assert host.now >= 0


# -- pause -------------------------------------------------------------------------------------------------------


def test_a_paused_process_does_nothing_while_its_clock_goes_on() -> None:
    world, host = lone()
    core = puppet(host)
    core.deadline = host.now + 10 * MILLISECOND
    host.give("unit", 1)
    world.run_for(MILLISECOND)
    host.pause()
    host.give("unit", 2)
    world.run_for(SECOND)
    assert len(core.times) == 2
    host.resume()
    world.run_for(MILLISECOND)
    assert core.heard == [1, 2]
    assert core.times[2] - core.times[1] >= SECOND


def test_datagrams_keep_their_time_through_a_pause_and_streams_do_not() -> None:
    world, n1, n2 = pair()
    udp, tcp = open_flow(world, n1, n2, "udp"), open_flow(world, n1, n2, "tcp")
    n2.pause()
    paused_at = n2.now
    send(n1, udp, b"datagram")
    send(n1, tcp, b"stream")
    world.run_for(SECOND)
    n2.resume()
    resumed_at = n2.now
    world.run_for(MILLISECOND)
    times = {bytes(item.packets[0]): item.at for item in puppet(n2).of(Arrived)}
    assert times[b"datagram"] < paused_at + MILLISECOND
    assert times[b"stream"] == resumed_at


def test_a_flow_that_ends_during_a_pause_ends_after_its_data() -> None:
    world, n1, n2 = pair()
    tcp = open_flow(world, n1, n2, "tcp")
    n2.pause()
    send(n1, tcp, b"x")
    world.run_for(10 * MILLISECOND)
    n1.crash()
    world.run_for(SECOND)
    n2.resume()
    world.run_for(MILLISECOND)
    assert [type(item) for item in puppet(n2).heard] == [FlowOpened, Arrived, FlowClosed]


def test_a_write_that_ends_during_a_pause_is_reported_after_it() -> None:
    world, host = lone()
    host.give("write", Put("t", b"k", b"v"))
    world.run_for(10 * MICROSECOND)
    host.pause()
    world.run_for(SECOND)
    assert puppet(host).written_turns == []
    host.resume()
    assert puppet(host).written_turns == [2]


# -- the end of a process ----------------------------------------------------------------------------------------


def test_a_crash_forgets_everything_that_waited() -> None:
    world, host = lone()
    host.give("unit", 1)
    host.crash()
    world.run_for(SECOND)
    assert host.core is None
    host.start()
    world.run_for(SECOND)
    assert puppet(host).heard == []
    assert host.boots == puppet(host).context.boots == 2


def test_seed_and_entropy_differ_from_start_to_start() -> None:
    _, host = lone()
    first = puppet(host).context
    host.crash()
    host.start()
    second = puppet(host).context
    assert first.seed != second.seed
    assert first.entropy(16) != second.entropy(16)


def test_what_a_host_is_given_without_a_process_is_refused() -> None:
    _, host = lone()
    host.crash()
    assert not host.give("unit", 1)


def test_a_running_host_cannot_be_started() -> None:
    _, host = lone()
    with pytest.raises(MisuseError, match="n1 is already running; nothing was started"):
        host.start()


def test_a_clean_stop_writes_everything_and_closes_flows() -> None:
    world, n1, n2 = pair()
    flow = open_flow(world, n1, n2, "tcp")
    send(n1, flow, b"last")
    n1.give("write", Put("t", b"k", b"v"))
    world.run_for(10 * MICROSECOND)
    n1.stop()
    world.run_for(SECOND)
    assert n1.disk.durable("t") == [(b"k", b"v")]
    assert puppet(n2).packets() == [b"last"]
    assert len(puppet(n2).of(FlowClosed)) == 1


def test_a_core_that_can_say_goodbye_does_so_in_a_last_turn() -> None:
    class Polite(Puppet):
        def stop(self, now: Nanos) -> Result:
            return self.turn(now, [("write", Put("t", b"bye", b"v"))])

    world = World(1)
    host = world.add_host("n1", Polite, STEADY)
    host.start()
    host.stop()
    assert host.disk.durable("t") == [(b"bye", b"v")]


def crash_in_a_turn(seed: int) -> tuple[bool, int]:
    """A turn of one write and four packets that a crash cuts short: was it written, how many packets left?"""
    world, n1, n2 = pair(seed)
    flow = open_flow(world, n1, n2, "udp")
    n1.crash_in_turn()
    n1.give("write", Put("t", b"k", b"v"))
    for number in range(4):
        n1.give("do", Transmit(flow, [b"%d" % number]))
    world.run_for(SECOND)
    assert not n1.alive
    n1.start()
    return bool(puppet(n1).context.load("t")), len(puppet(n2).packets())


def test_a_crash_falls_between_any_two_steps_of_a_turn() -> None:
    seen = {crash_in_a_turn(seed) for seed in range(120)}
    packets = {count for _, count in seen}
    assert packets == {0, 1, 2, 3, 4}
    assert (True, 0) in seen, "written before anything was sent"
    assert (False, 4) in seen, "everything sent before it was written"


def test_a_crash_waits_for_a_turn_that_has_something_to_do() -> None:
    world, host = lone()
    host.crash_in_turn()
    host.give("unit", 1)
    world.run_for(MILLISECOND)
    assert host.alive
    host.give("write", Put("t", b"k", b"v"))
    world.run_for(MILLISECOND)
    assert not host.alive


def test_starting_again_calls_off_a_crash_that_did_not_come() -> None:
    world, host = lone()
    host.crash_in_turn()
    host.start_again()
    host.give("write", Put("t", b"k", b"v"))
    world.run_for(MILLISECOND)
    assert host.alive


# -- what must not happen ----------------------------------------------------------------------------------------


def test_an_exception_out_of_a_node_fails_the_run_and_prints_the_replay() -> None:
    world, host = lone(seed=77)
    host.give("raise", ValueError("boom"))
    with pytest.raises(CheckFailed, match=r"no exception leaves a node.*boom(?s:.*)--seed 77"):
        world.run_for(SECOND)


def test_an_unknown_effect_is_named() -> None:
    world, host = lone()
    host.give("do", "nonsense")
    with pytest.raises(MisuseError, match="no host of this world has a handler for str") as caught:
        world.run_for(SECOND)
    assert "replay: holdfast sim run --seed 1" in caught.value.__notes__[0]


def test_callbacks_get_the_effects_of_their_type() -> None:
    world, host = lone()
    seen: list[tuple[str, str]] = []
    host.on(str, lambda host, effect: seen.append((host.name, effect)))
    host.crash()
    host.start()
    host.give("do", "hello")
    world.run_for(SECOND)
    assert seen == [("n1", "hello")]


def test_a_host_without_deadlines_and_inputs_costs_nothing() -> None:
    world, host = lone()
    assert puppet(host).next_deadline() == NEVER
    assert world.run_for(3600 * SECOND) == 0
