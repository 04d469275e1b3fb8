"""How fast the machines of a group are, without links and sockets. Run it: `python -m tests.unit.group.throughput`.

Every node is a source and a replica; frames go from outbox to inbox through the codec, as links would carry them. All
nodes share one core here, so the time that one member needs for a message is the total divided by the members.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from random import Random
from time import perf_counter_ns
from typing import Any

import msgspec

from holdfast.group import (
    GroupConfig,
    ReplicaMachine,
    SourceMachine,
    replica_unit,
    source_unit,
    units_for,
)
from holdfast.group.ports import Applied, Apply, Multicast
from holdfast.group.subsystem import GROUP_SUBSYSTEM
from holdfast.links.ports import PeerUp, Received, SendChannel, link_unit
from holdfast.machine import Machine, Outbox, Turns
from holdfast.types import NodeId
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import MemberInfo

GROUP = "book"
HELD_MAX = 8 << 20
"""A driver stops senders when a source holds this much."""


class Pipe(Machine):
    """A link that hands encoded frames to the loop below."""

    layer = "links"

    def __init__(self, peer: NodeId) -> None:
        self._peer = peer

    def up(self, now: int, inputs: list[Any], out: Outbox) -> None:
        batches: dict[str, list[Any]] = {}
        for messages in inputs:
            for message in messages:
                frame = decode_frame(message)
                for unit in units_for(frame):  # type: ignore[arg-type]  # our own frames decode
                    batches.setdefault(unit, []).append(frame)
        for unit, frames in batches.items():
            out.up(unit, Received(self._peer, frames, now))

    def down(self, now: int, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            assert isinstance(item, SendChannel)
            out.effect((self._peer, item.messages))


class Loop:
    """Runs all nodes in turn until nothing is left to do."""

    def __init__(self, members: int) -> None:
        names = tuple(f"n{k + 1}" for k in range(members))
        config = GroupConfig(name=GROUP, voters=names)
        ids = {name: NodeId(name.encode().rjust(16, b"0")) for name in names}
        self.now = 0
        self.delivered = dict.fromkeys(names, 0)
        self.nodes: dict[NodeId, Turns] = {}
        self.sources: list[SourceMachine] = []
        self.inbox: dict[NodeId, list[tuple[str, Any]]] = {}
        self.names = {node: name for name, node in ids.items()}
        for name, node in ids.items():
            turns = self.nodes[node] = Turns(lambda _unit: None, ("links", *GROUP_SUBSYSTEM.layers))
            common: dict[str, Any] = {
                "config": config,
                "node": node,
                "name": name,
                "incarnation": 1,
            }
            self.sources.append(SourceMachine(**common, rng=Random(1)))
            turns.add(source_unit(GROUP), self.sources[-1])
            turns.add(replica_unit(GROUP), ReplicaMachine(**common, rng=Random(1)))
            self.inbox[node] = []
            for other, peer in ids.items():
                if peer != node:
                    turns.add(link_unit(peer), Pipe(peer))
                    up = PeerUp(peer, MemberInfo(peer, other, 1, ()))
                    self.inbox[node] += [(source_unit(GROUP), up), (replica_unit(GROUP), up)]

    def step(self) -> bool:
        """One turn of each node that has something to do."""
        busy = False
        for node, turns in self.nodes.items():
            inputs = self.inbox[node]
            if not inputs and turns.next_deadline() > self.now:
                continue
            busy = True
            self.inbox[node] = []
            result = turns.run(self.now, inputs)
            assert not result.failures, result.failures
            if result.more:
                self.inbox[node].append(("none", None))
            for effect in result.effects:
                if isinstance(effect, tuple):
                    self.inbox[effect[0]].append((link_unit(node), effect[1]))
                elif isinstance(effect, Apply):
                    self.delivered[self.names[node]] += len(effect.batch.messages)
                    self.inbox[node].append((effect.unit, Applied(effect.index, effect.size)))
        return busy

    def settle(self) -> None:
        while self.step():
            pass
        self.now += 10_000_000


def measure(size: int, total: int, batch: int, members: int) -> dict[str, float]:
    """Messages of `size` bytes through a group, `batch` of them per source and turn."""
    loop = Loop(members)
    for _ in range(20):
        loop.settle()
    message = bytes(size)
    sources = list(loop.nodes)
    begin = perf_counter_ns()
    for _ in range(total // batch // members):
        while max(source.held for source in loop.sources) > HELD_MAX:
            loop.settle()
        for node in sources:
            loop.inbox[node].append((source_unit(GROUP), Multicast([message] * batch)))
        loop.step()
        loop.now += 100_000
    sent = total // batch // members * batch * members
    while min(loop.delivered.values()) < sent:
        loop.settle()
    spent = perf_counter_ns() - begin
    assert all(count == sent for count in loop.delivered.values())
    return {
        "size_bytes": size,
        "batch": batch,
        "messages": sent,
        "messages_per_s_all_on_one_core": round(sent * 1e9 / spent),
        "messages_per_s_and_member": round(sent * members * 1e9 / spent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument(
        "--profile", type=int, default=0, help="profile a run with messages of this size instead"
    )
    options = parser.parse_args()
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(measure, options.profile, options.messages, 64, options.members)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    for size in (100, 1000):
        for batch in (1, 16, 64, 500):
            figures = measure(
                size, options.messages // (8 if batch == 1 else 1), batch, options.members
            )
            sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")


if __name__ == "__main__":
    main()
