"""The share of telemetry in the CPU time of a group: the same load with and without it.

Throughput differs by more than telemetry costs from one run to the next. CPU time per delivery, of all members
together and with all their threads, differs less. The lower of all rounds counts on both sides. What a member does once
(loading Arrow, opening its files) is no share of a load, so the first seconds do not count.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from holdfast.bench.group_steps import Bench, check_same, flat_out, total_of
from holdfast.bench.member_processes import Setting

AIM_SHARE: Final = 0.03
WARM_S: Final = 1.5
"""Facts are written every second: by then the first ones are."""
SETTINGS: Final = {"telemetry_off": Setting(), "telemetry_on": Setting(telemetry=True)}


async def measure_telemetry(bench: Bench) -> None:
    """With and without telemetry alternate, so that a slower machine affects both."""
    for _ in range(bench.plan.rounds):
        for name, setting in SETTINGS.items():
            await bench.attempt(name, setting, partial(_cost, bench, name, setting))
    figures = bench.report.figures
    on, off = (figures.get(_figure(name)) for name in ("telemetry_on", "telemetry_off"))
    if on and off:
        bench.report.ratios["telemetry_cpu_vs_without"] = round(on / off, 3)
        bench.report.aim_below(
            "telemetry_share_of_cpu", round(max(0.0, 1 - off / on), 4), AIM_SHARE
        )


async def _cost(bench: Bench, name: str, setting: Setting) -> None:
    async with bench.processes_of(setting) as processes:
        await flat_out(processes, WARM_S)
        sent, answers, _ = await flat_out(processes, bench.plan.seconds)
        check_same(answers, total_of(sent))
        found = cpu_per_delivery_us(sent, answers)
        known = bench.report.figures.get(_figure(name), found)
        bench.report.figures[_figure(name)] = round(min(found, known), 3)


def cpu_per_delivery_us(sent: list[dict[str, Any]], answers: list[dict[str, Any]]) -> float:
    """CPU time of all members while they sent, per message that a member delivered."""
    used_s = sum(float(answer["cpu_s"]) for answer in sent)
    return used_s * 1e6 / max(1, sum(int(answer["count"]) for answer in answers))


def _figure(name: str) -> str:
    return f"{name}_cpu_us_per_delivery"
