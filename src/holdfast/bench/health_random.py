"""Faults with random values in the lab: how many are identified correctly, and their effect on traffic."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import monotonic_ns
from typing import Final

from holdfast.bench.report import Report
from holdfast.errors import HoldfastError
from holdfast.lab.lab import Lab
from holdfast.lab.random_trial import FAMILIES, RandomOutcome, RandomTrial
from holdfast.sim.sweep.draw import draw
from holdfast.types import SECOND

WITHIN_MS: Final = 2000.0
RIGHT_AIM: Final = 0.95
STALL_MS_AIM: Final = 60.0
STALL_MS_WORST: Final = 200.0
"""Of a flow and of the group."""
SHOWN_MAX: Final = 20
EXTRA_S: Final = 25.0
"""The mean time that one fault may take besides its own; when all have taken more, the rest is left out."""


def random_faults(
    report: Report, say: Callable[[str], None], lab: Lab, count: int, seconds: float, seed: int
) -> None:
    """`count` faults, one family after the other; the seed determines all of them. Ends after a bounded time."""
    trial, outcomes, failed = RandomTrial(lab), [], []
    deadline = monotonic_ns() + round(count * (seconds + EXTRA_S) * SECOND)
    for number in range(count):
        if monotonic_ns() >= deadline:
            failed.append(f"{count - number} faults: the time was up")
            break
        family = FAMILIES[number % len(FAMILIES)]
        case = draw(Random(seed + number), family)
        say(f"in the lab: random fault {number + 1} of {count}: {case.fault}")
        try:
            outcomes.append(trial.run(case, seconds))
        except HoldfastError as error:
            failed.append(f"{case.fault}: {error}")
            lab.heal()
    report.env["lab_random_seed"] = seed
    report.env["lab_random_not_run"] = failed
    if outcomes:
        add_figures(report, outcomes)


def add_figures(report: Report, outcomes: list[RandomOutcome]) -> None:
    """Figures over all trials and for each family, and the targets."""
    named = [one for one in outcomes if one.family != "noise"]
    right = [one for one in named if _is_right(one)]
    share = round(len(right) / len(named), 3) if named else 1.0
    stall_ms = max(one.stall_ms for one in outcomes)
    false = sum(bool(one.false) for one in outcomes)
    worse = sum(one.worse_moves for one in outcomes)
    several = sum(one.incidents > 1 for one in outcomes)
    report.figures |= {
        "lab_random_faults": len(outcomes),
        "lab_random_right_within_2_s_share": share,
        "lab_random_verdict_ms_median": _median([o.verdict_ms for o in named if o.verdict_ms >= 0]),
        "lab_random_false_accusations": false,
        "lab_random_several_incidents": several,
        "lab_random_worse_moves": worse,
        "lab_random_stall_ms_median": _median([one.stall_ms for one in outcomes]),
        "lab_random_stall_ms_max": stall_ms,
        "lab_random_group_ms_median": _median([one.group_ms for one in outcomes]),
        "lab_random_group_ms_max": (group_ms := max(one.group_ms for one in outcomes)),
        "lab_random_incidents_left": sum(bool(one.left) for one in outcomes),
        "lab_random_leadership_changes": (leaders := sum(one.leaders for one in outcomes)),
    }
    for family in dict.fromkeys(one.family for one in outcomes):
        own = [one for one in outcomes if one.family == family]
        report.figures[f"lab_random_{family}_right"] = sum(map(_is_right, own)) / len(own)
        report.figures[f"lab_random_{family}_stall_ms_max"] = max(one.stall_ms for one in own)
    report.env["lab_random_wrong"] = [
        f"{one.fault}: {'; '.join((*one.lacking, *one.false)) or 'late or elsewhere'}"
        for one in outcomes
        if one.false or (one.family != "noise" and not _is_right(one))
    ][:SHOWN_MAX]
    report.env["lab_random_left"] = [
        f"before {one.fault}: {'; '.join(one.left)}" for one in outcomes if one.left
    ][:SHOWN_MAX]
    report.aim("lab_random_right_share", share, RIGHT_AIM)
    report.aim_below("lab_random_false_accusations", false, 0)
    report.aim_below("lab_random_several_incidents", several, 0)
    report.aim_below("lab_random_worse_moves", worse, 0)
    report.aim_below("lab_random_leadership_changes", leaders, 0)
    report.aim_below("lab_random_stall_ms", stall_ms, STALL_MS_WORST)
    report.aim_below("lab_random_group_ms", group_ms, STALL_MS_WORST)
    report.aim_below(
        "lab_random_stall_ms_median", report.figures["lab_random_stall_ms_median"], STALL_MS_AIM
    )


def _is_right(one: RandomOutcome) -> bool:
    in_time = 0 <= one.verdict_ms <= WITHIN_MS or (one.family == "flapping" and one.verdict_ms >= 0)
    return one.family == "noise" or (in_time and one.place and not one.false)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else -1.0
