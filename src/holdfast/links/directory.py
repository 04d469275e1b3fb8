"""The directory: who is in the domain and where. Every member tells what it knows; a link is made to each.

A record belongs to its node and is replaced only by one with a higher incarnation. Knowledge spreads over the
channels of the links: all of it when a session begins, and each change to everybody as it comes. It is durable, so
a node that restarts finds the domain again also when nobody is left at the addresses that it was told to join by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from holdfast.links.config import Self
from holdfast.links.handshake import check_member
from holdfast.links.ports import (
    MemberUpdate,
    PeerDown,
    PeerUp,
    Received,
    SendChannel,
    link_unit,
)
from holdfast.machine import Machine, Outbox, Put
from holdfast.types import NEVER, SYNC, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import MemberInfo, Members

DIRECTORY: Final = "directory"
MEMBERS: Final = "members"
"""The table of the store in which the directory is kept."""
MEMBERS_MAX: Final = 10_000

_decoder: Final = msgspec.msgpack.Decoder(MemberInfo)


def _decode(value: bytes) -> MemberInfo | None:
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return None  # of a version that we do not read: it will be told to us again


class DirectoryMachine(Machine):
    """Unit `directory`, layer 3."""

    layer: ClassVar[int] = 3

    def __init__(
        self,
        me: Self,
        spawn: Callable[[Nanos, MemberInfo], bool],
        stored: list[tuple[bytes, bytes]],
        now: Nanos,
    ) -> None:
        """`stored` are the rows of table `MEMBERS`."""
        self.me = me
        self.members: dict[NodeId, MemberInfo] = {}
        self.state: dict[NodeId, tuple[str, Nanos]] = {}
        self._up: dict[NodeId, bool] = {}
        self._spawn = spawn
        self._remembered = [member for _, value in stored if (member := _decode(value))]
        self.deadline = now + 1 if self._remembered else NEVER

    def wake(self, now: Nanos, out: Outbox) -> None:
        """Once, at the start: look for everybody who was there in an earlier life."""
        self.deadline = NEVER
        remembered, self._remembered = self._remembered, []
        for member in remembered:
            if NodeId(member.node) not in self.members and member.node != self.me.node:
                self.members[NodeId(member.node)] = member
                self.state.setdefault(NodeId(member.node), ("down", now))
                self._spawn(now, member)

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        news: dict[bytes, MemberInfo] = {}
        for item in inputs:
            kind = type(item)
            if kind is PeerUp:
                self._up[item.peer] = True
                self.state[item.peer] = ("up", now)
                self._learn(now, item.member, news, out)
                everybody = (self.me.member, *self.members.values())
                self._tell(item.peer, everybody, out)
            elif kind is PeerDown:
                self._up.pop(item.peer, None)
                self.state[item.peer] = ("left" if item.left else "down", now)
            elif kind is Received:
                for frame in item.frames:
                    if isinstance(frame, Members):
                        for member in frame.members[:MEMBERS_MAX]:
                            self._learn(now, member, news, out)
        if news:
            for peer in self._up:
                self._tell(peer, tuple(m for m in news.values() if m.node != peer), out)

    def _learn(
        self, now: Nanos, member: MemberInfo, news: dict[bytes, MemberInfo], out: Outbox
    ) -> None:
        node = NodeId(member.node)
        known = self.members.get(node)
        if known is not None and known.incarnation >= member.incarnation:
            return
        if node == self.me.node or check_member(member):
            return
        if known is None and len(self.members) >= MEMBERS_MAX:
            return
        self.members[node] = member
        out.write(Put(MEMBERS, node, encode(member)))
        self.state.setdefault(node, ("joining", now))
        news[node] = member
        if known is None:
            self._spawn(now, member)
        out.down(link_unit(node), MemberUpdate(member))

    def _tell(self, peer: NodeId, members: tuple[MemberInfo, ...], out: Outbox) -> None:
        if members:
            out.down(link_unit(peer), SendChannel(SYNC, [encode(Members(members))]))

    def name_of(self, node: bytes) -> str:
        if node == self.me.node:
            return self.me.name
        member = self.members.get(NodeId(node))
        return member.name if member else node[:4].hex()

    def status(self, now: Nanos) -> list[dict[str, Any]]:
        rows = []
        for member in (self.me.member, *self.members.values()):
            state, since = self.state.get(NodeId(member.node), ("up", now))
            rows.append(
                {
                    "id": member.node.hex(),
                    "name": member.name,
                    "incarnation": member.incarnation,
                    "state": state,
                    "since_s": round((now - since) / 1e9, 3),
                    "adapters": [
                        {
                            "name": a.name,
                            "subnet": a.subnet,
                            "address": f"{a.host}:{a.port}",
                            "transports": list(a.transports),
                        }
                        for a in member.adapters
                    ],
                }
            )
        return sorted(rows, key=lambda row: str(row["name"]))
