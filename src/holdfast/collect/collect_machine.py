"""The unit `collect`: carries requests and replies between the edges of two nodes, on the bulk channel.

A peer has one request at a time here; more of them are refused and counted, so a peer cannot make a node read files
without end.
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.collect.frames import ANSWERS, REQUESTS
from holdfast.collect.ports import Answered, Asked, PeerGone, Say
from holdfast.links.ports import PeerDown, PeerUp, Received, SendChannel, link_unit
from holdfast.machine import Machine, Outbox
from holdfast.types import BULK, Nanos, NodeId
from holdfast.wire.codec import encode


class CollectMachine(Machine):
    """Unit `collect`."""

    layer: ClassVar[str] = "collect"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(self) -> None:
        self._busy: dict[NodeId, int] = {}
        """Peers whose request is being answered, with its number."""
        self.refused = 0
        self.answered = 0

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, Received):
                for frame in item.frames:
                    self._frame(item.peer, frame, out)
            elif isinstance(item, Say):
                self._say(item, out)
            elif isinstance(item, PeerDown | PeerUp):
                self._busy.pop(item.peer, None)
                out.effect(PeerGone(item.peer))

    def _frame(self, peer: NodeId, frame: Any, out: Outbox) -> None:
        if isinstance(frame, ANSWERS):
            out.effect(Answered(peer, frame))
        elif isinstance(frame, REQUESTS):
            if peer in self._busy:
                self.refused += 1
                return
            self._busy[peer] = frame.n
            out.effect(Asked(peer, frame))

    def _say(self, item: Say, out: Outbox) -> None:
        if isinstance(item.frame, ANSWERS):
            if self._busy.get(item.peer) != item.frame.n:
                return  # the session has ended meanwhile
            del self._busy[item.peer]
            self.answered += 1
        out.down(link_unit(item.peer), SendChannel(BULK, [encode(item.frame)]))
