"""The memory of a group with one replica at a tenth of the speed of the others.

The group waits for a replica that is reachable and makes progress. All members keep what it has not applied, so sources
fill their windows and then send at its speed. The required memory follows from the configuration
(`GroupConfig.memory_bytes`) and does not grow with the number of messages.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

from holdfast.bench.group_steps import MEMBERS, SIZE, Bench, check_same, flat_out, rate_of, total_of
from holdfast.bench.member_processes import MemberProcesses, Setting, config_text, member_names
from holdfast.group.section import groups_of
from holdfast.node.config import parse_config
from holdfast.types import SECOND

SLOWER: Final = 10
STEPS: Final = 4
"""The messages are sent in this many parts; memory is measured after each."""
PATIENCE_S: Final = 4 * 3600.0


async def measure_memory(bench: Bench) -> None:
    setting = Setting()
    await bench.attempt("slow_replica", setting, partial(_slow_replica, bench, setting))


async def _slow_replica(bench: Bench, setting: Setting) -> None:
    alone = await _speed(bench, setting)
    each = bench.plan.slow_messages // MEMBERS // STEPS
    async with bench.processes_of(setting) as processes:
        for member in processes.members:
            member.patience_s = PATIENCE_S
        peaks = [_peaks(await processes.all("settled", expect=0))]
        await processes.all("begin")
        await processes.members[-1].ask("begin", slow_ns=int(SLOWER * SECOND / alone))
        start_ns = await _step(processes, each, peaks, 1)
        for step in range(2, STEPS + 1):
            await _step(processes, each, peaks, step)
        answers = await processes.all("settled", expect=each * MEMBERS * STEPS)
        check_same(answers, each * MEMBERS * STEPS)
    _report(bench, setting, alone, answers, start_ns, peaks)


async def _speed(bench: Bench, setting: Setting) -> float:
    """The speed of the group without a slow replica."""
    async with bench.processes_of(setting) as processes:
        sent, answers, start_ns = await flat_out(processes, bench.plan.seconds)
        check_same(answers, total_of(sent))
        return rate_of(answers, start_ns)


async def _step(processes: MemberProcesses, each: int, peaks: list[list[float]], step: int) -> int:
    start_ns = monotonic_ns()
    await processes.all("send", size=SIZE, seconds=PATIENCE_S, count=each)
    peaks.append(_peaks(await processes.all("settled", expect=each * MEMBERS * step)))
    return start_ns


def _peaks(answers: list[dict[str, Any]]) -> list[float]:
    return [float(answer["rss_mb_max"]) for answer in answers]


def _report(
    bench: Bench,
    setting: Setting,
    alone: float,
    answers: list[dict[str, Any]],
    start_ns: int,
    peaks: list[list[float]],
) -> None:
    figures = bench.report.figures
    figures["slow_replica_messages"] = sum(int(a["count"]) for a in answers[:1])
    figures["slow_replica_none_slow_deliveries_per_s"] = round(alone)
    for name, answer in zip(member_names(setting.members), answers, strict=True):
        role = f"{name}_slow" if name == member_names(setting.members)[-1] else name
        figures[f"slow_replica_{role}_deliveries_per_s"] = round(rate_of([answer], start_ns))
    figures["slow_replica_states_taken"] = sum(int(answer["restores"]) for answer in answers)
    if figures["slow_replica_states_taken"]:
        bench.report.notes["slow_replica"] = (
            "a replica was unreachable or made no progress for too long, was left behind, and "
            "restored a snapshot: messages that it skipped count as delivered"
        )
    grown = [[peak - first for peak, first in zip(row, peaks[0], strict=True)] for row in peaks]
    figures["slow_replica_memory_grown_mb_max"] = round(max(grown[-1]), 1)
    later = [last - half for last, half in zip(grown[-1], grown[STEPS // 2], strict=True)]
    figures["slow_replica_memory_grown_in_second_half_mb_max"] = round(max(later), 1)
    names = member_names(setting.members)
    text = config_text(setting, names, list(range(7001, 7001 + len(names))), 0, Path("/nowhere"))
    bound_mb = groups_of(parse_config(text))[0].memory_bytes(streams=setting.members) / (1 << 20)
    figures["slow_replica_memory_bound_mb"] = round(bound_mb)
    bench.report.aim_below("slow_replica_memory_grown_mb_max", max(grown[-1]), round(bound_mb))
