"""The reachable nodes, by name and by id, and sending to them: frames are encoded once for all recipients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.frames import IMMEDIATE, Payload, StateChunk
from holdfast.group.log.entries import Member
from holdfast.group.peer import Peer
from holdfast.links.ports import SendChannel, link_unit
from holdfast.machine import Outbox
from holdfast.types import BULK, DATA, SYNC, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Frame, MemberInfo

CHANNELS: Final[dict[type[Frame], int]] = {Payload: DATA, StateChunk: BULK}
"""Everything else is synchronisation."""

NAMES_KEPT: Final = 4096


class Peers:
    """The nodes with an open session, and which of them are replicas of the group."""

    __slots__ = (
        "_all", "_by_name", "_by_node", "_durable", "_name", "_replica_names", "_replicas", "_sorted", "changed",
        "names",
    )  # fmt: skip

    def __init__(self, config: GroupConfig, name: str) -> None:
        self._name = name
        self._durable = config.is_durable
        self._replica_names = dict.fromkeys(other for other in config.replicas if other != name)
        self.changed = 0
        """Increases with every change of the reachable nodes."""
        self._by_node: dict[NodeId, Peer] = {}
        self._by_name: dict[str, Peer] = {}
        self._sorted = 0
        """The value of `changed` for which the following are valid: many nodes appear at once, and lookups are rare."""
        self._all: tuple[Peer, ...] = ()
        self._replicas: tuple[Peer, ...] = ()
        self.names: dict[NodeId, str] = {}
        """Names of known nodes, including those that are gone."""

    @property
    def known(self) -> int:
        """How many other replicas the group has."""
        return len(self._replica_names)

    def use(self, names: Iterable[str]) -> None:
        """Set the replicas of the group."""
        self._replica_names = dict.fromkeys(other for other in names if other != self._name)
        self.changed += 1

    def up(self, node: NodeId, member: MemberInfo) -> Peer:
        life = 0 if self._durable else member.incarnation
        peer = Peer(node, member.name, member.incarnation, life)
        self._by_node[node] = peer
        self._by_name[peer.name] = peer
        self.names.pop(node, None)
        self.names[node] = peer.name
        if len(self.names) > NAMES_KEPT:
            del self.names[next(iter(self.names))]
        self.changed += 1
        return peer

    def down(self, node: NodeId) -> Peer | None:
        peer = self._by_node.pop(node, None)
        if peer is not None and self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        self.changed += 1
        return peer

    @property
    def are_any(self) -> bool:
        """Whether any node has an open session."""
        return bool(self._by_node)

    @property
    def all(self) -> tuple[Peer, ...]:
        """All nodes with an open session, replica or not."""
        if self._sorted != self.changed:
            self._sort()
        return self._all

    @property
    def replicas(self) -> tuple[Peer, ...]:
        """The other reachable replicas, in the order of the configuration."""
        if self._sorted != self.changed:
            self._sort()
        return self._replicas

    def _sort(self) -> None:
        names = self._by_name
        self._all = tuple(self._by_node.values())
        self._replicas = tuple(names[name] for name in self._replica_names if name in names)
        self._sorted = self.changed

    def is_here(self, member: Member) -> bool:
        """Whether the life that a view names is reachable."""
        peer = self._by_name.get(member.name)
        return peer is not None and peer.node == member.node and peer.life == member.life

    def named(self, name: str) -> Peer | None:
        return self._by_name.get(name)

    def at(self, node: NodeId) -> Peer | None:
        return self._by_node.get(node)

    def replica_at(self, node: NodeId) -> Peer | None:
        """The peer, if it is a replica of the group."""
        peer = self._by_node.get(node)
        if peer is None or self._by_name.get(peer.name) is not peer:
            return None
        return peer if peer.name in self._replica_names else None

    def has_ended(self, member: Member) -> bool:
        """Whether a later life of the same node shows that this one is over."""
        peer = self._by_name.get(member.name)
        return peer is not None and peer.node == member.node and peer.life > member.life


def post(out: Outbox, to: Iterable[NodeId], frame: Frame) -> None:
    """Send one frame to some nodes."""
    kind = type(frame)
    post_bytes(out, to, [encode(frame)], kind)


def post_bytes(
    out: Outbox,
    to: Iterable[NodeId],
    frames: list[bytes],
    kind: type[Frame],
    immediate: bool = False,
) -> None:
    """Send encoded frames of one kind; the same bytes to all."""
    item = SendChannel(CHANNELS.get(kind, SYNC), frames)
    # rule: 2f
    immediate = immediate or kind in IMMEDIATE
    for node in to:
        out.down(link_unit(node), item, immediate)
