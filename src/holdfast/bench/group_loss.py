"""The cost of lost datagrams for a group: latency under a paced load, and throughput.

The baseline is the same setting without loss in the same run. The load must be sustainable: a rate at which messages
wait for the CPU measures the CPU. Every tenth message is urgent; rules may drop the others, and the run is valid only
if every urgent one was delivered.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from holdfast.bench.group_steps import (
    Bench,
    add_fault,
    check_same,
    flat_out,
    paced,
    rate_of,
    total_of,
)
from holdfast.bench.member_processes import MemberProcesses, Setting
from holdfast.errors import HoldfastError

AIM_P99_US: Final = {"recover": 25_000, "drop": 5_000, "ignore": 5_000}
POLICIES: Final = {
    "recover": "",
    "drop": '[[group.loss]]\npriority = 1\nat_once = true\naction = "drop"',
    "ignore": (
        '[[group.loss]]\npriority = 1\nat_once = true\naction = "drop and ignore"\n'
        'ignore_by = ["stream", "priority"]\nignore_s = 0.05'
    ),
}
CALM_P99_US: Final = 5_000
"""A machine with a higher latency without loss is overloaded."""
RATE_MIN: Final = 125.0
LOAD: Final = {"options": {"priority": 1}, "urgent_every": 10}
FLAT_OUT: Final = {"options": {"priority": 1}}


async def measure_loss(bench: Bench) -> None:
    rate = await _baseline(bench)
    for percent in (1, 5):
        for policy in POLICIES:
            name = f"loss_{percent}pct_{policy}"
            setting = _setting(policy)
            await bench.attempt(
                name, setting, partial(_lossy, bench, name, setting, policy, percent, rate)
            )
            _compare(bench, name, policy)


def _setting(policy: str) -> Setting:
    group = f'transport = "datagram"\npriorities = 2\n{POLICIES[policy]}'
    return Setting(transports=("tcp", "udp"), faults=True, group=group, quick=True)


async def _baseline(bench: Bench) -> float:
    """Without loss; at half the rate again while messages wait for the CPU. Returns the rate that is used."""
    rate = bench.plan.loss_rate
    setting = _setting("recover")
    while True:
        measure = partial(_lossy, bench, "loss_none", setting, "recover", 0, rate)
        await bench.attempt("loss_none", setting, measure)
        p99_us = bench.report.figures.get("loss_none_p99_us", 0)
        if p99_us <= CALM_P99_US or rate / 2 < RATE_MIN:
            break
        rate /= 2
    bench.report.figures["loss_paced_per_s"] = round(rate)
    calm = "which it carries" if p99_us <= CALM_P99_US else "and is overloaded even then"
    bench.report.notes["loss"] = (
        f"{rate:g} messages per second from all sources together to quick applications, {calm}: without loss p99 is "
        f"{p99_us / 1000:.1f} ms"
    )
    return rate


async def _lossy(
    bench: Bench, name: str, setting: Setting, policy: str, percent: int, rate: float
) -> None:
    async with bench.processes_of(setting) as processes:
        for member in processes.members if percent else ():
            add_fault(member.control, fault=f"loss {percent}% only udp")
        sent, answers = await paced(processes, rate, bench.plan.seconds, LOAD)
        _check(sent, answers, policy, percent)
        bench.latency(name, answers)
        figures = bench.report.figures
        busy = sum(float(one["cpu_share"]) for one in sent)
        figures[f"{name}_processor_share"] = round(busy / int(bench.report.env["cores"]), 2)
        figures[f"{name}_asked_again"] = sum(int(one["nacks"]) for one in answers)
        if policy != "recover":
            given_up = total_of(sent) - int(answers[0]["count"])
            figures[f"{name}_given_up_share"] = round(given_up / total_of(sent), 4)
        await _throughput(bench, name, policy, processes)


async def _throughput(bench: Bench, name: str, policy: str, processes: MemberProcesses) -> None:
    sent, answers, start_ns = await flat_out(processes, bench.plan.seconds, FLAT_OUT)
    check_same(answers, total_of(sent) if policy == "recover" else None)
    bench.report.figures[f"{name}_deliveries_per_s"] = round(rate_of(answers, start_ns))


def _check(
    sent: list[dict[str, Any]], answers: list[dict[str, Any]], policy: str, percent: int
) -> None:
    """Whether the run is valid: something was lost, all replicas agree, and no required message is missing."""
    check_same(answers, total_of(sent) if policy == "recover" else None)
    urgent = sum(int(one["urgent"]) for one in sent)
    if any(int(answer["urgent"]) != urgent for answer in answers):
        delivered = sorted({int(answer["urgent"]) for answer in answers})
        raise HoldfastError(f"{urgent} urgent messages were sent, {delivered} were applied")
    if percent and not sum(int(answer["nacks"]) for answer in answers):
        raise HoldfastError("nothing was lost: the messages did not travel as datagrams")


def _compare(bench: Bench, name: str, policy: str) -> None:
    figures = bench.report.figures
    p99_us, calm_us = figures.get(f"{name}_p99_us"), figures.get("loss_none_p99_us")
    if p99_us is None:
        return
    bench.report.aim_below(f"{name}_p99_us", p99_us, AIM_P99_US[policy])
    if calm_us:
        bench.report.ratios[f"{name}_p99_vs_no_loss"] = round(p99_us / calm_us, 2)
    fast, calm = figures.get(f"{name}_deliveries_per_s"), figures.get("loss_none_deliveries_per_s")
    if fast and calm:
        bench.report.ratios[f"{name}_deliveries_vs_no_loss"] = round(fast / calm, 3)
