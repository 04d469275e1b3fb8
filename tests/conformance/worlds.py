"""Two worlds that run the same nodes: sockets, disks and threads of this machine, and the simulator.

A test of `test_drivers.py` takes a world and says what must come true in it; how time passes is the world's business.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from holdfast.faults.model import Blackout, Fault, Filter, Over, Where
from holdfast.group.ports import Multicast
from holdfast.group.section import GroupSection
from holdfast.links.ports import PortReady, SendChannel, link_unit
from holdfast.node.config import AdapterConfig, LabConfig, NodeConfig, SecurityConfig
from holdfast.node.core import NodeCore
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node
from holdfast.sim.cluster import make_core
from holdfast.sim.host import Host
from holdfast.sim.ledger import Ledger
from holdfast.sim.world import World
from holdfast.transports import Rule
from holdfast.types import MILLISECOND, SECOND

NAMES = ("ann", "ben", "cem")
SUBNETS = ("red", "blue")
GROUPS = {"red": "239.255.71.1:17401", "blue": "239.255.71.2:17401"}
"""What the adapters of each subnet multicast to; on loopback all nodes of a machine hear it, and know their own."""
GROUP = "book"
PORT = 16


class ConformanceWorld(Protocol):
    """Three nodes with two subnets and one group of all three."""

    received: dict[str, list[bytes]]
    """What came in on port 16 of each node."""

    def start(self) -> None: ...
    def until(self, predicate: Callable[[], bool], limit_s: float = 20.0) -> bool: ...
    def core(self, name: str) -> NodeCore: ...
    def ledger(self, name: str) -> Ledger: ...
    def multicast(self, name: str, messages: list[bytes]) -> None: ...
    def send(self, name: str, peer: str, messages: list[bytes]) -> None: ...
    def end(self, name: str) -> None: ...
    def begin(self, name: str) -> None: ...
    def over(self, sender: str, listener: str, subnet: str, size: int) -> None: ...
    def silence(self, sender: str, listener: str, subnet: str) -> None: ...
    def lose(self, sender: str, listener: str, subnet: str, kind: str) -> None:
        """One kind of packets does not pass; from one node to one other, or (multicast) to all."""
        ...

    def heal(self) -> None: ...
    def wake(self, name: str) -> None: ...
    def close(self) -> None: ...


def config_of(name: str, hosts: dict[str, str], port: int, join: str, data: str = "") -> NodeConfig:
    return NodeConfig(
        domain="conformance",
        name=name,
        data=data,
        join=(join,),
        adapter=tuple(
            AdapterConfig(subnet, f"{host}:{port}", mtu=1500, multicast=GROUPS[subnet])
            for subnet, host in hosts.items()
        ),
        security=SecurityConfig(mode="plain"),
        sections={"group": (GroupSection(GROUP, NAMES, NAMES[0]),)},
        lab=LabConfig(faults=True),
    )


class SimulatedWorld:
    """The simulator, without chance faults: only what a test asks for."""

    def __init__(self, seed: int = 1) -> None:
        self.received: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self._world = World(seed)
        for subnet in SUBNETS:
            self._world.network.subnet(subnet, mtu=1500)
        for number, name in enumerate(NAMES, 1):
            hosts = {subnet: f"127.{k}.0.{number}" for k, subnet in enumerate(SUBNETS, 1)}
            config = config_of(name, hosts, 7400, "127.1.0.1:7400")
            host = self._world.add_host(
                name, partial(make_core, config=config), None, lambda _: Ledger()
            )
            for subnet, address in hosts.items():
                self._world.network.attach(host, subnet, subnet, (address, 7400))
            host.on(PortReady, self._take)

    def _take(self, host: Host, effect: PortReady) -> None:
        self.received[host.name].extend(bytes(message) for message in effect.messages)

    def start(self) -> None:
        for host in self._world.hosts.values():
            host.start()

    def until(self, predicate: Callable[[], bool], limit_s: float = 20.0) -> bool:
        return self._world.run_until(predicate, int(limit_s * SECOND), every=5 * MILLISECOND)

    def core(self, name: str) -> NodeCore:
        core = self._world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def ledger(self, name: str) -> Ledger:
        worker = self._world.host(name).workers.get(f"replica/{GROUP}")
        if worker is None:
            return Ledger()  # it was given nothing yet
        assert isinstance(worker.replica, Ledger)
        return worker.replica

    def multicast(self, name: str, messages: list[bytes]) -> None:
        assert self._world.host(name).give(f"source/{GROUP}", Multicast(messages))

    def send(self, name: str, peer: str, messages: list[bytes]) -> None:
        unit = link_unit(self.core(peer).me.node)
        assert self._world.host(name).give(unit, SendChannel(PORT, messages))

    def end(self, name: str) -> None:
        self._world.host(name).crash()

    def begin(self, name: str) -> None:
        self._world.host(name).start_again()

    def over(self, sender: str, listener: str, subnet: str, size: int) -> None:
        self._world.network.add(Fault(Where(subnet, sender, listener), Over(size)))

    def silence(self, sender: str, listener: str, subnet: str) -> None:
        self._world.network.add(Fault(Where(subnet, sender, listener), Blackout()))

    def lose(self, sender: str, listener: str, subnet: str, kind: str) -> None:
        self._world.network.add(Fault(Where(subnet, sender, listener), Filter(kind)))

    def heal(self) -> None:
        self._world.network.clear()

    def wake(self, name: str) -> None:
        self._world.host(name).give("nobody", None)

    def close(self) -> None:
        self._world.finish()


class SocketWorld:
    """Three real nodes in this process: loopback sockets, SQLite, threads, the wall's own time."""

    def __init__(self, directory: Path) -> None:
        self.received: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self._loop = loop_factory()()
        self._ledgers: dict[str, Ledger] = {}
        self._nodes: dict[str, Node] = {}
        self._hosts = {
            name: {subnet: f"127.0.{20 + k}.{i}" for k, subnet in enumerate(SUBNETS)}
            for i, name in enumerate(NAMES, 1)
        }
        ports = {name: free_port(list(hosts.values())) for name, hosts in self._hosts.items()}
        join = f"{self._hosts[NAMES[0]]['red']}:{ports[NAMES[0]]}"
        self._configs = {
            name: config_of(name, self._hosts[name], ports[name], join, str(directory / name))
            for name in NAMES
        }

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def start(self) -> None:
        for name in NAMES:
            self.begin(name)

    def begin(self, name: str) -> None:
        self._ledgers[name] = Ledger()
        node = self._nodes[name] = Node(self._configs[name], {GROUP: self._ledgers[name]})
        self._run(node.start())
        node.listen(PORT, partial(self._take, name))

    def _take(self, name: str, _: bytes, messages: list[memoryview]) -> None:
        self.received[name].extend(bytes(message) for message in messages)

    def until(self, predicate: Callable[[], bool], limit_s: float = 20.0) -> bool:
        async def wait() -> bool:
            try:
                async with asyncio.timeout(limit_s):
                    while not predicate():  # noqa: ASYNC110 any predicate will do, so there is no event
                        await asyncio.sleep(0.005)
            except TimeoutError:
                return False
            return True

        return bool(self._run(wait()))

    def core(self, name: str) -> NodeCore:
        core = self._nodes[name]._core
        assert core is not None
        return core

    def ledger(self, name: str) -> Ledger:
        return self._ledgers[name]

    def multicast(self, name: str, messages: list[bytes]) -> None:
        async def send() -> None:
            for message in messages:
                await self._nodes[name].group(GROUP).send(message)

        self._run(send())

    def send(self, name: str, peer: str, messages: list[bytes]) -> None:
        async def send() -> None:
            channel = self._nodes[name].channel(peer, PORT)
            for message in messages:
                await channel.send(message)

        self._run(send())

    def end(self, name: str) -> None:
        self._run(self._nodes[name].stop())

    def over(self, sender: str, listener: str, subnet: str, size: int) -> None:
        host = self._hosts[listener][subnet]
        self._fault(sender, Rule(f"over {size}", adapter=subnet, host=host))

    def silence(self, sender: str, listener: str, subnet: str) -> None:
        host = self._hosts[listener][subnet]
        self._fault(sender, Rule("blackout", adapter=subnet, host=host))

    def lose(self, sender: str, listener: str, subnet: str, kind: str) -> None:
        host = (
            GROUPS[subnet].split(":")[0] if kind == "multicast" else self._hosts[listener][subnet]
        )
        self._fault(sender, Rule(f"blackout only {kind}", adapter=subnet, host=host))

    def wake(self, name: str) -> None:
        driver = self._nodes[name]._driver
        assert driver is not None
        driver.wake()

    def _fault(self, name: str, rule: Rule) -> None:
        faults = self._nodes[name]._lab.faults
        assert faults is not None
        faults.add(rule)

    def heal(self) -> None:
        for node in self._nodes.values():
            if node._lab.faults is not None:
                node._lab.faults.clear()

    def close(self) -> None:
        for node in self._nodes.values():
            self._run(node.stop())
        self._loop.close()


def free_port(hosts: list[str]) -> int:
    """A port that is free on all of these addresses at the moment."""
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind((hosts[0], 0))
            port: int = probe.getsockname()[1]
        try:
            for host in hosts:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as probe:
                        probe.bind((host, port))
        except OSError:
            continue
        return port
    raise RuntimeError("no free port on loopback")
