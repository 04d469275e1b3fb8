"""Which links a node keeps: its successors, chords across its realm, and links between realms.

Every node knows the members, orders them by id, and takes its place: all agree on the mesh without a message. A node
links to the k next larger ids of its realm. That alone would make paths of n/2k hops, so it also links to the nodes
2, 4, 8, ... times further (rule 20). Each pair of realms is joined by links between several nodes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.ids import digest


def successors_of(ordered: list[bytes], place: int, count: int) -> list[bytes]:
    """The nodes with the next larger ids, in a ring."""
    size = len(ordered)
    return [ordered[(place + step) % size] for step in range(1, min(count, size - 1) + 1)]


def chords_of(ordered: list[bytes], place: int, successors: int) -> list[bytes]:
    """Nodes at distances that double, from beyond the successors to half-way round."""
    size = len(ordered)
    found = []
    step = 2
    while step <= size // 2:
        if step > successors:
            found.append(ordered[(place + step) % size])
        step *= 2
    return found


def bridge_between(first: list[bytes], second: list[bytes], which: int) -> tuple[bytes, bytes]:
    """The `which`-th link between two realms. Spread by a hash, so that no node bridges to all realms."""
    spread = int.from_bytes(digest(first[0], second[0])[:8], "big")
    return first[(spread + which) % len(first)], second[(spread // 7 + which) % len(second)]


def by_realm(members: Mapping[bytes, str]) -> dict[str, list[bytes]]:
    """The nodes of each realm, in the order of their ids; realms in the order of their names."""
    realms: dict[str, list[bytes]] = {}
    for node in sorted(members):
        realms.setdefault(members[node], []).append(node)
    return {realm: realms[realm] for realm in sorted(realms)}


def links_made_by(me: bytes, members: Mapping[bytes, str], config: OverlayConfig) -> list[bytes]:
    """The nodes that `me` opens links to. `members` has the realm of every member, `me` included."""
    if len(members) <= config.mesh_all_up_to:
        return sorted(node for node in members if node != me)
    realms = by_realm(members)
    own = realms[members[me]]
    place = own.index(me)
    found = dict.fromkeys(successors_of(own, place, config.successors))
    # rule: O-20a
    found.update(dict.fromkeys(chords_of(own, place, config.successors)))
    names = list(realms)
    for k, name in enumerate(names):
        for other in names[k + 1 :]:
            for which in range(min(config.realm_links, max(len(realms[name]), len(realms[other])))):
                ends = bridge_between(realms[name], realms[other], which)
                if me in ends:
                    found[ends[1] if ends[0] == me else ends[0]] = None
    found.pop(me, None)
    return sorted(found)


def mesh_neighbours(me: bytes, members: Mapping[bytes, str], config: OverlayConfig) -> list[bytes]:
    """All nodes that share a link of the mesh with `me`: those that it opens links to, and those that do so to it."""
    found = dict.fromkeys(links_made_by(me, members, config))
    if len(members) > config.mesh_all_up_to:
        own = [node for node in sorted(members, reverse=True) if members[node] == members[me]]
        place = own.index(me)  # the same steps, downwards
        found.update(dict.fromkeys(successors_of(own, place, config.successors)))
        found.update(dict.fromkeys(chords_of(own, place, config.successors)))
        found.pop(me, None)
    return sorted(found)


class MeshPlan:
    """The links that this node wants, kept current as members come and go."""

    def __init__(self, me: bytes, config: OverlayConfig) -> None:
        self._me = me
        self._config = config
        self._members: dict[bytes, str] = {me: config.realm}
        self._gone: dict[bytes, bool] = {}
        self._wanted: dict[bytes, bool] | None = None

    @property
    def sparse(self) -> bool:
        """Whether there are members that this node does not link to by itself."""
        return len(self._members) > self._config.mesh_all_up_to

    def joined(self, node: bytes, realm: str) -> None:
        if self._members.get(node) != realm:
            self._members[node] = realm
            self._wanted = None

    def left(self, node: bytes) -> None:
        if node != self._me and self._members.pop(node, None) is not None:
            self._wanted = None

    def follow(
        self,
        members: Iterable[bytes],
        realm_of: Callable[[bytes], str | None],
        gone: Iterable[bytes],
    ) -> None:
        """These are the members now. Those in `gone` cannot be reached: they keep their place, so that they are tried
        again, and the nodes that would be neighbours without them are neighbours as well."""
        current = {node: realm_of(node) or self._config.realm for node in members}
        current[self._me] = self._config.realm
        missing = dict.fromkeys(gone, True)
        if current != self._members or missing != self._gone:
            self._members, self._gone, self._wanted = current, missing, None

    def wanted(self) -> dict[bytes, bool]:
        if self._wanted is None:
            found = dict.fromkeys(mesh_neighbours(self._me, self._members, self._config), True)
            if self._gone:
                alive = {n: r for n, r in self._members.items() if n not in self._gone}
                found.update(dict.fromkeys(mesh_neighbours(self._me, alive, self._config), True))
            self._wanted = found
        return self._wanted
