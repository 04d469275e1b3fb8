"""Two simulated nodes, a channel from n1 to n2 on one of two subnets, and advice for n1."""

from __future__ import annotations

from typing import Any

from tests.support.advice import edition

from holdfast.health.ports import AdviceNews
from holdfast.links.link import LinkMachine
from holdfast.links.ports import PortReady, SendChannel, link_unit
from holdfast.node.core import NodeCore
from holdfast.sim.cluster import Cluster
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.scenario import parse_scenario
from holdfast.telemetry.advice import Advice
from holdfast.types import MILLISECOND, SECOND

PORT = 20
EVERY_NS = 100 * MILLISECOND


class AdvisedFlow:
    """One message every 100 ms. Time only passes in `run_to`."""

    def __init__(self, nodes: int = 2, seed: int = 1) -> None:
        self.facts = FactBook()
        self.cluster = Cluster(seed, nodes, groups=(), until_ns=3600 * SECOND, facts=self.facts)
        self.world = self.cluster.world
        self.sent = 0
        self._edition = 0
        self._arrived: list[int] = []
        self.world.host("n2").on(PortReady, self._ready)
        self.cluster.start()
        self.world.at(3 * SECOND, self._send, self.world.host("n1"))

    def core(self, name: str) -> NodeCore:
        core = self.world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def run_to(self, second: int) -> str:
        """Let time pass; gives the adapter that carries the channel then."""
        self.world.run(second * SECOND)
        link = self.core("n1").turns.machine(link_unit(self.core("n2").me.node))
        assert isinstance(link, LinkMachine)
        return link.placement(PORT)[0].split("/")[0]

    def wall_us(self) -> int:
        host = self.world.host("n1")
        return (host.now + host.wall_offset_ns) // 1000

    def advise(self, avoid: str = "", valid_s: int = 3600) -> None:
        """A new edition: avoid these adapters (with commas) on the way to n2."""
        me, peer = (self.core(name).me.node.hex() for name in ("n1", "n2"))
        self._edition += 1
        paths = [(me, one, peer, one) for one in avoid.split(",") if one]
        self.follow(edition(self.wall_us(), *paths, snapshot=self._edition, valid_s=valid_s))

    def follow(self, advice: Advice | None, name: str = "n1") -> None:
        host = self.world.host(name)
        host.give("health", AdviceNews(advice, "advice", (), host.wall_offset_ns))

    def fault(self, text: str, seconds: int = 0) -> None:
        """Break something now, for some seconds or for the rest of the run."""
        heal = f"\nat {seconds}s heal all" if seconds else ""
        parse_scenario(f"at 0s {text}{heal}").schedule(self.world)

    def status(self, name: str = "n1") -> dict[str, Any]:
        status: dict[str, Any] = self.core(name).status(self.world.host(name).now)["advice"]
        return status

    def numbers(self) -> list[int]:
        return self._arrived

    def _send(self, host: Host) -> None:
        self.sent += 1
        unit = link_unit(self.core("n2").me.node)
        host.give(unit, SendChannel(PORT, [self.sent.to_bytes(4, "big")]))
        self.world.at(self.world.now + EVERY_NS, self._send, host)

    def _ready(self, _host: Host, ready: PortReady) -> None:
        if ready.port == PORT:
            self._arrived += [int.from_bytes(bytes(m[:4]), "big") for m in ready.messages]
