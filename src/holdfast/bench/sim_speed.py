"""The speed of the simulator: a ring of production nodes that only exchange heartbeats.

Each node has two subnets and links to its eight neighbours on the ring, with ten basic heartbeats per second on every
flow. An event is one item taken from the event heap: packets that reach a host (here always one), a turn, a wake-up.
For comparison, the report contains the speed of a bare heap on the same machine.

The simulator waits for nothing, so on an idle core a second of CPU time is a second. Rates are per second of CPU time,
which other work on the machine distorts much less; the rate per second of real time is reported as well.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from time import perf_counter_ns, process_time_ns
from typing import Final

from holdfast.bench.report import Report, new_report
from holdfast.health.config import HealthConfig
from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig, TelemetryConfig
from holdfast.node.core import NodeCore
from holdfast.runtime.collector import calm_collector
from holdfast.sim.cluster import address, node_name
from holdfast.sim.port import Core, HostContext
from holdfast.sim.world import World
from holdfast.stores.identity import open_identity
from holdfast.types import SECOND

SUBNETS: Final = ("red", "blue")
NEIGHBOURS: Final = (1, 2, 3, 4)
"""On each side of the ring."""
AIM_EVENTS_PER_S: Final = 100_000


def bench_sim(nodes: int, seconds: float) -> Report:
    report = new_report("sim")
    world = ring(nodes)
    for host in world.hosts.values():
        host.start()
    world.run(3 * SECOND)  # links form; the steady state is measured
    calm_collector()
    before, packets = world.events, _packets(world)
    began, used = perf_counter_ns(), process_time_ns()
    world.run(world.now + int(seconds * SECOND))
    took, cpu = (perf_counter_ns() - began) / SECOND, (process_time_ns() - used) / SECOND
    events = (world.events - before) / cpu
    heap = bare_heap()
    links_up = sum(_links_up(host.core) for host in world.hosts.values())
    report.figures = {
        "nodes": nodes,
        "links_up": links_up,
        "simulated_s": seconds,
        "events_per_s": round(events),
        "events_per_real_s": round((world.events - before) / took),
        "packets_per_s": round((_packets(world) - packets) / cpu),
        "turns": sum(host.turns for host in world.hosts.values()),
        "bare_heap_events_per_s": round(heap),
    }
    report.ratios = {
        "events_vs_bare_heap": round(events / heap, 4),
        "simulated_vs_real_time": round(seconds / took, 3),
    }
    report.aim("events_per_s", round(events), AIM_EVENTS_PER_S)
    report.aim("links_up", links_up, nodes * 2 * len(NEIGHBOURS))
    return report


def ring(nodes: int) -> World:
    """A world of nodes that each join their neighbours on a ring."""
    world = World(1)
    for subnet in SUBNETS:
        world.network.subnet(subnet, mtu=1500)
    for number in range(1, nodes + 1):
        host = world.add_host(node_name(number), partial(_core, config=_config(number, nodes)))
        for index, subnet in enumerate(SUBNETS, 1):
            world.network.attach(host, subnet, subnet, address(index, number))
    return world


def _config(number: int, nodes: int) -> NodeConfig:
    joins = []
    for step in NEIGHBOURS:
        host, port = address(1, (number - 1 + step) % nodes + 1)
        joins.append(f"{host}:{port}")
    adapters = []
    for index, subnet in enumerate(SUBNETS, 1):
        host, port = address(index, number)
        adapters.append(AdapterConfig(subnet, f"{host}:{port}", transports=("udp",), measure=()))
    return NodeConfig(
        domain="ring",
        name=node_name(number),
        join=tuple(joins),
        mesh="join",
        adapter=tuple(adapters),
        security=SecurityConfig(mode="plain"),
        telemetry=TelemetryConfig(enabled=False),
    )


def _core(context: HostContext, config: NodeConfig) -> Core:
    identity = open_identity(context.store, lambda: context.entropy(16))
    return NodeCore(
        config,
        identity.node,
        identity.incarnation,
        context.seed,
        context.entropy,
        tunables={"health": HealthConfig(kinds=())},
    )


def _packets(world: World) -> int:
    return sum(path.sent for path in world.network.paths())


def _links_up(core: Core | None) -> int:
    assert isinstance(core, NodeCore)
    return sum(1 for link in core.status(0)["links"] if link["state"] == "up")


def bare_heap(events: int = 200_000) -> float:
    """Push and pop with nothing in between: the upper limit of any simulator on this machine."""
    heap: list[tuple[int, int, None]] = [(i, i, None) for i in range(1000)]
    began = process_time_ns()
    for number in range(events):
        at, _, _ = heappop(heap)
        heappush(heap, (at + 1000, number, None))
    return events * SECOND / (process_time_ns() - began)
