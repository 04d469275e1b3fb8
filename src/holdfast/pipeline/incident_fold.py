"""The fold that turns runs of equal verdicts into incidents: `(carry_in, runs) -> (rows, carry_out)`.

One fold per *pair* (a path without its transport), because a verdict needs all kinds of packets together: TCP that
does not pass while UDP does is a filter, both silent is a dead path. Runs come sorted by hour, incarnation, time and
number. Time is the wall clock of the listener, which is its own monotonic clock plus a constant within one life.

- A run says what its listener heard from `start_us` to `end_us`. The same holds until the next run, if that comes
  within `HOLD_US` and no fact was lost in between. All other time is *unobserved*: neither clean nor broken.
- An incident begins with the first run whose verdict has its class, and ends with the first that has not. If the class
  returns within `MERGE_US`, the incident goes on, and `repeats` grows. If the trouble is still there after at most
  `UNOBSERVED_MERGE_US` without observation, it goes on too.
- An incident is written when it can no longer be continued, into the hour in which that shows. Until then it is in
  the carry. So a table of incidents never changes except at its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast.pipeline.verdict import (
    CONGESTED,
    DEAD,
    MULTICAST,
    PROTOCOL,
    SIZE,
    Trouble,
    Vector,
    judge,
)

HOLD_US: Final = 300 * 1_000_000
"""Nodes record every path each 5 to 30 s; after this long without a fact nothing is known."""
MERGE_US: Final = 300 * 1_000_000
UNOBSERVED_MERGE_US: Final = 3600 * 1_000_000
SETTLE_US: Final = 1_000_000
"""A trouble that is over sooner and does not return is no incident: the kinds of packets on a pair change one by one,
so a path that dies looks filtered for a moment. Nodes let verdicts settle as well."""
BACK_US: Final = 4_000_000
"""After a dead path is heard again, each kind of packets has this time to be heard: TCP connects with pauses."""
FILTERS: Final = (PROTOCOL, MULTICAST)
"""Claims that one kind of packets does not pass although others do. While a path dies or comes back, this is so for a
moment and means nothing: such a trouble counts once it has been there for `SETTLE_US`, or `BACK_US` after a death. Runs
of the other kinds of packets can begin in that time and end it, however long the run that showed it goes on."""
FLAPS: Final = 3
"""So many returns of the same trouble within `FLAP_US` make an incident flap: the node's own rule."""
FLAP_US: Final = 60 * 1_000_000

OK: Final = "ok"
SOFT_ERROR: Final = "soft error"
DEAD_STATE: Final = "dead"


class Run(msgspec.Struct, frozen=True, gc=False):
    """Facts of one kind of packets on a pair that say the same, within one hour and without a break."""

    hour: str
    incarnation: int
    start_us: int
    end_us: int
    kind: str
    vector: Vector
    facts: int
    lost_before: bool = False
    """Facts of this listener were lost between the fact before and this run."""


class Open(msgspec.Struct, array_like=True):
    """An incident that is not written yet. `ended_us` is 0 while the trouble is there."""

    error_class: str
    kind: str
    start_us: int
    seen_us: int
    """The last time at which the trouble was observed."""
    ended_us: int = 0
    ended_by: str = ""
    repeats: int = 0
    facts: int = 0
    worst: int = 0
    size_max: int = 0
    values: tuple[str, ...] = ()
    unobserved_us: int = 0
    returns: list[int] = []
    """When the trouble last returned: the newest `FLAPS`."""
    flapping: bool = False


class Heard(msgspec.Struct, array_like=True):
    """What is known of one kind of packets now."""

    vector: Vector
    until_us: int
    """The last fact that said so."""
    counted_us: int
    """Time up to here is in the hourly rows."""
    state: str


class Pending(msgspec.Struct, array_like=True):
    """A filter that has not been there for long enough to count."""

    trouble: Trouble
    run: Run
    """The run that first showed it."""
    until_us: int
    """It counts if it is still there then."""


