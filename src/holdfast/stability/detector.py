"""Stability detection of one member: the component that a group, or an experiment, owns.

The owner says what it has (`report`), which view is committed (`enter`), which members cannot be reached (`suspect`),
and hands in frames (`take`). It learns what every member has (`stable`; `version` grows with it) and sends what is
appended to `out`. Frames carry promises: they wait for the owner's writes like acknowledgements do (rule 2).

`deadline` says when to call `wake`, and `ready` from when on an owner may call it that does something anyway: a round
that is due waits a little for other traffic. Nothing here raises on what a peer sent; it is refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from holdfast.stability.carrying import carry_over, slots_over
from holdfast.stability.config import COORD, CUBE, FULL, TREE, StabilityConfig
from holdfast.stability.coord import Coord
from holdfast.stability.cube import Cube
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.full import Full
from holdfast.stability.ports import ORDER_SLOTS, Blocker, Seat, StabilityStatus, View
from holdfast.stability.protocol import Protocol, Sends, places_of
from holdfast.stability.riding import Posts, Riding
from holdfast.stability.tree import Tree
from holdfast.stability.vectors import Vector, any_true, nothing
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId

MISSES_MAX: Final = 10
FRACTION: Final = 4
"""A round is worth its cost if it could free this power of two of what is held: a sixteenth."""
ROUNDS_TO_BLAME: Final = 2
"""A member is named as behind after so many rounds that could have made the others' report stable."""
BLOCKERS_MAX: Final = 16
"""Status names at most this many silent members."""
PROTOCOL_CLASSES: Final[dict[str, type[Protocol]]] = {
    CUBE: Cube,
    COORD: Coord,
    FULL: Full,
    TREE: Tree,
}


