"""Keepers that talk to each other in virtual time, without links below them: every frame may be late, lost, doubled.

Real links lose nothing within a session; that is harder on a spreader than anything a link does.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.support.virtual_network import VirtualTime

from holdfast.health.frames import PathRow
from holdfast.health.ports import Fresh
from holdfast.health.probing.neighbourhood import Neighbourhood, ShapeName
from holdfast.health.table.path_gossip import PathGossipMachine
from holdfast.health.table.path_history import PathHistory
from holdfast.health.table.path_table import PathTable
from holdfast.links.ports import PeerDown, PeerUp, Received, SendChannel
from holdfast.machine import Outbox
from holdfast.subsystem import LocalNode
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos, NodeId
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import AdapterInfo


def node_id(number: int) -> NodeId:
    """Ids in an order that has nothing to do with the numbers."""
    return NodeId(Random(number).randbytes(16))


class Villager:
    """One node: its keeper and what it was heard to send."""

    def __init__(self, hamlet: Hamlet, number: int, incarnation: int) -> None:
        self.number = number
        self.id = node_id(number)
        adapter = AdapterInfo("red", "red", "127.0.0.1", number + 1, ("udp",))
        self.me = LocalNode(self.id, f"n{number}", "d", incarnation, (adapter,), sealed=False)
        self.table = PathTable(self.id, incarnation)
        self.hood = Neighbourhood(self.me, hamlet.shapes)
        self.path_gossip = PathGossipMachine(self.table, self.hood, self, PathHistory(), SECOND)
        self.sent_to: dict[NodeId, int] = {}
        self.version = 0

    def name_of(self, node: bytes) -> str:
        return node[:2].hex()

    def subnet_of(self, node: bytes, adapter: str) -> str:
        return adapter


class Hamlet(VirtualTime):
    """`count` villagers; who are neighbours have sessions."""

    def __init__(
        self,
        count: int,
        shape: ShapeName = "all",
        seed: int = 1,
        loss: float = 0,
        mess: float = 0,
        meet: bool = True,
    ) -> None:
        self.shapes: Mapping[str, ShapeName] = {"red": shape}
        super().__init__(SECOND)
        self.rng = Random(seed)
        self.loss = loss
        self.mess = mess
        """How many frames are doubled, and how many overtaken."""
        self.frames = 0
        self._armed: dict[NodeId, Nanos] = {}
        self._arrived: dict[NodeId, list[Any]] = {}
        self.by_id: dict[NodeId, Villager] = {}
        for number in range(count):
            villager = Villager(self, number, 1)
            self.by_id[villager.id] = villager
        for villager in self.by_id.values():
            self._introduce(villager)
        if meet:
            self.meet()

    def meet(self) -> None:
        """Sessions between all neighbours begin."""
        for villager in self.villagers:
            for peer in villager.hood.everybody():
                self.give(villager, PeerUp(peer, self.by_id[peer].me.member))

    @property
    def villagers(self) -> list[Villager]:
        return list(self.by_id.values())

    def _introduce(self, villager: Villager) -> None:
        for other in self.by_id.values():
            villager.hood.joined(other.me.member)

    # -- what happens --------------------------------------------------------------------------------------------

    def listen(self, villager: Villager, sender: Villager, **values: Any) -> None:
        """The villager measures something of the path from `sender`."""
        self.measure(villager, sender, **values)
        self.give(villager, Fresh())

    def measure(self, villager: Villager, sender: Villager, **values: Any) -> None:
        """The same, but the keeper is not told yet."""
        villager.version = max(villager.version + 1, self.now // 1000)
        fields: dict[str, Any] = {"alive": True, "size": 1500, "size_max": 1500}
        fields |= {"loss_ppm": 0, "rtt_us": 100, "transport": "udp"} | values
        row = PathRow(
            sender=sender.id,
            sender_adapter="red",
            listener=villager.id,
            listener_adapter="red",
            incarnation=villager.me.incarnation,
            n=villager.version,
            **fields,
        )
        assert villager.table.put(row, self.now)

    def restart(self, villager: Villager) -> Villager:
        """The villager begins anew, in another life, and everybody's session with it."""
        fresh = Villager(self, villager.number, villager.me.incarnation + 1)
        self.by_id[fresh.id] = fresh
        self._armed.pop(fresh.id, None)
        self._introduce(fresh)
        for peer in fresh.hood.everybody():
            self.reconnect(fresh, self.by_id[peer])
        return fresh

    def reconnect(self, one: Villager, two: Villager) -> None:
        for a, b in ((one, two), (two, one)):
            self.give(a, PeerDown(b.id, "test"))
            self.give(a, PeerUp(b.id, b.me.member))

    def leave(self, villager: Villager) -> None:
        del self.by_id[villager.id]
        for peer in villager.hood.everybody():
            if peer in self.by_id:
                self.by_id[peer].hood.left(villager.id)
                self.give(self.by_id[peer], PeerDown(villager.id, "left", left=True))

    def run(self, seconds: float) -> None:
        self.pass_time(round(seconds * SECOND))

    # -- inside --------------------------------------------------------------------------------------------------

    def give(self, villager: Villager, *items: Any) -> None:
        if self.by_id.get(villager.id) is not villager:
            return  # of an earlier life
        out = Outbox()
        villager.path_gossip.up(self.now, list(items), out)
        if villager.path_gossip.deadline <= self.now:
            villager.path_gossip.wake(self.now, out)
        self._carry(villager, out)

    def _carry(self, villager: Villager, out: Outbox) -> None:
        for unit, item, _ in out.downs:
            assert isinstance(item, SendChannel)
            peer = NodeId(bytes.fromhex(unit.removeprefix("link/")))
            for message in item.messages:
                self._send(villager, peer, message)
        deadline = villager.path_gossip.deadline
        if deadline < self._armed.get(villager.id, NEVER):
            self._armed[villager.id] = deadline
            self.at(max(deadline, self.now), lambda: self._wake(villager, deadline))

    def _wake(self, villager: Villager, deadline: Nanos) -> None:
        if self._armed.get(villager.id) == deadline:
            del self._armed[villager.id]
            self.give(villager)

    def _send(self, villager: Villager, peer: NodeId, message: bytes) -> None:
        villager.sent_to[peer] = villager.sent_to.get(peer, 0) + 1
        self.frames += 1
        if self.loss and self.rng.random() < self.loss:
            return
        copies = 2 if self.mess and self.rng.random() < self.mess else 1
        for _ in range(copies):
            # In whole milliseconds, so that much arrives at the same moment.
            late = self.rng.randrange(200) * MILLISECOND if self.mess else MILLISECOND
            self.at(self.now + late, lambda: self._arrive(villager.id, peer, message))

    def _arrive(self, sender: NodeId, peer: NodeId, message: bytes) -> None:
        """What comes at one moment is taken in one turn."""
        if peer in self.by_id:
            frame: Any = decode_frame(message)
            items = self._arrived.setdefault(peer, [])
            items.append(Received(sender, [frame], self.now))
            if len(items) == 1:
                self.at(self.now, lambda: self._take(peer))

    def _take(self, peer: NodeId) -> None:
        items = self._arrived.pop(peer)
        if peer in self.by_id:
            self.give(self.by_id[peer], *items)


def differing(hamlet: Hamlet) -> list[int]:
    """Who does not hold what the listeners themselves say, and nothing else."""
    truth = {
        key: row
        for villager in hamlet.villagers
        for key, row in villager.table.rows.items()
        if key[2] == villager.id
    }
    return [v.number for v in hamlet.villagers if v.table.rows != truth]
