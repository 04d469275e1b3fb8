"""Direct connections (seed: 'Direct Connection Trees'): find the instances, link to them, send in one hop.

A direct tree is a snapshot: the instances that answered a find, on one tree or several, perhaps found by another
node. The same send call uses it. Links belong to neighbourhoods, each with its own bounded cache of links; several
neighbourhoods share one link, which stays while any of them needs it (rule 19). Where no link can be made, the
instance is reached over its tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import NeedLink, ReleaseLink
from holdfast.overlay.frames import Part
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import NODE_SIZE, digest
from holdfast.overlay.ports import (
    OVERLAY,
    Connected,
    ConnectTo,
    Disconnect,
    Ended,
    FindInstances,
    FoundInstances,
    Location,
    Replied,
    SendToRole,
)
from holdfast.overlay.records import Record
from holdfast.overlay.roles import LocalRole
from holdfast.overlay.router import Router
from holdfast.types import MILLISECOND, SECOND, NodeId

PING: Final = 0x7FFF_FFF0
FIND: Final = 0x7FFF_FFF1
CONNECT_NS: Final = 5 * SECOND
DRAIN_NS: Final = 20 * MILLISECOND
DIRECT_TREES_MAX: Final = 4096
INTERNAL_OP: Final = 1 << 62

_location: Final = msgspec.msgpack.Decoder(Location)


class DirectTree:
    __slots__ = ("id", "locations", "multi_hop", "neighbourhood")

    def __init__(self, tree: bytes, request: ConnectTo) -> None:
        self.id = tree
        self.locations = request.locations
        self.neighbourhood = request.neighbourhood
        self.multi_hop: dict[bytes, str] = {}
        """Nodes without a direct link, and why."""


class _Connecting:
    """A direct tree whose links are being made."""

    __slots__ = ("before", "missing", "tree")

    def __init__(self, tree: DirectTree) -> None:
        self.tree = tree
        self.missing: dict[bytes, bool] = {}
        """Nodes to which there is no link yet."""
        self.before: list[bytes] | None = None
        """Requests that were under way on the old path when the last link was there: they come first (rule 16). Those
        sent later are not waited for, or a busy sender would never get its direct tree."""


class _Fanout:
    """One send on a direct tree: a request per instance, one end for all."""

    __slots__ = (
        "answered",
        "expected",
        "failed",
        "found",
        "incomplete",
        "null",
        "open",
        "reason",
        "replies",
        "request",
        "unknown",
    )

    def __init__(self, request: SendToRole) -> None:
        self.request = request
        self.open = 0
        self.expected: dict[bytes, bool] = {}
        self.answered: list[bytes] = []
        self.failed: list[tuple[bytes, str]] = []
        self.replies: list[tuple[bytes, bytes]] = []
        self.found = False
        self.null = False
        self.unknown: list[bytes] = []
        self.incomplete = False
        self.reason = ""


class Direct:
    def __init__(self, hub: Hub, router: Router, mesh_needs: Callable[[bytes], bool]) -> None:
        self._hub = hub
        self._router = router
        self._mesh_needs = mesh_needs
        self._trees: dict[bytes, DirectTree] = {}
        self._caches: dict[int, OrderedDict[bytes, bool]] = {}
        self._connecting: dict[int, _Connecting] = {}
        router.deliveries.internal[FIND] = self._locate
        router.deliveries.internal[PING] = lambda _, local: Part(local.instance, b"")

    # -- find ----------------------------------------------------------------------------------------------------

    def _locate(self, record: Record, local: LocalRole) -> Part | None:
        """This node's instance says where it is, unless it declines."""
        # rule: O-direct-2a
        if not local.joinable:
            return None
        place = Location(local.tree, local.role, local.instance, self._hub.me, self._hub.realm)
        return Part(local.instance, msgspec.msgpack.encode(place))

    def find(self, request: FindInstances) -> None:
        def ended(end: Ended) -> None:
            found = []
            for instance, data in end.replies:
                location = _decode(data)
                if location is not None and location.instance == instance:
                    found.append(location)
            complete = end.kind in ("done", "not_found") and not end.incomplete
            self._hub.effect(
                FoundInstances(request.op, tuple(found), complete, end.reason or end.kind)
            )

        self._internal(
            SendToRole(
                0,
                request.tree,
                request.role,
                b"",
                FIND,
                aggregate=True,
                realm_only=request.realm_only,
            ),
            lambda *_: None,
            ended,
        )

    def ping(self, tree: bytes, role: str, done: Callable[[str], None]) -> None:
        """Whether a role is held: `held`, `free`, or `unknown` after a failure."""

        def ended(end: Ended) -> None:
            if end.answered:
                done("held")
            else:
                # rule: O-13h
                done("free" if end.kind == "not_found" and not end.incomplete else "unknown")

        self._internal(SendToRole(0, tree, role, b"", PING), lambda *_: None, ended)

    def _internal(
        self,
        request: SendToRole,
        on_part: Callable[[Part], None],
        on_end: Callable[[Ended], None],
        link: NodeId | None = None,
    ) -> None:
        op = INTERNAL_OP + self._hub.next_number()
        self._router.hooks[op] = (on_part, on_end)
        self._router.send(msgspec.structs.replace(request, op=op), link)

    # -- connect -------------------------------------------------------------------------------------------------

    def connect(self, request: ConnectTo) -> None:
        hub = self._hub
        tree = DirectTree(digest(b"direct", hub.new_id()), request)
        if len(self._trees) + len(self._connecting) >= DIRECT_TREES_MAX:
            hub.count("direct_trees_full")
            reason = "too many direct trees"
            every = tuple((place.instance, reason) for place in request.locations)
            hub.effect(Connected(request.op, b"", (), every))
            return
        connecting = self._connecting[request.op] = _Connecting(tree)
        for node in dict.fromkeys(place.node for place in request.locations):
            if node == hub.me:
                continue
            if not self._lease(request.neighbourhood, node):
                tree.multi_hop[node] = "too many direct links"
            elif not hub.is_open(node):
                connecting.missing[node] = True
        hub.after(CONNECT_NS, lambda: self._give_up(request.op))
        self._ready(request.op)

    def link_up(self, peer: NodeId) -> None:
        for op, connecting in list(self._connecting.items()):
            if connecting.missing.pop(peer, None):
                self._ready(op)

    def impossible(self, peer: bytes, reason: str) -> None:
        """There is no common subnet: say so and stay multi-hop."""
        for op, connecting in list(self._connecting.items()):
            if connecting.missing.pop(peer, None):
                connecting.tree.multi_hop[peer] = reason
                self._ready(op)

    def _give_up(self, op: int) -> None:
        connecting = self._connecting.get(op)
        if connecting is not None and connecting.missing:
            for node in connecting.missing:
                connecting.tree.multi_hop[node] = "no link could be made"
            connecting.missing.clear()
            self._ready(op)

    def _ready(self, op: int) -> None:
        connecting = self._connecting.get(op)
        if connecting is None or connecting.missing:
            return
        tree, router = connecting.tree, self._router
        # rule: O-16c
        if connecting.before is None:
            roles = dict.fromkeys((place.tree, place.role) for place in tree.locations)
            connecting.before = [key for role in roles for key in router.under_way(*role)]
        connecting.before = [key for key in connecting.before if router.is_under_way(key)]
        # rule: O-16b
        if connecting.before:
            self._hub.after(DRAIN_NS, lambda: self._ready(op))
            return
        del self._connecting[op]
        self._trees[tree.id] = tree
        one_hop = [p.instance for p in tree.locations if p.node not in tree.multi_hop]
        multi = [
            (p.instance, tree.multi_hop[p.node]) for p in tree.locations if p.node in tree.multi_hop
        ]
        self._hub.effect(Connected(op, tree.id, tuple(one_hop), tuple(multi)))

    def disconnect(self, request: Disconnect) -> None:
        self._trees.pop(request.tree, None)

    # -- sending -------------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether there is any direct tree."""
        return bool(self._trees)

    def is_direct(self, tree: bytes) -> bool:
        return tree in self._trees

    def send(self, request: SendToRole) -> None:
        tree = self._trees[request.tree]
        places = [
            place
            for place in tree.locations
            if request.role in (place.role, "*")
            and (not request.instance or place.instance == request.instance)
        ]
        if request.one:
            # rule: O-direct-3a
            places = sorted(places, key=self._nearness)[:1]
        fanout = _Fanout(request)
        fanout.open = len(places) + 1
        for place in places:
            fanout.expected[place.instance] = True
        for place in places:
            self._send_to(fanout, tree, place)
        self._ended(fanout, None)

    def _nearness(self, place: Location) -> tuple[bool, bool, bool, int, bytes]:
        """One instance: our own, then the nearest in the realm, then any other, as on a tree. Nodes without a link come
        last: they may be gone."""
        hub, node = self._hub, NodeId(place.node)
        neighbour = hub.neighbours.get(node)
        hop_ns = neighbour.hop_ns if neighbour is not None else 0
        away = node != hub.me
        is_far = away and not hub.is_open(node)
        return away, is_far, place.realm != hub.realm, hop_ns, place.instance

    def _send_to(self, fanout: _Fanout, tree: DirectTree, place: Location) -> None:
        request = fanout.request
        link = NodeId(place.node) if self._hub.is_open(place.node) else None
        if link is not None:
            self._use(tree.neighbourhood, place.node)

        def part(part: Part) -> None:
            if request.aggregate:
                fanout.replies.append((part.instance, part.data))
            else:
                self._hub.effect(Replied(request.op, part.instance, part.data, part.grant))

        self._internal(
            msgspec.structs.replace(
                request,
                tree=place.tree,
                role=place.role,
                instance=place.instance,
                one=False,
                aggregate=False,
            ),
            part,
            lambda end: self._ended(fanout, end),
            link,
        )

    def _ended(self, fanout: _Fanout, end: Ended | None) -> None:
        fanout.open -= 1
        if end is not None:
            fanout.answered += end.answered
            fanout.failed += end.failed
            fanout.unknown += end.unknown
            fanout.incomplete |= end.incomplete
            fanout.found |= end.kind == "done"
            fanout.null |= end.kind in ("null", "refused", "cancelled")
            fanout.reason = fanout.reason or end.reason
        if fanout.open:
            return
        kind = "null" if fanout.null else "done" if fanout.found else "not_found"
        self._hub.effect(
            Ended(
                fanout.request.op,
                kind,
                fanout.request.request,
                tuple(fanout.expected),
                tuple(fanout.answered),
                tuple(fanout.failed),
                tuple(fanout.unknown),
                fanout.incomplete,
                tuple(fanout.replies),
                fanout.reason,
            )
        )

    # -- links of neighbourhoods ---------------------------------------------------------------------------------

    def _lease(self, neighbourhood: int, node: bytes) -> bool:
        cache = self._caches.setdefault(neighbourhood, OrderedDict())
        if node in cache:
            cache.move_to_end(node)
            return True
        config = self._hub.config
        # rule: O-direct-1a
        while cache and len(cache) >= config.neighbourhood_links:
            self._release(neighbourhood, next(iter(cache)))
        # rule: O-direct-1d
        if self._leased() >= config.direct_links_max:
            self._hub.count("direct_links_full")
            return False
        cache[node] = True
        if len(node) == NODE_SIZE:
            self._hub.down(DIRECTORY, NeedLink(NodeId(node), OVERLAY))
        return True

    def _leased(self) -> int:
        return len({node: True for cache in self._caches.values() for node in cache})

    def _use(self, neighbourhood: int, node: bytes) -> None:
        cache = self._caches.get(neighbourhood)
        if cache is not None and node in cache:
            # rule: O-direct-1b
            cache.move_to_end(node)

    def _release(self, neighbourhood: int, node: bytes) -> None:
        """Least recently used: this neighbourhood does not need the link; another may."""
        del self._caches[neighbourhood][node]
        self._hub.count("direct_links_released")
        # rule: O-direct-1c
        if not self.needs(node) and not self._mesh_needs(node):
            self._hub.down(DIRECTORY, ReleaseLink(NodeId(node), OVERLAY))

    def needs(self, node: bytes) -> bool:
        return any(node in cache for cache in self._caches.values())

    def status(self) -> dict[str, int]:
        return {"trees": len(self._trees), "links": self._leased()}


def _decode(data: bytes) -> Location | None:
    try:
        return _location.decode(data)
    except msgspec.DecodeError:
        return None
