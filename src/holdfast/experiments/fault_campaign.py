"""Fault campaigns on executors (P8): each seed is one simulated run of the production code under faults.

`groups` draws a replicated group, a load and faults from the seed; `domain` runs nodes under random faults. A run that
violates an invariant is kept with the command that replays it. With a directory for telemetry, every run also writes
the telemetry of its nodes, in the format of real nodes, so that the audit of the pipeline checks it a second time,
independently: the simulator inspects replicas, and the audit uses only what they recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shlex import join as shell_join
from time import process_time_ns
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.experiments.journal import Record
from holdfast.experiments.sweep import Job
from holdfast.sim.campaign import add_coverage, draw, simulate
from holdfast.sim.cluster import Cluster, node_name
from holdfast.sim.facts import FactBook
from holdfast.sim.nemesis import plan
from holdfast.telemetry.facts import DeliveryFact
from holdfast.types import SECOND

KINDS: Final = ("groups", "domain")
DOMAIN_NODES: Final = 5
QUIET_SHARE: Final = 3
"""The last third of a run of a domain is without faults."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One seed of a campaign."""

    kind: str
    seed: int
    seconds: int
    telemetry: str = ""
    """Directory for the telemetry of the nodes; empty: none."""

    @property
    def key(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def replay(self) -> str:
        """The command that replays the run."""
        words = ["holdfast", "sim", "groups" if self.kind == "groups" else "run"]
        words += ["--seed", str(self.seed), "--seconds", str(self.seconds)]
        if self.kind == "domain":
            words += ["--nodes", str(DOMAIN_NODES)]
        return shell_join(words)


def trials(kind: str, seeds: Iterable[int], seconds: int, telemetry: str = "") -> list[Job]:
    if kind not in KINDS:
        raise MisuseError(f"{kind!r} is not a campaign, use one of {', '.join(KINDS)}")
    cost = seconds / 4
    return [Job(Trial(kind, seed, seconds, telemetry).key, cost) for seed in seeds]


def run_trial(task: str) -> dict[str, Any]:
    """The work of a campaign: one run, its figures, and the violated invariant if there is one."""
    trial = msgspec.json.decode(task, type=Trial)
    book = FactBook() if trial.telemetry else None
    began = process_time_ns()
    if trial.kind == "groups":
        run = draw(trial.seed, trial.seconds)
        found = simulate(run, run.scenario(), None, trial.replay, book)
        found["mode"] = run.mode
        if found["too_short"]:
            found["error"] = (
                None  # as in `holdfast sim groups`: groups had too little time to recover
            )
    else:
        found = _domain(trial, book)
    found["cpu_s"] = round((process_time_ns() - began) / 1e9, 3)
    if book is not None:
        book.write(Path(trial.telemetry) / f"{trial.kind}-{trial.seed}")
        epochs = {fact.epoch for fact in book.of(DeliveryFact)}
        found |= {"facts": book.count, "facts_lost": book.lost, "epochs": sorted(epochs)}
    kept = ("seed", "run", "mode", "error", "delivered", "starts", "packets_sent", "packets_lost",
            "calm_ms", "coverage", "cpu_s", "too_short", "facts", "facts_lost", "epochs")  # fmt: skip
    return {"replay": trial.replay} | {name: found[name] for name in kept if name in found}


def _domain(trial: Trial, book: FactBook | None) -> dict[str, Any]:
    until_ns = trial.seconds * SECOND
    hosts = [node_name(number) for number in range(1, DOMAIN_NODES + 1)]
    cluster = Cluster(
        trial.seed,
        DOMAIN_NODES,
        scenario=plan(trial.seed, hosts, ["red", "blue"], until_ns, until_ns // QUIET_SHARE),
        until_ns=until_ns,
        quiet_ns=until_ns // QUIET_SHARE,
        facts=book,
        replay=trial.replay,
    )
    error = None
    try:
        cluster.run()
    except Exception as problem:  # noqa: BLE001  # a campaign continues with the next seed
        error = "\n".join([f"{problem}" or repr(problem), *getattr(problem, "__notes__", [])])
    return cluster.summary() | {"error": error}


class CampaignReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a campaign."""

    runs: int
    failed: tuple[dict[str, str], ...]
    """Seed, error and replay command of each run that violated something or did not end."""
    deliveries: int
    restarts: int
    too_short: int
    """Runs whose groups had too little time to recover after the last fault; not counted as failed."""
    coverage: dict[str, int]
    slowest_ms: int
    cpu_s: float
    audited: dict[str, int] = {}
    """The number of group epochs with each verdict of the audit."""
    accused: tuple[dict[str, str], ...] = ()
    """Epochs that the audit reports as violated although their group guarantees one order, with seed and replay
    command."""


def summary(records: Iterable[Record]) -> CampaignReport:
    failed: list[dict[str, str]] = []
    coverage: dict[str, int] = {}
    runs = deliveries = restarts = slowest = too_short = 0
    cpu_s = 0.0
    for record in records:
        runs += 1
        trial = msgspec.json.decode(record.task, type=Trial)
        result = record.result or {}
        error = record.error or result.get("error")
        if error:
            failed.append({"seed": str(trial.seed), "error": error, "replay": trial.replay})
        deliveries += result.get("delivered", 0)
        restarts += result.get("starts", 0)
        too_short += result.get("too_short", False)
        slowest = max(slowest, result.get("calm_ms") or 0)
        cpu_s += result.get("cpu_s", 0.0)
        add_coverage(coverage, result.get("coverage", {}))
    return CampaignReport(
        runs=runs, failed=tuple(failed), deliveries=deliveries, restarts=restarts,
        too_short=too_short, coverage=dict(sorted(coverage.items())), slowest_ms=slowest, cpu_s=round(cpu_s, 1),
    )  # fmt: skip


def with_audit(
    report: CampaignReport, records: Iterable[Record], verdicts: Iterable[dict[str, Any]]
) -> CampaignReport:
    """The report with the verdicts of the audit on the same runs. `verdicts` are rows of `delivery_audit`.

    A group in `availability` mode may commit on two sides, so the audit may rightly find two orders there.
    """
    trial_of: dict[int, Trial] = {}
    modes: dict[int, str] = {}
    for record in records:
        result = record.result or {}
        for epoch in result.get("epochs", ()):
            trial_of[epoch] = msgspec.json.decode(record.task, type=Trial)
            modes[epoch] = result.get("mode", "majority")
    counts: dict[str, int] = {}
    accused: list[dict[str, str]] = []
    for row in verdicts:
        if row["epoch"] not in trial_of:
            continue  # of an earlier campaign in the same directory
        trial, mode = trial_of[row["epoch"]], modes[row["epoch"]]
        name = row["verdict"] if mode == "majority" else f"{row['verdict']} ({mode})"
        counts[name] = counts.get(name, 0) + 1
        if row["verdict"] == "violated" and mode == "majority":
            found = {"seed": str(trial.seed), "error": row["why"], "replay": trial.replay}
            accused.append(found)
    return msgspec.structs.replace(
        report, audited=dict(sorted(counts.items())), accused=tuple(accused)
    )
