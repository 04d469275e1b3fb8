"""Two links and one datagram flow, with a network that does whatever it likes: they always come to agree.

A walk through the states of the handshake, one random step at a time: any packet may be delivered, lost, doubled or
held up for long; each side may give up at any moment. Then the network is fair, and both must end in one session.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.links.link import LinkMachine
from holdfast.links.ports import (
    Arrived,
    CloseFlow,
    FlowClosed,
    FlowLost,
    FlowOpened,
    FlowReady,
    FlowUnheard,
    OpenFlow,
    PeerDown,
    PeerUp,
    Transmit,
)
from holdfast.links.session_table import SessionTable
from holdfast.machine import Outbox
from holdfast.subsystem import LocalNode, Subscribers
from holdfast.types import MILLISECOND, SECOND, FlowId, NodeId
from holdfast.wire.frames import AdapterInfo


class Side:
    """One link, and the packets that are on their way to it."""

    def __init__(self, name: str, number: int, incarnation: int, rng: Random) -> None:
        adapter = AdapterInfo("red", "red", f"127.0.0.{number}", 7400, ("udp",))
        node = NodeId(bytes([number]) * 16)
        self.me = LocalNode(node, name, "lab", incarnation, (adapter,), sealed=False)
        self.session_table = SessionTable(rng)
        self.inbox: list[bytes] = []
        self.told: list[type] = []
        self.flow = FlowId(0)
        """The socket; there is one at a time."""
        self.link: LinkMachine
        self.other: Side

    def begin(self, now: int) -> None:
        """A new link, as when its unit was rebuilt."""
        subscribers = Subscribers()
        subscribers.add("above", (PeerUp, PeerDown, FlowReady, FlowLost, FlowUnheard))
        self.link = LinkMachine(
            self.me,
            self.other.me.member,
            self.session_table,
            {},
            subscribers,
            Random(1),
            bytes,
            now,
        )
        self._open(now)

    def turn(self, now: int, *items: Any) -> None:
        out = Outbox()
        self.link.up(now, list(items), out)
        if self.link.deadline <= now:
            self.link.wake(now, out)
            assert self.link.deadline > now
        self.told += [type(item) for _, item in out.ups if isinstance(item, PeerUp | PeerDown)]
        self.link.down(now, [], out)
        for effect, _ in out.effects:
            if isinstance(effect, Transmit):
                self.other.inbox.extend(effect.packets)
            elif isinstance(effect, CloseFlow):
                self.turn(now, FlowClosed(effect.flow, effect.reason))
            elif isinstance(effect, OpenFlow):
                self._open(now)

    def _open(self, now: int) -> None:
        self.flow = FlowId(self.flow + 1)
        host = self.other.me.adapters[0].host
        self.turn(now, FlowOpened(self.flow, "red", "udp", host, 7400, False, self.link.unit))

    def deliver(self, now: int, index: int) -> None:
        packet = self.inbox.pop(index)
        self.turn(now, Arrived(self.flow, [memoryview(packet)], now))

    def give_up(self, now: int) -> None:
        out = Outbox()
        self.link.inspect().session.end(now, "a test", out)
        self.told += [type(item) for _, item in out.ups if isinstance(item, PeerUp | PeerDown)]
        self.turn(now, "go on")


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = SECOND
        a, b = Side("a", 1, 1, self.rng), Side("b", 2, 1, self.rng)
        a.other, b.other = b, a
        self.sides = (a, b)
        for side in self.sides:
            side.begin(self.now)

    def step(self) -> None:
        rng, side = self.rng, self.rng.choice(self.sides)
        self.now += rng.choice([1, 1, MILLISECOND, 300 * MILLISECOND])
        deed = rng.randrange(12)
        if deed < 6 and side.inbox:
            side.deliver(self.now, rng.randrange(len(side.inbox)))
        elif deed == 6 and side.inbox:
            side.inbox.pop(rng.randrange(len(side.inbox)))
        elif deed == 7 and side.inbox:
            side.inbox.append(rng.choice(side.inbox))
        elif deed == 8 and side.link.up_since is not None:
            side.give_up(self.now)
        elif deed == 9 and rng.random() < 0.2:
            side.begin(self.now)
            side.told.append(PeerDown)
        else:
            side.turn(self.now)

    def quiet(self) -> int:
        """The network is fair from now on; how many packets until nothing more is said."""
        packets = 0
        for _ in range(400):
            for side in self.sides:
                while side.inbox:
                    packets += 1
                    assert packets < 400, "they never stop talking"
                    side.deliver(self.now, 0)
            self.now += 50 * MILLISECOND
            for side in self.sides:
                side.turn(self.now)
            if self.agreed() and not any(side.inbox for side in self.sides):
                return packets
        raise AssertionError("they never agree")

    def agreed(self) -> bool:
        return all(side.link.up_since is not None for side in self.sides)


@pytest.mark.parametrize("seed", range(300))
def test_two_links_always_come_to_agree(seed: int) -> None:
    """No deadlock, no livelock, no storm, one session: each knows the other's epoch and session number."""
    walk = Walk(seed)
    for _ in range(walk.rng.randrange(80)):
        walk.step()
    walk.quiet()
    for side in walk.sides:
        mine, theirs = side.link.inspect().session, side.other.link.inspect().session
        assert (mine.peer_incarnation, mine.peer_epoch) == (1, theirs.epoch)
        assert mine.cipher.peer_session == theirs.cipher.session
        assert all(flow.ready for flow in mine.flows.values())
        assert side.told[-1] is PeerUp
