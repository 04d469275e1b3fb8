"""The directory: who is in the domain and where. Every member tells what it knows; a link is made to each neighbour.

A record belongs to its node and is replaced only by one with a higher incarnation. Knowledge spreads over the
channels of the links: all of it when a session begins, and each change to everybody as it comes. It is durable, so
a node that restarts finds the domain again also when nobody is left at the addresses that it was told to join by.

Who is a neighbour the mesh says. In a small domain everybody is; in a large one a link is also made to whom an
application or a group needs, and one that neither end needs any more is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

import msgspec

from holdfast.links.config import Self
from holdfast.links.handshake import check_member
from holdfast.links.ports import (
    MemberLeft,
    MemberUpdate,
    NeedLink,
    NeighboursChanged,
    PeerDown,
    PeerUp,
    Received,
    Rest,
    RestAsked,
    SendChannel,
    link_unit,
)
from holdfast.machine import Machine, Outbox, Put
from holdfast.types import NEVER, SECOND, SYNC, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import MemberInfo, Members

DIRECTORY: Final = "directory"
MEMBERS: Final = "members"
"""The table of the store in which the directory is kept."""
MEMBERS_MAX: Final = 10_000
REST_NS: Final = 30 * SECOND
"""How long a link that nobody needs is kept: who is a neighbour changes often while a domain grows."""

_decoder: Final = msgspec.msgpack.Decoder(MemberInfo)


def _decode(value: bytes) -> MemberInfo | None:
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return None  # of a version that we do not read: it will be told to us again


def _members_of(item: Received) -> list[MemberInfo]:
    frames = [frame for frame in item.frames if isinstance(frame, Members)]
    return [member for frame in frames for member in frame.members[:MEMBERS_MAX]]


class Mesh(Protocol):
    """Says who the neighbours of this node are."""

    @property
    def sparse(self) -> bool:
        """Whether there are members that are not neighbours."""

    def joined(self, member: MemberInfo) -> None: ...

    def left(self, node: bytes) -> None: ...

    def need(self, node: bytes) -> None: ...

    def everybody(self) -> tuple[NodeId, ...]: ...


class DirectoryMachine(Machine):
    """Unit `directory`, layer 3."""

    layer: ClassVar[int] = 3

    def __init__(
        self,
        me: Self,
        spawn: Callable[[Nanos, MemberInfo], bool],
        stored: list[tuple[bytes, bytes]],
        now: Nanos,
        mesh: Mesh | None = None,
        needed_names: tuple[str, ...] = (),
        drop: Callable[[NodeId], None] | None = None,
    ) -> None:
        """`stored` are the rows of table `MEMBERS`; to the members of `needed_names` there is always a link. `drop`
        is called with whom no link is needed any more."""
        self.me = me
        self.members: dict[NodeId, MemberInfo] = {}
        self.state: dict[NodeId, tuple[str, Nanos]] = {}
        self.needed: dict[NodeId, bool] = {}
        """Whom applications talk to."""
        self._up: dict[NodeId, bool] = {}
        self._spawn = spawn
        self._drop = drop
        self._mesh = mesh
        self._needed_names = needed_names
        self._linked: dict[NodeId, bool] = {}
        self._look = True
        """Something happened that may call for another link, or make one superfluous."""
        self._unneeded: dict[NodeId, Nanos] = {}
        """Since when nobody here needs the link to a peer."""
        self._remembered = [member for _, value in stored if (member := _decode(value))]
        self.deadline = now + 1 if self._remembered else NEVER

    def wake(self, now: Nanos, out: Outbox) -> None:
        """At the start: look for everybody who was there in an earlier life. Later: let links rest."""
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
                    self._need(item.peer)
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

    def _need(self, peer: NodeId) -> None:
        self.needed[peer] = self._look = True
        if self._mesh is not None:
            self._mesh.need(peer)

    def _member_left(self, now: Nanos, item: MemberLeft) -> None:
        """Somebody to whom it said goodbye tells so."""
        member = self.members.get(item.node)
        if member is None or member.incarnation > item.incarnation or item.node in self._up:
            return
        self.state[item.node] = ("left", now)
        if self._mesh is not None:
            self._mesh.left(item.node)
            self._look = True

    # -- links ---------------------------------------------------------------------------------------------------

    def _wants(self, node: NodeId) -> bool:
        """Whether this node itself has a use for a link."""
        member = self.members.get(node)
        return (
            self._mesh is None
            or not self._mesh.sparse
            or node in self.needed
            or (member is not None and member.name in self._needed_names)
            or node in self._mesh.everybody()
        )

    def _link_up(self, now: Nanos) -> None:
        """Make the links that are missing, and note which are not needed."""
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
                self.deadline = min(self.deadline, now + REST_NS)

    def _rest(self, now: Nanos, out: Outbox) -> None:
        """Ask the peers of links that nobody here has needed for a while whether they may rest."""
        for node, since in list(self._unneeded.items()):
            if since + REST_NS > now:
                self.deadline = min(self.deadline, since + REST_NS)
            elif node in self._up:
                self._unneeded[node] = now
                self.deadline = min(self.deadline, now + REST_NS)
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
        if known is None and len(self.members) >= MEMBERS_MAX:
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
