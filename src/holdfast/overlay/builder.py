"""The builder: routes, edges, and what this node does with publish, unpublish and recovery waves.

Routes are only made by messages that come from the instance itself: its publish, or its answer to a recovery. An
intermediate node never answers for an instance, so a stale route cannot be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.checks import COUNT_MAX
from holdfast.overlay.edges import Edges
from holdfast.overlay.frames import INFINITE, PUBLISH, RECOVER, UNPUBLISH, Found, Wave
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import incarnation_of, node_of
from holdfast.overlay.partition import Cuts
from holdfast.overlay.roles import LocalRole, LocalRoles
from holdfast.overlay.rules import Forward, Situation, forward, spew_over
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import ADDED, BEATEN, FULL, RoleState, Tree, TreeCache
from holdfast.overlay.waves import Result, Sends, Waves, WaveState
from holdfast.types import SECOND, NodeId

LEGS_MAX: Final = 64
DRAIN_NS: Final = 2 * SECOND
"""How long messages also take the way that a route has moved away from."""
OUTRANK_NS: Final = SECOND
"""How often an instance publishes again because other nodes say that it is gone."""


class Builder:
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        waves: Waves,
        cache: TreeCache,
        local: LocalRoles,
        cuts: Cuts,
    ) -> None:
        self._hub = hub
        self._topology = topology
        self._waves = waves
        self._cache = cache
        self._local = local
        self._cuts = cuts
        self._gone: dict[bytes, bool] = {}
        """Instances whose node could not be reached at the last sweep."""
        self.edges = Edges(hub, cache, self._forget_edge, self._edge_unused)
        self.route_added: Callable[[bytes, str, NodeId], None] = lambda *_: None
        """To the router: messages that wait for replies go over the new route as well."""
        self.lose: Callable[[LocalRole, bytes], None] = lambda *_: None
        """To the registrar: an exclusive instance elsewhere won."""
        self.order_relink: Callable[[bytes, str, bytes], None] = lambda *_: None
        """To the registrar: an instance elsewhere must link again (tree, role, instance)."""
        self.relink: Callable[[LocalRole], None] = lambda *_: None
        """To the registrar: an instance of ours has lost its routes."""
        waves.act[RECOVER] = self._on_recover
        waves.act[PUBLISH] = self._on_publish
        waves.act[UNPUBLISH] = self._on_unpublish
        waves.learn = self._learn
        waves.passing = self._passing

    # -- routes --------------------------------------------------------------------------------------------------

    def make_tree(self, tree: bytes) -> Tree:
        made, new = self._cache.make(tree)
        if new:
            self._hub.event("tree_built", tree=tree)
            for evicted in self._cache.surplus(tree, self._local.trees()):
                self._hub.count("tree_evicted")
                self.edges.forget(evicted)
        return made

    def make_role(self, tree: bytes, role: str) -> RoleState | None:
        made = self._cache.make_role(self.make_tree(tree), role)
        if made is None:
            self._hub.count("role_table_full")
        return made

    def _learn(self, state: WaveState, found: Found, link: NodeId) -> None:
        self.add_route(state.frame.tree, state.frame.role, found, link)

    def add_route(self, tree: bytes, role: str, found: Found, link: NodeId) -> str:
        """The instance is beyond this link: publish or recovery said so."""
        hub = self._hub
        owner = node_of(found.instance)
        if owner == hub.me:
            return BEATEN  # our own word about ourselves does not come from outside
        state = self.make_role(tree, role)
        if state is None:
            return FULL
        own_realm = self._topology.realm_of(owner) == hub.realm
        old = state.routes.get(found.instance)
        is_inside = {peer: hub.inside(peer) for peer in state.links()}
        local = self._local.get(tree, role)
        if (
            local is not None
            and found.exclusive
            and (found.epoch, found.instance) > (local.epoch, local.instance)
        ):
            self.lose(local, found.instance)
        elif local is not None and local.exclusive:
            return BEATEN
        outcome = state.insert(
            found, link, hub.inside(link), own_realm, hub.config, hub.now, is_inside
        )
        if outcome == ADDED:
            if old is not None and old.link not in state.links():
                state.draining[old.link] = hub.now + DRAIN_NS
                self.edges.unused(self.make_tree(tree), old.link)
            self.edges.create(self.make_tree(tree), link)
            self.route_added(tree, role, link)
        elif outcome == FULL:
            hub.count("routes_full")
        return outcome

    def add_dummy(self, tree: bytes, role: str, link: NodeId) -> bool:
        state = self.make_role(tree, role)
        if state is None:
            return False
        if link not in state.links():
            state.add_dummy(self._hub.new_id(), link)
            self.edges.create(self.make_tree(tree), link)
            self.route_added(tree, role, link)
        return True

    def unheard(self, tree: bytes, role: str, instance: bytes, sent: dict[NodeId, bool]) -> None:
        """A message went towards an instance, and nothing was heard of it: the route is wrong. Its node is asked before
        the next send; and so is the neighbour, if no other route goes there: instances without routes of their own may
        be reached over it."""
        state = self._cache.role(tree, role)
        route = state.routes.get(instance) if state is not None else None
        if state is not None and route is not None and route.link in sent and not route.dummy:
            self._hub.count("routes_unheard")
            state.remove(instance)
            state.mark_lost(node_of(instance))
            # rule: O-built-5a
            if route.link not in state.links():
                state.mark_lost(route.link)

    def unbuild(self, tree: bytes, role: str, node: bytes, hint: tuple[bytes, ...] = ()) -> None:
        """Something beyond `node` may not be reached any more: ask there before the next send."""
        state = self._cache.role(tree, role)
        if state is not None:
            state.mark_lost(node, hint)

    def _forget_edge(
        self, tree: Tree, peer: NodeId, hint: tuple[bytes, ...], evicted: bool
    ) -> None:
        """The peer removed the edge: routes over it are gone. An instance that is left without any links again; but not
        after an eviction, or the peer would build the tree again, and evict another: a send repairs it."""
        for role in tree.roles.values():
            if role.remove_over(peer):
                role.mark_lost(peer, hint)
                local = self._local.get(tree.id, role.name)
                if local and not role.routes and not local.is_anchor and not evicted:
                    self.relink(local)

    def _edge_unused(self, tree: Tree, peer: NodeId) -> None:
        """The peer does not send to us any more. Instances that it reached through us, without routes of their own,
        link again, so that the instance they are linked to has a route to them."""
        for role in tree.roles.values():
            for instance, route in list(role.routes.items()):
                if route.link != peer and not route.dummy and self.alive(instance):
                    self.order_relink(tree.id, role.name, instance)

    # -- is it built? --------------------------------------------------------------------------------------------

    def usable(self, state: RoleState | None, realm_only: bool) -> bool:
        """Whether there is any route."""
        if state is None:
            return False
        if not realm_only:
            return bool(state.routes)
        return any(self._hub.inside(route.link) for route in state.routes.values())

    def lost(self, state: RoleState | None, realm_only: bool) -> list[bytes]:
        if state is None or not state.lost:
            return []
        # rule: O-built-1b
        if not realm_only:
            return list(state.lost)
        realm = self._hub.realm
        return [n for n in state.lost if self._topology.realm_of(n) in (realm, None)]

    def built(self, tree: bytes, role: str, realm_only: bool = False) -> bool:
        return self.is_built(self._local.get(tree, role), self._cache.role(tree, role), realm_only)

    def is_built(
        self, local: LocalRole | None, state: RoleState | None, realm_only: bool = False
    ) -> bool:
        if local is not None and not local.linked:
            return False
        # rule: O-7a
        if local is None and not self.usable(state, realm_only):
            return False
        if local is not None and not local.is_anchor and not (state and state.routes):
            return False  # it has lost its way to the instance that it is linked to
        return not self.lost(state, realm_only) and not self._cuts.open_for(state, realm_only)

    def alive(self, instance: bytes) -> bool:
        return self._topology.alive(node_of(instance), incarnation_of(instance))

    def sweep(self) -> None:
        """Routes to instances whose node has been gone for two sweeps are dropped. A node that only seems dead keeps
        them; the role is unbuilt in any case."""
        gone: dict[bytes, bool] = {}
        for tree in self._cache.all():
            for role in tree.roles.values():
                suspect = (role.suspect,) if role.suspect else ()
                for instance in dict.fromkeys((*role.instances(), *suspect)):
                    if self.alive(instance):
                        continue
                    gone[instance] = True
                    if instance not in self._gone:
                        continue
                    if instance in suspect:
                        role.top = None
                    if instance in role.routes:
                        role.remove(instance)
                        role.mark_lost(node_of(instance))
        self._gone = gone

    # -- links ---------------------------------------------------------------------------------------------------

    def link_down(self, peer: NodeId, outside: bool) -> None:
        """Routes over the link are gone; the roles are not built. Nothing is repaired before a send needs it."""
        for tree in self._cache.all():
            tree.edges.pop(peer, None)
            for role in tree.roles.values():
                # rule: O-built-1a
                if role.remove_over(peer):
                    role.mark_lost(peer)
                    role.outside_lost |= outside
        self._hub.count("links_lost")

    # -- recovery ------------------------------------------------------------------------------------------------

    def legs(self, frame: Wave, state: RoleState, realm_only: bool) -> Sends:
        """Ask the nodes at the edges of what was lost, instead of all nodes within a few hops."""
        sends: Sends = []
        targets: dict[bytes, bool] = {}
        for lost in self.lost(state, realm_only)[:LEGS_MAX]:
            for node in self._topology.border_of(lost, state.lost[lost]):
                targets[node] = True
        for node in list(targets)[:LEGS_MAX]:
            sends += self._waves.directed(frame, node)
        for near, far in self._cuts.legs(state, realm_only):
            if near == self._hub.me:
                sends += self._waves.crossing(frame, far)
            else:
                sends += self._waves.directed(frame, near, far)
        return sends

    def repairing(self, state: RoleState, realm_only: bool) -> Callable[[Result], None]:
        """What to do when those legs have been answered."""
        lost = {node: state.lost[node] for node in self.lost(state, realm_only)}
        upto = self._cuts.count

        def done(result: Result) -> None:
            if result.failed:
                return
            for node, hint in lost.items():
                if state.lost.get(node) is hint:
                    del state.lost[node]
            state.cuts_done_inside = max(state.cuts_done_inside, upto)
            if not realm_only:
                state.cuts_done = max(state.cuts_done, upto)
            if not state.lost:
                state.outside_lost = False

        return done

    def missed_cuts(self, state: RoleState, realm_only: bool) -> bool:
        return self._cuts.missed(state, realm_only)

    def needs_repair(self, state: RoleState | None, realm_only: bool) -> bool:
        return state is not None and bool(
            self.lost(state, realm_only) or self._cuts.open_for(state, realm_only)
        )

    def _on_recover(self, at: WaveState) -> Sends:
        frame = at.frame
        local = self._local.get(frame.tree, frame.role)
        # rule: O-recovery-7a
        if local is not None and local.instance not in frame.exclude and at.parent is not None:
            found = local.answer()
            at.result.found[found.instance] = found
            if frame.any_one:
                return []
        if self._cache.remembers(frame.tree):
            self.make_role(frame.tree, frame.role)
        state = self._cache.role(frame.tree, frame.role)
        sends: Sends = []
        directed = self._hub.config.directed
        holder = local is not None and at.parent is not None
        if (
            directed
            and state is not None
            and not holder
            and self.needs_repair(state, frame.realm_only)
        ):
            sends = self.legs(frame, state, frame.realm_only)
            at.on_done.append(self._repaired_by(at, state))
        return sends + self._forward(at, state, holder)

    def _repaired_by(self, at: WaveState, state: RoleState) -> Callable[[Result], None]:
        """A recovery of another node repairs this one too, unless it excluded instances that this node has lost."""
        repaired, exclude = self.repairing(state, at.frame.realm_only), at.frame.exclude

        def done(result: Result) -> None:
            if all(i in state.routes or not self.alive(i) for i in exclude) or at.parent is None:
                repaired(result)

        return done

    def _forward(self, at: WaveState, state: RoleState | None, holder: bool) -> Sends:
        """Rules 2 to 6."""
        plan = self._plan(at, state, holder)
        hub = self._hub
        inside = [link for link in plan.links if hub.inside(link)]
        sends = self._waves.onward(at, inside, spew=plan.spew)
        if not at.frame.realm_only:
            outside = [link for link in plan.links if not hub.inside(link)]
            sends += self._waves.onward(at, outside, spew=spew_over(plan.spew, False))
        return sends

    def _plan(self, at: WaveState, state: RoleState | None, holder: bool) -> Forward:
        hub, frame = self._hub, at.frame
        tree = self._cache.get(frame.tree)
        skip = at.parent
        open_links = [peer for peer in hub.open_peers if peer != skip]
        is_open = dict.fromkeys(open_links, True)
        broken = bool(state is not None and state.lost)
        if not hub.config.directed:
            broken = broken or state is None or not self.usable(state, False)
        return forward(
            Situation(
                frame.kind,
                frame.spew,
                hub.config.spew_hops,
                holder,
                self.built(frame.tree, frame.role, frame.realm_only),
                tree is not None and tree.built,
                broken and not hub.config.directed,
                state is not None and state.outside_lost,
                [link for link in (state.links(skip) if state else []) if link in is_open],
                [link for link in (tree.edges if tree else {}) if link in is_open],
                open_links,
            )
        )

    # -- publish, unpublish --------------------------------------------------------------------------------------

    def _passing(self, at: WaveState) -> Sends | None:
        """A publish leaves its route at every node on the way to the instance that it links to. An exclusive one
        goes to all other instances as well, from every node that knows any."""
        if at.frame.kind != PUBLISH:
            return []
        state = self._cache.role(at.frame.tree, at.frame.role)
        sends = self._forward(at, state, False) if at.frame.exclusive else []
        return sends if self._take_publish(at) else None

    def _take_publish(self, at: WaveState) -> bool:
        """Add the route. False: this instance has lost, or there is no room."""
        frame = at.frame
        assert at.parent is not None
        state = self.make_role(frame.tree, frame.role)
        if state is None:
            at.result.failed = True
            return False
        found = Found(frame.instance, frame.epoch, frame.exclusive, frame.seq, frame.hops)
        local = self._local.get(frame.tree, frame.role)
        # rule: O-publish-7a
        outcome = self.add_route(frame.tree, frame.role, found, at.parent)
        if outcome == BEATEN:
            top = state.top
            if local is not None and local.exclusive:
                top = max(top or (0, b""), (local.epoch, local.instance))
            at.result.beaten = top
            at.result.failed = top is None  # a tombstone: the publisher is out of date
            return False
        if outcome == FULL and at.parent not in state.links():
            at.result.failed = True
            return False
        if local is not None:
            at.result.met[local.instance] = True
        return True

    def _on_publish(self, at: WaveState) -> Sends:
        frame = at.frame
        state = self._cache.role(frame.tree, frame.role)
        if at.parent is None:
            return self._forward(at, state, False)
        local = self._local.get(frame.tree, frame.role)
        holder = local is not None and not frame.exclusive
        sends = self._forward(at, state, holder)  # along the routes as they were
        if not self._take_publish(at):
            return []
        local = self._local.get(frame.tree, frame.role)
        if local is not None:
            found = local.answer()
            at.result.found[found.instance] = found
        return sends

    def _on_unpublish(self, at: WaveState) -> Sends:
        frame = at.frame
        state = self._cache.role(frame.tree, frame.role)
        if state is None:
            # A clean-up after a dead holder is for nodes beyond this one as well.
            return self._forward(at, None, False) if frame.spew else []
        local = self._local.get(frame.tree, frame.role)
        sends = self._forward(at, state, local is not None and at.parent is not None)
        if at.parent is None:
            return sends
        # rule: O-13g
        if local is not None and local.instance == frame.instance and frame.epoch >= local.epoch:
            if not local.exclusive:
                self._outrank(local, frame.epoch)
                return []
            self.lose(local, b"")
        self.bury(state, frame.instance, frame.epoch, frame.leaf)
        return sends

    def _outrank(self, local: LocalRole, epoch: int) -> None:
        """Only the node of a shared instance removes it. Another one has said so, and nodes on the way believe it: the
        instance publishes again above their tombstones."""
        hub = self._hub
        hub.count("unpublish_refused")
        if epoch + 1 >= COUNT_MAX:
            return
        local.epoch = epoch + 1
        if local.outranks_at <= hub.now:
            self._publish_above(local)
        elif not local.outrank_waits:
            local.outrank_waits = True
            hub.after(local.outranks_at - hub.now, lambda: self._publish_above(local))

    def _publish_above(self, local: LocalRole) -> None:
        """Each publish goes over the whole tree: a peer that repeats its word does not cause one each time."""
        local.outrank_waits = False
        if not self._local.is_current(local):
            return
        local.outranks_at = self._hub.now + OUTRANK_NS
        again = self.publish_wave(local, PUBLISH)
        self._waves.begin(again, [], lambda _: None, acts=True)
        self.relink(local)

    def bury(self, state: RoleState, instance: bytes, epoch: int, leaf: bool) -> None:
        """An instance is gone. Unless it was a leaf, others may only be reached through its node: ask there."""
        hub = self._hub
        until = hub.now + hub.config.tombstone_ns
        if state.bury(instance, epoch, until, hub.config.tombstones_max) and not leaf:
            state.mark_lost(node_of(instance))

    def is_leaf(self, tree: bytes, role: str) -> bool:
        """Whether nothing is reached through this node that is not reached over one link."""
        state = self._cache.role(tree, role)
        return state is None or (len(state.links()) <= 1 and not state.lost)

    def publish_wave(self, role: LocalRole, kind: int, leaf: bool = False) -> Wave:
        role.seq += 1
        return self._waves.wave(
            kind,
            role.tree,
            role.role,
            instance=role.instance,
            epoch=role.epoch,
            exclusive=role.exclusive,
            seq=role.seq,
            realm_only=role.realm_only,
            extent=role.extent if role.extent >= 0 else INFINITE,
            leaf=leaf,
            hops=1,
        )
