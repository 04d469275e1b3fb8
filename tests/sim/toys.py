"""Small cores for tests of the simulator itself: what they are told, they do, and they remember what they heard."""

from __future__ import annotations

from typing import Any

from holdfast.group.subsystem import GROUP_SUBSYSTEM
from holdfast.links.ports import (
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    OpenFailed,
    OpenFlow,
    Transmit,
)
from holdfast.machine import Result, Write
from holdfast.sim.host import Host
from holdfast.sim.port import HostContext
from holdfast.sim.profile import HostProfile
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, NEVER, SECOND, FlowId, Nanos

__all__ = [
    "STEADY",
    "Arrived",
    "Credit",
    "FlowClosed",
    "FlowOpened",
    "OpenFailed",
    "Puppet",
    "close",
    "open_flow",
    "open_request",
    "pair",
    "puppet",
    "send",
]

STEADY = HostProfile(turn_jitter_ns=0, hiccup_ppm=0, wall_skew_ns=0)
"""A machine without chance, for tests that look at times."""


class Puppet:
    """Inputs to the unit `do` are its effects, those to `write` its writes; everything else is remembered."""

    subsystems = (GROUP_SUBSYSTEM,)
    """Whose effects its host carries out."""

    def __init__(self, context: HostContext) -> None:
        self.context = context
        self.number = 0
        self.turns: list[list[tuple[str, Any]]] = []
        self.times: list[Nanos] = []
        self.heard: list[Any] = []
        self.written_turns: list[int] = []
        self.deadline = NEVER
        self.facts: list[Any] = []
        self.failures: list[Any] = []
        self.more = 0

    def start(self, now: Nanos) -> Result:
        return self.turn(now, [])

    def turn(self, now: Nanos, inputs: list[tuple[str, Any]]) -> Result:
        self.number += 1
        self.turns.append(inputs)
        self.times.append(now)
        if self.deadline <= now:
            self.deadline = NEVER
        writes: list[Write] = []
        effects: list[Any] = []
        for unit, item in inputs:
            if unit == "do":
                effects.append(item)
            elif unit == "write":
                writes.append(item)
            elif unit == "raise":
                raise item
            else:
                self.heard.append(item)
        facts, self.facts = self.facts, []
        failures, self.failures = self.failures, []
        self.more = max(0, self.more - 1)
        return Result(self.number, writes, effects, facts, failures, more=self.more > 0)

    def written(self, turn: int) -> bool:
        self.written_turns.append(turn)
        return False

    def next_deadline(self) -> Nanos:
        return self.deadline

    # -- what tests ask ------------------------------------------------------------------------------------------

    def packets(self) -> list[bytes]:
        """Everything that arrived, on whatever flow, in order."""
        return [bytes(packet) for item in self.of(Arrived) for packet in item.packets]

    def of(self, kind: type) -> list[Any]:
        return [item for item in self.heard if isinstance(item, kind)]


def puppet(host: Host) -> Puppet:
    assert isinstance(host.core, Puppet), f"{host.name} has no process"
    return host.core


def pair(
    seed: int = 1,
    profile: HostProfile = STEADY,
    mtu: int = 65_535,
    transports: tuple[str, ...] = ("tcp", "udp"),
    **options: Any,
) -> tuple[World, Host, Host]:
    """Two hosts, `n1` and `n2`, on the subnets red and blue, running."""
    world = World(seed, **options)
    hosts = []
    for subnet in ("red", "blue"):
        world.network.subnet(subnet, mtu=mtu)
    for number, name in enumerate(("n1", "n2"), 1):
        host = world.add_host(name, Puppet, profile)
        for net, subnet in enumerate(("red", "blue"), 1):
            address = (f"127.{net}.0.{number}", 7000)
            world.network.attach(host, subnet, subnet, address, transports)
        hosts.append(host)
    for host in hosts:
        host.start()
    return world, hosts[0], hosts[1]


def open_request(subnet: str, transport: str, remote: tuple[str, int]) -> OpenFlow:
    return OpenFlow(subnet, transport, *remote, unit="test")


def open_flow(
    world: World,
    host: Host,
    peer: Host,
    transport: str,
    subnet: str = "red",
    remote: tuple[str, int] | None = None,
) -> FlowId:
    """Open a flow, let it settle, and give its number at `host`."""
    before = len(puppet(host).of(FlowOpened))
    target = remote or peer.adapters[subnet].address
    host.give("do", open_request(subnet, transport, target))
    assert world.run_until(lambda: len(puppet(host).of(FlowOpened)) > before, 10 * SECOND)
    world.run_for(10 * MILLISECOND)
    opened: FlowOpened = puppet(host).of(FlowOpened)[-1]
    return opened.flow


def send(host: Host, flow: FlowId, *packets: bytes) -> None:
    host.give("do", Transmit(flow, list(packets)))


def close(host: Host, flow: FlowId) -> None:
    host.give("do", CloseFlow(flow, "test"))
