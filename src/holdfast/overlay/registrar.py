"""Publishing and removing roles of this node, and what changes around it mean for them.

An instance registers again when the owner of its entry changes, when the first that it is linked to dies, when the
search tells it so, and now and then to be sure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.overlay.builder import Builder
from holdfast.overlay.checks import COUNT_MAX
from holdfast.overlay.frames import INFINITE, RELINK, UNPUBLISH, Entry
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import incarnation_of, is_role, is_tree, node_of
from holdfast.overlay.linking import GIVE_UP_TRIES, Linking
from holdfast.overlay.ports import Published, PublishRole, RoleLost, Unpublished, UnpublishRole
from holdfast.overlay.readiness import Readiness
from holdfast.overlay.roles import LocalRole, LocalRoles
from holdfast.overlay.search import Answer, Search
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import Waves, WaveState

EPOCH_TRIES: Final = 4
"""How often the search is asked for the epoch of a role before the publish continues without it."""
STALE_TRIES: Final = 3
"""An entry whose instance has not answered so often is removed."""
RELINK_EVERY: Final = 8
"""One in so many refreshes publishes again along the way to the first instance."""

EXHAUSTED: Final = (
    "a member has published the role with the highest epoch there is; nothing was published. The epoch is forgotten a "
    "minute after that member is gone, or when its instance is removed"
)


class Registrar(Linking):
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        waves: Waves,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        search: Search,
        readiness: Readiness,
    ) -> None:
        super().__init__(hub, topology, waves, cache, local, builder, search)
        self._readiness = readiness
        self.ping: Callable[[bytes, str, Callable[[str], None]], None] = lambda *_: None
        """From the router: ask whether the role is held; answers `held`, `free` or `unknown`."""
        self.gone: Callable[[LocalRole], None] = lambda *_: None
        """To the router: this node does not hold the role any more."""
        self.settle: Callable[[], None] = lambda: None
        """To the partition: there is a role on this side."""
        builder.lose = self.lose
        builder.relink = self.again
        builder.order_relink = self.order_relink
        search.orders[RELINK] = self._on_relink

    # -- publish -------------------------------------------------------------------------------------------------

    def publish(self, request: PublishRole) -> None:
        problem = self._problem(request)
        if problem:
            self._hub.count("publish_refused")
            self._hub.effect(Published(request.op, b"", False, problem))
            return
        exclusive = request.exclusive or request.claim
        role = LocalRole(request.tree, request.role, self._hub.new_id(), exclusive)
        role.realm_only = request.realm_only
        role.extent = request.extent
        role.claim = request.claim
        role.op = request.op
        begin = self._claim if request.claim else self._with_epoch
        self._readiness.when_ready(partial(begin, role))

    def _problem(self, request: PublishRole) -> str:
        if not is_tree(request.tree):
            return "a tree id has 16 bytes"
        if not is_role(request.role):
            return "a role name has 1 to 255 bytes"
        if self._local.get(request.tree, request.role) is not None:
            return "this node has an instance of the role already"
        if len(self._local) + self._readiness.waiting() >= self._hub.config.local_roles_max:
            return "too many roles on this node"
        return ""

    def _claim(self, role: LocalRole) -> None:
        """The handshake: ask the role first, so that a holder keeps it. No answer means asking again."""

        def answered(what: str) -> None:
            # rule: O-13d
            if what == "free":
                self._with_epoch(role)
            elif what == "held" or role.tries >= GIVE_UP_TRIES:
                reason = "the role is held" if what == "held" else "the holder cannot be reached"
                self._hub.effect(Published(role.op, b"", False, reason))
            else:
                self._claim_again(role)

        self.ping(role.tree, role.role, answered)

    def claim_failed(self, role: LocalRole) -> None:
        self._local.remove(role)
        self._claim_again(role)

    def _claim_again(self, role: LocalRole) -> None:
        role.tries += 1
        pause = self._hub.jitter(self._hub.config.retry_ns << role.tries)
        self._hub.after(pause, lambda: self._claim(role))

    def _with_epoch(self, role: LocalRole) -> None:
        """An exclusive instance takes an epoch above the one that there is; of two at once the higher id wins."""

        def known(answer: Answer) -> None:
            if not answer.ok and role.tries < EPOCH_TRIES:
                role.tries += 1
                pause = self._hub.jitter(self._hub.config.retry_ns)
                self._hub.after(pause, lambda: self._with_epoch(role))
                return
            if role.claim and answer.entry is not None and role.tries < GIVE_UP_TRIES:
                # Another node has registered since the role was free, or its entry is out of date.
                if role.tries >= STALE_TRIES:
                    self._search.remove(answer.entry)
                self._claim_again(role)
                return
            state = self._cache.role(role.tree, role.role)
            epochs = [answer.entry.epoch if answer.entry else 0]
            if state is not None and state.top is not None:
                epochs.append(state.top[0])
            role.epoch = max(epochs) + (1 if role.exclusive or len(epochs) > 1 else 0)
            if role.epoch >= COUNT_MAX:
                self._hub.count("epoch_exhausted")
                self._refuse(role, EXHAUSTED)
                return
            if not role.exclusive and answer.entry and answer.entry.exclusive:
                self._refuse(role, "another node holds the role exclusively")
                return
            self._adopt(role)

        self._search.get(role.tree, role.role, role.realm_only, known)

    def _refuse(self, role: LocalRole, reason: str) -> None:
        op, role.op = role.op, 0
        if op:
            self._hub.effect(Published(op, role.instance, False, reason))

    def _adopt(self, role: LocalRole) -> None:
        if self._local.get(role.tree, role.role) is not None:
            self._refuse(role, "this node has an instance of the role already")
            return
        if not self._local.add(role):
            self._refuse(role, "too many roles on this node")
            return
        self._builder.make_role(role.tree, role.role)
        self.settle()
        self.ensure(role)

    # -- unpublish, loss -----------------------------------------------------------------------------------------

    def unpublish(self, request: UnpublishRole) -> None:
        role = self._local.get(request.tree, request.role)
        if request.instance and (role is None or role.instance != request.instance):
            self._unpublish_other(request)
            return
        if role is None:
            reason = "this node has no instance of the role"
            self._hub.effect(Unpublished(request.op, False, reason))
            return
        self.withdraw(role, lambda: self._hub.effect(Unpublished(request.op, True)))

    def withdraw(self, role: LocalRole, done: Callable[[], None]) -> None:
        """Remove our instance, and tell those that may have a route to it."""
        leaf = self._builder.is_leaf(role.tree, role.role)
        self._remove(role)
        state = self._cache.role(role.tree, role.role)
        others = state.instances() if state is not None else []
        frame = self._builder.publish_wave(role, UNPUBLISH, leaf)
        self._waves.begin(frame, [], lambda _: done(), acts=True)
        if role.first and others:
            heir = min(others)
            self.order_relink(role.tree, role.role, heir)

    def drop(self, role: LocalRole) -> None:
        """The role went to another node: nothing is announced, the taker does that."""
        self._remove(role)

    def _remove(self, role: LocalRole) -> None:
        self._local.remove(role)
        if role.first or role.anchor is None:
            self._search.remove(role.entry(self._hub.realm), role.realm_only)
        self._tell(role, False)
        self._refuse(role, "the role was removed before it was published")
        self.gone(role)

    def _unpublish_other(self, request: UnpublishRole) -> None:
        """Clean up after an exclusive holder whose node is gone. Names (epoch, instance): removes nothing newer."""
        state = self._builder.make_role(request.tree, request.role)
        if state is None or len(request.instance) != 32:
            self._hub.effect(Unpublished(request.op, False, "no such instance is known"))
            return
        # rule: O-13f
        self._builder.bury(state, request.instance, request.epoch, False)
        entry = Entry(
            request.tree, request.role, request.instance, request.epoch, True, self._hub.realm
        )
        self._search.remove(entry)
        frame = self._waves.wave(
            UNPUBLISH,
            request.tree,
            request.role,
            instance=request.instance,
            epoch=request.epoch,
            exclusive=True,
            spew=INFINITE,
            hops=1,
        )
        sends = [(peer, frame) for peer in self._hub.open_peers]
        self._waves.begin(
            frame,
            sends,
            lambda result: self._hub.effect(
                Unpublished(request.op, not result.failed, "a link failed" if result.failed else "")
            ),
        )

    def lose(self, role: LocalRole, winner: bytes) -> None:
        """Another instance holds the role exclusively: ours is gone."""
        if not self._local.is_current(role):
            return
        op, role.op = role.op, 0
        state = self._cache.role(role.tree, role.role)
        if state is not None:
            self._builder.bury(state, role.instance, role.epoch, True)
        self._remove(role)
        self._hub.count("roles_lost")
        self._hub.fact("role_lost", role.tree, role.role, peer=node_of(winner).hex())
        reason = "another node holds the role exclusively" if winner else "unpublished elsewhere"
        if winner and role.moving_to == winner:
            reason = "given up"
        if op:
            self._hub.effect(Published(op, role.instance, False, reason))
        else:
            self._hub.effect(RoleLost(role.tree, role.role, role.instance, winner, reason))

    def order_relink(self, tree: bytes, role: str, instance: bytes) -> None:
        """Tell an instance on another node to link again."""
        node = node_of(instance)
        self._search.order(RELINK, node, tree, role, None, lambda _: None, instance)

    # -- changes around us ---------------------------------------------------------------------------------------

    def _on_relink(self, at: WaveState) -> None:
        """The search says: link to this entry, or register if there is none."""
        role = self._local.get(at.frame.tree, at.frame.role)
        if role is None or (at.frame.instance and role.instance != at.frame.instance):
            return
        at.result.accepted = True
        entry = at.frame.entry
        mine = (role.epoch, role.instance)
        if entry is not None and entry.exclusive and (entry.epoch, entry.instance) > mine:
            self.lose(role, entry.instance)
        else:
            self.again(role)

    def map_changed(self) -> None:
        """Owners may have changed, or firsts may be gone."""
        for role in self._local.all():
            owners = self._search.owners(role.key, role.realm_only)
            first = role.anchor.instance if role.anchor is not None else b""
            gone = first and not self._topology.alive(node_of(first), incarnation_of(first))
            # rule: O-5b
            if role.linked and (gone or owners != role.owners):
                if gone:
                    self.again(role)
                else:
                    self._hub.after(
                        self._hub.jitter(self._hub.config.retry_ns), partial(self.ensure, role)
                    )
        self._search.rehome()

    def healed(self) -> None:
        """A partition healed: firsts and exclusive holders do not wait for traffic (rule 5)."""
        for role in self._local.all():
            if role.first or role.exclusive:
                self._hub.after(
                    self._hub.jitter(self._hub.config.retry_ns), partial(self.ensure, role)
                )

    def refresh(self) -> None:
        """Spread over the interval, so that many roles make no burst."""
        interval = self._hub.config.refresh_ns
        for role in self._local.all():
            # Now and then also the routes, so that damage of any kind heals.
            role.relink |= self._hub.rng.randrange(RELINK_EVERY) == 0
            delay = self._hub.rng.randrange(max(interval // 2, 1))
            self._hub.after(delay, partial(self.ensure, role))
