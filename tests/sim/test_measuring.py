"""Flows that measure, on a virtual network with faults: real nodes, and time that a test can let pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.support.machines import watch

from holdfast.faults.text import Words, parse_fault
from holdfast.health.frames import Probe
from holdfast.links.flow import FlowState
from holdfast.links.link import LinkMachine
from holdfast.links.measuring import MEASURE
from holdfast.links.ports import DATAGRAMS, SendFrame, link_unit, multicast_unit
from holdfast.links.subsystem import LinkService
from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig
from holdfast.node.core import NodeCore
from holdfast.sim.cluster import make_core
from holdfast.sim.facts import FactBook
from holdfast.sim.path import Path
from holdfast.sim.world import World
from holdfast.telemetry.facts import LinkFact
from holdfast.types import MILLISECOND, SECOND, SYNC, FlowId

GROUP = "239.255.0.1:7401"
RUNGS = ("tcp mss:536", "tcp mss:960", "tcp mss:1240", "tcp mss:1460")
USES = {"tcp", "udp", "udp alt", "udp frag", *RUNGS}


class Lab:
    """Nodes `n1`, `n2` on one subnet."""

    def __init__(
        self,
        *,
        secure: bool = False,
        seed: int = 1,
        mtu: int = 1500,
        measure: tuple[tuple[Any, ...], tuple[Any, ...]] = (MEASURE, MEASURE),
    ) -> None:
        self.world = World(seed, secure=secure, domain="lab", facts=FactBook())
        self.world.network.subnet("red", mtu=mtu)
        for number in (1, 2):
            config = NodeConfig(
                domain="lab",
                name=f"n{number}",
                join=("127.1.0.1:7400",),
                adapter=(
                    AdapterConfig(
                        "red",
                        f"127.1.0.{number}:7400",
                        mtu=mtu,
                        multicast=GROUP,
                        measure=measure[number - 1],
                    ),
                ),
                security=SecurityConfig(mode="tls" if secure else "plain"),
            )
            host = self.world.add_host(f"n{number}", partial(make_core, config=config))
            self.world.network.attach(host, "red", "red", (f"127.1.0.{number}", 7400))
        for host in self.world.hosts.values():
            host.start()
        self.probes: dict[str, list[tuple[FlowId, int]]] = {"n1": [], "n2": []}
        for name in self.probes:
            self._watch(name)

    def core(self, name: str) -> NodeCore:
        core = self.world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def _watch(self, name: str) -> None:
        def see(_call: str, inputs: list[Any]) -> None:
            for item in inputs:
                for frame in getattr(item, "frames", ()):
                    if isinstance(frame, Probe) and not frame.pair:
                        self.probes[name].append((item.flow, frame.size))

        watch(self.core(name).turns, "health", see)

    def link(self, name: str = "n1") -> LinkMachine:
        link = (
            self.core(name)
            .service(LinkService)
            .link(self.core("n2" if name == "n1" else "n1").me.node)
        )
        assert link is not None
        return link

    def opener(self) -> str:
        """Who opens flows that measure: the one with the smaller id."""
        return min(("n1", "n2"), key=lambda name: self.core(name).me.node)

    def flows(self, name: str = "n1") -> dict[str, FlowState]:
        return {
            f"{flow.info.transport} {flow.use}".strip(): flow
            for flow in self.link(name).flows.values()
            if flow.ready and flow.close_at > 1 << 62
        }

    def settle(self) -> None:
        def settled() -> bool:
            link = self.core("n1").service(LinkService).link(self.core("n2").me.node)
            return link is not None and all(self.flows(n).keys() == USES for n in ("n1", "n2"))

        assert self.world.run_until(settled, 20 * SECOND)

    def probe(self, name: str, use: str, size: int) -> None:
        """Send one that belongs to no basic."""
        peer = self.core("n2" if name == "n1" else "n1").me.node
        unit, flow = link_unit(peer), None
        if use == "multicast":
            unit = multicast_unit("red")
        else:
            flow = self.flows(name)[use].flow
        frame = Probe(1, size, 0, 0, memoryview(b"\x5a"))
        self.core(name).turns._carry_down.append((unit, SendFrame(frame, SYNC, flow, size)))
        self.world.host(name).give("nobody", None)

    def passes(self, name: str, use: str, size: int) -> bool:
        """Whether a probe arrives within half a second."""
        other = "n2" if name == "n1" else "n1"
        before = len(self.probes[other])
        self.probe(name, use, size)
        self.world.run_for(500 * MILLISECOND)
        return size in [s for _, s in self.probes[other][before:]]

    def break_(self, text: str) -> int:
        return self.world.network.add(parse_fault(Words(text)))

    def path(self, sender: str, listener: str) -> Path:
        network = self.world.network
        ends = [self.world.host(name).adapters["red"] for name in (sender, listener)]
        return network.path(*ends)

    def events(self, event: str) -> list[LinkFact]:
        assert self.world.facts is not None
        return [fact for fact in self.world.facts.of(LinkFact) if fact.event == event]


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def lab(request: pytest.FixtureRequest) -> Lab:
    made = Lab(secure=request.param)
    made.settle()
    made.world.run_for(SECOND)  # what was opened twice has gone by then
    return made


# -- what passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "size"),
    [
        ("udp", 1500),
        ("udp alt", 1500),
        ("udp frag", 9000),
        ("multicast", 1500),
        ("tcp mss:536", 576),
    ],
)
def test_a_probe_of_every_kind_passes_both_ways(lab: Lab, use: str, size: int) -> None:
    for name in ("n1", "n2"):
        assert lab.passes(name, use, size)


@pytest.mark.parametrize(
    ("fault", "lost", "sound"),
    [
        (
            "filter frag",
            [("udp frag", 4000)],
            [("udp frag", 1500), ("udp", 1500), (RUNGS[3], 1500)],
        ),
        ("filter multicast", [("multicast", 576)], [("udp", 1500), ("udp frag", 4000)]),
        ("over 1400", [("udp frag", 4000), ("udp", 1500)], [("udp frag", 1300), (RUNGS[2], 1280)]),
        ("over 1500", [], [("udp frag", 9000), (RUNGS[3], 1500)]),
        (
            "filter udp",
            [("udp frag", 4000), ("multicast", 576), ("udp alt", 600)],
            [(RUNGS[0], 576)],
        ),
        ("pattern 5a5a5a5a", [("udp frag", 4000), ("multicast", 576), ("udp alt", 600)], []),
        ("blackout only frag", [("udp frag", 4000)], [("udp frag", 1500), ("multicast", 576)]),
    ],
)
def test_a_fault_hits_what_it_names_and_nothing_else(
    lab: Lab, fault: str, lost: list[tuple[str, int]], sound: list[tuple[str, int]]
) -> None:
    lab.break_(f"red n1->n2 {fault}")
    assert [passed for passed in sound if not lab.passes("n1", *passed)] == []
    assert [hit for hit in lost if lab.passes("n1", *hit)] == []
    assert all(lab.passes("n2", *hit) for hit in lost), "the way back is sound"


@pytest.mark.parametrize(
    ("use", "kind", "size", "counted"),
    [
        ("udp alt", "udp", 1234, 1234),
        ("multicast", "multicast", 1234, 1234),
        ("udp frag", "frag", 4000, 4000 + 2 * 20),
    ],
)
def test_bytes_are_counted_by_kind_as_they_cross_the_cable(
    use: str, kind: str, size: int, counted: int
) -> None:
    """What health itself sends meanwhile is the same with and without the probe."""
    counts = []
    for probed in (False, True):
        lab = Lab()
        lab.settle()
        lab.world.run_for(SECOND)
        if probed:
            lab.probe("n1", use, size)
        before = lab.path("n1", "n2").wire_bytes[kind]
        lab.world.run_for(20 * MILLISECOND)
        counts.append(lab.path("n1", "n2").wire_bytes[kind] - before)
    assert counts[1] - counts[0] == counted


# -- connections that stall --------------------------------------------------------------------------------------


def test_a_rung_that_stalls_is_replaced_until_it_passes_again(lab: Lab) -> None:
    fault = lab.break_("red n1->n2 over 1400")
    assert not lab.passes("n1", RUNGS[3], 1500)
    for _ in range(5):
        lab.world.run_for(3 * SECOND)
        if RUNGS[3] in lab.flows("n1"):
            assert not lab.passes("n1", RUNGS[3], 1500)
        assert lab.passes("n1", RUNGS[2], 1280)
    assert lab.link().up_since is not None
    lab.world.network.remove(fault)
    assert lab.world.run_until(lambda: RUNGS[3] in lab.flows("n1"), 10 * SECOND)
    lab.world.run_for(3 * SECOND)
    assert lab.passes("n1", RUNGS[3], 1500)


# -- other ports -------------------------------------------------------------------------------------------------


def alt_port(lab: Lab) -> int:
    """The source port of the flow of use `alt`, as the other side sees it."""
    acceptor = "n2" if lab.opener() == "n1" else "n1"
    return lab.flows(acceptor)["udp alt"].info.port


def test_the_other_port_changes_about_once_a_minute_and_is_never_missing(lab: Lab) -> None:
    ports = {alt_port(lab)}
    for _ in range(400):
        lab.world.run_for(SECOND // 2)
        ports.add(alt_port(lab))
        assert all(lab.flows(name).keys() == USES for name in ("n1", "n2"))
    assert 4 <= len(ports) <= 6


def test_flows_and_their_tags_stay_bounded_while_ports_change() -> None:
    lab = Lab(secure=True)
    lab.settle()
    lab.world.run_for(1200 * SECOND)
    for name in ("n1", "n2"):
        assert len(lab.link(name).flows) <= len(USES) + 1
        assert lab.link(name).inspect().session.tags <= len(USES) + 2
    assert lab.passes("n1", "udp alt", 1500)


def test_a_port_that_does_not_pass_is_reported_and_another_one_tried() -> None:
    """A fault that hits some 5-tuples must not stay hidden: the next port finds it."""
    lab = Lab(seed=3)
    lab.settle()
    lab.break_("red n1<->n2 blackout only udp share 50%")
    lab.world.run_for(600 * SECOND)
    unheard = [fact.path for fact in lab.events("flow_unheard")]
    assert "red/red/udp+alt" in unheard
    assert lab.link().up_since is not None


def test_data_takes_the_other_port_when_nothing_else_is_left(lab: Lab) -> None:
    """Both directions of the main datagram flow are lost, and TCP does not pass."""
    main, alt = lab.flows("n1")["udp"], lab.flows("n1")["udp alt"]
    lanes = lab.link("n1").inspect().sender.selection
    now = lab.world.host("n1").now
    assert lanes.best(now, 16) is lab.flows("n1")["tcp"]
    assert lanes.best(now, DATAGRAMS + 16, datagrams=True) is main
    main.alive = lab.flows("n1")["tcp"].alive = False
    assert lanes.best(now, 16) is alt
    assert lanes.best(now, DATAGRAMS + 16, datagrams=True) is alt


# -- sessions ----------------------------------------------------------------------------------------------------


def test_what_only_measures_keeps_no_session_alive(lab: Lab) -> None:
    """Nothing that may carry data passes any more; connections that measure do, and are used."""
    for name in ("n1", "n2"):
        host = lab.world.host(name)
        nowhere = lab.world.network._nowhere(host.adapters["red"])
        for flow in lab.link(name).flows.values():
            if flow.carries:
                end: Any = host.flows[flow.flow]
                (end if flow.info.transport == "udp" else end.out).path = nowhere
    for _ in range(40):
        for name in ("n1", "n2"):
            if RUNGS[0] in lab.flows(name):
                lab.probe(name, RUNGS[0], 576)
        lab.world.run_for(100 * MILLISECOND)
    assert len(lab.probes["n2"]) > 20
    assert lab.events("down") != []


def test_a_restart_is_followed_by_every_flow(lab: Lab) -> None:
    lab.world.host("n2").crash()
    lab.world.run_for(SECOND)
    lab.world.host("n2").start()
    lab.settle()
    lab._watch("n2")
    assert lab.passes("n1", "udp frag", 4000)
    assert lab.passes("n1", "multicast", 576)
    assert lab.passes("n2", "multicast", 576)


def test_what_one_end_does_not_measure_the_other_does_not_open() -> None:
    lab = Lab(measure=(("frag", "mss"), ("alt", "frag")))
    lab.world.run_for(5 * SECOND)
    assert lab.flows("n1").keys() == lab.flows("n2").keys() == {"tcp", "udp", "udp frag"}


def test_rungs_stop_at_the_smaller_mtu() -> None:
    lab = Lab(mtu=9000)
    lab.world.run_for(5 * SECOND)
    rungs = {flow.use for flow in lab.flows("n1").values() if flow.use.startswith("mss")}
    assert rungs == {"mss:536", "mss:960", "mss:1240", "mss:1460", "mss:3960", "mss:8960"}
    assert lab.passes("n1", "tcp mss:8960", 9000)