class Carry(msgspec.Struct, array_like=True):
    """All that the next hour needs to know of a pair."""

    incarnation: int = -1
    hour: str = ""
    heard: dict[str, Heard] = {}
    open: list[Open] = []
    pending: list[Pending] = []
    """Troubles that do not count yet."""
    back_us: int = 0
    """When a dead path was last heard again."""

    def copy(self) -> bytes:
        return msgspec.msgpack.encode(self)


class Hour(msgspec.Struct):
    """How one kind of packets on a pair was during one hour, in microseconds and counts."""

    hour: str
    kind: str
    ok_us: int = 0
    soft_us: int = 0
    dead_us: int = 0
    falls: int = 0
    deaths: int = 0
    size_min: int = 0


class Incident(msgspec.Struct, frozen=True):
    """A written incident, or one that is still open in the last carry."""

    hour: str
    transport: str
    error_class: str
    start_us: int
    end_us: int
    """When the trouble ended; the last time it was seen if it is open."""
    open: bool
    ended_by: str
    repeats: int
    flapping: bool
    facts: int
    worst: int
    size_max: int
    values: str
    unobserved_us: int


class Fold:
    """Folds the runs of one pair. Call `take` for each run, then `close_hour`; read `incidents` and `hours`."""

    def __init__(self, carry: bytes | None = None) -> None:
        self.carry = msgspec.msgpack.decode(carry, type=Carry) if carry else Carry()
        self.incidents: list[Incident] = []
        self.hours: dict[tuple[str, str], Hour] = {}

    def take(self, run: Run) -> None:
        """One run, in order."""
        carry = self.carry
        if run.hour != carry.hour:
            self.close_hour()
            carry.hour = run.hour
        if run.incarnation != carry.incarnation:
            self._new_life(run)
        heard = carry.heard.get(run.kind)
        for kind in list(carry.heard):
            self._forget_stale(kind, run.start_us)
        if run.lost_before and run.kind in carry.heard:
            self._forget(run.kind, "unobserved")
        before = carry.heard.get(run.kind)
        if before is not None:
            self._count(run.kind, before, run.start_us)
        self._hear(run, heard)

    def close_hour(self) -> None:
        """Count the time that was observed until the end of the current hour."""
        for kind, heard in self.carry.heard.items():
            self._count(kind, heard, heard.until_us)
        # No other run begins before the end of the hour.
        until_us = max((heard.until_us for heard in self.carry.heard.values()), default=0)
        self._decide(until_us, {_key(one.trouble) for one in self.carry.pending})

    def finish(self, hour: str) -> bytes:
        """The carry after `hour`."""
        self.close_hour()
        self.carry.hour = self.carry.hour or hour
        return self.carry.copy()

    # -- what is heard -------------------------------------------------------------------------------------------

    def _hear(self, run: Run, earlier: Heard | None) -> None:
        carry = self.carry
        carry.heard[run.kind] = Heard(run.vector, run.end_us, run.start_us, OK)
        troubles = judge({kind: heard.vector for kind, heard in carry.heard.items()})
        self._settle(run.start_us)
        present = {_key(trouble) for trouble in troubles}
        self._decide(run.start_us, present)
        for incident in carry.open:
            if (incident.error_class, incident.kind) not in present and not incident.ended_us:
                self._end(incident, run.start_us, "repaired")
                if incident.error_class == DEAD:
                    carry.back_us = run.start_us
        for trouble in troubles:
            if not self._waits(trouble, run):
                self._continue(trouble, run)
        for kind, heard in carry.heard.items():
            state = _state(kind, troubles)
            if kind != run.kind and state != heard.state:
                self._count(kind, heard, min(run.start_us, heard.until_us))
            heard.state = state
        self._note(run, earlier)

    def _waits(self, trouble: Trouble, run: Run) -> bool:
        """Whether a trouble does not count yet, because it may be part of a death or of a return."""
        carry = self.carry
        if trouble.error_class not in FILTERS or any(
            _is_of(incident, trouble) and not incident.ended_us for incident in carry.open
        ):
            return False
        if all(_key(one.trouble) != _key(trouble) for one in carry.pending):
            settle_us = BACK_US if run.start_us - carry.back_us < BACK_US else SETTLE_US
            carry.pending.append(Pending(trouble, run, run.start_us + settle_us))
        return True

    def _decide(self, now_us: int, present: set[tuple[str, str]]) -> None:
        """What waits was there until now: troubles that lasted long enough count, others wait on if `present`."""
        waiting, self.carry.pending = self.carry.pending, []
        for pending in waiting:
            if now_us >= pending.until_us:
                self._continue(pending.trouble, pending.run)
            elif _key(pending.trouble) in present:
                self.carry.pending.append(pending)

    def _note(self, run: Run, earlier: Heard | None) -> None:
        """Falls, deaths and the smallest size of the hour."""
        row, now = self._row(run.kind), self.carry.heard[run.kind]
        if run.vector.alive and run.vector.size > 0:
            row.size_min = min(row.size_min or run.vector.size, run.vector.size)
        if earlier is None:
            return
        if now.state == DEAD_STATE and earlier.state != DEAD_STATE:
            row.deaths += 1
        elif (
            run.vector.alive and earlier.vector.alive and 0 < run.vector.size < earlier.vector.size
        ):
            row.falls += 1

    def _new_life(self, run: Run) -> None:
        """The listener has restarted: what it heard before is known no more."""
        self.close_hour()
        for kind in list(self.carry.heard):
            self._forget(kind, "restarted")
        self.carry.incarnation = run.incarnation

    def _forget_stale(self, kind: str, now_us: int) -> None:
        if now_us - self.carry.heard[kind].until_us > HOLD_US:
            self._forget(kind, "unobserved")

    def _forget(self, kind: str, why: str) -> None:
        """From the last fact on, nothing is known of this kind."""
        heard = self.carry.heard.pop(kind)
        self._count(kind, heard, heard.until_us)
        kept = {_key(one.trouble) for one in self.carry.pending if one.trouble.kind != kind}
        self._decide(heard.until_us, kept)
        for incident in self.carry.open:
            concerned = incident.kind in (kind, "")
            if (
                concerned
                and not incident.ended_us
                and not (incident.kind == "" and self.carry.heard)
            ):
                self._end(incident, max(heard.until_us, incident.start_us), why)

    # -- incidents -----------------------------------------------------------------------------------------------

    def _continue(self, trouble: Trouble, run: Run) -> None:
        incident = next((known for known in self.carry.open if _is_of(known, trouble)), None)
        if incident is None:
            incident = Open(trouble.error_class, trouble.kind, run.start_us, run.end_us)
            self.carry.open.append(incident)
            self.carry.open.sort(key=lambda known: (known.error_class, known.kind))
        elif incident.ended_us:
            self._resume(incident, run.start_us)
        incident.seen_us = max(incident.seen_us, run.end_us)
        if trouble.kind in ("", run.kind):
            incident.facts += run.facts
        incident.worst = _worse(trouble, incident.worst)
        incident.size_max = max(incident.size_max, run.vector.size_max)
        incident.values = tuple(sorted({*incident.values, *trouble.values}))[:16]

    def _resume(self, incident: Open, now_us: int) -> None:
        if incident.ended_by == "repaired":
            incident.repeats += 1
            incident.returns = [*incident.returns, now_us][-FLAPS:]
            if len(incident.returns) == FLAPS and now_us - incident.returns[0] < FLAP_US:
                incident.flapping = True
        else:
            incident.unobserved_us += max(0, now_us - incident.ended_us)
        incident.ended_us, incident.ended_by = 0, ""

    def _end(self, incident: Open, at_us: int, why: str) -> None:
        incident.ended_us, incident.ended_by = max(at_us, incident.start_us), why
        incident.seen_us = min(incident.seen_us, incident.ended_us)

    def _settle(self, now_us: int) -> None:
        """Write the incidents that cannot be continued any more."""
        rest: list[Open] = []
        for incident in self.carry.open:
            limit = MERGE_US if incident.ended_by == "repaired" else UNOBSERVED_MERGE_US
            if incident.ended_us and now_us - incident.ended_us > limit:
                if is_worth_telling(incident):
                    self.incidents.append(as_row(incident, self.carry.hour))
            else:
                rest.append(incident)
        self.carry.open = rest

    # -- time ----------------------------------------------------------------------------------------------------

    def _count(self, kind: str, heard: Heard, until_us: int) -> None:
        passed = until_us - heard.counted_us
        if passed <= 0:
            return
        heard.counted_us = until_us
        row = self._row(kind)
        if heard.state == OK:
            row.ok_us += passed
        elif heard.state == DEAD_STATE:
            row.dead_us += passed
        else:
            row.soft_us += passed

    def _row(self, kind: str) -> Hour:
        key = (self.carry.hour, kind)
        if key not in self.hours:
            self.hours[key] = Hour(*key)
        return self.hours[key]


