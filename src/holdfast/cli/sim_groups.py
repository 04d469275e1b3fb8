"""`holdfast sim groups`: a fault campaign of simulated runs against replicated groups, several at a time."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from shlex import join as shell_join
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.errors import MisuseError, SetupError

if TYPE_CHECKING:
    from holdfast.sim.scenario import Scenario

PROGRESS_EVERY: Final = 25


def groups(
    seed: Annotated[int, typer.Option(help="The seed that determines group, load and faults.")] = 1,
    seeds: Annotated[str, typer.Option(help="Run all seeds from A to B instead, inclusive.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 1,
    failures: Annotated[int, typer.Option(help="Stop after this many failed runs.", min=1)] = 5,
    scenario: Annotated[
        str, typer.Option(help="A file or a name instead of the faults of the seed.")
    ] = "",
    seconds: Annotated[int, typer.Option(help="Virtual seconds of a run.", min=2, max=3600)] = 12,
    trace: Annotated[Path | None, typer.Option(help="Write every step to this file.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the scenario and do not run it.")
    ] = False,
    smaller: Annotated[
        bool,
        typer.Option("--shrink", help="Reduce a failing scenario and print it."),
    ] = False,
    covered: Annotated[
        bool, typer.Option(help="Fail if the campaign exercised too little.")
    ] = True,
    services: Annotated[
        bool, typer.Option("--services", help="Nodes also use locks and a barrier of the group.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per seed.")
    ] = False,
) -> None:
    """Run a fault campaign against groups, one run per seed, and check their guarantees.

    Exit code 0: every check held and enough was exercised; 1: not; 2: misuse, or the run was too short to tell.
    """
    from holdfast.cli.sim import seed_range

    try:
        numbers = seed_range(seeds) if seeds else range(seed, seed + 1)
        if len(numbers) > 1 and (trace is not None or smaller):
            raise MisuseError("--trace and --shrink take one seed; nothing was run")
        if plan:
            for number in numbers:
                typer.echo(_planned(number, seconds, scenario), nl=False)
        elif smaller:
            _shrink(seed, seconds, scenario)
        elif code := _campaign(
            _Tasks(numbers, seconds, scenario, trace, services), jobs, failures, covered, as_json
        ):
            raise typer.Exit(code)
    except (MisuseError, SetupError, OSError) as error:
        typer.echo(f"holdfast sim groups: {error}", err=True)
        raise typer.Exit(2) from None


class _Tasks:
    """The runs: seeds and common options."""

    def __init__(
        self, seeds: range, seconds: int, scenario: str, trace: Path | None, services: bool
    ) -> None:
        self.seeds = seeds
        self._services = services
        self._seconds = seconds
        self._scenario = scenario
        self._trace = trace
        _scenario_of(seeds[0], seconds, scenario)  # misuse is reported before anything runs

    def outcomes(self, jobs: int) -> Iterator[dict[str, Any]]:
        """In the order of the seeds with one process, in order of completion with several."""
        if jobs == 1:
            for seed in self.seeds:
                yield _run((seed, self._seconds, self._scenario, self._trace, self._services))
            return
        tasks = ((seed, self._seconds, self._scenario, None, self._services) for seed in self.seeds)
        # Spawned: a forked process would copy the state of this one, and threads of libraries do not survive it.
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            yield from pool.imap_unordered(_run, tasks)


def _scenario_of(seed: int, seconds: int, name: str) -> Scenario:
    from holdfast.sim.campaign import draw
    from holdfast.sim.scenario import load_scenario

    return load_scenario(name) if name else draw(seed, seconds).scenario()


def _planned(seed: int, seconds: int, scenario: str) -> str:
    from holdfast.sim.campaign import draw

    return f"# seed {seed}: {draw(seed, seconds).text()}\n{_scenario_of(seed, seconds, scenario).text()}"


def _run(task: tuple[int, int, str, Path | None, bool]) -> dict[str, Any]:
    from holdfast.sim.campaign import SECONDS, draw, simulate
    from holdfast.sim.trace import Trace

    seed, seconds, scenario, trace, services = task
    words = ["holdfast", "sim", "groups", "--seed", str(seed)]
    words += ["--seconds", str(seconds)] if seconds != SECONDS else []
    words += ["--services"] if services else []
    replay = shell_join(words + (["--scenario", scenario] if scenario else []))
    run, steps = draw(seed, seconds, services), _scenario_of(seed, seconds, scenario)
    began = perf_counter_ns()
    if trace is None:
        outcome = simulate(run, steps, None, replay)
    else:
        with trace.open("w") as file:
            outcome = simulate(run, steps, Trace(file), replay)
    return outcome | {"took_s": round((perf_counter_ns() - began) / 1e9, 3)}


def _campaign(tasks: _Tasks, jobs: int, failures: int, covered: bool, as_json: bool) -> int:
    """The exit code."""
    from holdfast.sim.campaign import AT_LEAST, SECONDS, add_coverage, not_exercised

    total = dict.fromkeys(AT_LEAST, 0)  # events that never happened are shown as well
    failed: list[dict[str, Any]] = []
    done = slowest_ms = short = 0
    for outcome in tasks.outcomes(jobs):
        done += 1
        add_coverage(total, outcome["coverage"])
        slowest_ms = max(slowest_ms, outcome["calm_ms"] or 0)
        if outcome["too_short"]:
            short += 1
        elif outcome["error"]:
            failed.append(outcome)
        if as_json:
            typer.echo(json.dumps(outcome))
        elif outcome["error"] or len(tasks.seeds) == 1:
            typer.echo(_text(outcome))
        elif done % PROGRESS_EVERY == 0:
            typer.echo(f"{done} of {len(tasks.seeds)} seeds, {len(failed)} failed")
        if len(failed) >= failures:
            break
    missing = not_exercised(total, done) if covered else []
    if not as_json:
        _show(total, missing, done, len(failed), slowest_ms)
    if short:
        typer.echo(
            f"{short} of {done} runs were too short to tell; use --seconds {SECONDS}", err=True
        )
    if failed or missing:
        return 1
    return 2 if short else 0


def _text(outcome: dict[str, Any]) -> str:
    verdict = "FAILED" if outcome["error"] else "fine"
    if outcome["too_short"]:
        verdict = "TOO SHORT"
    text = (
        f"seed {outcome['seed']}: {verdict}, {outcome['run']}, in {outcome['took_s']} s, "
        f"{outcome['delivered']} deliveries, {outcome['starts']} starts"
    )
    if outcome["calm_ms"] is not None:
        text += f", recovered {outcome['calm_ms']} ms after the last fault"
    if outcome["trace"]:
        text += f", trace {outcome['trace']}"
    return text if outcome["error"] is None else f"{text}\n{outcome['error']}"


def _show(
    total: dict[str, int], missing: list[str], done: int, failed: int, slowest_ms: int
) -> None:
    width = max(map(len, total))
    for event, count in sorted(total.items()):
        typer.echo(f"  {event:<{width}}{count:>9}")
    typer.echo(
        f"{done} seeds, {failed} failed; recovered at most {slowest_ms} ms after the last fault"
    )
    for text in missing:
        typer.echo(f"exercised too little: {text}")


def _shrink(seed: int, seconds: int, scenario: str) -> None:
    from holdfast.sim.campaign import draw, failure, shrink

    run, first = draw(seed, seconds), _scenario_of(seed, seconds, scenario)
    small, attempts = shrink(run, first)
    broken = failure(run, small)
    if broken is None:
        typer.echo(f"# seed {seed} violates nothing; there is nothing to shrink", err=True)
        raise typer.Exit(1)
    typer.echo(f"# seed {seed}: {run.text()}; violates '{broken}' after {attempts} runs")
    typer.echo(small.text(), nl=False)
