"""Advice: what the pipeline tells running nodes, and how a node follows it without being led astray.

Advice ranks paths; it never forbids one. It carries the snapshot it was made of, how long it is valid, and separate
thresholds for beginning and for ending to avoid a path. The pipeline marks at most `moves_max` paths of the whole
domain to be avoided. A node judges by its own clock whether advice is stale.

Values are integers: risks in parts per million, times in microseconds UTC. This module is the schema and the rule; the
file is read by `holdfast.recording.advice`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

VERSION: Final = 1
PPM: Final = 1_000_000
SKEW_US: Final = 300 * 1_000_000
"""How far the pipeline's clock may be ahead of the node's."""

PathId = tuple[str, str, str, str, str, str]
"""Sender, sender adapter, listener, listener adapter, subnet, transport."""


class PathRisk(msgspec.Struct, frozen=True, gc=False):
    """The risk that a path gets a soft error before `until_us`."""

    path: PathId
    risk_ppm: int
    until_us: int
    avoid: bool = False
    """Whether the path is among those that the domain may move away from."""
    why: str = ""


class BusyWindow(msgspec.Struct, frozen=True, gc=False):
    """When an adapter is expected to be busy, and which share of its diagnostics it should keep."""

    node: str
    adapter: str
    start_us: int
    end_us: int
    probe_share_ppm: int


class Placement(msgspec.Struct, frozen=True, gc=False):
    """How sound the paths of a node are: replicas are better off on nodes with a high share."""

    node: str
    sound_ppm: int
    at_risk_ppm: int

    @property
    def bad_ppm(self) -> int:
        """The share of the paths of the node that are not sound, or are at risk."""
        return max(0, min(PPM, PPM - self.sound_ppm + self.at_risk_ppm))


class Unsound(msgspec.Struct, frozen=True, gc=False):
    """A node that replicas should leave, since when, and the share of its paths that are bad."""

    node: str
    since_us: int
    bad_ppm: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One edition of advice."""

    version: int = VERSION
    snapshot: int
    created_us: int
    valid_until_us: int
    enter_ppm: int = 500_000
    leave_ppm: int = 300_000
    dwell_us: int = 600 * 1_000_000
    """A path that is avoided stays so for at least this long."""
    moves_max: int = 10
    risks: tuple[PathRisk, ...] = ()
    busy: tuple[BusyWindow, ...] = ()
    placements: tuple[Placement, ...] = ()
    findings: tuple[str, ...] = ()
    """What the pipeline found, in words, for the page of each node."""

    def problem(self, now_us: int) -> str:
        """Why this advice must not be followed now; empty if it may."""
        if self.version != VERSION:
            return f"advice has version {self.version}, this node reads {VERSION}"
        if not 0 <= self.leave_ppm < self.enter_ppm <= PPM:
            return "the thresholds are not leave < enter"
        if self.moves_max < 0 or self.dwell_us < 0:
            return "a negative limit"
        if self.created_us > now_us + SKEW_US:
            return "it was made in the future: check the clocks"
        if now_us > self.valid_until_us:
            return f"it expired {(now_us - self.valid_until_us) // 1_000_000} s ago"
        return ""


class Avoided(msgspec.Struct, frozen=True, gc=False):
    """A path that the node avoids, since when, and why."""

    path: PathId
    since_us: int
    risk_ppm: int
    why: str


