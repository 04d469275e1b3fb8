"""Recovery of a group: some time after the last fault there is one leader, all replicas follow it without lag, and
nothing is held back."""

from __future__ import annotations

from typing import Final

from holdfast.sim.checkers.sight import Sight, SourceSight
from holdfast.types import MILLISECOND, NEVER, Nanos

ENTRIES_KEPT: Final = 64
"""The maximum log of a quiet group: entries without messages may wait for the next message to be freed."""

ON_THE_WAY_NS: Final = 100 * MILLISECOND
"""Locks are used until the end of a run, and the commit of their last entry is announced some milliseconds later. A
group that had recovered this recently has recovered."""


class Rest:
    """Since when everything has recovered."""

    def __init__(self) -> None:
        self.since_ns: Nanos = NEVER
        self._last_ns: Nanos = -ON_THE_WAY_NS - 1

    def look(self, is_calm: bool, now: Nanos) -> bool:
        """One check; whether everything has recovered, but for what is on the way."""
        if is_calm:
            self.since_ns, self._last_ns = min(self.since_ns, now), now
        elif now - self._last_ns > ON_THE_WAY_NS:
            self.since_ns = NEVER
        return self.since_ns < NEVER


def unrest(sights: list[Sight], sources: list[SourceSight], members: tuple[str, ...]) -> str:
    """The problems of a group after the last fault; empty if it has recovered."""
    seen = [sight.host for sight in sights]
    for name in members:
        if name not in seen:
            return f"{name} runs no replica"
    leaders = [sight for sight in sights if sight.leading]
    if len(leaders) != 1:
        who = ", ".join(sight.host for sight in leaders) or "no replica"
        return f"{who} leads" + _reasons(sights)
    for sight in sights:
        trouble = _trouble(sight, leaders[0])
        if trouble:
            return f"{sight.host} {trouble}"
    for source in sources:
        if source.held:
            return f"the source of {source.host} still holds {source.held} bytes"
    return ""


def _trouble(sight: Sight, leader: Sight) -> str:
    if sight.state not in ("leading", "following"):
        return f"is {sight.state}: {sight.why or 'no reason given'}"
    if sight.memory != "whole":
        return f"has not become a member again (its state is {sight.memory})"
    if sight.group_epoch != leader.group_epoch:
        return f"is in another epoch than {leader.host}"
    if (sight.term, sight.leader) != (leader.term, leader.host):
        return f"follows {sight.leader or 'no replica'} in term {sight.term}; {leader.host} leads {leader.term}"
    if sight.lag or sight.log.last != leader.log.last:
        return f"has applied {sight.applied}; {leader.host} has {leader.log.last} entries"
    if sight.streams.most_bytes():
        return f"still holds {sight.streams.most_bytes()} bytes of a stream"
    if len(sight.log) > ENTRIES_KEPT:
        return f"still holds {len(sight.log)} entries"
    if sight.kept:
        return f"still keeps {sight.kept} bytes of outputs"
    return ""


def _reasons(sights: list[Sight]) -> str:
    texts = [f"{sight.host} is {sight.state} {sight.why}".strip() for sight in sights]
    return "; " + ", ".join(texts) if texts else ""
