"""The map: every node announces its links, so every node can route to any other by id.

A row belongs to its node and is replaced only by one with a higher (incarnation, version). A link counts when both
ends announce it. From the map a node knows which nodes are alive on its side, the next hop to each, and, for a node
that died, which nodes bordered on it: that is where a broken tree is repaired.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.overlay.frames import MapDigest, MapRow, MapUpdate
from holdfast.overlay.hub import HELLO_NS, Hub
from holdfast.overlay.ids import REALM_BYTES_MAX, are_nodes, is_node
from holdfast.types import SYNC, Nanos, NodeId

NODES_MAX: Final = 10_000
PEERS_MAX: Final = 512
ROWS_PER_FRAME: Final = 200
FORMER_MAX: Final = 64
FORGOTTEN_AT_ONCE: Final = NODES_MAX // 10


class Topology:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rows: dict[bytes, MapRow] = {}
        self._former: dict[bytes, dict[bytes, bool]] = {}
        """Links that a node has lost in its present life."""
        self._earlier: dict[bytes, dict[bytes, bool]] = {}
        """Neighbours of a node in lives that it has forgotten: it is alive, but does not know their pieces of trees."""
        self._version = 0
        self._pending: dict[bytes, bool] = {}
        """Rows that the neighbours have not been sent yet."""
        self._heard: dict[NodeId, dict[bytes, MapRow]] = {}
        """Those of them that a neighbour has sent: it needs no copy."""
        self._digests: dict[NodeId, dict[bytes, tuple[int, int]]] = {}
        """What neighbours know, by version, that are to be answered together with the next changes."""
        self._flush_at = False
        self.changes = 0
        """Grows with every change: whatever was computed from the map is then out of date."""
        self._computed = -1
        self._first_hop: dict[bytes, NodeId] = {}
        self._inside_hop: dict[bytes, NodeId] = {}
        self._distance: dict[bytes, int] = {}
        self._awaited: dict[NodeId, Nanos] = {}
        """Neighbours that have not sent the rows that our digest lacked, and since when."""
        self._stores: dict[bytes, str] = {}
        """Reachable nodes that store locations, and their realms."""
        self._ordered: dict[str, list[bytes]] = {}
        """Those of each realm, in order."""
        self._changed_at: Nanos = hub.now
        self.met_at: Nanos = hub.now
        """When a node that stores locations was last met."""
        self._departed: dict[bytes, tuple[str, Nanos]] = {}
        """Nodes that stored locations and cannot be reached any more: their realm, and since when."""
        self._announce()

    # -- what this node says -------------------------------------------------------------------------------------

    def _announce(self) -> None:
        hub = self._hub
        self._version += 1
        row = MapRow(
            hub.me,
            hub.incarnation,
            self._version,
            hub.realm,
            hub.config.stores_locations,
            tuple(hub.open_peers[:PEERS_MAX]),
        )
        self._rows[hub.me] = row
        self._spread(row)

    def link_up(self, peer: NodeId) -> None:
        """What we know, by version, for the new neighbour; our own row for all neighbours."""
        rows = tuple((r.node, r.incarnation, r.version) for r in self._rows.values())
        self._hub.send(peer, MapDigest(rows), SYNC)
        self._awaited[peer] = self._hub.now
        self._heard.pop(peer, None)
        self._digests.pop(peer, None)
        self._announce()

    def compared(self, peer: NodeId, digest: MapDigest) -> None:
        """Send the rows that the neighbour lacks; it does the same with our digest. While changes are collected, the
        answer waits for them: a node that starts has a new row with each of its links, and only the last one counts."""
        if len(digest.rows) > NODES_MAX:
            self._hub.count("bad_map_row")
            return
        theirs = {node: (incarnation, version) for node, incarnation, version in digest.rows}
        if self._flush_at:
            self._digests[peer] = theirs
        else:
            self._answer(peer, theirs)

    def _answer(self, peer: NodeId, theirs: dict[bytes, tuple[int, int]]) -> None:
        newer = [
            row
            for row in self._rows.values()
            if (row.incarnation, row.version) > theirs.get(row.node, (-1, -1))
        ]
        last = newer[-ROWS_PER_FRAME:]
        self._send(peer, newer[: len(newer) - len(last)])
        self._hub.send(peer, MapUpdate(tuple(last), answers=True), SYNC)

    def _send(self, peer: NodeId, rows: list[MapRow]) -> None:
        for k in range(0, len(rows), ROWS_PER_FRAME):
            self._hub.send(peer, MapUpdate(tuple(rows[k : k + ROWS_PER_FRAME])), SYNC)

    def catching_up(self) -> bool:
        """Whether a neighbour has not sent all that it knows."""
        young = self._hub.now - HELLO_NS
        return any(since > young for since in self._awaited.values())

    def link_down(self, peer: NodeId) -> None:
        self._awaited.pop(peer, None)
        self._heard.pop(peer, None)
        self._digests.pop(peer, None)
        self._announce()

    def _spread(self, row: MapRow) -> None:
        self.changes += 1
        self._changed_at = self._hub.now
        self._pending[row.node] = True
        if not self._flush_at:
            self._flush_at = True
            self._hub.after(self._hub.config.map_delay_ns, self._flush)

    def _flush(self) -> None:
        self._flush_at = False
        pending, self._pending = self._pending, {}
        everything, self._heard = self._heard, {}
        digests, self._digests = self._digests, {}
        rows = [self._rows[node] for node in pending]
        for peer in self._hub.open_peers:
            if peer in digests:
                self._answer(peer, digests[peer])
                continue
            heard = everything.get(peer)
            new = [row for row in rows if heard.get(row.node) is not row] if heard else rows
            self._send(peer, new)

    # -- what others say -----------------------------------------------------------------------------------------

    def received(self, peer: NodeId, frame: MapUpdate) -> None:
        hub = self._hub
        if frame.answers:
            self._awaited.pop(peer, None)
        rows, pending = self._rows, self._pending
        heard = self._heard.setdefault(peer, {})
        for row in frame.rows[: 2 * ROWS_PER_FRAME]:
            node = row.node
            known = rows.get(node)
            if known is not None:
                if row.incarnation < known.incarnation:
                    continue
                if row.incarnation == known.incarnation and row.version <= known.version:
                    if node in pending and row.version == known.version:
                        heard[node] = known
                    continue
            if not _sound(row):
                hub.count("bad_map_row")
                continue
            if node == hub.me:
                # An earlier life, or a forgery: our own word must be newer.
                if row.incarnation <= hub.incarnation:
                    self._version = max(self._version, row.version)
                    self._announce()
                else:
                    hub.count("bad_map_row")
                continue
            if known is None and len(rows) >= NODES_MAX and not self._make_room():
                hub.count("map_full")
                continue
            rows[node] = heard[node] = row
            self._remember(known, row)
            self._spread(row)

    def _make_room(self) -> bool:
        """Forget nodes that cannot be reached, those first that have been known longest; many at once, because it takes
        a walk over the map to find them. False when there is none."""
        self._compute()
        gone = [node for node in self._rows if node not in self._distance][:FORGOTTEN_AT_ONCE]
        for node in gone:
            del self._rows[node]
            self._former.pop(node, None)
            self._earlier.pop(node, None)
            self._pending.pop(node, None)
        if gone:
            self._hub.count("map_rows_forgotten", len(gone))
            self.changes += 1
        return bool(gone)

    def _remember(self, before: MapRow | None, row: MapRow) -> None:
        """Links that a node has lost: if it dies, pieces of trees may end there as well."""
        if before is None:
            return
        if before.incarnation != row.incarnation:
            self._forget(row.node, before.peers)
            return
        present = frozenset(row.peers)
        lost = [peer for peer in before.peers if peer not in present]
        if not lost:
            return
        former = self._former.setdefault(row.node, {})
        for peer in lost:
            former.pop(peer, None)
            former[peer] = True
        while len(former) > FORMER_MAX:
            del former[next(iter(former))]

    def _forget(self, node: bytes, peers: tuple[bytes, ...]) -> None:
        earlier = self._earlier.setdefault(node, {})
        for peer in (*self._former.pop(node, ()), *peers):
            earlier.pop(peer, None)
            earlier[peer] = True
        while len(earlier) > FORMER_MAX:
            del earlier[next(iter(earlier))]

    def forgot(self, node: bytes) -> None:
        """A neighbour's unit was rebuilt in the same life of its node: it has forgotten its routes (rule 15)."""
        row = self._rows.get(node)
        self._forget(node, row.peers if row is not None else ())

    def _bordering(self, node: bytes) -> list[bytes]:
        row = self._rows.get(node)
        now = row.peers if row is not None else ()
        return [*now, *self._former.get(node, ()), *self._earlier.get(node, ())]

    # -- what follows from it ------------------------------------------------------------------------------------

    def _compute(self) -> None:
        if self._computed == self.changes:
            return
        self._computed = self.changes
        self._first_hop, self._distance = self._walk(False)
        self._inside_hop, _ = self._walk(True)
        self._note_stores()

    def _note_stores(self) -> None:
        """Nodes that store locations have come or gone: entries move."""
        before, gone, changed_at = self._stores, self._departed, self._changed_at
        self._stores, self._departed, self._ordered = {}, {}, {}
        for node, row in self._rows.items():
            if not row.stores:
                continue
            if node not in self._distance:
                self._departed[node] = gone.get(node) or (row.realm, changed_at)
                continue
            self._stores[node] = row.realm
            self._ordered.setdefault(row.realm, []).append(node)
            if node not in before:
                self.met_at = changed_at
        for nodes in self._ordered.values():
            nodes.sort()

    def departed(self, realm: str, since: Nanos) -> list[bytes]:
        """Nodes of a realm that stored locations and have been lost since then."""
        self._compute()
        return [n for n, (where, at) in self._departed.items() if where == realm and at >= since]

    def _walk(self, inside: bool) -> tuple[dict[bytes, NodeId], dict[bytes, int]]:
        """Breadth first over links that both ends announce."""
        hub, rows = self._hub, self._rows
        hop: dict[bytes, NodeId] = {}
        distance: dict[bytes, int] = {hub.me: 0}
        queue: deque[bytes] = deque()
        for peer in hub.open_peers:
            row = rows.get(peer)
            if row is not None and (not inside or row.realm == hub.realm):
                hop[peer] = peer
                distance[peer] = 1
                queue.append(peer)
        while queue:
            node = queue.popleft()
            first = hop[node]
            for other in rows[node].peers:
                row = rows.get(other)
                if other in distance or row is None or node not in row.peers:
                    continue
                if inside and row.realm != hub.realm:
                    continue
                hop[other] = first
                distance[other] = distance[node] + 1
                queue.append(other)
        return hop, distance

    def next_hop(self, target: bytes, realm_only: bool = False) -> NodeId | None:
        """The neighbour on the way to a node. Ways inside the realm come first, so that a realm stays on one
        fragment of each tree."""
        self._compute()
        inside = self._inside_hop.get(target)
        if inside is not None or realm_only:
            return inside
        return self._first_hop.get(target)

    def reaches(self, node: bytes) -> bool:
        self._compute()
        return node in self._distance

    def alive(self, node: bytes, incarnation: int) -> bool:
        """Whether this very life of the node is reachable."""
        row = self._rows.get(node)
        return row is not None and row.incarnation == incarnation and self.reaches(node)

    def incarnation(self, node: bytes) -> int:
        row = self._rows.get(node)
        return row.incarnation if row is not None else 0

    def realm_of(self, node: bytes) -> str | None:
        row = self._rows.get(node)
        return row.realm if row is not None else None

    def distance(self, node: bytes) -> int | None:
        self._compute()
        return self._distance.get(node)

    def size(self) -> int:
        """How many nodes are reached, this one included."""
        self._compute()
        return len(self._distance)

    def reachable(self) -> list[bytes]:
        self._compute()
        return sorted(self._distance)

    def storing(self, realm: str) -> list[bytes]:
        """Reachable nodes of a realm that store locations, in the order of their ids. Do not change the list."""
        self._compute()
        return self._ordered.get(realm, [])

    def realms(self) -> list[str]:
        """Realms with a reachable node that stores locations, in the order of their names."""
        self._compute()
        return sorted(self._ordered)

    def border_of(self, lost: bytes, hint: tuple[bytes, ...] = ()) -> list[bytes]:
        """The live nodes next to a node that is gone, or next to the dead nodes around it; the node itself if it is
        alive. This is where the pieces of a tree that led through it end.

        A node that has restarted is alive, but has forgotten its routes: the neighbours of its earlier life are asked
        as well.
        """
        self._compute()
        alive = not hint and lost in self._distance
        if alive and lost not in self._earlier:
            return [lost]
        found: dict[bytes, bool] = {lost: True} if alive else {}
        gone = {} if alive else {lost: True}
        queue = deque(hint)
        if not hint:
            queue.extend(self._earlier.get(lost, ()) if alive else self._bordering(lost))
        while queue:
            node = queue.popleft()
            if node in gone or node in found:
                continue
            if node in self._distance:
                found[node] = True
                continue
            gone[node] = True
            queue.extend(self._bordering(node))
        found.pop(self._hub.me, None)
        return sorted(found)

    def knows(self, node: bytes) -> bool:
        return node in self._rows

    def picture(self) -> list[tuple[MapRow, bool]]:
        """Every row, and whether its node is on our side of the network."""
        self._compute()
        return [(row, node in self._distance) for node, row in sorted(self._rows.items())]

    def status(self) -> dict[str, int]:
        self._compute()
        return {
            "known": len(self._rows),
            "reachable": len(self._distance),
            "links": len(self._hub.open_peers),
            "links_announced": sum(len(row.peers) for row in self._rows.values()),
        }


def _sound(row: MapRow) -> bool:
    return (
        is_node(row.node)
        and 0 <= row.incarnation < 1 << 63
        and 0 <= row.version < 1 << 62
        and 0 < len(row.realm.encode()) <= REALM_BYTES_MAX
        and len(row.peers) <= PEERS_MAX
        and are_nodes(row.peers)
    )
