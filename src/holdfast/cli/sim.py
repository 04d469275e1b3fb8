"""`holdfast sim`: simulate whole domains, determined by one seed."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import join as shell_join
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from holdfast.cli.sim_dialogs import dialogs
from holdfast.cli.sim_groups import groups
from holdfast.cli.sim_health import health
from holdfast.cli.sim_objects import objects
from holdfast.errors import HoldfastError, MisuseError, SetupError

if TYPE_CHECKING:
    from holdfast.sim.scenario import Scenario

app = typer.Typer(
    name="sim",
    help="Simulate whole domains: production code, a virtual network, and one seed that "
    "determines the run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

SEEDS_MAX: Final = 1_000_000
NEMESIS: Final = "nemesis"
"""The random scenario, different for every seed."""
QUIET_SHARE: Final = 3
"""The last third of a run is without faults; everything must recover in it."""


class Request:
    """The options of a command, the same for each of its seeds."""

    def __init__(self, nodes: int, seconds: int, scenario: str, secure: bool) -> None:
        self.nodes = nodes
        self.seconds = seconds
        self.scenario = scenario
        self.secure = secure

    def replay(self, seed: int) -> str:
        """The command that replays the run of one seed."""
        words = ["holdfast", "sim", "run", "--seed", str(seed), "--nodes", str(self.nodes)]
        words += ["--seconds", str(self.seconds), "--scenario", self.scenario]
        return shell_join(words + (["--secure"] if self.secure else []))


app.command()(groups)
app.command()(objects)
app.command()(health)
app.command()(dialogs)


@app.command()
def run(
    seed: Annotated[int, typer.Option(help="The seed that determines the run.")] = 1,
    seeds: Annotated[str, typer.Option(help="Run all seeds from A to B instead, inclusive.")] = "",
    nodes: Annotated[int, typer.Option(help="How many nodes.", min=1, max=1000)] = 5,
    seconds: Annotated[int, typer.Option(help="Virtual seconds.", min=1, max=86_400)] = 30,
    scenario: Annotated[
        str, typer.Option(help="A file, a name, or 'nemesis' for random faults.")
    ] = NEMESIS,
    secure: Annotated[bool, typer.Option(help="Use TLS and sealed datagrams.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every step to this file.")] = None,
    facts: Annotated[Path | None, typer.Option(help="Write telemetry to this directory.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the scenario and do not run it.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per seed.")
    ] = False,
) -> None:
    """Run a domain and check all invariants. Exit code 0: all hold; 1: one is violated; 2: misuse."""
    try:
        numbers = seed_range(seeds) if seeds else range(seed, seed + 1)
        if trace is not None and len(numbers) > 1:
            raise MisuseError("--trace takes one seed; nothing was run")
        request = Request(nodes, seconds, scenario, secure)
        if plan:
            for number in numbers:
                typer.echo(_scenario(request, number).text(), nl=False)
            return
        failed = sum(not _run_one(request, number, trace, facts, as_json) for number in numbers)
    except (MisuseError, SetupError, OSError) as error:
        typer.echo(f"holdfast sim: {error}", err=True)
        raise typer.Exit(2) from None
    if len(numbers) > 1 and not as_json:
        typer.echo(f"{len(numbers)} seeds, {failed} failed")
    raise typer.Exit(1 if failed else 0)


def seed_range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise MisuseError(f"--seeds {text!r} is not A..B with A <= B; nothing was run")
    if int(last) - int(first) >= SEEDS_MAX:
        raise MisuseError(f"--seeds {text!r} is more than {SEEDS_MAX} runs; nothing was run")
    return range(int(first), int(last) + 1)


def _scenario(request: Request, seed: int) -> Scenario:
    from holdfast.sim.cluster import node_name
    from holdfast.sim.nemesis import plan
    from holdfast.sim.scenario import load_scenario
    from holdfast.types import SECOND

    if request.scenario != NEMESIS:
        return load_scenario(request.scenario)
    hosts = [node_name(number) for number in range(1, request.nodes + 1)]
    if len(hosts) < 2:
        raise MisuseError("the nemesis needs two nodes or more; nothing was run")
    until_ns = request.seconds * SECOND
    return plan(seed, hosts, ["red", "blue"], until_ns, until_ns // QUIET_SHARE)


def _run_one(
    request: Request, seed: int, trace: Path | None, facts: Path | None, as_json: bool
) -> bool:
    """Run one seed and print the result; True if every check held."""
    if trace is None:
        outcome = _simulate(request, seed, None, facts)
    else:
        with trace.open("w") as file:
            outcome = _simulate(request, seed, file, facts)
    typer.echo(json.dumps(outcome) if as_json else _text(outcome))
    return outcome["error"] is None


def _simulate(
    request: Request, seed: int, trace: TextIO | None, facts: Path | None
) -> dict[str, Any]:
    from holdfast.sim.checkers import CheckFailed
    from holdfast.sim.cluster import Cluster
    from holdfast.sim.facts import FactBook
    from holdfast.sim.trace import Trace
    from holdfast.types import SECOND

    book = FactBook() if facts is not None else None
    until_ns = request.seconds * SECOND
    cluster = Cluster(
        seed,
        request.nodes,
        secure=request.secure,
        scenario=_scenario(request, seed),
        until_ns=until_ns,
        quiet_ns=until_ns // QUIET_SHARE,
        trace=Trace(trace) if trace is not None else None,
        facts=book,
        replay=request.replay(seed),
    )
    began = perf_counter_ns()
    error = None
    try:
        cluster.run()
    except MisuseError:
        raise
    except (CheckFailed, HoldfastError, AssertionError) as problem:
        notes = getattr(problem, "__notes__", [])
        error = "\n".join([f"{problem}" or repr(problem), *notes])
    took_s = (perf_counter_ns() - began) / 1e9
    if book is not None and facts is not None:
        book.write(facts)
    outcome = cluster.summary()
    outcome |= {"scenario": request.scenario, "took_s": round(took_s, 3), "error": error}
    return outcome | {"events_per_s": round(outcome["events"] / max(took_s, 1e-9))}


def _text(outcome: dict[str, Any]) -> str:
    verdict = "FAILED" if outcome["error"] else "fine"
    text = (
        f"seed {outcome['seed']}: {verdict}, {outcome['simulated_s']:g} s of {outcome['nodes']} nodes "
        f"in {outcome['took_s']} s, {outcome['events']} events, {outcome['packets_sent']} packets "
        f"({outcome['packets_lost']} lost), {outcome['delivered']} deliveries, "
        f"{outcome['starts']} starts"
    )
    if outcome["calm_ms"] is not None:
        text += f", recovered after {outcome['calm_ms']} ms"
    if outcome["trace"]:
        text += f", trace {outcome['trace']}"
    return text if outcome["error"] is None else f"{text}\n{outcome['error']}"
