"""What the silence of all heartbeats means while something else arrives, and while nothing does."""

from __future__ import annotations

import pytest
from tests.unit.health.wires import EVERYTHING, Wires, flow_cut, over

from holdfast.types import MILLISECOND

RATE = 20_000
"""Bytes of data per second."""


def silent(rate: int) -> Wires:
    """Every heartbeat and probe from n1 to n2 vanishes, and data of an application still arrives at this rate."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    if rate:
        wires.data["n2"] = (lambda: True, rate)
    wires.faults = [lambda packet: packet[0] == "n1"]
    return wires


def test_a_path_on_which_nothing_arrives_is_dead_after_five_heartbeats() -> None:
    wires = silent(0).run(0.8)
    assert not wires.row("n1", "n2", at="n2").alive


def test_a_path_that_data_fills_is_congested_and_not_dead() -> None:
    """Finding: application data that exceeded a narrow path made it dead."""
    wires = silent(RATE).run(2)
    row = wires.row("n1", "n2", at="n2")
    assert row.alive
    assert row.rate_limit_kbps == pytest.approx(RATE * 8 / 1000, rel=0.2)
    assert [fact for fact in wires.changes() if not fact.alive] == []


def test_diagnostics_take_little_of_a_path_that_is_known_to_be_narrow() -> None:
    """H13. They must not fill what they measure: a tenth of the rate, and the basic heartbeats."""
    wires = silent(RATE).run(2)
    assert wires.row("n1", "n2", at="n2").rate_limit_kbps
    before = wires.bytes["n1", "n2", "red"]
    wires.run(0.9)
    assert (wires.bytes["n1", "n2", "red"] - before) / 0.9 < RATE / 4


def test_data_alone_does_not_keep_a_path_alive() -> None:
    """H8: liveness comes from heartbeats. A full queue lets one of them pass before long."""
    wires = silent(RATE).run(5)
    assert not wires.row("n1", "n2", at="n2").alive


def test_data_that_stops_as_well_does_not_delay_the_verdict_for_long() -> None:
    wires = silent(RATE)
    until = wires.now + 400 * MILLISECOND
    wires.data["n2"] = (lambda: wires.now < until, RATE)
    wires.run(1.3)
    assert not wires.row("n1", "n2", at="n2").alive


def test_a_connection_that_is_stuck_is_no_filter_of_tcp_in_either_direction() -> None:
    """A large message has blocked the connection with data, so both ends hear nothing there. Those that measure are
    heard with their small segments, and show that it is a size."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    stuck = wires.flow_number("n1", "n2", transport="tcp")
    cut = [flow_cut("n1", stuck), flow_cut("n2", stuck)]
    wires.faults = [over("n1", "n2", 1100, kind="tcp"), *cut]
    wires.run(6)
    assert [fact for fact in wires.changes() if fact.transport == "tcp" and not fact.alive] == []
    there, back = wires.row("n1", "n2", "tcp"), wires.row("n2", "n1", "tcp")
    assert (there.size, back.size) == (1000, 1500)


def test_flows_that_are_dead_beside_an_alternate_port_that_is_heard_are_not_congestion() -> None:
    """One link of a bundle is dead, and both flows with data are on it. A full queue would drop the other port, too."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    dead = [wires.flow_number("n1", "n2", transport=kind) for kind in ("udp", "tcp")]
    wires.faults = [flow_cut("n1", flow) for flow in dead]
    wires.data["n2"] = (lambda: True, RATE)
    wires.run(6)
    assert [fact for fact in wires.changes() if fact.rate_limit_kbps] == []
    assert wires.row("n1", "n2", at="n2").flows_bad


def test_flows_that_are_dead_while_probes_are_heard_are_not_congestion() -> None:
    """Both flows with data and the alternate port are on the dead link. Little more than probes arrives, so it is not
    data that fills the path."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    dead = [("udp", ""), ("udp", "alt"), ("tcp", "")]
    flows = [wires.flow_number("n1", "n2", transport=kind, use=use) for kind, use in dead]
    wires.faults = [flow_cut("n1", flow) for flow in flows]
    wires.data["n2"] = (lambda: True, RATE // 4)
    wires.run(6)
    assert [fact for fact in wires.changes() if fact.rate_limit_kbps] == []


def test_connections_that_a_kernel_closed_die_with_the_datagrams_of_the_path() -> None:
    """A process was killed. Its connections are gone at once; no heartbeat will show that probes are missing."""
    wires = Wires(2, uses=EVERYTHING, mtu=9000).run(5)
    begin = wires.now
    wires.faults = [lambda packet: packet[0] == "n1"]
    tcp = [
        flow
        for (name, flow), (_, ready) in wires.ends.items()
        if name == "n2" and ready.transport == "tcp"
    ]
    for flow in tcp:
        wires.close(flow)
    wires.run(0.45)
    assert [fact for fact in wires.changes(begin) if not fact.alive] == []
    wires.run(1.5)
    assert [wires.row("n1", "n2", kind, at="n2").alive for kind in ("udp", "tcp")] == [False, False]
    died = [
        fact.now_ns
        for fact in wires.changes(begin)
        if not fact.alive and fact.sender_name == "n1" and fact.transport in ("udp", "tcp")
    ]
    assert len(died) == 2
    assert max(died) - min(died) < 100 * MILLISECOND