class Detector:
    """Finds out what all members of the committed view have."""

    def __init__(
        self, config: StabilityConfig, group: str, node: NodeId, life: int, incarnation: int
    ) -> None:
        self.config = config
        self.group = group
        self.node = node
        self.life = life
        self.incarnation = incarnation
        self.view: View | None = None
        self.stable: Vector = nothing(len(ORDER_SLOTS))
        """What every member of the committed view has, one number per slot of the view."""
        self.version = 0
        """Grows whenever `stable` does."""
        self.deadline: Nanos = NEVER
        self.ready: Nanos = NEVER
        self.refused: dict[str, int] = {}
        self.sent = 0
        self.learned = 0
        """Reports that came with other traffic."""
        self._mine: Vector = nothing(len(ORDER_SLOTS))
        self._held_bytes = 0
        self._floor_bytes = 0
        """The least that was held since the last round ended: what came since is all that the next one can free."""
        self._protocol: Protocol | None = None
        self._places: dict[NodeId, int] = {}
        self._nodes: tuple[NodeId, ...] = ()
        self._suspected: dict[NodeId, Nanos] = {}
        """The members that cannot be reached, and since when."""
        self._foreign: dict[NodeId, Nanos] = {}
        """The members that sent frames of another protocol in this view, and since when: their settings differ."""
        self._coordinator: NodeId | None = None
        self._riding = Riding(config.ride_ns)
        self._due_ns: Nanos = NEVER
        """When the next round should begin, if this member has a reason for one."""
        self._ended_ns: Nanos = 0
        self._seen = (0, 0)
        """Rounds and version of the protocol when they were last looked at."""
        self._misses = 0
        """Rounds without progress, one after the other."""
        self._mark: Vector | None = None
        """A report that is not stable, and when it was made: for the lag."""
        self._mark_ns: Nanos = 0
        self._rounds_since_mark = 0
        self._last_lag_ns: Nanos = 0

    # -- what the owner says -------------------------------------------------------------------------------------

    def enter(self, view: View, now: Nanos, out: Posts) -> None:
        """A view was committed. The round begins again, with what is known of surviving lives (rule 6)."""
        old = self.view
        if old is not None and old.epoch == view.epoch:
            if view.index <= old.index:
                return
            self._mine = slots_over(self._mine, old.slots, view.slots)
            self.stable = slots_over(self.stable, old.slots, view.slots)
        else:
            self._mine, self.stable = nothing(len(view.slots)), nothing(len(view.slots))
        before, rest_until = self._protocol, 0
        self.view = view
        self._nodes = tuple(member.node for member in view.members)
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._riding.forget()
        self._foreign.clear()
        self._misses = 0
        behind = any_true(self._mine > self.stable)
        self._mark, self._mark_ns = (
            (self._mine.copy(), self._mark_ns or now) if behind else (None, 0)
        )
        self._protocol = self._seated(view)
        if self._protocol is not None and old is not None and before is not None:
            rest_until = before.rest_until
            if old.epoch == view.epoch:
                self._protocol.adopt(carry_over(before, old, view))
        self._start(rest_until, now, out)

    def _seated(self, view: View) -> Protocol | None:
        """The protocol of this member in the view; None when the view does not have this life of it."""
        place = self._places.get(self.node)
        if place is None or view.members[place].life != self.life:
            return None
        size = len(view.members)
        seat = Seat(
            self.config, self.group, view.epoch, view.index, self.life, self.incarnation, place, size, len(view.slots)
        )  # fmt: skip
        protocol = PROTOCOL_CLASSES[self.config.chosen(size)](seat, self._mine)
        protocol.refused = self.refused
        return protocol

    def _start(self, rest_until: Nanos, now: Nanos, out: Posts) -> None:
        """Every view begins with a round, so that all members get the result of the last one before it."""
        protocol, sends = self._protocol, []  # type: tuple[Protocol | None, Sends]
        self._seen = (0, 0)
        if protocol is not None:
            protocol.rest_until = rest_until
            protocol.suspected = self._suspected_bits()
            if isinstance(protocol, Coord) and self._coordinator in self._places:
                protocol.coordinator = self._places[self._coordinator]
            if protocol.initiates:
                protocol.want(now, sends)
        self._settle(sends, now, out)

    def report(
        self, values: Iterable[int] | Vector, held_bytes: int, now: Nanos, out: Posts
    ) -> None:
        """What this member has, one number per slot of the view. Within a life no number shrinks (rule 2)."""
        given = np.asarray(values, np.int64)
        mine = self._mine
        assert given.shape == mine.shape, "a report has one number per slot of the view"
        # rule: S-2a
        assert not any_true(given < mine), "a report never shrinks within a life"
        grown = any_true(given > mine)
        was_tight, self._held_bytes = self._is_tight, held_bytes
        self._floor_bytes = min(self._floor_bytes, held_bytes)
        if not grown and self._is_tight == was_tight:
            return
        if grown:
            mine[:] = given
            self._misses = 0
            if self._mark is None:
                self._mark, self._mark_ns = mine.copy(), now
                self._rounds_since_mark = 0
        self._settle([], now, out)

    def take(self, node: NodeId, frame: StabilityFrame, now: Nanos, out: Posts) -> None:
        """A frame of this group came from `node`."""
        place, view = self._places.get(node), self.view
        if place is None or view is None or self._protocol is None or node == self.node:
            self._refuse("stranger")
        # rule: S-4b
        elif frame.view != view.index or frame.epoch != view.epoch:
            self._refuse("view")
        # rule: S-4c
        elif frame.life != view.members[place].life:
            self._refuse("life")
        else:
            sends: Sends = []
            foreign = self.refused.get("kind", 0)
            self._protocol.take(place, frame, now, sends)
            if self.refused.get("kind", 0) > foreign:
                self._foreign.setdefault(node, now)
            self._settle(sends, now, out)

    def learn(self, node: NodeId, values: Iterable[int] | Vector, now: Nanos, out: Posts) -> None:
        """The owner heard a member's report on other traffic. It must be of the life that the view has."""
        place = self._places.get(node)
        if place is not None and isinstance(self._protocol, Coord):
            self.learned += 1
            sends: Sends = []
            self._protocol.learn(place, np.asarray(values, np.int64), now, sends)
            self._settle(sends, now, out)

    @property
    def is_running(self) -> bool:
        """Whether a round is under way and waits for reports."""
        return self._protocol is not None and self._protocol.running

    @property
    def initiates(self) -> bool:
        """Whether this member begins rounds itself."""
        return self._protocol is not None and self._protocol.initiates

    def suspect(self, nodes: Iterable[NodeId], now: Nanos, out: Posts) -> None:
        """The members that cannot be reached now. They stay in the view until an entry removes them (rule 4)."""
        before = self._suspected
        self._suspected = {node: before.get(node, now) for node in nodes}
        if self._protocol is not None:
            sends: Sends = []
            self._protocol.suspect(self._suspected_bits(), now, sends)
            self._settle(sends, now, out)

    def coordinate(self, node: NodeId, now: Nanos, out: Posts) -> None:
        """`node` coordinates, where the protocol has a coordinator that can be any member. Otherwise place 0 does."""
        self._coordinator = node
        if isinstance(self._protocol, Coord) and node in self._places:
            sends: Sends = []
            self._protocol.coordinate(self._places[node], now, sends)
            self._settle(sends, now, out)

    def ride(self, node: NodeId, now: Nanos) -> list[StabilityFrame]:
        """The owner sends something to `node` now: frames that should go with it (S7)."""
        if node not in self._places:
            return []
        frames = self._riding.ride(node, now)
        if frames:
            self._set_deadline()
        return frames

    def wake(self, now: Nanos, out: Posts) -> None:
        """`deadline` has come, or `ready` and the owner may be about to send something."""
        protocol, sends = self._protocol, []  # type: tuple[Protocol | None, Sends]
        due_ns, riding = self._due_ns, self._riding
        no_traffic = due_ns + riding.slack_ns(due_ns) <= now and riding.last_ns < due_ns
        if protocol is not None:
            if protocol.deadline <= now:
                protocol.wake(now, sends)
            if self._due_ns <= now:
                self._ended_ns, self._due_ns = now, NEVER
                if not protocol.initiates:
                    self._misses = min(self._misses + 1, MISSES_MAX)
                protocol.want(now, sends)
        if riding.deadline <= now:
            riding.flush(out)
        self._settle(sends, now, out)
        if no_traffic and riding.deadline < NEVER:
            riding.flush(out)
            self._set_deadline()
        self.deadline = max(self.deadline, now + 1)

    # -- rounds --------------------------------------------------------------------------------------------------

    @property
    def _is_tight(self) -> bool:
        return self._held_bytes >= self.config.held_bytes

    def _settle(self, sends: Sends, now: Nanos, out: Posts) -> None:
        """After every call: pass on what is to be sent, take over what is stable, plan the next round."""
        for places, frame in sends:
            self.sent += len(places)
            nodes = tuple([self._nodes[place] for place in places])
            self._riding.post(nodes, frame, now, out)
        protocol = self._protocol
        if protocol is None:
            self._due_ns = NEVER
        else:
            seen = (protocol.rounds, protocol.version)
            if seen != self._seen:
                self._look(protocol, now)
            self._plan(protocol, now)
        self._set_deadline()

    def _look(self, protocol: Protocol, now: Nanos) -> None:
        rounds, version = self._seen
        self._seen = (protocol.rounds, protocol.version)
        if protocol.version != version:
            self._misses = 0
            if any_true(protocol.stable > self.stable):
                np.maximum(self.stable, protocol.stable, out=self.stable)
                self.version += 1
            if self._mark is not None and not any_true(self.stable < self._mark):
                self._last_lag_ns = now - self._mark_ns
                behind = any_true(self._mine > self.stable)
                self._mark, self._mark_ns = (self._mine.copy(), now) if behind else (None, 0)
                self._rounds_since_mark = 0
        elif protocol.rounds != rounds:
            self._misses = min(self._misses + 1, MISSES_MAX)
        if protocol.rounds != rounds:
            self._ended_ns, self._due_ns = now, NEVER
            self._floor_bytes = self._held_bytes
            self._rounds_since_mark += 1

    def _plan(self, protocol: Protocol, now: Nanos) -> None:
        """A round is due after `period_ns` if this member has something that is not stable, sooner if it is tight."""
        if protocol.running or protocol.wanted or self._mark is None:
            self._due_ns = NEVER
            return
        config, since_ns = self.config, max(self._ended_ns, self._mark_ns)
        if not protocol.initiates and not self._is_tight:
            # The member that begins rounds may see no reason for one, because its own report is stable.
            self._due_ns = since_ns + 2 * config.period_max_ns
            return
        wait_ns = (
            max(config.gap_ns, MILLISECOND)
            if self._is_worth_hurrying
            else config.period_of(protocol.seat.size)
        )
        self._due_ns = since_ns + min(wait_ns << self._misses, config.period_max_ns)
        if self._is_calm:
            self._due_ns = max(self._due_ns, self._ended_ns + config.calm_ns)

    @property
    def _is_calm(self) -> bool:
        """Whether a round could free little: less than `calm_bytes`, and less than a sixteenth of what is held."""
        calm_bytes, gain_bytes = self.config.calm_bytes, self._held_bytes - self._floor_bytes
        return gain_bytes < calm_bytes or (
            calm_bytes > 0 and gain_bytes < self._held_bytes >> FRACTION
        )

    @property
    def _is_worth_hurrying(self) -> bool:
        """Whether buffers are full, and a round could free a sixteenth of them. A source that sends as fast as it can
        keeps them full, so that being full alone says nothing."""
        held_bytes = self._held_bytes
        return self._is_tight and held_bytes - self._floor_bytes >= held_bytes >> FRACTION

    def _set_deadline(self) -> None:
        protocol = self._protocol
        own = NEVER if protocol is None else protocol.deadline
        at_once, due_ns = min(own, self._riding.deadline), self._due_ns
        self.ready = min(at_once, due_ns)
        self.deadline = self.ready
        if due_ns < at_once:
            self.deadline = min(at_once, due_ns + self._riding.slack_ns(due_ns))

    def _suspected_bits(self) -> int:
        places = self._places
        return sum(1 << places[node] for node in self._suspected if node in places)

    def _refuse(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1

    # -- what people see -----------------------------------------------------------------------------------------

    def blockers(self, now: Nanos) -> tuple[Blocker, ...]:
        """The members that keep this one from freeing, by name (rule 9)."""
        protocol, view = self._protocol, self.view
        if protocol is None or view is None:
            return ()
        found: list[Blocker] = []
        if self._mark is not None:
            found += [
                Blocker(self._name_of(node), "on another protocol", -1, 0, now - since_ns)
                for node, since_ns in self._foreign.items()
            ][:BLOCKERS_MAX]
        # rule: S-9a
        if protocol.running and now - protocol.began_ns >= 2 * self.config.repeat_ns:
            waited_ns = now - protocol.began_ns
            found += [
                Blocker(view.members[place].name, "silent", -1, 0, waited_ns)
                for place in places_of(protocol.silent())[:BLOCKERS_MAX]
                if self._nodes[place] not in self._foreign
            ]
        # rule: S-9c
        if self._is_overdue(now):
            found += [
                Blocker(self._name_of(node), "unreachable", -1, 0, now - since_ns)
                for node, since_ns in self._suspected.items()
                if node in self._places
            ][:BLOCKERS_MAX]
        # rule: S-9b
        if self._mark is not None and self._rounds_since_mark >= ROUNDS_TO_BLAME:
            for k in np.flatnonzero(self.stable < self._mark).tolist():
                holder = int(protocol.holders[k])
                if holder < len(view.members) and holder != protocol.seat.place:
                    name, value = view.members[holder].name, int(self.stable[k])
                    since_ns = now - self._mark_ns
                    found.append(Blocker(name, "behind", view.slots[k], value, since_ns))
        return tuple(found)

    def _name_of(self, node: NodeId) -> str:
        assert self.view is not None, "there are members in a view only"
        return self.view.members[self._places[node]].name

    def _is_overdue(self, now: Nanos) -> bool:
        """Whether this member waits for a result of others for longer than a round takes. Only the member that collects
        reports knows which of them are missing; the others know which members they cannot reach."""
        protocol, config = self._protocol, self.config
        if protocol is None or protocol.running or protocol.initiates or self._mark is None:
            return False
        round_ns = config.period_of(protocol.seat.size) + config.gap_ns + 2 * config.repeat_ns
        return now - self._mark_ns >= 2 * round_ns

    def status(self, now: Nanos) -> StabilityStatus:
        protocol, view = self._protocol, self.view
        return StabilityStatus(
            protocol="" if protocol is None else protocol.kind,
            view=(0, 0) if view is None else view.id,
            members=len(self._nodes),
            place=-1 if protocol is None else protocol.seat.place,
            round=0 if protocol is None else protocol.round,
            rounds=0 if protocol is None else protocol.rounds,
            running=protocol is not None and protocol.running,
            report=tuple(self._mine.tolist()),
            stable=tuple(self.stable.tolist()),
            held_bytes=self._held_bytes,
            lag_ns=0 if self._mark is None else now - self._mark_ns,
            last_lag_ns=self._last_lag_ns,
            blockers=self.blockers(now),
            refused=dict(self.refused),
            sent=self.sent,
            rode=self._riding.rode,
        )
