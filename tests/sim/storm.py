"""A small world in which a lot happens, for tests that compare whole runs. Run as a script it prints its digest."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.links.ports import Arrived, FlowOpened, OpenFlow, Transmit
from holdfast.machine import Put, Result
from holdfast.sim.nemesis import plan
from holdfast.sim.port import HostContext
from holdfast.sim.trace import Trace
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos

HOSTS = 4


class Chatter:
    """Writes to its disk and to everybody, over both transports, and answers what it hears."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._number = 0
        self._flows: list[FlowId] = []
        self._deadline = 0
        self._count = len(context.load("seen"))

    def start(self, now: Nanos) -> Result:
        self._deadline = now + 10 * MILLISECOND
        effects = [
            OpenFlow(subnet, transport, f"127.{net}.0.{peer}", 7000, "test")
            for net, subnet in enumerate(("red", "blue"), 1)
            for transport in ("tcp", "udp")
            for peer in range(HOSTS)
        ]
        return self._result(effects)

    def turn(self, now: Nanos, inputs: list[tuple[str, Any]]) -> Result:
        effects: list[Any] = []
        writes: list[Any] = []
        for _, item in inputs:
            if isinstance(item, FlowOpened):
                self._flows.append(item.flow)
            elif isinstance(item, Arrived) and bytes(item.packets[0][:1]) == b"?":
                effects.append(Transmit(item.flow, [b"!" + bytes(item.packets[0])]))
        if now >= self._deadline:
            self._deadline = now + 10 * MILLISECOND
            self._count += 1
            writes.append(Put("seen", b"%08d" % self._count, self._context.entropy(8)))
            packet = b"?" + self._context.entropy(600)
            effects += [Transmit(flow, [packet, b"small"]) for flow in self._flows[:16]]
        return self._result(effects, writes)

    def _result(self, effects: list[Any], writes: list[Any] | None = None) -> Result:
        self._number += 1
        return Result(self._number, writes or [], effects, [], [], more=False)

    def written(self, turn: int) -> bool:
        return bool(turn)

    def next_deadline(self) -> Nanos:
        return self._deadline


def storm(seed: int, trace: Trace | None) -> World:
    """Four seconds of four hosts and a nemesis."""
    world = World(seed, trace=trace)
    names = [f"n{n}" for n in range(HOSTS)]
    for number, name in enumerate(names):
        host = world.add_host(name, Chatter)
        for net, subnet in enumerate(("red", "blue"), 1):
            world.network.attach(host, subnet, subnet, (f"127.{net}.0.{number}", 7000))
    for host in world.hosts.values():
        host.start()
    plan(seed, names, ["red", "blue"], 4 * SECOND, SECOND).schedule(world)
    world.run(4 * SECOND)
    return world


def digest(seed: int) -> str:
    trace = Trace()
    world = storm(seed, trace)
    return f"{trace.digest()} {trace.lines} {world.events}"


if __name__ == "__main__":
    sys.stdout.write(digest(int(sys.argv[1])))
