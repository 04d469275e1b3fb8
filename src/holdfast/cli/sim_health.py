"""`holdfast sim health`: random faults in virtual time; checks that each is detected, diagnosed and routed around."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.errors import MisuseError

if TYPE_CHECKING:
    from holdfast.sim.sweep.trial import Outcome

STALL_MS: Final = 60
RIGHT_SHARE: Final = 0.95
QUICK_MS: Final = 2000


def health(
    seeds: Annotated[
        str, typer.Option(help="Run all seeds from A to B, inclusive; one fault each.")
    ] = "1..50",
    family: Annotated[str, typer.Option(help="Only this class of fault.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Inject one random fault per seed, and check class, direction, limit, place, moves, stalls and leadership. Exit
    code 0: all targets are met; 1: some are not; 2: misuse."""
    from holdfast.cli.sim import seed_range
    from holdfast.sim.sweep.draw import FAMILIES
    from holdfast.sim.sweep.trial import run_trial

    try:
        numbers = seed_range(seeds)
        if family and family not in FAMILIES:
            raise MisuseError(f"--family {family!r} is not one of {', '.join(FAMILIES)}")
    except MisuseError as error:
        typer.echo(f"holdfast sim health: {error}", err=True)
        raise typer.Exit(2) from None
    names = list(FAMILIES)
    outcomes = []
    for number in numbers:
        outcome = run_trial(number, family or names[number % len(names)])
        outcomes.append(outcome)
        if not as_json:
            typer.echo(_line(outcome))
    summary = summary_of(outcomes)
    typer.echo(json.dumps(summary) if as_json else _text(summary))
    raise typer.Exit(0 if all(aim["met"] for aim in summary["aims"].values()) else 1)


def problems_of(outcome: Outcome) -> list[str]:
    """The wrong results of one trial."""
    found = [*outcome.missed, *(f"false: {text}" for text in outcome.false)]
    if outcome.incidents > 1:
        found.append(f"{outcome.incidents} incidents: {', '.join(outcome.shown)}")
    if outcome.verdict_ms is not None and not outcome.place:
        found.append("no incident names the place")
    found += [f"in history: {text}" for text in outcome.history]
    found += [f"claimed after the end: {text}" for text in outcome.afterwards]
    found += [f"worse move: {text}" for text in outcome.worse_moves]
    if outcome.leaders and outcome.clean_left:
        found.append(f"{outcome.leaders} changes of leadership")
    return found


def summary_of(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Figures and targets over all trials."""
    trials = list(outcomes)
    judged = [one for one in trials if one.verdict_ms is not None or one.missed]
    right = sum(not one.missed for one in judged)
    times = sorted(one.verdict_ms for one in judged if one.verdict_ms is not None)
    quick = sum(not one.missed and (one.verdict_ms or 0) <= QUICK_MS for one in judged)
    shown = [one.incidents for one in judged]
    figures = {
        "trials": len(trials),
        "right_share": round(right / len(judged), 3) if judged else 1.0,
        "right_within_2_s_share": round(quick / len(judged), 3) if judged else 1.0,
        "verdict_ms_p50": times[len(times) // 2] if times else 0,
        "verdict_ms_max": times[-1] if times else 0,
        "false_accusations": sum(bool(one.false) for one in trials),
        "wrong_history": sum(bool(one.history) for one in trials),
        "claims_after_the_end": sum(bool(one.afterwards) for one in trials),
        "incidents_max": max((one.incidents for one in trials), default=0),
        "incidents_per_cause": round(sum(shown) / len(shown), 3) if shown else 0.0,
        "worse_moves": sum(len(one.worse_moves) for one in trials),
        "stall_ms_max": max((one.stall_ms for one in trials), default=0),
        "group_gap_ms_max": max((one.group_stall_ms for one in trials), default=0),
        "leadership_changes": sum(one.leaders for one in trials if one.clean_left),
        "calm_bytes_per_path": max((one.calm_bytes for one in trials), default=0),
    }
    families = {name: _family(trials, name) for name in dict.fromkeys(t.family for t in trials)}
    return {"name": "sim health", "figures": figures, "families": families, "aims": _aims(figures)}


def _family(trials: Iterable[Outcome], family: str) -> dict[str, Any]:
    """Figures of one class of fault."""
    own = [one for one in trials if one.family == family]
    times = sorted(one.verdict_ms for one in own if one.verdict_ms is not None)
    return {
        "trials": len(own),
        "right": sum(not one.missed for one in own),
        "verdict_ms_p50": times[len(times) // 2] if times else 0,
        "false": sum(bool(one.false or one.history) for one in own),
        "one_incident": sum(one.incidents <= 1 for one in own),
        "stall_ms_max": max(one.stall_ms for one in own),
    }


def _aims(figures: Mapping[str, Any]) -> dict[str, Any]:
    most = {
        "false_accusations": 0,
        "wrong_history": 0,
        "claims_after_the_end": 0,
        "incidents_max": 1,
        "worse_moves": 0,
        "stall_ms_max": STALL_MS,
        "leadership_changes": 0,
    }
    aims = {
        name: {"value": figures[name], "target": target, "met": figures[name] <= target}
        for name, target in most.items()
    }
    share = figures["right_share"]
    aims["right_share"] = {"value": share, "target": RIGHT_SHARE, "met": share >= RIGHT_SHARE}
    return aims


def _line(outcome: Outcome) -> str:
    problems = problems_of(outcome)
    took = f"{outcome.verdict_ms} ms" if outcome.verdict_ms is not None else "-"
    head = f"{outcome.seed} {outcome.fault}: verdict {took}, stall {outcome.stall_ms} ms"
    return "\n".join([head, *(f"    {text}" for text in problems), *_replay(problems, outcome)])


def _replay(problems: list[str], outcome: Outcome) -> list[str]:
    return [f"    replay: {outcome.replay}"] if problems else []


def _text(summary: Mapping[str, Any]) -> str:
    lines = [
        f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}"
        for name, figures in summary["families"].items()
    ]
    lines += [f"{name}: {value}" for name, value in summary["figures"].items()]
    missed = [name for name, aim in summary["aims"].items() if not aim["met"]]
    return "\n".join(
        [*lines, f"targets not met: {', '.join(missed)}" if missed else "all targets are met"]
    )
