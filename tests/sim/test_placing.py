"""A flow of 1200-byte messages over paths that break, in virtual time: how long it stalls, who moves, who stays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from holdfast.health.placement.needs import Needs, SetNeeds
from holdfast.links.link import LinkMachine
from holdfast.links.ports import DATAGRAMS, PortReady, PortRefused, SendChannel, SendRaw, link_unit
from holdfast.node.core import NodeCore
from holdfast.sim.cluster import Cluster
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.scenario import parse_scenario
from holdfast.telemetry.facts import LinkFact
from holdfast.types import MILLISECOND, SECOND, Nanos

LARGE, SMALL, STREAM = 20, 21, 22
SIZE = 1100
"""Of the message; about 1200 on the wire."""
EVERY_NS = 50 * MILLISECOND
BREAK_NS = 5 * SECOND


class Flows:
    """n1 sends to n2: large and small datagrams, and a channel, one message of each every 50 ms."""

    def __init__(self, faults: str, seconds: int, seed: int = 1, secure: bool = False) -> None:
        self.facts = FactBook()
        self.cluster = Cluster(
            seed,
            2,
            groups=(),
            secure=secure,
            scenario=parse_scenario(faults),
            until_ns=seconds * SECOND,
            facts=self.facts,
        )
        self.arrived: dict[int, list[tuple[Nanos, int]]] = {}
        self.refused: list[PortRefused] = []
        self.sent = 0
        self._stop_ns = (seconds - 1) * SECOND
        sender, listener = (self.cluster.world.host(name) for name in ("n1", "n2"))
        listener.on(PortReady, self._ready)
        sender.on(PortRefused, lambda _, refused: self.refused.append(refused))
        self.cluster.world.at(3 * SECOND, self._begin, sender)

    def _ready(self, host: Host, ready: PortReady) -> None:
        log = self.arrived.setdefault(ready.port, [])
        log += [(host.world.now, int.from_bytes(bytes(m[:4]), "big")) for m in ready.messages]

    def _begin(self, host: Host) -> None:
        needs = Needs(size=1200, move_back_ns=3 * SECOND)
        host.give("health", SetNeeds("test", DATAGRAMS + LARGE, needs))
        host.give("health", SetNeeds("test", DATAGRAMS + SMALL, Needs(size=200)))
        self._send(host)

    def _send(self, host: Host) -> None:
        world = host.world
        if world.now > self._stop_ns:
            return
        self.sent += 1
        number = self.sent.to_bytes(4, "big")
        unit = self.link("n1").unit
        host.give(unit, SendRaw(LARGE, [number + bytes(SIZE)]))
        host.give(unit, SendRaw(SMALL, [number + bytes(60)]))
        host.give(unit, SendChannel(STREAM, [number + bytes(SIZE)]))
        world.at(world.now + EVERY_NS, self._send, host)

    def run(self) -> Flows:
        self.cluster.run()
        return self

    def link(self, name: str) -> LinkMachine:
        core, peer = (self.core(n) for n in (name, "n2" if name == "n1" else "n1"))
        link = core.turns.machine(link_unit(peer.me.node))
        assert isinstance(link, LinkMachine)
        return link

    def core(self, name: str) -> NodeCore:
        core = self.cluster.world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def path(self, traffic: int) -> str:
        return self.link("n1").placement(traffic)[0]

    def stall_s(self, port: int) -> float:
        """The longest time without anything new after the fault."""
        times = [BREAK_NS, *(at for at, _ in self.arrived[port] if at >= BREAK_NS)]
        return max(b - a for a, b in pairwise(times)) / SECOND

    def numbers(self, port: int) -> list[int]:
        return [number for _, number in self.arrived[port]]

    def moves(self, what: str) -> list[LinkFact]:
        return [
            fact
            for fact in self.facts.of(LinkFact)
            if fact.event == "moved" and fact.reason.startswith(f"{what}: ")
        ]

    def downs(self) -> list[LinkFact]:
        return [fact for fact in self.facts.of(LinkFact) if fact.event == "down"]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
@pytest.mark.parametrize("ways", ["->", "<->"])
def test_a_size_hole_stalls_what_needs_the_size_for_less_than_a_second_and_nothing_else(
    ways: str, secure: bool
) -> None:
    """H11, H12: on one path of two, in one direction or both; corosync stalls for 44 s."""
    quiet = Flows("", 4, secure=secure).run()
    home = quiet.path(DATAGRAMS + LARGE).split("/")[0]
    faults = f"at 5s break {home} n1{ways}n2 over 1000\nat 10s heal all"
    flows = Flows(faults, 20, secure=secure).run()
    assert flows.stall_s(LARGE) < 1
    assert flows.stall_s(STREAM) < 1
    assert flows.stall_s(SMALL) < 0.2
    assert flows.moves("datagrams 21") == [], "small traffic stays"
    assert flows.numbers(STREAM) == list(range(1, flows.sent + 1))
    away, back = flows.moves("datagrams 20")
    assert away.reason.endswith("packets over 1000 bytes do not pass, 1200 are needed")
    assert back.path.startswith(home)
    assert back.now_ns - away.now_ns > 8 * SECOND, "by policy: three seconds sound"
    assert flows.downs() == []
    assert flows.refused == []


@pytest.mark.parametrize(
    ("fault", "stall_s"), [("blackout", 1), ("loss 20%", 1), ("filter udp", 1), ("filter tcp", 1)]
)
def test_every_other_fault_of_one_path_stalls_a_channel_for_less_than_a_second(
    fault: str, stall_s: float
) -> None:
    quiet = Flows("", 4).run()
    home = quiet.path(STREAM).split("/")[0]
    flows = Flows(f"at 5s break {home} n1<->n2 {fault}", 12).run()
    assert flows.stall_s(STREAM) < stall_s
    assert flows.numbers(STREAM) == list(range(1, flows.sent + 1))
    assert flows.downs() == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_flapping_path_is_left_and_not_used_again_and_again(seed: int) -> None:
    quiet = Flows("", 4, seed).run()
    home = quiet.path(STREAM).split("/")[0]
    flows = Flows(f"at 5s break {home} n1<->n2 blackout flap 1s/2s", 90, seed).run()
    assert len(flows.moves("channel 22")) <= 8
    assert flows.numbers(STREAM) == list(range(1, flows.sent + 1))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_when_every_path_is_degraded_channels_go_on_in_small_packets_and_senders_are_told(
    secure: bool,
) -> None:
    """H12: re-packetised below the limit; what cannot be cut is reported."""
    flows = Flows("at 5s break * n1<->n2 over 700", 15, secure=secure).run()
    assert flows.numbers(STREAM) == list(range(1, flows.sent + 1))
    assert flows.stall_s(SMALL) < 0.2
    refused = sum(refused.count for refused in flows.refused)
    lost = flows.sent - len(flows.arrived[LARGE]) - refused
    assert refused > 100
    assert lost < 1 / (EVERY_NS / SECOND), "nothing is lost in silence once the limit is known"
    assert flows.downs() == []


def test_a_run_with_needs_repeats_itself() -> None:
    def trace() -> list[Any]:
        flows = Flows("at 5s break red n1->n2 over 1000 flap 1s/2s", 9, 7).run()
        return [flows.arrived, flows.refused, list(flows.facts.of(LinkFact))]

    assert trace() == trace()
