"""Trees as one node knows them: routes to instances, edges, and what is broken.

A role is *built* here when a message that follows this node's routes reaches every instance, provided that every node
on the way makes sure of the same before it forwards. It is not built when there is no route (rule 7), when a route was
lost and the pieces beyond have not been asked yet (`lost`), or when a healed partition has not been crossed yet.

A route to an instance carries a sequence number that only the instance's node increments. A newer number, or the same
with fewer hops, replaces a route; so the routes to one instance never form a loop (as in AODV). Loops between routes to
different instances are possible; the router finds and breaks those.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from holdfast.overlay.checks import SUSPECT_EPOCH
from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.frames import Found
from holdfast.overlay.ids import incarnation_of, node_of
from holdfast.types import Nanos, NodeId

ADDED: Final = "added"
KEPT: Final = "kept"
"""There is a route that is as good."""
BEATEN: Final = "beaten"
"""A higher exclusive instance is known, or a tombstone of this one."""
FULL: Final = "full"
FORMER_MAX: Final = 64
FORMER_TREES: Final = 8
"""Evicted trees whose neighbours are remembered, for each tree in the cache."""

Rank = tuple[int, bytes]
"""(epoch, instance id): the higher of two exclusive instances wins (rule 13)."""


class Route:
    """The way to one instance, or, when `dummy`, back to the sender of a message that cycled (rule 8)."""

    __slots__ = ("dummy", "epoch", "exclusive", "hops", "instance", "link", "seq")

    def __init__(self, found: Found, link: NodeId, dummy: bool = False) -> None:
        self.instance = found.instance
        self.epoch = found.epoch
        self.exclusive = found.exclusive
        self.seq = found.seq
        self.hops = found.hops
        self.link = link
        self.dummy = dummy

    def found(self) -> Found:
        return Found(self.instance, self.epoch, self.exclusive, self.seq, self.hops)


class RoleState:
    """Routes of one role of a tree."""

    __slots__ = (
        "absent_until",
        "cuts_done",
        "cuts_done_inside",
        "damaged",
        "draining",
        "links_known",
        "lost",
        "name",
        "outside_lost",
        "repointed",
        "routes",
        "tombs",
        "top",
    )

    def __init__(self, name: str, cuts: int, damaged: dict[str, bool] | None = None) -> None:
        self.name = name
        self.damaged = damaged if damaged is not None else {}
        """Of the tree: roles that may have lost routes."""
        self.routes: dict[bytes, Route] = {}
        self.links_known: list[NodeId] | None = None
        """The links of all routes, until a route changes."""
        self.draining: dict[NodeId, Nanos] = {}
        """Links that a route has moved away from: until then they get messages too, because instances may be reached on
        the old way that have no route here."""
        self.lost: dict[bytes, tuple[bytes, ...]] = {}
        """Nodes over which routes were lost; with the nodes to ask, where the lost one named them."""
        self.cuts_done = cuts
        """Un-partition events that this role has recovered from."""
        self.cuts_done_inside = cuts
        """The same for messages that stay in the realm: not less, because a recovery for all covers them."""
        self.outside_lost = False
        """A link to another realm was lost: spew hops are infinite until the message has left the realm."""
        self.top: Rank | None = None
        """The highest exclusive instance ever seen."""
        self.tombs: OrderedDict[bytes, tuple[int, Nanos]] = OrderedDict()
        self.repointed: dict[bytes, Nanos] = {}
        """Links over which the role moved away, until when messages from there return as moved (rule 12)."""
        self.absent_until: Nanos = 0
        """A complete recovery found no instance; not repeated before this time."""

    # -- insertion -----------------------------------------------------------------------------------------------

    def judge(self, found: Found, now: Nanos) -> bool:
        """Whether this instance may exist beside what is known: tombstones and exclusive holders (rule 13)."""
        tomb = self.tombs.get(found.instance)
        # rule: O-13a
        if tomb is not None and tomb[1] > now and tomb[0] >= found.epoch:
            return False
        if self.top is None:
            return True
        if found.exclusive:
            # rule: O-13b
            return (found.epoch, found.instance) >= self.top
        return found.epoch > self.top[0]

    def insert(
        self,
        found: Found,
        link: NodeId,
        inside: bool,
        own_realm: bool,
        config: OverlayConfig,
        now: Nanos,
        is_inside: dict[NodeId, bool],
    ) -> str:
        """Add or improve a route. `inside`: the link stays in our realm; `own_realm`: so does the instance."""
        if not self.judge(found, now):
            return BEATEN
        old = self.routes.get(found.instance)
        if old is not None:
            old_inside = is_inside.get(old.link, False)
            # rule: O-built-3a
            if own_realm and old_inside and not inside:
                return KEPT  # a realm stays on one fragment of the tree
            better_place = own_realm and inside and not old_inside
            fresher = (found.seq, -found.hops) > (old.seq, -old.hops)
            if not fresher and not (better_place and found.seq >= old.seq):
                return KEPT
        elif len(self.routes) >= config.instances_max:
            return FULL
        # rule: O-14a
        self._forget_older_lives(found.instance)
        if found.exclusive:
            self._crown(found)
        self.routes[found.instance] = Route(found, link)
        self.links_known = None
        self.absent_until = 0
        return ADDED

    def _forget_older_lives(self, instance: bytes) -> None:
        """A newer incarnation of a node deletes the routes of an older one (rule 14)."""
        node, life = node_of(instance), incarnation_of(instance)
        for other in list(self.routes):
            route = self.routes[other]
            if not route.dummy and node_of(other) == node and incarnation_of(other) < life:
                self.remove(other)

    def _crown(self, found: Found) -> None:
        """An exclusive instance: whatever is lower leaves."""
        self.top = max(self.top or (0, b""), (found.epoch, found.instance))
        for other in list(self.routes):
            route = self.routes[other]
            if other != found.instance and not route.dummy and (route.epoch, other) < self.top:
                self.remove(other)

    def add_dummy(self, dummy: bytes, link: NodeId) -> None:
        self.routes[dummy] = Route(Found(dummy, 0, False, 0, 0), link, True)
        self.links_known = None

    @property
    def suspect(self) -> bytes:
        """The highest exclusive instance, if its epoch was made up: no later publish could outrank it, so it is
        forgotten with its instance."""
        return self.top[1] if self.top is not None and self.top[0] >= SUSPECT_EPOCH else b""

    # -- removal -------------------------------------------------------------------------------------------------

    def remove(self, instance: bytes) -> None:
        del self.routes[instance]
        self.links_known = None

    def bury(self, instance: bytes, epoch: int, until: Nanos, limit: int) -> bool:
        """Put up a tombstone and remove the route, unless it is newer. Whether a route was removed."""
        tomb = self.tombs.pop(instance, None)
        self.tombs[instance] = (max(epoch, tomb[0] if tomb else 0), until)
        while len(self.tombs) > limit:
            self.tombs.popitem(last=False)
        if self.suspect == instance:
            self.top = None
        route = self.routes.get(instance)
        # rule: O-13c
        if route is None or route.epoch > epoch:
            return False
        self.remove(instance)
        return True

    def remove_over(self, link: bytes) -> list[Route]:
        """Remove and return the routes over a link."""
        over = [route for route in self.routes.values() if route.link == link]
        for route in over:
            self.remove(route.instance)
        return over

    def mark_lost(self, node: bytes, hint: tuple[bytes, ...] = ()) -> None:
        self.lost[node] = hint
        self.damaged[self.name] = True

    # -- questions -----------------------------------------------------------------------------------------------

    def links(self, exclude: bytes | None = None) -> list[NodeId]:
        """The links that routes go over, each once, in the order in which they were found. Do not change the list."""
        found = self.links_known
        if found is None:
            found = list(dict.fromkeys([route.link for route in self.routes.values()]))
            self.links_known = found
        if exclude is None:
            return found
        return [link for link in found if link != exclude]

    def ids_over(self, link: bytes) -> tuple[bytes, ...]:
        """Instances known to be reached over a link; dummies are never listed (rule 8)."""
        # rule: O-8b
        return tuple([r.instance for r in self.routes.values() if r.link == link and not r.dummy])

    def instances(self) -> list[bytes]:
        # rule: O-8a
        return [instance for instance, route in self.routes.items() if not route.dummy]


class Tree:
    __slots__ = ("damaged", "edges", "former", "id", "left_at", "roles")

    def __init__(self, tree: bytes, former: tuple[bytes, ...] = ()) -> None:
        self.id = tree
        self.former = former
        """Neighbours on the tree before it was evicted: the pieces of its roles are found there."""
        self.roles: dict[str, RoleState] = {}
        self.damaged: dict[str, bool] = {}
        """Roles that have lost routes, until that is found to be repaired."""
        self.edges: dict[NodeId, bool] = {}
        """Neighbours that this tree has an edge to."""
        self.left_at: dict[NodeId, Nanos] = {}
        """Neighbours that do not use their edge any more, and until when they are not heard about that again."""

    def route_links(self) -> dict[NodeId, bool]:
        return {r.link: True for role in self.roles.values() for r in role.routes.values()}

    @property
    def built(self) -> bool:
        """Whether the edges can be used to publish a new role."""
        for name in [name for name in self.damaged if not self.roles[name].lost]:
            del self.damaged[name]
        return bool(self.edges) and not self.damaged


class TreeCache:
    """Trees by id, with a bound. The least recently used tree without local roles is evicted."""

    def __init__(self, config: OverlayConfig) -> None:
        self._config = config
        self._trees: OrderedDict[bytes, Tree] = OrderedDict()
        self._evicted: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._latest: Tree | None = None
        """The tree that was used last: it stands at the end already."""
        self.cuts = 0
        """Un-partition events so far; a role that is new here has nothing to recover from."""

    def __len__(self) -> int:
        return len(self._trees)

    def peek(self, tree: bytes) -> Tree | None:
        """Without counting as a use."""
        return self._trees.get(tree)

    def get(self, tree: bytes) -> Tree | None:
        found = self._trees.get(tree)
        if found is not None and found is not self._latest:
            self._trees.move_to_end(tree)
            self._latest = found
        return found

    def make(self, tree: bytes) -> tuple[Tree, bool]:
        """The tree, and whether it is new here."""
        found = self.get(tree)
        if found is not None:
            return found, False
        made = self._trees[tree] = self._latest = Tree(tree, self._evicted.pop(tree, ()))
        return made, True

    def remember(self, tree: bytes, neighbours: tuple[bytes, ...]) -> None:
        """What stays of an evicted tree, with a bound of its own."""
        known = self._evicted.pop(tree, ())
        self._evicted[tree] = tuple(dict.fromkeys((*known, *neighbours)))[:FORMER_MAX]
        while len(self._evicted) > FORMER_TREES * self._config.trees_max:
            self._evicted.popitem(last=False)

    def remembers(self, tree: bytes) -> bool:
        return tree in self._evicted

    def surplus(self, keep: bytes, local: dict[bytes, bool]) -> list[Tree]:
        """Take out the trees that are over the limit. Those with local roles are never evicted; the number of local
        roles has a limit of its own."""
        evicted: list[Tree] = []
        while len(self._trees) - len(local) > self._config.trees_max:
            victim = next((t for t in self._trees if t != keep and t not in local), None)
            if victim is None:
                break
            evicted.append(self._trees.pop(victim))
        return evicted

    def drop(self, tree: bytes) -> None:
        self._trees.pop(tree, None)

    def all(self) -> list[Tree]:
        return list(self._trees.values())

    def role(self, tree: bytes, role: str) -> RoleState | None:
        found = self._latest
        if found is None or found.id != tree or tree not in self._trees:
            found = self.get(tree)
        return found.roles.get(role) if found is not None else None

    def make_role(self, tree: Tree, role: str) -> RoleState | None:
        """None when the tree has too many roles."""
        found = tree.roles.get(role)
        if found is None:
            if len(tree.roles) >= self._config.roles_per_tree_max:
                return None
            found = tree.roles[role] = RoleState(role, self.cuts, tree.damaged)
            for node in tree.former:
                found.mark_lost(node)
        return found
