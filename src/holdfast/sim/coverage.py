"""Counts what a run has exercised, because a campaign without interesting events proves nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.group.log.replicated_log import Kind
from holdfast.group.ports import AskLoss, OutputsReady, RestoreState, SendOutputs, TakeSnapshot
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
    "refounded": "groups re-created by an operator",
    "rolled_back": "deliveries rolled back",
    "awaits": "states ahead of logs",
    "lost": "losses reported",
    "suspends itself": "leaders that suspended themselves",
    "stays": "suspensions refused",
}
"""Events of `GroupFact` that are counted, and their names."""

Watched = RestoreState | TakeSnapshot | OutputsReady | SendOutputs | AskLoss

ENTRIES: Final[dict[str, str]] = {
    kind.name.lower(): f"{kind.name.lower()} entries"
    for kind in Kind
    if kind not in (Kind.ORDER, Kind.TERM)
}


IGNORES: Final = re.compile(r"ignore by ([a-z, ]+?) (for .*|until .*)$")


def decided(detail: str) -> list[str]:
    """The categories of a decision: its combination, and what is ignored by what and for how long."""
    action, _, by = detail.partition(" (")
    when = "after recovery failed" if by.startswith("after recovery failed") else "decided"
    found = IGNORES.search(action)
    if found is None:
        return [f"{when}: {action}"]
    ends = re.sub(r"[0-9.e+-]+ ", "", found[2])
    return [
        f"{when}: {action[: found.start()]}ignore",
        f"ignored by {found[1]}",
        f"ignored {ends}",
    ]


class Coverage(Checker):
    """Counts interesting events by name."""

    effects = (RestoreState, TakeSnapshot, OutputsReady, SendOutputs, AskLoss)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._led: dict[tuple[str, int, str], bool] = {}
        self._lasts: dict[tuple[str, int, str], int] = {}
        self._terms_led: dict[str, int] = {}
        self._brought: dict[tuple[str, int, str], dict[str, int]] = {}

    def count(self, event: str, by: int = 1) -> None:
        self.counts[event] = self.counts.get(event, 0) + by

    def booted(self, host: Host) -> None:
        if host.boots > 1:
            self.count("restarts")

    def effect(self, host: Host, effect: Watched) -> None:
        if isinstance(effect, RestoreState):
            self.count("state transfers")
            self._lasts.pop((host.name, host.boots, effect.unit.partition("/")[2]), None)
        elif isinstance(effect, TakeSnapshot):
            self.count("snapshots")
        elif isinstance(effect, OutputsReady):
            self.count("outputs to nodes", len(effect.outputs))
        elif isinstance(effect, SendOutputs):
            self.count("outputs to others", len(effect.outputs))
        elif effect.info.attempt > 1:
            self.count("second questions")

    def turn(self, host: Host, result: Result) -> None:
        for fact in result.facts:
            if isinstance(fact, GroupFact) and fact.event in FACTS:
                self.count(FACTS[fact.event])
            elif isinstance(fact, GroupFact) and fact.event == "decides":
                for what in decided(fact.detail):
                    self.count(what)
            elif isinstance(fact, OrderFact) and fact.entry in ENTRIES:
                self.count(ENTRIES[fact.entry])

    def see(self, sight: Sight) -> None:
        """A replica after a turn: has it become leader, stepped down, or truncated its log?"""
        key = (*sight.life, sight.group)
        led = self._led.get(key, False)
        if sight.leading and not led:
            first = sight.group not in self._terms_led
            self._terms_led[sight.group] = sight.term
            self.count("groups created" if first else "elections")
        elif led and not sight.leading:
            self.count("step-downs")
        self._led[key] = sight.leading
        last = self._lasts.get(key, 0)
        if sight.log.last < last:
            self.count("truncations")
        self._lasts[key] = sight.log.last
        before = self._brought.get(key)
        if sight.brought != before:
            for place, count in sight.brought.items():
                more = count - (before or {}).get(place, 0)
                if more:
                    self.count(f"recovered from {place}", more)
            self._brought[key] = dict(sight.brought)
