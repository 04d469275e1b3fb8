"""Entries of the search while nodes come and go: which nodes may still have the entry that this node owns now.

A node that joins owns entries that other nodes still have: they hand them over when they learn of it. Until then the
new owner must not say that there is no entry, or a second instance would become the first of its role. So for some time
after a node was met, an owner without an entry asks the nodes that may have owned it: those below it in the order of
ids, and for the domain's table the owners in other realms.

When an owner dies, its entries die with it, and the instances register again. Until they have, a new owner does not
accept an instance that was not registered before.
"""

from __future__ import annotations

from typing import Final

from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import owner_of, owners_of
from holdfast.overlay.topology import Topology
from holdfast.types import SECOND, Nanos

HANDOVER_NS: Final = 5 * SECOND
"""How long entries may be on their way after a node was met."""
LOST_NS: Final = SECOND
"""How long the instances that were registered with a node that died need to register again."""
ASKED_MAX: Final = 8
"""Nodes that are asked in one realm, and realms that are asked."""
ABSENT_MAX: Final = 4096
"""Keys that are remembered as absent; those beyond are asked for each time."""


class Handover:
    def __init__(self, hub: Hub, topology: Topology) -> None:
        self._hub = hub
        self._topology = topology
        self._asked_at: Nanos = -1
        self._absent: dict[tuple[bytes, bool], bool] = {}
        """Keys that no former owner had an entry for, since a node was last met. Those nodes know this owner now."""

    def former_owners(self, key: bytes, other_realms: bool) -> list[bytes]:
        """The nodes to ask for the entry with this key before it can be said that there is none."""
        topology, me, realm = self._topology, self._hub.me, self._hub.realm
        ordered = topology.storing(realm)  # brings `met_at` up to date
        if self._hub.now - topology.met_at >= HANDOVER_NS:
            return []
        if self._asked_at != topology.met_at:
            self._asked_at = topology.met_at
            self._absent.clear()
        if (key, other_realms) in self._absent:
            return []
        found = dict.fromkeys(owners_of(key, ordered, ASKED_MAX + 1), True) if ordered else {}
        if other_realms:
            for other in [name for name in topology.realms() if name != realm][:ASKED_MAX]:
                found[owner_of(key, topology.storing(other)) or me] = True
        found.pop(me, None)
        return list(found)

    def found_none(self, key: bytes, other_realms: bool, met_at: Nanos) -> None:
        """The nodes that were asked have answered; `met_at` is from the time of the question."""
        if met_at == self._asked_at == self._topology.met_at and len(self._absent) < ABSENT_MAX:
            self._absent[key, other_realms] = True

    def was_lost(self, key: bytes) -> bool:
        """Whether the owner of this key died a moment ago."""
        realm = self._hub.realm
        departed = self._topology.departed(realm, self._hub.now - LOST_NS)
        if not departed:
            return False
        return owner_of(key, sorted([*self._topology.storing(realm), *departed])) in departed
