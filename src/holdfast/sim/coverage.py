"""What a run has exercised: a campaign in which nothing interesting happens proves nothing, and must be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.group.log import Kind
from holdfast.group.ports import RestoreState, TakeSnapshot
from holdfast.sim.checkers.base import Checker
from holdfast.sim.checkers.sight import Sight
from holdfast.telemetry.facts import GroupFact, OrderFact

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host

FACTS: Final[dict[str, str]] = {
    "gap": "gaps",
    "recovered": "recoveries",
    "left behind": "left behind",
    "suspended": "suspensions",
    "halted": "halts",
    "refused": "refused messages",
    "asks": "questions about losses",
    "not recovered": "recoveries that failed",
    "steps down": "step-downs for a reason",
    "stalls": "stalls",
    "refounded": "foundings by an operator",
}
"""Events of `GroupFact` that are counted, and as what."""

ENTRIES: Final[dict[str, str]] = {
    kind.name.lower(): f"{kind.name.lower()} entries"
    for kind in Kind
    if kind not in (Kind.ORDER, Kind.TERM)
}


class Coverage(Checker):
    """Counts interesting events by name."""

    effects = (RestoreState, TakeSnapshot)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._led: dict[tuple[str, int, str], bool] = {}
        self._lasts: dict[tuple[str, int, str], int] = {}
        self._terms_led: dict[str, int] = {}

    def count(self, event: str, by: int = 1) -> None:
        self.counts[event] = self.counts.get(event, 0) + by

    def booted(self, host: Host) -> None:
        if host.boots > 1:
            self.count("restarts")

    def effect(self, host: Host, effect: RestoreState | TakeSnapshot) -> None:
        if isinstance(effect, RestoreState):
            self.count("state transfers")
            self._lasts.pop((host.name, host.boots, effect.unit.partition("/")[2]), None)
        else:
            self.count("snapshots")

    def turn(self, host: Host, result: Result) -> None:
        for fact in result.facts:
            if isinstance(fact, GroupFact) and fact.event in FACTS:
                self.count(FACTS[fact.event])
            elif isinstance(fact, GroupFact) and fact.event == "decides":
                self.count(f"decided: {fact.detail.partition(' (')[0]}")
            elif isinstance(fact, OrderFact) and fact.entry in ENTRIES:
                self.count(ENTRIES[fact.entry])

    def see(self, sight: Sight) -> None:
        """A replica after a turn: has it begun to lead, ceased to, or cut its log?"""
        key = (*sight.life, sight.group)
        led = self._led.get(key, False)
        if sight.leading and not led:
            first = sight.group not in self._terms_led
            self._terms_led[sight.group] = sight.term
            self.count("foundings" if first else "elections")
        elif led and not sight.leading:
            self.count("step-downs")
        self._led[key] = sight.leading
        last = self._lasts.get(key, 0)
        if sight.log.last < last:
            self.count("truncations")
        self._lasts[key] = sight.log.last
