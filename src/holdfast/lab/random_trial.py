"""Random faults in a lab, and whether each is identified correctly: the cases of the simulated sweep with real packets.

A trial sends 1200 bytes every 50 ms between the ends of the first affected path, and 1200 bytes every 100 ms from each
node to a group of all nodes. It injects the fault, polls the incidents of every node until the time is up, removes the
fault, and continues polling for a second: a wrong incident that appears then counts as well. `judge_incidents` compares
them with the expected diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.lab.lab import Lab
from holdfast.lab.member import CHANNEL, DATAGRAMS
from holdfast.lab.trial import FLOW_BYTES, FLOW_EVERY_MS, Flow, Trial
from holdfast.sim.sweep.draw import PAYLOAD, Case
from holdfast.types import MILLISECOND, SECOND

FAMILIES: Final = (
    *("size", "protocol", "fragments", "multicast", "pattern", "data", "loss", "flapping"),
    *("rate", "delay", "noise", "dead"),
)
"""The families of the sweep that a lab supports."""
AFTER_S: Final = 1.0
_POLL_S: Final = 0.05
_QUIET_NS: Final = 75 * SECOND
"""A path counts as flapping until it was stable for a minute."""
GROUP_EVERY_MS: Final = 100
"""The period of the messages that each node sends to the group."""

Told = Mapping[str, list[dict[str, Any]]]
"""The incidents that each node shows."""
Left = Mapping[tuple[str, str], bool]
"""Place and class of incidents that were shown before the fault."""


class RandomOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial."""

    family: str
    fault: str
    verdict_ms: float
    """When every listener of an affected path showed the class in the right direction; -1 if that never happened."""
    lacking: tuple[str, ...]
    false: tuple[str, ...]
    incidents: int
    """The largest number that one node showed at the end."""
    place: bool
    stall_ms: float
    missing: int
    worse_moves: int
    group_ms: float = 0.0
    """The longest time that a message of the group took, or that none was delivered beyond the period, on any node."""
    leaders: int = 0
    """Changes of leadership."""
    left: tuple[str, ...] = ()
    """Incidents that were still shown when the fault was injected, and were not judged: the class and the place."""


