"""The directory: the members of the domain and their addresses. A link is created to each neighbour.

A record belongs to its node and is replaced only by one with a higher incarnation. Records spread over the channels of
the links: all of them when a session starts, and each change to all peers. They are durable, so a restarted node finds
the domain again even if the addresses in `join` are no longer used.

The mesh determines the neighbours: all members in a small domain. In a large one, a link is also created to members
that an application or a group needs, and a link that neither end needs is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

import msgspec

from holdfast.links.handshake import check_member
from holdfast.links.ports import (
    LinkImpossible,
    MemberLeft,
    MemberUpdate,
    NeedLink,
    NeighboursChanged,
    PeerDown,
    PeerUp,
    Received,
    ReleaseLink,
    Rest,
    RestAsked,
    SendChannel,
    link_unit,
)
from holdfast.machine import Machine, Outbox, Put
from holdfast.subsystem import LocalNode
from holdfast.types import NEVER, SECOND, SYNC, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import MemberInfo, Members

DIRECTORY: Final = "directory"
MEMBERS: Final = "members"
"""The store table of the directory."""
MEMBERS_MAX: Final = 10_000
REST_NS: Final = 30 * SECOND
"""How long an unneeded link is kept: neighbours change often while a domain grows."""

_decoder: Final = msgspec.msgpack.Decoder(MemberInfo)


def _decode(value: bytes) -> MemberInfo | None:
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return None  # from a version that we cannot read: we will receive it again


def _members_of(item: Received) -> list[MemberInfo]:
    frames = [frame for frame in item.frames if isinstance(frame, Members)]
    return [member for frame in frames for member in frame.members[:MEMBERS_MAX]]


class Mesh(Protocol):
    """Determines the neighbours of this node."""

    @property
    def sparse(self) -> bool:
        """Whether there are members that are not neighbours."""

    def joined(self, member: MemberInfo) -> None: ...

    def left(self, node: bytes) -> None: ...

    def need(self, node: bytes) -> None: ...

    def everybody(self) -> tuple[NodeId, ...]: ...


class DirectoryMachine(Machine):
    """Unit `directory`."""

    layer: ClassVar[str] = "directory"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown, RestAsked)

    def __init__(
        self,
        me: LocalNode,
        spawn: Callable[[Nanos, MemberInfo], bool],
        stored: list[tuple[bytes, bytes]],
        now: Nanos,
        mesh: Mesh | None = None,
        needed_names: tuple[str, ...] = (),
        drop: Callable[[NodeId], None] | None = None,
    ) -> None:
        """`stored` are the rows of table `MEMBERS`; there is always a link to the members of `needed_names`. `drop` is
        called with members to which no link is needed."""
        self.me = me
        self.members_max: int = MEMBERS_MAX
        self.rest_ns: Nanos = REST_NS
        """How long a link that is not needed stays up."""
        self.members: dict[NodeId, MemberInfo] = {}
        self.state: dict[NodeId, tuple[str, Nanos]] = {}
        self.needed: dict[NodeId, dict[str, bool]] = {}
        """Members whose link is leased, and by which units."""
        self._up: dict[NodeId, bool] = {}
        self._spawn = spawn
        self._drop = drop
        self._mesh = mesh
        self._needed_names = needed_names
        self._linked: dict[NodeId, bool] = {}
        self._look = True
        """Another link may be needed, or one may have become unnecessary."""
        self._unneeded: dict[NodeId, Nanos] = {}
        """Since when this node does not need the link to a peer."""
        self._remembered = [member for _, value in stored if (member := _decode(value))]
        self.deadline = now + 1 if self._remembered else NEVER

    def wake(self, now: Nanos, out: Outbox) -> None:
        """At the start: connect to all members of the earlier incarnation. Later: close unneeded links."""
        self.deadline = NEVER
        remembered, self._remembered = self._remembered, []
        for member in remembered:
            if NodeId(member.node) not in self.members and member.node != self.me.node:
                self._known(now, member)
                self.state[NodeId(member.node)] = ("down", now)
        self._link_up(now)
        self._rest(now, out)

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        news: dict[bytes, MemberInfo] = {}
        for item in inputs:
            match item:
                case PeerUp():
                    self._up[item.peer] = self._look = True
                    self.state[item.peer] = ("up", now)
                    self._learn(now, item.member, news, out)
                    if self._mesh is not None:
                        self._mesh.joined(self.members.get(item.peer, item.member))
                    everybody = (self.me.member, *self.members.values())
                    self._tell(item.peer, everybody, out)
                case PeerDown():
                    self._peer_down(now, item)
                case Received():
                    for member in _members_of(item):
                        self._learn(now, member, news, out)
                case NeedLink():
                    self._need(item, out)
                case ReleaseLink():
                    self._release(item)
                case MemberLeft():
                    self._member_left(now, item)
                case RestAsked():
                    if not self._wants(item.peer):
                        out.down(link_unit(item.peer), Rest(agreed=True))
                case NeighboursChanged():
                    self._look = True
        self._link_up(now)
        if news:
            for peer in self._up:
                self._tell(peer, tuple(m for m in news.values() if m.node != peer), out)

    def _peer_down(self, now: Nanos, item: PeerDown) -> None:
        self._up.pop(item.peer, None)
        self._look = True
        if item.resting:
            self.state[item.peer] = ("known", now)
            if self._drop is not None and not self._wants(item.peer):
                self._linked.pop(item.peer, None)
                self._drop(item.peer)
            return
        self.state[item.peer] = ("left" if item.left else "down", now)
        if item.left and self._mesh is not None:
            self._mesh.left(item.peer)

    def _need(self, item: NeedLink, out: Outbox) -> None:
        reason = self._impossible(item.peer)
        if reason and item.holder:
            # The lease stays: the node may become a member, or get another adapter.
            out.up(item.holder, LinkImpossible(item.peer, reason))
        self.needed.setdefault(item.peer, {})[item.holder] = self._look = True
        if self._mesh is not None:
            self._mesh.need(item.peer)

    def _release(self, item: ReleaseLink) -> None:
        leases = self.needed.get(item.peer, {})
        leases.pop(item.holder, None)
        if not leases and self.needed.pop(item.peer, None) is not None:
            self._look = True

    def _impossible(self, peer: NodeId) -> str:
        """Why there can be no link to a node; empty when there can."""
        member = self.members.get(peer)
        if member is None:
            return "it is not a member of the domain"
        mine = {adapter.subnet for adapter in self.me.adapters}
        if not mine.intersection(adapter.subnet for adapter in member.adapters):
            return "there is no common subnet"
        return ""

    def _member_left(self, now: Nanos, item: MemberLeft) -> None:
        """A member reports that another one has left."""
        member = self.members.get(item.node)
        if member is None or member.incarnation > item.incarnation or item.node in self._up:
            return
        self.state[item.node] = ("left", now)
        if self._mesh is not None:
            self._mesh.left(item.node)
            self._look = True

    # -- links ---------------------------------------------------------------------------------------------------

    def _wants(self, node: NodeId) -> bool:
        """Whether this node needs a link."""
        member = self.members.get(node)
        return (
            self._mesh is None
            or not self._mesh.sparse
            or node in self.needed
            or (member is not None and member.name in self._needed_names)
            or node in self._mesh.everybody()
        )

    def _link_up(self, now: Nanos) -> None:
        """Create missing links, and record which are not needed."""
        if not self._look:
            return
        self._look = False
        mesh = self._mesh
        if mesh is None or not mesh.sparse:
            for node, member in self.members.items():
                if node not in self._linked:
                    self._linked[node] = self._spawn(now, member)
            return
        wanted = dict.fromkeys((*mesh.everybody(), *self.needed), True)
        for node, member in self.members.items():
            if member.name in self._needed_names:
                wanted[node] = True
        for node in wanted:
            self._unneeded.pop(node, None)
            if node in self.members and node not in self._linked:
                self._linked[node] = self._spawn(now, self.members[node])
        for node in (*self._linked, *self._up):
            if node not in wanted and node not in self._unneeded:
                self._unneeded[node] = now
                self.deadline = min(self.deadline, now + self.rest_ns)

    def _rest(self, now: Nanos, out: Outbox) -> None:
        """Ask the peers of links that were not needed for a while whether they can be closed."""
        for node, since in list(self._unneeded.items()):
            if since + self.rest_ns > now:
                self.deadline = min(self.deadline, since + self.rest_ns)
            elif node in self._up:
                self._unneeded[node] = now
                self.deadline = min(self.deadline, now + self.rest_ns)
                out.down(link_unit(node), Rest())
            else:
                del self._unneeded[node]
                if self._linked.pop(node, None) and self._drop is not None:
                    self._drop(node)

    # -- members -------------------------------------------------------------------------------------------------

    def _known(self, now: Nanos, member: MemberInfo) -> None:
        node = NodeId(member.node)
        self.members[node] = member
        self._look = True
        self.state.setdefault(node, ("joining", now))
        if self._mesh is not None:
            self._mesh.joined(member)

    def _learn(
        self, now: Nanos, member: MemberInfo, news: dict[bytes, MemberInfo], out: Outbox
    ) -> None:
        node = NodeId(member.node)
        known = self.members.get(node)
        if known is not None and known.incarnation >= member.incarnation:
            return
        if node == self.me.node or check_member(member):
            return
        if known is None and len(self.members) >= self.members_max:
            return
        self._known(now, member)
        out.write(Put(MEMBERS, node, encode(member)))
        news[node] = member
        out.down(link_unit(node), MemberUpdate(member))

    def _tell(self, peer: NodeId, members: tuple[MemberInfo, ...], out: Outbox) -> None:
        if members:
            out.down(link_unit(peer), SendChannel(SYNC, [encode(Members(members))]))

    def name_of(self, node: bytes) -> str:
        if node == self.me.node:
            return self.me.name
        member = self.members.get(NodeId(node))
        return member.name if member else node[:4].hex()

    def subnet_of(self, node: bytes, adapter: str) -> str:
        member = self.me.member if node == self.me.node else self.members.get(NodeId(node))
        for info in member.adapters if member else ():
            if info.name == adapter:
                return info.subnet
        return adapter

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
