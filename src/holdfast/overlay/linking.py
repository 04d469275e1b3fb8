"""Linking: an instance registers, and links to the instance that is registered as the first.

An instance is *linked* when every other instance reaches it and it reaches them. The first instance of a realm only
registers with the search; nothing is published (O2). A later one publishes along the way to the first: each node on the
way gets a route to it, and, from the answer, a route to the first. All ways to one node follow the same map, so these
routes form a tree. The first of each realm links to the first of the domain in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.builder import Builder
from holdfast.overlay.frames import (
    CLAIM,
    INFINITE,
    PUBLISH,
    RECOVER,
    REGISTER,
    REGISTER_AGAIN,
    Entry,
)
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import Published
from holdfast.overlay.roles import LocalRole, LocalRoles, backoff
from holdfast.overlay.search import GLOBAL, LOCAL, Answer, Search
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import Result, Waves

GIVE_UP_TRIES: Final = 6
"""After so many failures those that wait are told; the attempts go on."""


class Linking:
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        waves: Waves,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        search: Search,
    ) -> None:
        self._hub = hub
        self._topology = topology
        self._waves = waves
        self._cache = cache
        self._local = local
        self._builder = builder
        self._search = search

    def lose(self, role: LocalRole, winner: bytes) -> None:
        """Another instance holds the role exclusively: ours is gone."""
        raise NotImplementedError

    def claim_failed(self, role: LocalRole) -> None:
        """Another instance was registered before the one that claims the role."""
        raise NotImplementedError

    # -- linking -------------------------------------------------------------------------------------------------

    def when_linked(self, role: LocalRole, done: Callable[[bool], None]) -> None:
        if role.linked:
            done(True)
            return
        role.waiters.append(done)
        self.ensure(role)

    def ensure(self, role: LocalRole) -> None:
        """Register and link, unless that is under way."""
        if role.busy or not self._local.is_current(role):
            return
        role.busy = True
        self._search.put(
            LOCAL,
            role.entry(self._hub.realm),
            _how(role),
            lambda answer: self._put_in_realm(role, answer),
        )

    def _put_in_realm(self, role: LocalRole, answer: Answer) -> None:
        if not self._goes_on(role, answer.ok):
            return
        if not answer.accepted:
            self._follow(role, answer.entry, first=False)
        elif role.realm_only or role.extent >= 0:
            self._follow(role, answer.entry, first=True)
        else:
            before = answer.entry
            self._search.put(
                GLOBAL,
                role.entry(self._hub.realm),
                _how(role),
                lambda answer: self._put_in_domain(role, before, answer),
            )

    def _put_in_domain(self, role: LocalRole, before: Entry | None, answer: Answer) -> None:
        if not self._goes_on(role, answer.ok):
            return
        target = answer.entry if answer.entry is not None else before
        self._follow(role, target, first=True)

    def _goes_on(self, role: LocalRole, ok: bool) -> bool:
        """Whether the attempt goes on; the role may have been removed meanwhile."""
        if not self._local.is_current(role):
            role.busy = False
            self._tell(role, False)
            return False
        if not ok:
            self._retry(role)
        return ok

    def _follow(self, role: LocalRole, target: Entry | None, first: bool) -> None:
        role.first = first
        if target is None or target.instance == role.instance:
            self._done(role, role.entry(self._hub.realm))
            return
        if target.exclusive and _how(role) == CLAIM:
            role.busy = False
            self.claim_failed(role)
            return
        if target.exclusive and (target.epoch, target.instance) > (role.epoch, role.instance):
            role.busy = False
            self.lose(role, target.instance)
            return
        linked_to = role.anchor.instance if role.linked and role.anchor is not None else b""
        if linked_to == target.instance and not role.exclusive and not role.relink:
            self._done(role, target)  # registered again; the routes are there
            return
        self._publish_to(role, target)

    def _publish_to(self, role: LocalRole, target: Entry) -> None:
        """Publish along the way to the registered instance. The answer is its route, or says that it is gone."""
        node = node_of(target.instance)
        frame = self._builder.publish_wave(role, PUBLISH)
        if target.realm == self._hub.realm and not role.exclusive:
            inside = self._topology.next_hop(node, True) is not None
        else:
            inside = role.realm_only
        frame = self._waves.leg(frame, realm_only=inside, hops=0)

        def done(result: Result) -> None:
            if not self._local.is_current(role):
                self._goes_on(role, True)
                return
            if result.beaten is not None and result.beaten[1] != role.instance:
                role.busy = False
                self.lose(role, result.beaten[1])
            elif result.failed or result.seen:
                self._retry(role)
            elif not role.exclusive and target.instance not in result.found:
                self._search.remove(target)
                self._retry(role)
            else:
                anchor = role.entry(self._hub.realm) if role.exclusive else target
                self._done(role, anchor)

        if node == self._hub.me:
            self._search.remove(target)
            self._retry(role)
            return
        sends = self._waves.directed(frame, node)
        if not sends:
            self._retry(role)
            return
        if not self._hub.config.directed:
            self._publish_by_rules(role, target, done)
            return
        # An exclusive publish removes all other instances: it also follows the routes that this node has.
        self._waves.begin(frame, sends, done, acts=role.exclusive)

    def _publish_by_rules(
        self, role: LocalRole, target: Entry, done: Callable[[Result], None]
    ) -> None:
        """As the paper has it: recover routes to the role, then publish along them by the forwarding rules."""
        recover = self._waves.wave(
            RECOVER,
            role.tree,
            role.role,
            spew=self._hub.config.spew_hops,
            exclude=(role.instance,),
            realm_only=role.realm_only,
        )

        def recovered(found: Result) -> None:
            frame = self._builder.publish_wave(role, PUBLISH)

            def published(result: Result) -> None:
                result.found.update(found.found)
                result.seen = False
                if target.instance not in result.found and result.met:
                    result.found[target.instance] = next(iter(found.found.values()))
                done(result)

            self._waves.begin(frame, [], published, acts=True)

        sends = [(peer, recover) for peer in self._hub.open_peers]
        sends += self._waves.directed(recover, node_of(target.instance))
        self._waves.begin(recover, sends, recovered)

    def _retry(self, role: LocalRole) -> None:
        role.busy = False
        role.linked = False
        role.tries += 1
        self._hub.count("register_retries")
        if role.tries >= GIVE_UP_TRIES:
            self._tell(role, False)
        config = self._hub.config
        pause = self._hub.jitter(backoff(config.retry_ns, config.retry_ns_max, role.tries - 1))
        self._hub.after(pause, lambda: self.ensure(role))

    def _done(self, role: LocalRole, anchor: Entry) -> None:
        role.busy = role.relink = False
        role.linked = True
        role.tries = 0
        role.anchor = anchor
        role.owners = self._search.owners(role.key, role.realm_only)
        if role.extent >= 0:
            self._publish_near(role)
        op, role.op = role.op, 0
        if op:
            self._hub.fact("published", role.tree, role.role)
            self._hub.effect(Published(op, role.instance, True))
        self._tell(role, True)

    def _publish_near(self, role: LocalRole) -> None:
        """A restricted publish reaches every node within its extent."""
        frame = self._waves.leg(self._builder.publish_wave(role, PUBLISH), spew=INFINITE)
        sends = [(peer, frame) for peer in self._hub.open_peers if role.extent > 0]
        self._waves.begin(frame, sends, lambda *_: None)

    def _tell(self, role: LocalRole, ok: bool) -> None:
        waiters, role.waiters = role.waiters, []
        for waiter in waiters:
            waiter(ok)

    def again(self, role: LocalRole) -> None:
        """Register and link from the start, soon and not all at once (rule 5: paced)."""
        role.linked = False
        self._hub.after(self._hub.jitter(self._hub.config.retry_ns // 4), lambda: self.ensure(role))


def _how(role: LocalRole) -> int:
    if role.anchor is not None:
        return REGISTER_AGAIN
    return CLAIM if role.claim else REGISTER
