"""What doubt costs while nothing is wrong: at most 2 % of the bytes of channels are sent twice (H11)."""

from __future__ import annotations

from holdfast.links.link import LinkMachine
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.ledger import Load
from holdfast.sim.sweep.watch import Traffic, core_of
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, SECOND

SHARE_MAX = 0.02


def channel_bytes(world: World) -> tuple[int, int]:
    """Bytes of all channels that were sent, with and without repetitions."""
    emitted = distinct = 0
    for host in world.hosts.values():
        turns = core_of(host).turns
        for unit in turns.units():
            machine = turns.machine(unit)
            if isinstance(machine, LinkMachine):
                for channel in machine.inspect().sender.channels.values():
                    emitted, distinct = emitted + channel.emitted, distinct + channel.bytes_sent
    return emitted, distinct


def test_channels_send_next_to_nothing_twice_in_calm() -> None:
    groups = (GroupPlan(voters=2, load=Load(100 * MILLISECOND, batch_max=1, size_max=1200)),)
    cluster = Cluster(1, 2, groups=groups, until_ns=60 * SECOND, multicast=True)
    world, traffic = cluster.world, Traffic(cluster.world)
    cluster.start()
    world.run_for(3 * SECOND)
    traffic.begin([("n1", "n2"), ("n2", "n1")])
    before = channel_bytes(world)
    world.run_for(5 * SECOND)
    emitted, distinct = (b - a for a, b in zip(before, channel_bytes(world), strict=True))
    assert distinct > 200_000
    assert emitted - distinct <= SHARE_MAX * distinct
