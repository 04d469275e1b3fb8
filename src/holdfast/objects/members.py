"""The nodes that can hold replicas, and which of them to use: spread over realms, healthy, with space."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from holdfast.objects.frames import Offer
from holdfast.objects.hub import Hub
from holdfast.objects.values import ReplicaRef
from holdfast.types import Nanos


class Members:
    def __init__(self, hub: Hub, realm: str = "") -> None:
        self._hub = hub
        self.realm = realm
        self.offers: dict[bytes, Offer] = {}
        """Of members with a session, this node included."""
        self.names: dict[str, bytes] = {}
        self.penalties: dict[bytes, int] = {}
        """Nodes whose paths have soft errors, or are likely to."""
        self.down_since: dict[bytes, Nanos] = {}
        """When a member was lost; members that were never seen are counted from the first time they are missed."""
        self.drained_by = ""
        """Empty, `operator` or `policy`: this node takes no new replicas."""
        self.free_bytes = 1 << 62
        self.repairing = False
        """This node copies more content than a few chunks."""

    def offer(self, objects: int) -> Offer:
        disk = self._hub.disk if self._hub.config.store else b""
        return Offer(disk, self.realm, self.free_bytes, objects, self.draining, self.repairing)

    @property
    def draining(self) -> bool:
        return bool(self.drained_by)

    def others_repairing(self) -> int:
        """How many other nodes with a session copy content."""
        return sum(offer.repairing and node != self._hub.me for node, offer in self.offers.items())

    def take(self, node: bytes, offer: Offer) -> None:
        self.offers[node] = offer

    def lost(self, node: bytes, now: Nanos) -> None:
        self.offers.pop(node, None)
        self.down_since.setdefault(node, now)

    def found(self, node: bytes, name: str) -> None:
        self.down_since.pop(node, None)
        self.names[name] = node

    def missing_for(self, node: bytes, now: Nanos) -> Nanos:
        """How long a node has been unreachable; 0 if it is not."""
        if self._hub.reachable(node):
            return 0
        return now - self.down_since.setdefault(node, now)

    @property
    def is_complete(self) -> bool:
        """Whether every member that this node has heard of is reachable."""
        return all(self._hub.reachable(node) for node in self.down_since)

    def ref(self, node: bytes) -> ReplicaRef | None:
        """The replica that this node could hold."""
        offer = self.offers.get(node)
        return ReplicaRef(node, offer.disk) if offer is not None and offer.disk else None

    def is_there(self, replica: ReplicaRef) -> bool:
        """Whether a recorded replica is reachable: its node, with the disk that is recorded."""
        ref = self.ref(replica.node)
        return ref is not None and replica.disk in (b"", ref.disk)

    def place(
        self,
        object_id: bytes,
        count: int,
        size: int,
        taken: Sequence[bytes] = (),
        but: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Up to `count` nodes for new replicas of an object whose other replicas are on `taken`; none of `but`."""
        realms: dict[str, int] = {}
        for node in taken:
            realm = self._realm(node)
            realms[realm] = realms.get(realm, 0) + 1
        free = [node for node in sorted(self.offers) if self._fits(node, size)]
        left = [node for node in free if node not in taken and node not in but]
        chosen: list[bytes] = []
        while left and len(chosen) < count:
            best = min(left, key=lambda node: self._rank(node, object_id, realms))
            left.remove(best)
            chosen.append(best)
            realm = self._realm(best)
            realms[realm] = realms.get(realm, 0) + 1
        return chosen

    def nearest(self, nodes: Sequence[bytes]) -> list[bytes]:
        """Nodes to read from, best first: this one, then the own realm, then healthy ones."""
        return sorted(nodes, key=self._distance)

    def _realm(self, node: bytes) -> str:
        offer = self.offers.get(node)
        return offer.realm if offer is not None else ""

    def _fits(self, node: bytes, size: int) -> bool:
        offer = self.offers[node]
        return bool(offer.disk) and not offer.draining and offer.free_bytes >= max(size, 0)

    def _rank(
        self, node: bytes, object_id: bytes, realms: dict[str, int]
    ) -> tuple[int, int, int, bytes]:
        offer = self.offers[node]
        spread = sha256(object_id + node).digest()
        return realms.get(offer.realm, 0), self.penalties.get(node, 0), offer.objects // 64, spread

    def _distance(self, node: bytes) -> tuple[int, int, int, bytes]:
        return (
            0 if node == self._hub.me else 1 if self._hub.reachable(node) else 2,
            self.penalties.get(node, 0),
            0 if self._realm(node) == self.realm else 1,
            node,
        )
