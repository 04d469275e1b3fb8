"""The explanation of failing and passing paths by as few faulty risk groups as possible.

Greedy cover in the manner of SCORE, but scored by a noisy-OR likelihood: a path fails if one of its faulty groups
breaks it (probability `strength` each) or by itself (`leak`). Passing paths speak against a group as failing ones speak
for it. A group is added while it makes the observation more probable than its own prior makes it improbable.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from holdfast.pipeline.transforms.risk_groups import PRIORS, RiskGroup, groups_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    Floats = npt.NDArray[np.float64]

_RANK: Final = {kind: rank for rank, kind in enumerate(PRIORS)}
_EPSILON: Final = 1e-9
_MARGIN_MAX: Final = 700.0
"""Beyond this `exp` overflows, and confidence is 1 anyway."""


class CoverSettings(msgspec.Struct, frozen=True):
    """How faults are searched for."""

    leak: float = 0.002
    """Probability that a path fails in a bucket without any fault of a group."""
    strengths: tuple[tuple[float, float], ...] = (
        (0.9999, 0.4),
        (0.99, 0.3),
        (0.95, 0.2),
        (0.7, 0.1),
    )
    """How often a faulty group breaks a path of it, with the prior probability of each case. The last one is a fault
    that hits some flows only. Were the largest one much below 1, thousands of failing paths would each leave a little
    to explain, and a second fault would be found inside the first."""
    hit_ratios: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Shares of failing paths that a group must have to be chosen first, as in SCORE; the best result counts."""
    faults_max: int = 8
    """At most this many simultaneous faults per symptom and bucket."""
    rounds_max: int = 4
    """How often chosen groups are exchanged for better ones."""


class Located(msgspec.Struct, frozen=True):
    """One fault: the groups that the observed paths cannot tell apart, best first."""

    groups: tuple[RiskGroup, ...]
    margin: float
    """Log odds of this explanation against the next best one."""
    runner_up: RiskGroup | None
    failing: int
    passing: int

    @property
    def confidence(self) -> float:
        return 1 / (1 + math.exp(-min(self.margin, _MARGIN_MAX)))


class _Candidate(msgspec.Struct, frozen=True):
    """Groups with the same members. Only the failing members are kept one by one."""

    groups: tuple[RiskGroup, ...]
    failing: npt.NDArray[np.int64]
    passing: int
    log_prior: float
    hit_ratio: float


class Explanation(msgspec.Struct, frozen=True):
    """All faults of one symptom in one bucket, and how many failing paths remain unexplained."""

    faults: tuple[Located, ...]
    unexplained: int


def explain(paths: pd.DataFrame, settings: CoverSettings | None = None) -> Explanation:
    """Locate the faults that explain the column `failing` of `paths` best."""
    search = _Search(paths, settings or CoverSettings())
    chosen = search.grow_best([], frozenset())
    for _ in range(search.settings.rounds_max):
        better = search.exchange(chosen)
        if better is None:
            break
        chosen = better
    return search.result(chosen)


_Choice = tuple[int, float]
"""A candidate's number and the strength of its fault."""


