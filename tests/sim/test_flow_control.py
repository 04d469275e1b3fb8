"""Flow control all the way: from the application of the slowest replica back to `try_send` at the source (L10, rule 9).

The nodes are real and so is the handle that says no; only the loop that drives it is the simulator's.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.group.config import GroupConfig
from holdfast.group.ports import SourceRoom
from holdfast.group.section import GROUPS
from holdfast.node.config import NodeConfig
from holdfast.runtime.handles import Group
from holdfast.sim.checkers.sight import look_at_replica, look_at_source, replicas_of, sources_of
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.host import Host
from holdfast.sim.ledger import Load
from holdfast.sim.scenario import parse_scenario
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, Nanos

WINDOW = 1 << 20
MESSAGE = b"m" * 4000
SILENT = Load(every_ns=10_000 * SECOND)
SLOW = "at 1s application n3 slow 150ms\nat 3s application n3 ok\n"


class Narrow(Cluster):
    """Three replicas and a source, n4, with a small window."""

    def __init__(self, transport: Any) -> None:
        super().__init__(
            3,
            nodes=4,
            groups=(GroupPlan("book", 3, SILENT, transport=transport),),
            scenario=parse_scenario(SLOW),
            until_ns=6 * SECOND,
            quiet_ns=2 * SECOND,
        )

    def config(self, number: int) -> NodeConfig:
        config = super().config(number)
        group = msgspec.structs.replace(GROUPS.of(config)[0], window_mb=WINDOW >> 20)
        return msgspec.structs.replace(config, sections={"group": (group,)})


class Loop:
    """What the runtime is to a handle: wakes it for a turn, and takes what it hands over."""

    def __init__(self, host: Host) -> None:
        self.intake = self
        self._host = host
        self.handle: Group | None = None

    def wake(self) -> None:
        world = self._host.world
        world.at(world.now + 10 * MICROSECOND, lambda _: self.handle and self.handle.hand_over())

    def force(self, _traffic: Any, unit: str, item: Any, _size: int) -> None:
        assert self._host.give(unit, item)


class Pourer:
    """Sends as fast as it may, and remembers when it was told no."""

    def __init__(self, cluster: Cluster, until_ns: Nanos) -> None:
        host = cluster.world.hosts["n4"]
        self._cluster, self._host, self._until_ns = cluster, host, until_ns
        loop: Any = Loop(host)
        self.handle = loop.handle = Group(
            loop, GroupConfig("book", ("n1",), window_bytes=2 * WINDOW)
        )
        host.on(SourceRoom, lambda _, effect: self.handle.queued(effect.held, effect.taken))
        self.accepted = 0
        self.refused_at: list[Nanos] = []
        self.accepted_at: list[Nanos] = []
        self.most_held = 0
        self.most_ahead = 0

    def pour(self, _: None = None) -> None:
        world = self._cluster.world
        for _ in range(3):
            if self.handle.try_send(MESSAGE):
                self.accepted += 1
                self.accepted_at.append(world.now)
            else:
                self.refused_at.append(world.now)
                break
        self._look()
        if world.now < self._until_ns:
            world.at(world.now + 2 * MILLISECOND, self.pour)

    def _look(self) -> None:
        source = next(look_at_source(self._host, one) for one in sources_of(self._host))
        self.most_held = max(self.most_held, source.held)
        workers = [self._cluster.world.hosts[name].workers for name in ("n1", "n2", "n3")]
        applied = [w["replica/book"].replica.state.count if w else 0 for w in workers]  # type: ignore[attr-defined]
        self.most_ahead = max(self.most_ahead, self.accepted - min(applied))


@pytest.mark.parametrize("transport", ["channel", "datagram"])
def test_the_slowest_application_makes_try_send_say_no_and_nothing_is_lost(transport: str) -> None:
    cluster = Narrow(transport)
    pourer = Pourer(cluster, 4 * SECOND)
    cluster.world.at(500 * MILLISECOND, pourer.pour)
    sender = cluster.senders[3]
    cluster.start()
    cluster.world.run(4 * SECOND)
    # What the handle accepted counts as sent: that all of it is applied by everybody is checked at the end.
    sender._look_at_process()
    sender.sent = pourer.accepted
    cluster.world.run(6 * SECOND)
    cluster.world.finish()

    slow = [at for at in pourer.refused_at if 2 * SECOND < at < 3 * SECOND]
    assert len(slow) > 250, "while n3 is slow most attempts are refused"
    assert not [at for at in pourer.refused_at if at < SECOND]
    late = [at for at in pourer.accepted_at if at > 3_500 * MILLISECOND]
    assert len(late) > 500, "and then it goes on as before"
    assert pourer.most_held <= WINDOW + len(MESSAGE)
    # At most a window of what was accepted is not yet applied by the slowest.
    assert WINDOW // 2 < pourer.most_ahead * (len(MESSAGE) + 4) <= WINDOW + 60_000
    assert cluster.coverage.counts.get("suspensions", 0) == 0
    for host in (cluster.world.hosts[name] for name in ("n1", "n2", "n3")):
        sight = next(look_at_replica(host, replica) for replica in replicas_of(host))
        assert sight.streams.most_bytes() == 0
