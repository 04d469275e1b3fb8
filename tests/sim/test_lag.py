"""Hosts that do not run for a while, again and again: that is no delay, congestion or loss of any path."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.sim.cluster import Cluster
from holdfast.sim.sweep.watch import Opinions
from holdfast.types import MILLISECOND, SECOND

WARM_NS = 4 * SECOND
PAUSES = 60


@pytest.mark.parametrize(("names", "pause_ms"), [(("n1",), 80), (("n1", "n2", "n3"), 45)])
def test_pauses_of_hosts_are_no_fault_of_a_path(names: tuple[str, ...], pause_ms: int) -> None:
    cluster = Cluster(5, 3, ("red", "blue"), groups=(), until_ns=60 * SECOND, multicast=True)
    world, rng = cluster.world, Random(5)
    cluster.start()
    world.run_for(WARM_NS)
    opinions = Opinions(world)
    opinions.begin()
    for _ in range(PAUSES):
        host = world.hosts[rng.choice(names)]
        host.pause()
        world.run_for(rng.randint(pause_ms // 2, pause_ms) * MILLISECOND)
        host.resume()
        world.run_for(rng.randint(1, 30) * MILLISECOND)
    claims = {claim for seen in opinions.claims.values() for claim in seen}
    assert claims == set()
