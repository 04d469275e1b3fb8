"""Settings of the overlay. The defaults suit a LAN; times are nanoseconds, as everywhere."""

from __future__ import annotations

import msgspec

from holdfast.overlay.ids import REALM_BYTES_MAX
from holdfast.types import MILLISECOND, SECOND, Nanos


class OverlayConfig(msgspec.Struct, frozen=True):
    realm: str = "default"
    """Nodes with the same value are close to each other, normally one LAN."""
    stores_locations: bool = True
    """Whether this node may own entries of the search."""

    successors: int = 3
    """Links to the nodes with the next larger ids in the realm."""
    realm_links: int = 3
    """Nodes of this realm that keep a link to each other realm."""
    mesh_all_up_to: int = 32
    """Up to so many members every node links to every other."""

    spew_hops: int = 3
    """How far builder messages are sent on all links around a failure (seed: 3)."""
    directed: bool = True
    """Repair around a failure by asking the nodes that bordered on it. Off: only the paper's spew hops."""
    break_cycles: bool = True

    trees_max: int = 1024
    """Trees in the cache. The least recently used one is evicted."""
    roles_per_tree_max: int = 1024
    instances_max: int = 512
    """Routes kept for one role. Instances beyond that are reached through those known."""
    local_roles_max: int = 100_000
    entries_max: int = 200_000
    """Locations that this node stores for the search."""
    tombstones_max: int = 64
    """Per role. The oldest is dropped first."""

    data_bytes_max: int = 1 << 20
    pending_max: int = 50_000
    """Messages that this node has forwarded or delivered and that wait for replies."""
    pending_per_peer_max: int = 10_000
    waiting_max: int = 1024
    """Messages that wait for one role's recovery."""
    aggregate_bytes_max: int = 64 << 20
    """Replies that one aggregated reply adds up."""
    suspended_max: int = 4096
    reply_cache_max: int = 200_000
    waves_per_peer_max: int = 5_000
    credit: int = 256
    """Messages that a neighbour may send before it must wait for credit."""
    queue_max: int = 4096
    """Messages that wait for a neighbour's credit."""
    seen_max: int = 200_000

    lifetime_ns: Nanos = 10 * SECOND
    """How long a request lives when its sender does not say."""
    lifetime_ns_max: Nanos = 600 * SECOND
    suspended_ns: Nanos = 10 * SECOND
    """A suspended message that is not resumed within this time is swept and reported."""
    tombstone_ns: Nanos = 300 * SECOND

    map_delay_ns: Nanos = 20 * MILLISECOND
    """Changes of links are collected for so long before they are announced."""
    join_ns: Nanos = 3 * SECOND
    """How long a node that has met no other waits for the domain before it publishes a role."""
    settle_ns: Nanos = 300 * MILLISECOND
    """After a link is lost, and before the node concludes that the network is partitioned."""
    refresh_ns: Nanos = 60 * SECOND
    """Interval at which an instance checks that it is still linked to the registered first instance."""
    retry_ns: Nanos = 200 * MILLISECOND
    """First pause before a failed registration is tried again; doubles up to `retry_ns_max`."""
    retry_ns_max: Nanos = 10 * SECOND
    recovery_tries: int = 4
    wave_ns_min: Nanos = 2 * SECOND
    """Bounds of the recovery time-out, which is otherwise three times the largest recent round trip."""
    wave_ns_max: Nanos = 20 * SECOND
    hop_ns: Nanos = MILLISECOND
    """Assumed time of a hop before any is measured."""
    events_max: int = 64
    """Un-partition events kept. A role that has missed a dropped one asks the registered first instance."""
    reserve_ns: Nanos = 5 * SECOND
    """How long a role that was granted stays reserved for its taker before the giver asks."""
    neighbourhood_links: int = 64
    """Links of one direct-connection neighbourhood."""
    direct_links_max: int = 256
    """Links of all neighbourhoods together."""
    join_trees_max: int = 256
    """Trees that a joining node asks a neighbour for."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, in words; empty when nothing is."""
        found = []
        if not 0 < len(self.realm.encode()) <= REALM_BYTES_MAX:
            found.append(f"overlay.realm must have 1 to {REALM_BYTES_MAX} bytes")
        found += [
            f"overlay.{name} must be at least 1"
            for name in ("successors", "realm_links", "trees_max", "credit", "queue_max")
            if getattr(self, name) < 1
        ]
        if self.lifetime_ns > self.lifetime_ns_max:
            found.append("overlay.lifetime must not exceed overlay.lifetime_max")
        return found


class OverlaySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[overlay]` in the configuration file."""

    realm: str = "default"
    """Nodes with the same value are close to each other, normally one LAN."""
    stores_locations: bool = True
    """Whether this node may store where roles are."""
    successors: int = 3
    realm_links: int = 3
    mesh_all_up_to: int = 32
    trees_max: int = 1024
    lifetime_s: float = 10.0
    """How long a request lives when its sender does not say."""
    suspended_s: float = 10.0
    refresh_s: float = 60.0
    neighbourhood_links: int = 64
    direct_links_max: int = 256

    def settings(self) -> OverlayConfig:
        return OverlayConfig(
            realm=self.realm,
            stores_locations=self.stores_locations,
            successors=self.successors,
            realm_links=self.realm_links,
            mesh_all_up_to=self.mesh_all_up_to,
            trees_max=self.trees_max,
            lifetime_ns=int(self.lifetime_s * SECOND),
            suspended_ns=int(self.suspended_s * SECOND),
            refresh_ns=max(int(self.refresh_s * SECOND), SECOND),
            neighbourhood_links=self.neighbourhood_links,
            direct_links_max=self.direct_links_max,
        )
