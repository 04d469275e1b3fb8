"""`holdfast sim groups`: a fault campaign of simulated runs against replicated groups, several at a time."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from shlex import join as shell_join
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from holdfast.errors import MisuseError, SetupError

if TYPE_CHECKING:
    from holdfast.sim.campaign import GroupRun
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
    stability: Annotated[
        str,
        typer.Option(
            metavar="<protocol>",
            help="Detect stability with cube, coord, full or tree, instead of what the seed takes.",
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per seed.")
    ] = False,
) -> None:
    """Run a fault campaign against groups, one run per seed, and check their guarantees.

    Exit code 0: every check held and enough was exercised; 1: not; 2: misuse, or the run was too short to tell.
    """
    from holdfast.cli.sim import seed_range
    from holdfast.stability.config import PROTOCOLS

    try:
        numbers = seed_range(seeds) if seeds else range(seed, seed + 1)
        if len(numbers) > 1 and (trace is not None or smaller):
            raise MisuseError("--trace and --shrink take one seed; nothing was run")
        if stability and stability not in PROTOCOLS:
            raise MisuseError(
                f"--stability must be one of {', '.join(PROTOCOLS)}, not {stability!r}; nothing was run"
            )
        options = _Options(seconds, scenario, services, stability)
        options.scenario_of(numbers[0])  # misuse is reported before anything runs
        if plan:
            for number in numbers:
                typer.echo(_planned(number, options), nl=False)
        elif smaller:
            _shrink(seed, options)
        elif code := _campaign(_Tasks(numbers, options, trace), jobs, failures, covered, as_json):
            raise typer.Exit(code)
    except (MisuseError, SetupError, OSError) as error:
        typer.echo(f"holdfast sim groups: {error}", err=True)
        raise typer.Exit(2) from None


class _Options(NamedTuple):
    """What the runs of a campaign have in common."""

    seconds: int
    scenario: str
    services: bool
    stability: str

    def run_of(self, seed: int) -> GroupRun:
        from holdfast.sim.campaign import draw

        return draw(seed, self.seconds, self.services, self.stability)

    def scenario_of(self, seed: int) -> Scenario:
        from holdfast.sim.scenario import load_scenario

        return load_scenario(self.scenario) if self.scenario else self.run_of(seed).scenario()

    def replay(self, seed: int) -> str:
        """The command that repeats the run of a seed."""
        from holdfast.sim.campaign import SECONDS

        words = ["holdfast", "sim", "groups", "--seed", str(seed)]
        words += ["--seconds", str(self.seconds)] if self.seconds != SECONDS else []
        words += ["--services"] if self.services else []
        words += ["--stability", self.stability] if self.stability else []
        return shell_join(words + (["--scenario", self.scenario] if self.scenario else []))


class _Tasks:
    """The runs: seeds and common options."""

    def __init__(self, seeds: range, options: _Options, trace: Path | None) -> None:
        self.seeds = seeds
        self._options = options
        self._trace = trace

    def outcomes(self, jobs: int) -> Iterator[dict[str, Any]]:
        """In the order of the seeds with one process, in order of completion with several."""
        if jobs == 1:
            for seed in self.seeds:
                yield _run((seed, self._options, self._trace))
            return
        tasks = ((seed, self._options, None) for seed in self.seeds)
        # Spawned: a forked process would copy the state of this one, and threads of libraries do not survive it.
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            yield from pool.imap_unordered(_run, tasks)


def _planned(seed: int, options: _Options) -> str:
    return f"# seed {seed}: {options.run_of(seed).text()}\n{options.scenario_of(seed).text()}"


def _run(task: tuple[int, _Options, Path | None]) -> dict[str, Any]:
    from holdfast.sim.campaign import simulate
    from holdfast.sim.trace import Trace

    seed, options, trace = task
    run, steps, replay = options.run_of(seed), options.scenario_of(seed), options.replay(seed)
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


def _shrink(seed: int, options: _Options) -> None:
    from holdfast.sim.campaign import failure, shrink

    run, first = options.run_of(seed), options.scenario_of(seed)
    small, attempts = shrink(run, first)
    broken = failure(run, small)
    if broken is None:
        typer.echo(f"# seed {seed} violates nothing; there is nothing to shrink", err=True)
        raise typer.Exit(1)
    typer.echo(f"# seed {seed}: {run.text()}; violates '{broken}' after {attempts} runs")
    typer.echo(small.text(), nl=False)
