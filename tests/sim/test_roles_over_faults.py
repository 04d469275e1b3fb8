"""Requests to a role while the paths below a hop break: health picks the path of each hop."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.overlay import tree_id
from holdfast.overlay.ports import (
    OVERLAY,
    AnswerMessage,
    Delivered,
    Ended,
    OpenPort,
    Published,
    PublishRole,
    SendToRole,
)
from holdfast.sim.cluster import Cluster
from holdfast.sim.host import Host
from holdfast.sim.scenario import parse_scenario
from holdfast.types import MILLISECOND, SECOND, Nanos

TREE = tree_id("tree")
EVERY_NS = 100 * MILLISECOND
SIZE = 5000
"""Of a request and of its reply: more than one packet, also on a sound path."""


class Requests:
    """n1 asks the role `echo` on n2, one request every 100 ms, from 4 s on."""

    def __init__(self, faults: str, seconds: int) -> None:
        self.cluster = Cluster(
            1, 2, groups=(), scenario=parse_scenario(faults), until_ns=seconds * SECOND
        )
        self.sent: dict[int, Nanos] = {}
        self.took: dict[int, Nanos] = {}
        self.ended: list[Ended] = []
        self.delivered: list[bytes] = []
        self.published: list[Published] = []
        self._stop_ns = (seconds - 2) * SECOND
        asker, holder = (self.cluster.world.host(name) for name in ("n1", "n2"))
        holder.on(Delivered, self._deliver)
        holder.on(Published, lambda _, done: self.published.append(done))
        asker.on(Ended, self._end)
        self.cluster.world.at(3 * SECOND, self._publish, holder)
        self.cluster.world.at(4 * SECOND, self._send, asker)
        self.cluster.run()

    def _publish(self, host: Host) -> None:
        host.give(OVERLAY, OpenPort(1))
        host.give(OVERLAY, PublishRole(1, TREE, "echo"))

    def _deliver(self, host: Host, item: Delivered) -> None:
        self.delivered.append(item.data)
        host.give(OVERLAY, AnswerMessage(item.token, item.data))

    def _send(self, host: Host) -> None:
        now = host.world.now
        if now > self._stop_ns:
            return
        op = len(self.sent) + 1
        self.sent[op] = now
        data = op.to_bytes(4, "big") + bytes(SIZE)
        host.give(OVERLAY, SendToRole(op, TREE, "echo", data, 1))
        host.world.at(now + EVERY_NS, self._send, host)

    def _end(self, host: Host, end: Ended) -> None:
        self.ended.append(end)
        self.took[end.op] = host.world.now - self.sent[end.op]

    def wrong(self) -> list[Any]:
        """Requests that did not end with exactly the reply of n2."""
        return [(end.op, end.kind, end.reason) for end in self.ended if end.kind != "done"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("break red n1<->n2 over 1000", id="one path passes small packets only"),
        pytest.param("break red n1<->n2 blackout", id="one path is dead"),
        pytest.param("break red n1->n2 loss 20%", id="one path loses packets in one direction"),
        pytest.param("break * n1<->n2 over 700", id="all paths pass small packets only"),
    ],
)
def test_a_hop_over_a_degraded_path_works_or_is_routed_around(fault: str) -> None:
    """No request fails, none is performed twice, and none waits for longer than the move to another path, or to smaller
    packets, takes."""
    requests = Requests(f"at 6s {fault}", 14)
    assert [done.ok for done in requests.published] == [True]
    assert len(requests.sent) > 60
    assert requests.wrong() == []
    assert len(requests.ended) == len(requests.sent)
    assert len(requests.delivered) == len(set(requests.delivered)) == len(requests.sent)
    assert max(requests.took.values()) < 1.5 * SECOND