class RandomTrial:
    """Trials in one lab, one after the other."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._trials: dict[tuple[str, str], Trial] = {}
        for host in lab.plan.hosts:
            lab.ask(host, "group_load", every_ms=GROUP_EVERY_MS, size=FLOW_BYTES)

    def run(self, case: Case, seconds: float) -> RandomOutcome:
        """Inject the fault, watch, remove it, watch."""
        sender, listener, drawn = case.hit[0]
        trial = self._trial(sender, listener, DATAGRAMS if case.on_traffic else CHANNEL)
        trial.wait_sound()
        left = self._wait_quiet()
        if case.on_traffic:
            used = trial.path_in_use().partition("/")[0]
            hit = tuple((a, b, used) for a, b, _ in case.hit)
            fault = used + case.fault.removeprefix(drawn)
            case = msgspec.structs.replace(case, hit=hit, fault=fault)
        self.lab.ask(listener, "flows", reset=True)
        self._group(reset=True)
        term = self._term()
        began = monotonic_ns()
        self.lab.break_(case.fault)
        watched = _Watched(case, left)
        until_s = max(seconds, case.within_ms / 1000)
        self._watch(trial, watched, began, began + round(until_s * SECOND))
        heard = self.lab.ask(listener, "flows")["heard"][sender]
        group_ms, leaders = self._group(), self._term() - term
        self.lab.heal()
        ended = monotonic_ns()
        after = _Watched(case, left)
        self._watch(trial, after, ended, ended + round(AFTER_S * SECOND))
        return RandomOutcome(
            family=case.family,
            fault=case.fault,
            verdict_ms=watched.right_ms,
            lacking=tuple(watched.lacking),
            false=tuple(dict.fromkeys((*watched.false, *after.false))),
            incidents=watched.incidents,
            place=watched.place,
            stall_ms=max(heard["latency_ms_max"], heard["gap_ms_max"] - FLOW_EVERY_MS),
            missing=heard["missing"],
            worse_moves=watched.worse_moves,
            group_ms=group_ms,
            leaders=leaders,
            left=tuple(f"{error_class} of {place}" for place, error_class in left),
        )

    def _wait_quiet(self) -> Left:
        """Wait until no node shows an incident. Returns those that remain: what is left of one fault must not be held
        against the next, nor end the run."""
        deadline = monotonic_ns() + _QUIET_NS
        while True:
            shown = [one for host in self.lab.plan.hosts for one in self._incidents(host)]
            if not shown or monotonic_ns() > deadline:
                return {(one["place"], one["error_class"]): True for one in shown}
            time.sleep(_POLL_S)

    def _incidents(self, host: str) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.lab.ask(host, "health", what="incidents")["incidents"]
        return shown

    def _group(self, reset: bool = False) -> float:
        told = [self.lab.ask(host, "group_load", reset=reset) for host in self.lab.plan.hosts]
        longest: list[float] = [
            max(one["latency_ms_max"], one["gap_ms_max"] - GROUP_EVERY_MS) for one in told
        ]
        return round(max(longest), 2)

    def _term(self) -> int:
        """The term of the group: it grows with every election."""
        states: list[list[dict[str, Any]]] = [
            self.lab.ask(host, "status")["groups"] for host in self.lab.plan.hosts
        ]
        return max(int(group["term"]) for groups in states for group in groups)

    def _trial(self, sender: str, listener: str, by: str) -> Trial:
        trial = self._trials.get((sender, listener))
        if trial is None:
            trial = self._trials[sender, listener] = Trial(self.lab, sender, listener)
        flow = Flow(by)
        if flow != trial.flow:
            self.lab.warm_up()
            trial.flow = flow
            request = {"size": FLOW_BYTES, "every_ms": FLOW_EVERY_MS, "fill": PAYLOAD.hex()}
            self.lab.ask(sender, "flow", to=listener, by=by, protocol="", **request)
        return trial

    def _watch(self, trial: Trial, watched: _Watched, began: int, until: int) -> None:
        while monotonic_ns() < until:
            told = {host: self._incidents(host) for host in self.lab.plan.hosts}
            watched.take(told, trial.path_in_use(), (monotonic_ns() - began) / MILLISECOND)
            time.sleep(_POLL_S)


class _Watched:
    """The incidents that the nodes have shown so far."""

    def __init__(self, case: Case, left: Left) -> None:
        self.right_ms = -1.0
        self.lacking: list[str] = []
        self.false: dict[str, None] = {}
        self.incidents = 0
        self.place = False
        self.worse_moves = 0
        self._case = case
        self._left = left
        self._path = ""

    def take(self, told: Told, path: str, age_ms: float) -> None:
        told = without(told, self._left)
        self.lacking, false = judge_incidents(self._case, told)
        self.false |= dict.fromkeys(false)
        if not self.lacking and self.right_ms < 0:
            self.right_ms = round(age_ms, 1)
        self.incidents = max(len(shown) for shown in told.values())
        self.place = all(
            any(one["place"].startswith(self._case.place) for one in shown)
            for shown in told.values()
        )
        before, self._path = self._path, path
        self.worse_moves += bool(before) and self._is_hit(path) and not self._is_hit(before)

    def _is_hit(self, path: str) -> bool:
        """Whether the path of the flow, between the first two ends, is affected."""
        sender, listener, _ = self._case.hit[0]
        return (sender, listener, path.partition("/")[0]) in self._case.hit


def without(told: Told, left: Left) -> Told:
    """What is shown, without what was shown before."""
    return {
        name: [one for one in shown if (one["place"], one["error_class"]) not in left]
        for name, shown in told.items()
    }


def judge_incidents(case: Case, told: Told) -> tuple[list[str], list[str]]:
    """What the listeners of the affected paths do not report, and what any node reports wrongly."""
    lacking = [text for path in case.hit for text in _lacks(case, path, told.get(path[1], []))]
    false = [
        f"{name}: {one['error_class']} {','.join(one['kinds'])} of {one['place']}"
        for name, shown in told.items()
        for one in shown
        if not _is_true(case, one)
    ]
    return lacking, false


def _lacks(case: Case, path: tuple[str, str, str], shown: Iterable[Mapping[str, Any]]) -> list[str]:
    text = _text(path)
    mine = [one for one in shown if text in one["paths"]]
    found = []
    for wanted in case.classes:
        fitting = [one for one in mine if one["error_class"] == wanted]
        directions = {one["direction"] for one in fitting}
        if not fitting:
            found.append(f"{wanted} of {text} is not shown")
        elif case.one_way is not None and directions != {
            "one way" if case.one_way else "both ways"
        }:
            found.append(f"{wanted} of {text} has the direction {sorted(directions)}")
        elif case.limit and not any(f"over {case.limit} bytes" in one["text"] for one in fitting):
            found.append(f"the limit of {text} is not {case.limit}")
    return found


def _is_true(case: Case, one: Mapping[str, Any]) -> bool:
    hit = {_text(path) for path in case.hit}
    aside = {_text(path) for path, error_class in case.aside if error_class == one["error_class"]}
    if one["error_class"] not in (*case.classes, *case.allowed):
        return False
    if case.kinds and not {*one["kinds"]} <= {*case.kinds}:
        return False
    return {*one["paths"]} <= hit | aside


def _text(path: tuple[str, str, str]) -> str:
    """A path as incidents name it: adapters are called like their subnets."""
    sender, listener, subnet = path
    return f"{sender}/{subnet} -> {listener}/{subnet}"
