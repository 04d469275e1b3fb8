"""What all parts of a replica share: its place in the group, its log, what it holds, and how it counts oddities."""

from __future__ import annotations

from holdfast.group.admission import Admission
from holdfast.group.config import GroupConfig
from holdfast.group.delivery import Delivery
from holdfast.group.leadership import Leadership
from holdfast.group.log import Log
from holdfast.group.peers import Peers
from holdfast.group.recovery import Recovery
from holdfast.group.streams import Streams
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import Nanos, NodeId
from holdfast.wire.frames import StreamId


class Core:
    """The parts that a replica has whether it leads, follows or has just started."""

    def __init__(self, config: GroupConfig, node: NodeId, name: str, incarnation: int) -> None:
        self.config = config
        self.node = node
        self.name = name
        self.incarnation = incarnation
        self.peers = Peers(config, name)
        self.leadership = Leadership(config)
        self.admission = Admission()
        self.log = Log()
        self.streams = Streams(2 * config.window_bytes, config.streams)
        self.delivery = Delivery(config, self.log, self.streams)
        self.recovery = Recovery(config, node, incarnation, self.log, self.streams, self.peers)
        self.ignored: dict[str, int] = {}
        """Frames that were not acted upon, by reason."""

    def know(self, stream: StreamId, number: int) -> None:
        """Number `number` of the stream exists somewhere."""
        self.streams.know(stream, number, self.log.tail.next.get(stream, 1))

    def why_not_suspend(self) -> str:
        """Why this replica must not stop leading of its own accord; empty when it may. Those that are left must be
        able to decide."""
        voters = self.config.voters
        here = sum(1 for peer in self.peers.replicas if peer.name in voters)
        if here >= self.config.majority:
            return ""
        return f"{here} other voters can be reached, {self.config.majority} are needed without {self.name}"

    def ignore(self, why: str) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    def fact(self, event: str, detail: str, now: Nanos, out: Outbox) -> None:
        term, index = self.leadership.term, self.log.last
        out.fact(GroupFact(now, self.config.name, event, term, index, detail))