def open_incidents(carry: bytes) -> list[Incident]:
    """The incidents of a carry, as rows."""
    state = msgspec.msgpack.decode(carry, type=Carry)
    return [as_row(incident, state.hour) for incident in state.open if is_worth_telling(incident)]


def current(carry: bytes) -> list[tuple[str, Heard, int]]:
    """What is known of each kind of packets at the end of a carry, with the incarnation of the listener."""
    state = msgspec.msgpack.decode(carry, type=Carry)
    return [(kind, heard, state.incarnation) for kind, heard in sorted(state.heard.items())]


def is_worth_telling(incident: Open) -> bool:
    """Whether it lasts, returned, or is still there."""
    lasted_us = incident.ended_us - incident.start_us
    return not incident.ended_us or incident.repeats > 0 or lasted_us >= SETTLE_US


def as_row(incident: Open, hour: str) -> Incident:
    return Incident(
        hour=hour,
        transport=incident.kind,
        error_class=incident.error_class,
        start_us=incident.start_us,
        end_us=incident.ended_us or incident.seen_us,
        open=not incident.ended_us,
        ended_by=incident.ended_by,
        repeats=incident.repeats,
        flapping=incident.flapping,
        facts=incident.facts,
        worst=incident.worst,
        size_max=incident.size_max,
        values=",".join(incident.values),
        unobserved_us=incident.unobserved_us,
    )


def incident_id(pair: Sequence[str], transport: str, error_class: str, start_us: int) -> str:
    """Names an incident by path, class and start: the same in every run."""
    text = "|".join([*pair, transport, error_class, str(start_us)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fold_runs(carry: bytes | None, runs: Iterable[Run], hour: str) -> tuple[Fold, bytes]:
    """The fold over some runs, and its carry after `hour`."""
    fold = Fold(carry)
    for run in runs:
        fold.take(run)
    return fold, fold.finish(hour)


def _key(trouble: Trouble) -> tuple[str, str]:
    return trouble.error_class, trouble.kind


def _is_of(incident: Open, trouble: Trouble) -> bool:
    return (incident.error_class, incident.kind) == _key(trouble)


def _state(kind: str, troubles: Iterable[Trouble]) -> str:
    state = OK
    for trouble in troubles:
        if trouble.error_class == DEAD:
            return DEAD_STATE
        if trouble.kind in (kind, ""):
            state = SOFT_ERROR
    return state


def _worse(trouble: Trouble, worst: int) -> int:
    """The smallest size or rate that passed; otherwise the largest value."""
    if trouble.error_class in (SIZE, CONGESTED):
        return min(worst or trouble.value, trouble.value)
    return max(worst, trouble.value)
