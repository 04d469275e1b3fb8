"""Lazy recovery: routes to a role are rebuilt when a message needs them, never before.

1. What was lost is repaired: the nodes next to the failure, and the far ends of healed partitions, are asked.
2. Without any route: the search names the first instance, and a recovery is routed to its node.
3. Failing that: the paper's recovery by the forwarding rules, first for a few hops, then to every node, as a last
resort.

Each step ends by counting. If an answer is missing in the end, the outcome is `UNKNOWN` and the role stays unbuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.builder import Builder
from holdfast.overlay.frames import INFINITE, RECOVER, RELINK, Entry, Message, Wave
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import node_of
from holdfast.overlay.registrar import Registrar
from holdfast.overlay.roles import LocalRole, LocalRoles
from holdfast.overlay.search import Answer, Search
from holdfast.overlay.trees import RoleState, TreeCache
from holdfast.overlay.waves import Result, Waves
from holdfast.types import MILLISECOND

READY: Final = "ready"
ABSENT: Final = "absent"
UNKNOWN: Final = "unknown"
ABSENT_NS: Final = 500 * MILLISECOND
WAITS_MAX: Final = 40
"""How often a recovery that found nothing is repeated while neighbours are being met."""

Done = Callable[[str], None]
Key = tuple[bytes, str, bool]


class _Recovery:
    __slots__ = ("afresh", "any_one", "failed", "searched", "tries", "waiters", "waits")

    def __init__(self, any_one: bool) -> None:
        self.any_one = any_one
        self.afresh = False
        """Healed partitions are no longer listed: the registered first instance is asked, whatever routes there are."""
        self.tries = 0
        self.waits = 0
        self.failed = False
        self.searched: Entry | None = None
        self.waiters: list[Done] = []


class Recoveries:
    def __init__(
        self,
        hub: Hub,
        waves: Waves,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        search: Search,
        registrar: Registrar,
    ) -> None:
        self._hub = hub
        self._waves = waves
        self._cache = cache
        self._local = local
        self._builder = builder
        self._search = search
        self._registrar = registrar
        self._running: dict[Key, _Recovery] = {}

    def needed(self, message: Message, local: LocalRole | None, state: RoleState | None) -> bool:
        """Whether a message must wait. For one instance any route will do."""
        realm_only = message.realm_only
        if message.one:
            return local is None and not self._builder.usable(state, realm_only)
        if self._running and (message.tree, message.role, realm_only) in self._running:
            return True
        return not self._builder.is_built(local, state, realm_only)

    def recover(self, tree: bytes, role: str, realm_only: bool, any_one: bool, done: Done) -> None:
        key = (tree, role, realm_only)
        running = self._running.get(key)
        if running is not None:
            running.any_one &= any_one
            running.waiters.append(done)
            return
        running = self._running[key] = _Recovery(any_one)
        running.waiters.append(done)
        self._hub.count("recoveries")
        self._repair(key, running)

    def running(self) -> int:
        return len(self._running)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _repair(self, key: Key, run: _Recovery) -> None:
        tree, role, realm_only = key
        if self._cache.remembers(tree):
            self._builder.make_role(tree, role)
        state = self._cache.role(tree, role)
        if state is None or not self._builder.needs_repair(state, realm_only):
            self._link(key, run)
            return
        run.afresh |= self._builder.missed_cuts(state, realm_only)
        frame = self._frame(key, run)
        by_rules = not self._hub.config.directed
        # rule: O-6c
        sends = [] if by_rules else self._builder.legs(frame, state, realm_only)
        noted = self._builder.repairing(state, realm_only)

        def done(result: Result) -> None:
            # rule: O-7c
            if not frame.any_one:  # one instance is enough: the others were perhaps not asked
                noted(result)
            # rule: O-recovery-8a
            if result.failed and run.tries < self._hub.config.recovery_tries:
                run.tries += 1
                pause = self._hub.jitter(self._hub.config.retry_ns << run.tries)
                self._hub.after(pause, lambda: self._repair(key, run))
                return
            run.failed |= result.failed
            self._link(key, run)

        self._waves.begin(frame, sends, done, acts=by_rules)

    def _frame(self, key: Key, run: _Recovery, **fields: object) -> Wave:
        tree, role, realm_only = key
        state = self._cache.role(tree, role)
        known = tuple(state.instances()) if state is not None else ()
        local = self._local.get(tree, role)
        own = (local.instance,) if local is not None else ()
        return self._waves.wave(
            RECOVER,
            tree,
            role,
            realm_only=realm_only,
            exclude=(known + own)[:1024],
            any_one=run.any_one,
            **fields,
        )

    def _link(self, key: Key, run: _Recovery) -> None:
        """Repaired. An instance of our own must be linked; otherwise any route leads to all instances."""
        tree, role, realm_only = key
        local = self._local.get(tree, role)
        if local is not None:
            if local.linked and (run.afresh or not self._reaches_first(key)):
                local.linked = False
            run.afresh = False
            if local.linked or run.any_one:
                self._finish(key, run)
            else:
                self._registrar.when_linked(local, lambda ok: self._linked(key, run, ok))
            return
        usable = self._builder.usable(self._cache.role(tree, role), realm_only)
        if usable and not run.afresh:
            self._finish(key, run)
            return
        run.afresh = False
        state = self._cache.role(tree, role)
        if state is not None and state.absent_until > self._hub.now:
            self._finish(key, run)
            return
        self._search.get(tree, role, realm_only, lambda answer: self._searched(key, run, answer))

    def _reaches_first(self, key: Key) -> bool:
        """Whether our own instance has a way to the one that it is linked to."""
        local = self._local.get(key[0], key[1])
        state = self._cache.role(key[0], key[1])
        if local is None or local.is_anchor or local.anchor is None:
            return True
        if state is None:
            return False
        known = local.anchor.instance in state.routes
        return known or any(route.dummy for route in state.routes.values())

    def _linked(self, key: Key, run: _Recovery, ok: bool) -> None:
        run.failed |= not ok
        self._finish(key, run)

    def _searched(self, key: Key, run: _Recovery, answer: Answer) -> None:
        tree, role, realm_only = key
        if answer.entry is None or node_of(answer.entry.instance) == self._hub.me:
            self._spread(key, run, 0)
            return
        run.searched = answer.entry
        frame = self._frame(key, run)
        # rule: O-search-6a
        sends = self._waves.directed(frame, node_of(answer.entry.instance))

        def done(result: Result) -> None:
            if self._builder.usable(self._cache.role(tree, role), realm_only):
                self._finish(key, run)
                return
            if not result.failed and run.searched is not None:
                self._search.remove(run.searched)
            self._spread(key, run, 0)

        if sends:
            self._waves.begin(frame, sends, done)
        else:
            self._spread(key, run, 0)

    def _spread(self, key: Key, run: _Recovery, stage: int) -> None:
        """The paper's recovery: around here, then everywhere."""
        tree, role, realm_only = key
        spew = self._hub.config.spew_hops if stage == 0 else INFINITE
        frame = self._frame(key, run, spew=spew)
        links = [p for p in self._hub.open_peers if not realm_only or self._hub.inside(p)]
        sends = [(peer, frame) for peer in links]
        self._hub.count("recovery_floods")

        def done(result: Result) -> None:
            state = self._cache.role(tree, role)
            if self._builder.usable(state, realm_only):
                # rule: O-search-5b
                self._reregister(key, state.instances() if state is not None else [])
                self._finish(key, run)
            elif stage == 0:
                # rule: O-search-5a
                self._spread(key, run, 1)
            elif result.failed and run.tries < self._hub.config.recovery_tries:
                run.tries += 1
                pause = self._hub.jitter(self._hub.config.retry_ns << run.tries)
                self._hub.after(pause, lambda: self._link(key, run))
            elif self._hub.settling() and run.waits < WAITS_MAX:
                run.waits += 1
                self._hub.after(self._hub.config.settle_ns // 2, lambda: self._link(key, run))
            else:
                run.failed |= result.failed
                if not result.failed:
                    self._mark_absent(tree, role)
                self._finish(key, run)

        self._waves.begin(frame, sends, done)

    def _reregister(self, key: Key, found: list[bytes]) -> None:
        """The search did not know the role: one instance registers as first."""
        if found:
            tree, role, _ = key
            first = min(found)
            self._search.order(RELINK, node_of(first), tree, role, None, lambda _: None, first)

    def _mark_absent(self, tree: bytes, role: str) -> None:
        state = self._builder.make_role(tree, role)
        if state is not None:
            state.absent_until = self._hub.now + ABSENT_NS

    def _finish(self, key: Key, run: _Recovery) -> None:
        """Tell those that wait, in the order in which they came."""
        tree, role, realm_only = key
        del self._running[key]
        state = self._cache.role(tree, role)
        if self._local.get(tree, role) is not None or self._builder.usable(state, realm_only):
            outcome = UNKNOWN if run.failed else READY
        else:
            outcome = UNKNOWN if run.failed else ABSENT
        self._hub.fact("recovery", tree, role, detail=outcome)
        # rule: O-16a
        for done in run.waiters:
            done(outcome)