class Follower:
    """What a node makes of advice: which paths it avoids now. Without valid advice it avoids none."""

    def __init__(self) -> None:
        self.snapshot = 0
        self.problem = "no advice"
        self._advice: Advice | None = None
        self._risks: dict[PathId, PathRisk] = {}
        self._avoided: dict[PathId, Avoided] = {}
        self._unsound: dict[str, Unsound] = {}

    def take(self, advice: Advice, now_us: int) -> None:
        """A new edition; an older one than the one in force is ignored. Numbers begin again when the output of the
        pipeline is made again, so time decides first."""
        known = self._advice
        if known is not None and _age(advice) < _age(known):
            return
        self._advice = advice
        self.snapshot = advice.snapshot
        self._risks = {risk.path: risk for risk in advice.risks}
        self.refresh(now_us)

    @property
    def advice(self) -> Advice | None:
        """The edition that was taken last, followed or not."""
        return self._advice

    def drop(self, problem: str) -> None:
        """There is no advice any more: nothing is avoided."""
        self._advice = None
        self.snapshot = 0
        self.problem = problem
        self._risks.clear()
        self._avoided.clear()
        self._unsound.clear()

    def refresh(self, now_us: int) -> None:
        """Apply thresholds, dwell time and validity at this moment."""
        advice = self._advice
        if advice is None:
            return
        self.problem = advice.problem(now_us)
        if self.problem:
            self._avoided.clear()
            self._unsound.clear()
            return
        self._unsound = unsound_nodes(advice, self._unsound, now_us)
        kept: dict[PathId, Avoided] = {}
        for path, avoided in self._avoided.items():
            left_ppm = self._risk(path, now_us)
            if left_ppm >= advice.leave_ppm or now_us - avoided.since_us < advice.dwell_us:
                kept[path] = avoided
        entering = sorted(
            (risk for risk in self._risks.values() if risk.avoid and risk.path not in kept),
            key=lambda risk: (-risk.risk_ppm, risk.path),
        )
        for risk in entering:
            current = self._risk(risk.path, now_us)
            if current >= advice.enter_ppm and len(kept) < advice.moves_max:
                kept[risk.path] = Avoided(risk.path, now_us, current, risk.why)
        self._avoided = kept

    def avoided(self) -> tuple[Avoided, ...]:
        """The paths that are avoided, as of the last `refresh`."""
        return tuple(self._avoided.values())

    def unsound(self) -> tuple[Unsound, ...]:
        """The nodes that replicas should leave, worst first, as of the last `refresh`."""
        return tuple(sorted(self._unsound.values(), key=lambda one: (-one.bad_ppm, one.node)))

    def rank(self, candidates: Sequence[PathId]) -> list[PathId]:
        """Paths that satisfy a need now, best first: avoided ones go to the end, the rest keeps its order.

        A path that is not a candidate is never added, and none is removed: with only avoided paths left, they are used.
        """
        fine = [path for path in candidates if path not in self._avoided]
        risky = [path for path in candidates if path in self._avoided]
        order = {path: place for place, path in enumerate(candidates)}
        risky.sort(key=lambda path: (self._avoided[path].risk_ppm, order[path]))
        return fine + risky

    def probe_share_ppm(self, node: str, adapter: str, now_us: int) -> int:
        """The share of diagnostics that an adapter should send now; all of them outside busy windows."""
        advice = self._advice
        if advice is None or advice.problem(now_us):
            return PPM
        shares = [
            window.probe_share_ppm
            for window in advice.busy
            if (window.node, window.adapter) == (node, adapter)
            and window.start_us <= now_us < window.end_us
        ]
        return max(0, min(shares, default=PPM))

    def _risk(self, path: PathId, now_us: int) -> int:
        risk = self._risks.get(path)
        return risk.risk_ppm if risk is not None and now_us <= risk.until_us else 0


def unsound_nodes(advice: Advice, before: Mapping[str, Unsound], now_us: int) -> dict[str, Unsound]:
    """The nodes that replicas should leave, with the thresholds and the dwell time that paths have.

    Never half of the nodes or more: a fault that concerns so many is not a fault of nodes, and there is no place to go.
    """
    room = min(advice.moves_max, (len(advice.placements) - 1) // 2)
    worst = sorted(
        advice.placements, key=lambda one: (one.node not in before, -one.bad_ppm, one.node)
    )
    found: dict[str, Unsound] = {}
    for placement in worst:
        known = before.get(placement.node)
        limit = advice.enter_ppm if known is None else advice.leave_ppm
        dwells = known is not None and now_us - known.since_us < advice.dwell_us
        if len(found) < room and (placement.bad_ppm >= limit or dwells):
            since_us = now_us if known is None else known.since_us
            found[placement.node] = Unsound(placement.node, since_us, placement.bad_ppm)
    return found


def _age(advice: Advice) -> tuple[int, int]:
    return advice.created_us, advice.snapshot


def mark_avoided(
    risks: Iterable[PathRisk],
    previous: Mapping[PathId, int],
    enter_ppm: int,
    leave_ppm: int,
    moves_max: int,
) -> tuple[PathRisk, ...]:
    """Risks with the `moves_max` gravest marked, for the whole domain.

    `previous` are the paths that the last edition marked, with their risk: those stay marked down to `leave_ppm` and
    come first, so that a path just below the threshold does not flap.
    """
    ordered = sorted(risks, key=lambda risk: (risk.path not in previous, -risk.risk_ppm, risk.path))
    marked: list[PathRisk] = []
    used = 0
    for risk in ordered:
        limit = leave_ppm if risk.path in previous else enter_ppm
        avoid = risk.risk_ppm >= limit and used < moves_max
        used += avoid
        marked.append(msgspec.structs.replace(risk, avoid=avoid))
    return tuple(sorted(marked, key=lambda risk: (-risk.risk_ppm, risk.path)))
