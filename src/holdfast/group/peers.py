"""Who can be reached, by name and by id, and how frames get there: encoded once, whoever they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.group.config import GroupConfig
from holdfast.group.entries import Member
from holdfast.links.ports import SendChannel, link_unit
from holdfast.machine import Outbox
from holdfast.types import BULK, DATA, SYNC, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import IMMEDIATE, Frame, MemberInfo, Payload, StateChunk

CHANNELS: Final[dict[type[Frame], int]] = {Payload: DATA, StateChunk: BULK}
"""Everything else is synchronisation."""

NAMES_KEPT: Final = 4096


class Peer(msgspec.Struct, frozen=True, gc=False):
    """A node that a session is open with."""

    node: NodeId
    name: str
    incarnation: int
    life: int
    """As a view has it (see `entries.Member`)."""


class Peers:
    """The nodes that a session is open with, and which of them are replicas of the group."""

    __slots__ = (
        "_by_name", "_by_node", "_durable", "_name", "_replica_names", "all", "changed", "names", "replicas",
    )  # fmt: skip

    def __init__(self, config: GroupConfig, name: str) -> None:
        self._name = name
        self._durable = config.is_durable
        self._replica_names = dict.fromkeys(other for other in config.replicas if other != name)
        self.changed = 0
        """Grows with every change of who can be reached."""
        self._by_node: dict[NodeId, Peer] = {}
        self._by_name: dict[str, Peer] = {}
        self.all: tuple[Peer, ...] = ()
        """Everybody that a session is open with, replica or not."""
        self.replicas: tuple[Peer, ...] = ()
        """The other replicas that can be reached now, in the order of the configuration."""
        self.names: dict[NodeId, str] = {}
        """Of nodes that were met, also if they are gone."""

    @property
    def known(self) -> int:
        """How many other replicas the group has."""
        return len(self._replica_names)

    def use(self, names: Iterable[str]) -> None:
        """These are the replicas of the group."""
        self._replica_names = dict.fromkeys(other for other in names if other != self._name)
        self._sort()

    def up(self, node: NodeId, member: MemberInfo) -> Peer:
        life = 0 if self._durable else member.incarnation
        peer = Peer(node, member.name, member.incarnation, life)
        self._by_node[node] = peer
        self._by_name[peer.name] = peer
        self.names.pop(node, None)
        self.names[node] = peer.name
        if len(self.names) > NAMES_KEPT:
            del self.names[next(iter(self.names))]
        self._sort()
        return peer

    def down(self, node: NodeId) -> Peer | None:
        peer = self._by_node.pop(node, None)
        if peer is not None and self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        self._sort()
        return peer

    def _sort(self) -> None:
        names = self._by_name
        self.all = tuple(self._by_node.values())
        self.replicas = tuple(names[name] for name in self._replica_names if name in names)
        self.changed += 1

    def is_here(self, member: Member) -> bool:
        """Whether the very life that a view names can be reached."""
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
        """Whether a later life of the very same node shows that this one is over."""
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
    """Send frames of one kind that are encoded already; the same bytes to everybody."""
    item = SendChannel(CHANNELS.get(kind, SYNC), frames)
    immediate = immediate or kind in IMMEDIATE
    for node in to:
        out.down(link_unit(node), item, immediate)
