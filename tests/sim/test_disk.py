"""A virtual disk: slow, full, and after a crash exactly as bad as a real one may be."""

from __future__ import annotations

import pytest
from tests.sim.toys import STEADY, Puppet, puppet

from holdfast.errors import StoreError, StoreFull
from holdfast.machine import Erase, Put
from holdfast.sim.disk import DiskStore
from holdfast.sim.host import STOPPED, Host
from holdfast.sim.world import World
from holdfast.types import MICROSECOND, MILLISECOND, SECOND


def running(seed: int = 1) -> tuple[World, Host]:
    world = World(seed)
    host = world.add_host("n1", Puppet, STEADY)
    host.start()
    return world, host


def number(n: int) -> Put:
    return Put("t", b"%02d" % n, b"v")


def write_and_crash(seed: int, crash_after_ns: int) -> tuple[int, int]:
    """Twenty turns write one row each, then a crash: how many were reported, how many are there?"""
    world, host = running(seed)
    for n in range(20):
        host.give("write", number(n))
        world.run_for(100 * MICROSECOND)
    world.run_for(crash_after_ns)
    reported = len(host.disk.durable("t"))
    turns = puppet(host).written_turns
    host.crash()
    host.start()
    rows = puppet(host).context.load("t")
    assert rows == [(b"%02d" % n, b"v") for n in range(len(rows))], "a prefix, in turn order"
    assert (turns[-1] - 1 if turns else 0) == reported
    return reported, len(rows)


def test_what_was_reported_survives_and_what_was_not_survives_only_as_a_prefix() -> None:
    outcomes = [write_and_crash(seed, 0) for seed in range(60)]
    assert all(saved >= reported for reported, saved in outcomes)
    assert any(saved > reported for reported, saved in outcomes)
    assert any(saved == reported < 20 for reported, saved in outcomes)


def test_several_turns_wait_for_one_sync() -> None:
    world, host = running()
    for n in range(20):
        host.give("write", number(n))
        world.run_for(20 * MICROSECOND)
    world.run_for(10 * MILLISECOND)
    turns = puppet(host).written_turns
    assert turns == sorted(turns)
    assert turns[-1] == 21
    assert 2 <= len(turns) < 15


def test_all_writes_of_a_turn_are_there_or_none() -> None:
    for seed in range(40):
        world, host = running(seed)
        for n in range(5):
            host.give("write", Put("t", b"a%d" % n, b"v"))
            host.give("write", Put("u", b"b%d" % n, b"v"))
            world.run_for(200 * MICROSECOND)
        host.crash()
        assert len(host.disk.durable("t")) == len(host.disk.durable("u"))


def test_erase_takes_the_half_open_range() -> None:
    world, host = running()
    for n in range(5):
        host.give("write", number(n))
    host.give("write", Erase("t", b"01", b"03"))
    world.run_for(SECOND)
    assert [key for key, _ in host.disk.durable("t")] == [b"00", b"03", b"04"]


def test_a_running_process_reads_its_own_queued_writes() -> None:
    world, host = running()
    host.give("write", number(1))
    world.run_for(10 * MICROSECOND)
    assert host.disk.durable("t") == []
    assert puppet(host).context.load("t") == [(b"01", b"v")]


def test_a_slow_disk_reports_later() -> None:
    world, host = running()
    host.disk.slow_ns = 500 * MILLISECOND
    host.give("write", number(1))
    world.run_for(499 * MILLISECOND)
    assert puppet(host).written_turns == []
    world.run_for(10 * MILLISECOND)
    assert puppet(host).written_turns == [2]


def test_a_full_disk_stops_the_node_with_a_reason_and_keeps_what_it_had() -> None:
    world, host = running()
    host.give("write", number(1))
    world.run_for(SECOND)
    host.disk.full = True
    host.give("write", number(2))
    world.run_for(SECOND)
    assert host.state == STOPPED
    assert "no room on the disk" in host.reason
    assert host.disk.durable("t") == [(b"01", b"v")]
    host.disk.full = False
    host.start()
    assert puppet(host).context.load("t") == [(b"01", b"v")]


def test_a_node_that_cannot_write_at_its_start_stops_with_a_reason() -> None:
    world = World(1)

    def boot(context: object) -> Puppet:
        DiskStore(host.disk).commit([number(1)])
        raise AssertionError("the disk is full")

    host = world.add_host("n1", boot, STEADY)
    host.disk.full = True
    host.start()
    assert host.state == STOPPED
    assert "no room" in host.reason


def test_a_store_that_failed_once_takes_no_more() -> None:
    _, host = running()
    store = DiskStore(host.disk)
    host.disk.full = True
    with pytest.raises(StoreFull):
        store.commit([number(1)])
    host.disk.full = False
    with pytest.raises(StoreError, match="takes no more writes since: no room"):
        store.commit([number(1)])


def test_a_host_waits_when_too_much_waits_for_its_disk() -> None:
    world, host = running()
    host.disk.slow_ns = SECOND
    host.give("write", Put("t", b"big", bytes(17 << 20)))
    world.run_for(MILLISECOND)
    host.give("unit", "later")
    world.run_for(900 * MILLISECOND)
    assert puppet(host).heard == []
    world.run_for(200 * MILLISECOND)
    assert puppet(host).heard == ["later"]
