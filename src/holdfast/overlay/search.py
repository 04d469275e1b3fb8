"""The search: where the first instance of a role is registered (seed: 'Tree Building Using a Search Facility').

An entry is keyed by a hash of (tree, role). Its owner in a realm is the live node with the highest id below the key, or
the highest of all; the realm that keeps the domain's entry is chosen in the same way by the key with its halves
swapped. Registration is put-if-absent (rule 3): of two first instances one loses and links to the other. A node that
is not the owner passes a request on. Entries move when nodes and realms come and go; meanwhile an owner without an
entry asks the nodes that may still have it (`handover`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.overlay.frames import (
    CLAIM,
    GET,
    HELD,
    PUT,
    REGISTER,
    REGISTER_AGAIN,
    RELINK,
    REMOVE,
    SEARCH,
    Entry,
    Wave,
)
from holdfast.overlay.handover import Handover
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import (
    incarnation_of,
    node_of,
    owner_of,
    owners_of,
    realm_id,
    role_key,
    swapped,
)
from holdfast.overlay.topology import Topology
from holdfast.overlay.waves import Result, Sends, Waves, WaveState
from holdfast.types import Nanos

LOCAL: Final = 0
GLOBAL: Final = 1
COPIES: Final = 2
"""Realms that keep an entry of the domain: the first decides, the others serve when it cannot be reached."""
PASSES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """`ok`: an owner answered. `accepted`: the entry that was put is the one. `entry`: the one that is, or was
    before."""

    ok: bool
    accepted: bool
    entry: Entry | None


Done = Callable[[Answer], None]
_FAILED: Final = Answer(False, False, None)


class Search:
    def __init__(self, hub: Hub, topology: Topology, waves: Waves) -> None:
        self._hub = hub
        self._topology = topology
        self._waves = waves
        self._tables: tuple[dict[bytes, Entry], dict[bytes, Entry]] = ({}, {})
        self.orders: dict[int, Callable[[WaveState], None]] = {}
        """Operations at the node of an instance: relink, and those of moving roles."""
        self._names_at = -1
        self._names: dict[bytes, str] = {}
        """Realms by their ids, as of that change of the map."""
        self._handover = Handover(hub, topology)
        self.orders[HELD] = self._on_held
        waves.act[SEARCH] = self._on_search

    # -- owners --------------------------------------------------------------------------------------------------

    def owner(self, key: bytes, scope: int, place: int = 0) -> bytes | None:
        """The node that has the entry; `place` counts the realms that keep copies."""
        realm: str | None = self._hub.realm
        if scope == GLOBAL:
            realm = self._realm_for(key, place)
        return owner_of(key, self._topology.storing(realm)) if realm is not None else None

    def _realm_for(self, key: bytes, place: int) -> str | None:
        topology = self._topology
        if self._names_at != topology.changes:
            self._names_at = topology.changes
            self._names = {realm_id(name): name for name in topology.realms()}
        names = self._names
        owners = owners_of(swapped(key), sorted(names), COPIES) if names else []
        return names[owners[place]] if place < len(owners) else None

    def owners(self, key: bytes, realm_only: bool) -> tuple[bytes, ...]:
        """All nodes that an entry of this node is registered with."""
        scopes = [(LOCAL, 0)] if realm_only else [(LOCAL, 0), (GLOBAL, 0), (GLOBAL, 1)]
        return tuple(self.owner(key, scope, place) or b"" for scope, place in scopes)

    # -- requests of this node -----------------------------------------------------------------------------------

    def get(self, tree: bytes, role: str, realm_only: bool, done: Done) -> None:
        """The registered first instance: of the realm if it has one, else of the domain."""

        def after_local(answer: Answer) -> None:
            # rule: O-search-1a
            if answer.entry is not None or realm_only:
                done(answer)
                return
            known = answer.ok

            def after_global(answer: Answer) -> None:
                if answer.ok:
                    done(Answer(known or answer.entry is not None, answer.accepted, answer.entry))
                else:
                    # rule: O-search-3a
                    self._ask(GLOBAL, 1, GET, tree, role, None, done)

            self._ask(GLOBAL, 0, GET, tree, role, None, after_global)

        self._ask(LOCAL, 0, GET, tree, role, None, after_local)

    def put(self, scope: int, entry: Entry, how: int, done: Done) -> None:
        """Register an instance: for the first time, again, or as a claim."""

        def copied(answer: Answer) -> None:
            if scope == GLOBAL and answer.ok and answer.accepted:
                self._put_at(GLOBAL, 1, entry, REGISTER_AGAIN, lambda _: None)
            done(answer)

        self._put_at(scope, 0, entry, how, copied)

    def _put_at(self, scope: int, place: int, entry: Entry, how: int, done: Done) -> None:
        self._ask(scope, place, PUT, entry.tree, entry.role, entry, done, how)

    def remove(self, entry: Entry, realm_only: bool = False) -> None:
        """Take this instance out, wherever it is registered."""
        places = [(LOCAL, 0)] if realm_only else [(LOCAL, 0), (GLOBAL, 0), (GLOBAL, 1)]
        for scope, place in places:
            self._ask(scope, place, REMOVE, entry.tree, entry.role, entry, lambda _: None)

    def order(
        self,
        op: int,
        node: bytes,
        tree: bytes,
        role: str,
        entry: Entry | None,
        done: Done,
        instance: bytes = b"",
    ) -> None:
        """Ask the node of an instance to do something."""
        frame = self._waves.wave(SEARCH, tree, role, op=op, entry=entry, instance=instance)
        self._go(frame, node, done)

    def _ask(
        self,
        scope: int,
        place: int,
        op: int,
        tree: bytes,
        role: str,
        entry: Entry | None,
        done: Done,
        how: int = REGISTER,
    ) -> None:
        owner = self.owner(role_key(tree, role), scope, place)
        if owner is None:
            done(_FAILED)  # there is no such realm
            return
        frame = self._waves.wave(SEARCH, tree, role, op=op, scope=scope, entry=entry, seq=how)
        self._go(frame, owner, done)

    def _go(self, frame: Wave, node: bytes, done: Done) -> None:
        def finished(result: Result) -> None:
            if result.failed or result.seen:
                done(_FAILED)
            else:
                done(Answer(True, result.accepted, result.entry))

        if node == self._hub.me:
            self._waves.begin(frame, [], finished, acts=True)
            return
        sends = self._waves.directed(frame, node)
        if sends:
            self._waves.begin(frame, sends, finished)
        else:
            done(_FAILED)

    # -- at the owner --------------------------------------------------------------------------------------------

    def _on_search(self, at: WaveState) -> Sends:
        frame = at.frame
        if frame.op in (GET, PUT, REMOVE):
            key = role_key(frame.tree, frame.role)
            owners = [self.owner(key, frame.scope, place) for place in range(1 + frame.scope)]
            # rule: O-20c
            if self._hub.me not in owners and owners[0] is not None:
                if frame.hops > PASSES_MAX * 4:
                    at.result.failed = True
                    return []
                self._hub.count("search_passed_on")
                sends = self._waves.directed(frame, owners[0])
                at.result.failed = not sends
                return sends
            if frame.op in (GET, PUT) and self._live(frame.scope, key) is None:
                return self._ask_former_owners(at, key)
        self._perform(at)
        return []

    # -- entries that have not arrived yet -----------------------------------------------------------------------

    def _ask_former_owners(self, at: WaveState, key: bytes) -> Sends:
        """This node may own the entry only since a moment ago: it is put or looked up when the nodes that may have it
        have answered."""
        frame = at.frame
        again = frame.seq == REGISTER_AGAIN
        if frame.op == PUT and not again and self._handover.was_lost(key):
            self._hub.count("registration_too_early")
            at.result.failed = True
            return []
        sends: Sends = []
        for node in self._handover.former_owners(key, frame.scope == GLOBAL):
            ask = self._waves.wave(SEARCH, frame.tree, frame.role, op=HELD, scope=frame.scope)
            sends += self._waves.directed(ask, node)
        if not sends:
            self._perform(at)
            return []
        self._hub.count("former_owners_asked", len(sends))
        met_at = self._topology.met_at
        at.on_done.insert(0, lambda result: self._former_owners_answered(at, key, met_at, result))
        return sends

    def _former_owners_answered(
        self, at: WaveState, key: bytes, met_at: Nanos, result: Result
    ) -> None:
        found, result.entry, result.accepted = result.entry, None, False
        if result.failed:
            return  # one of them may have it: the request is repeated
        table = self._tables[at.frame.scope]
        if found is not None and key not in table and len(table) < self._hub.config.entries_max:
            table[key] = found
        elif found is None:
            self._handover.found_none(key, at.frame.scope == GLOBAL, met_at)
        self._perform(at)

    def _on_held(self, at: WaveState) -> None:
        """A node asks that owns an entry now. It gets no answer before this node knows of it: from then on, whatever
        this node registers goes to the new owner."""
        frame = at.frame
        if not self._topology.reaches(node_of(frame.wave)):
            at.result.failed = True
            return
        at.result.entry = self._live(frame.scope, role_key(frame.tree, frame.role))
        at.result.accepted = True

    def _perform(self, at: WaveState) -> None:
        frame = at.frame
        key = role_key(frame.tree, frame.role)
        if frame.op in self.orders:
            self.orders[frame.op](at)
        elif frame.op == GET:
            at.result.entry = self._live(frame.scope, key)
        elif frame.op == REMOVE:
            known = self._tables[frame.scope].get(key)
            if known and frame.entry and known.instance == frame.entry.instance:
                del self._tables[frame.scope][key]
            at.result.accepted = True
        elif frame.op == PUT and frame.entry is not None:
            self._put(at, key, frame.entry)
        else:
            self._hub.count("bad_wave")
            at.result.failed = True

    def _live(self, scope: int, key: bytes) -> Entry | None:
        """The entry, unless its node is gone: the clean-up of entries of dead nodes."""
        entry = self._tables[scope].get(key)
        if entry is None:
            return None
        # rule: O-search-4a
        if not self._topology.alive(node_of(entry.instance), incarnation_of(entry.instance)):
            del self._tables[scope][key]
            self._hub.count("entries_of_dead_nodes")
            return None
        return entry

    def _put(self, at: WaveState, key: bytes, entry: Entry) -> None:
        scope, result = at.frame.scope, at.result
        if (entry.tree, entry.role) != (at.frame.tree, at.frame.role):
            self._hub.count("bad_wave")
            result.failed = True
            return
        table = self._tables[scope]
        known = self._live(scope, key)
        if known is None and key not in table and len(table) >= self._hub.config.entries_max:
            self._hub.count("entries_full")
            result.failed = True
            return
        moved = node_of(at.frame.wave) != node_of(entry.instance)
        # rule: O-3a
        if known is None or known.instance == entry.instance:
            if known is None or entry.epoch >= known.epoch:
                table[key] = entry
            result.accepted = True
            return
        # rule: O-13e
        if at.frame.seq != CLAIM and _beats(entry, known):
            table[key] = entry
            result.accepted = True
            result.entry = known
            loser, winner = known, entry
        else:
            result.entry = known
            loser, winner = entry, known
        # rule: O-3b
        if moved or loser is known:
            self._relink(loser, winner)

    def _relink(self, loser: Entry, winner: Entry) -> None:
        """Two entries met, after a move or a merge: the loser links to the winner (rule 3)."""
        self._hub.count("entries_merged")
        node = node_of(loser.instance)
        call = lambda: self.order(
            RELINK, node, loser.tree, loser.role, winner, lambda _: None, loser.instance
        )
        self._hub.after(1, call)

    # -- moves ---------------------------------------------------------------------------------------------------

    def rehome(self) -> None:
        """Nodes or realms came or went: entries that others own now go there."""
        for scope in (LOCAL, GLOBAL):
            table = self._tables[scope]
            for key, entry in list(table.items()):
                owners = [self.owner(key, scope, place) for place in range(1 + scope)]
                # rule: O-search-2a
                if self._hub.me in owners or owners[0] is None:
                    continue
                self._hub.count("entries_moved")

                def moved(
                    answer: Answer,
                    key: bytes = key,
                    entry: Entry = entry,
                    table: dict[bytes, Entry] = table,
                ) -> None:
                    if answer.ok and table.get(key) is entry:
                        del table[key]

                self._put_at(scope, 0, entry, REGISTER_AGAIN, moved)

    def entries(self) -> int:
        return len(self._tables[LOCAL]) + len(self._tables[GLOBAL])


def _beats(new: Entry, old: Entry) -> bool:
    """Put-if-absent for shared roles; (epoch, instance) for exclusive ones (rule 13)."""
    if new.exclusive or old.exclusive:
        return (new.epoch, new.instance) > (old.epoch, old.instance)
    return False