class _Search:
    """Greedy choice of candidates, each with the strength that suits it."""

    def __init__(self, paths: pd.DataFrame, settings: CoverSettings) -> None:
        self.settings = settings
        self.failing = paths["failing"].to_numpy(dtype=bool)
        self.candidates = _candidates(paths, self.failing)
        # The failing members of all candidates one after the other, for work on all of them at once.
        sizes = [len(candidate.failing) for candidate in self.candidates]
        self._offsets = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)]).astype(
            np.int64
        )
        self._members = np.concatenate(
            [candidate.failing for candidate in self.candidates] or [np.empty(0, np.int64)]
        )
        self._passing = np.array([candidate.passing for candidate in self.candidates])
        self._log_priors = np.array([candidate.log_prior for candidate in self.candidates])

    def grow(self, chosen: list[_Choice], banned: frozenset[int]) -> list[_Choice]:
        """Add the best candidate until none makes the observation more probable."""
        grown = list(chosen)
        while len(grown) < self.settings.faults_max:
            best, strength, gain = self._best(self._survival(grown), grown, banned)
            if best is None or gain <= 0:
                break
            grown.append((best, strength))
        return grown

    def grow_best(self, chosen: list[_Choice], banned: frozenset[int]) -> list[_Choice]:
        """The best of several greedy runs, each starting with groups of which at least some share fails.

        Greedy choice may begin with a wide group where several narrow ones are more probable.
        """
        trials = []
        for share in self.settings.hit_ratios:
            vague = (i for i, other in enumerate(self.candidates) if other.hit_ratio < share)
            trials.append(self.grow(self.grow(chosen, banned.union(vague)), banned))
        return max(trials, key=self._score)

    def exchange(self, chosen: list[_Choice]) -> list[_Choice] | None:
        """A better explanation with one choice removed or replaced by one or several others, if there is one."""
        score = self._score(chosen)
        for place, (index, _) in enumerate(chosen):
            trial = self.grow_best(_without(chosen, place), frozenset([index]))
            if self._score(trial) > score + _EPSILON:
                return trial
        return None

    def result(self, chosen: list[_Choice]) -> Explanation:
        faults = []
        score = self._score(chosen)
        covered = np.zeros(len(self.failing), dtype=bool)
        for place, (index, _) in enumerate(chosen):
            candidate = self.candidates[index]
            rest = _without(chosen, place)
            instead = self.grow_best(rest, frozenset([index]))
            runner_up = (
                self.candidates[instead[len(rest)][0]].groups[0]
                if len(instead) > len(rest)
                else None
            )
            members = candidate.failing
            covered[members] = True
            margin = score - self._score(instead)
            faults.append(
                Located(candidate.groups, margin, runner_up, len(members), candidate.passing)
            )
        faults.sort(key=lambda fault: (-fault.failing, fault.groups[0]))
        return Explanation(tuple(faults), int(np.count_nonzero(self.failing & ~covered)))

    def _score(self, chosen: list[_Choice]) -> float:
        """Log posterior odds of an explanation against 'no fault at all'; the order of choices does not matter."""
        priors = dict(self.settings.strengths)
        return sum(
            float(self._gains(self._survival(chosen[:place]), strength, priors[strength])[index])
            for place, (index, strength) in enumerate(chosen)
        )

    def _survival(self, chosen: list[_Choice]) -> Floats:
        """For each path the probability that no chosen fault and no leak breaks it."""
        survival = np.full(len(self.failing), 1 - self.settings.leak)
        for index, strength in chosen:
            survival[self.candidates[index].failing] *= 1 - strength
        return survival

    def _best(
        self, survival: Floats, taken: list[_Choice], banned: frozenset[int]
    ) -> tuple[int | None, float, float]:
        """The candidate that adds most log probability; the first of equals."""
        best: tuple[int | None, float, float] = (None, 0.0, -math.inf)
        if not self.candidates:
            return best
        used = np.array(sorted(banned.union(index for index, _ in taken)), dtype=np.int64)
        for strength, prior in self.settings.strengths:
            gains = self._gains(survival, strength, prior)
            gains[used] = -math.inf
            index = int(np.argmax(gains))
            if gains[index] > best[2]:
                best = (index, strength, float(gains[index]))
        return best

    def _gains(self, survival: Floats, strength: float, prior: float) -> Floats:
        """Log posterior odds of adding each candidate to what is chosen, all at once."""
        per_path = np.log1p(-survival * (1 - strength)) - np.log1p(-survival)
        explained = np.add.reduceat(per_path[self._members], self._offsets)
        against = self._passing * math.log1p(-strength)
        gains: Floats = explained + against + self._log_priors + math.log(prior)
        return gains


def _candidates(paths: pd.DataFrame, failing: npt.NDArray[np.bool_]) -> list[_Candidate]:
    """All groups with a failing member; those with the same members are one candidate."""
    alike: dict[bytes, list[RiskGroup]] = {}
    members_of: dict[bytes, npt.NDArray[np.int64]] = {}
    for group, members in groups_of(paths):
        if failing[members].any():
            key = members.tobytes()
            alike.setdefault(key, []).append(group)
            members_of[key] = members
    found = []
    for key, groups in alike.items():
        groups.sort(key=lambda group: (_RANK[group.kind], group.name))
        groups.sort(key=lambda group: -PRIORS[group.kind])
        prior = PRIORS[groups[0].kind]
        members = members_of[key]
        bad = members[failing[members]]
        log_odds = math.log(prior) - math.log1p(-prior)
        hit_ratio = len(bad) / len(members)
        found.append(_Candidate(tuple(groups), bad, len(members) - len(bad), log_odds, hit_ratio))
    return found


def _without(chosen: list[_Choice], place: int) -> list[_Choice]:
    return chosen[:place] + chosen[place + 1 :]
