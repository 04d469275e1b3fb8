"""What all parts of the objects unit share: identity, time, chance, and one place for everything that leaves it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import NeedLink, SendChannel, link_unit
from holdfast.machine import Erase, Outbox, Put
from holdfast.objects.config import ObjectsConfig
from holdfast.objects.facts import ObjectFact, ObjectOpFact
from holdfast.objects.frames import (
    Fetch,
    FetchList,
    Piece,
    StageChunk,
    StageClose,
    StageDrop,
    StageOpen,
    StagePatch,
)
from holdfast.objects.ports import TABLE
from holdfast.objects.records import Record, encode_row
from holdfast.objects.values import Value
from holdfast.types import BULK, DATA, Nanos, NodeId
from holdfast.wire.codec import encode

WAITING_MAX = 1024
"""Frames that wait for a link to one peer; more are dropped, and their calls fail."""
_BULKY = (StageOpen, StageChunk, StageClose, StagePatch, StageDrop, Fetch, FetchList, Piece)
"""Content has a channel of its own, so that it does not delay votes; all frames of a stage share it, in order."""


class Hub:
    def __init__(
        self,
        me: bytes,
        config: ObjectsConfig,
        rng: Random,
        entropy: Callable[[int], bytes],
        now: Nanos = 0,
    ) -> None:
        self.me = me
        self.disk = b""
        self.config = config
        self.rng = rng
        self.entropy = entropy
        self.now = now
        self.out = Outbox()
        self.up: dict[bytes, str] = {}
        """Peers with a session, and their names."""
        self.gone: dict[bytes, None] = {}
        """Peers whose session ended: nothing waits for them."""
        self.calls: dict[int, tuple[Any, bytes]] = {}
        self.works: dict[int, Any] = {}
        self.local: deque[Any] = deque()
        """Frames from this node to itself; bounded by the calls of the tasks."""
        self.failing: deque[int] = deque()
        self.counts: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        """Frames sent to other nodes, by type."""
        self._waiting: dict[bytes, list[Any]] = {}
        self._number = now

    def number(self) -> int:
        """For a call or for work. It starts at the clock value: a unit that was built again must not take answers to
        its predecessor for its own."""
        self._number += 1
        return self._number

    def new_id(self) -> bytes:
        return self.entropy(16)

    def proposer(self) -> bytes:
        """The name of one attempt to decide: no other one has it, of this node or of an earlier life of it."""
        return self.me + self.entropy(8)

    def count(self, event: str, by: int = 1) -> None:
        self.counts[event] = self.counts.get(event, 0) + by

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, node: bytes, frame: Any, cls: int | None = None) -> bool:
        """False when there is no way to the node now, and none is expected soon."""
        if node == self.me:
            self.local.append(frame)
            return True
        if node in self.up:
            self._transmit(node, frame, cls)
            return True
        if node in self.gone:
            return False
        waiting = self._waiting.setdefault(node, [])
        if len(waiting) >= WAITING_MAX:
            self.count("dropped")
            return False
        if not waiting:
            self.out.up(DIRECTORY, NeedLink(NodeId(node)))
        waiting.append(frame)
        return True

    def _transmit(self, node: bytes, frame: Any, cls: int | None) -> None:
        if cls is None:
            cls = BULK if type(frame) in _BULKY else DATA
        name = type(frame).__name__
        self.sent[name] = self.sent.get(name, 0) + 1
        self.out.down(link_unit(node), SendChannel(cls, [encode(frame)]))

    def fail_later(self, call: int) -> None:
        self.failing.append(call)

    def peer_up(self, node: bytes, name: str) -> None:
        self.up[node] = name
        self.gone.pop(node, None)
        for frame in self._waiting.pop(node, []):
            self._transmit(node, frame, None)

    def peer_down(self, node: bytes, resting: bool) -> None:
        self.up.pop(node, None)
        self._waiting.pop(node, None)
        if not resting:
            self.gone[node] = None

    def reachable(self, node: bytes) -> bool:
        return node == self.me or node in self.up

    # -- everything else that leaves -----------------------------------------------------------------------------

    def effect(self, effect: Any) -> None:
        self.out.effect(effect)

    def fact(
        self, event: str, object_id: bytes, version: int = 0, detail: str = "", size: int = 0
    ) -> None:
        self.count(event)
        self.out.fact(ObjectFact(self.now, event, object_id.hex(), version, detail, size))

    def decided(self, value: Value) -> None:
        self.count("decided")
        content = value.content
        self.out.fact(
            ObjectFact(
                self.now, "decided", value.object.hex(), value.version, value.name, content.size, value.write.hex(),
                content.digest.hex(),
            )
        )  # fmt: skip

    def done(self, event: str, value: Value, own: bool, started_ns: Nanos) -> None:
        """An operation took effect on a strict object."""
        peers = ",".join(node.hex() for node in value.nodes if node in self.up)
        self.out.fact(
            ObjectOpFact(
                self.now, event, value.object.hex(), value.version, value.write.hex(), value.content.digest.hex(), own,
                started_ns, peers,
            )
        )  # fmt: skip

    def put(self, object_id: bytes, record: Record) -> None:
        self.out.write(Put(TABLE, object_id, encode_row(self.disk, record)))

    def erase(self, object_id: bytes) -> None:
        self.out.write(Erase(TABLE, object_id, object_id + b"\0"))
