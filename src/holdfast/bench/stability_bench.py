"""`holdfast bench stability`: rounds of the four protocols, their cost to a group, and locks and barriers.

- `rounds`: messages and bytes of a round compared with the paper's formulas, and CPU, with the production code on a
  simulated network without loss. The CPU time is real.
- `throughput`: deliveries of four members on loopback with stability detection, compared with the leader's account
  (`mode = "availability"`). Runs alternate.
- `held`: bytes that members hold at full load, with each protocol, compared with the bytes in flight from the sources.
- `services`: locks and barriers per second compared with bare majority round trips, and their duration at full load.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from holdfast.bench.group_steps import (
    MEMBERS,
    SIZE,
    Bench,
    Plan,
    check_same,
    flat_out,
    rate_of,
    total_of,
)
from holdfast.bench.majority import majority_trips_per_s
from holdfast.bench.member_processes import MemberProcess, MemberProcesses, Setting
from holdfast.bench.report import Report, new_report
from holdfast.bench.stability_rounds import measure
from holdfast.runtime.control import ask
from holdfast.stability.config import FULL, PROTOCOLS
from holdfast.types import NEVER

PARTS: Final = ("rounds", "throughput", "held", "services")
SIZES: Final = (8, 32, 128, 512, 2000)
FULL_MAX: Final = 128
"""FullDist sends n² messages: larger rounds give no further information."""
SLOTS: Final = 50
AIM_THROUGHPUT: Final = 0.97
AIM_SERVICES: Final = 0.5
POLL_S: Final = 0.2
BARRIERS: Final = 300
CALLERS: Final = 4
"""Concurrent callers, where one alone says too little: as many as a barrier has parties."""


class StabilityPlan(msgspec.Struct, frozen=True):
    """The parts to measure, and their duration."""

    parts: tuple[str, ...] = PARTS
    seconds: float = 3.0
    rounds: int = 2
    sizes: tuple[int, ...] = SIZES


def bench_stability(plan: StabilityPlan) -> Report:
    report = new_report("stability")
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        asyncio.run(_Bench(report, plan, Path(directory)).run())
    return report


class _Bench(Bench):
    def __init__(self, report: Report, plan: StabilityPlan, directory: Path) -> None:
        super().__init__(report, Plan(seconds=plan.seconds, rounds=plan.rounds), directory)
        self._stability = plan

    async def run(self) -> None:
        parts = {
            "rounds": self._rounds,
            "throughput": self._throughput,
            "held": self._held,
            "services": self._services,
        }
        for name in self._stability.parts:
            await parts[name]()

    # -- rounds --------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        figures, ratios = self.report.figures, self.report.ratios
        for protocol in PROTOCOLS:
            for size in self._stability.sizes:
                if protocol == FULL and size > FULL_MAX:
                    continue
                one = measure(protocol, size, SLOTS)
                name = f"{protocol}_{size}"
                figures[f"{name}_messages"] = one.messages
                figures[f"{name}_bytes_per_member"] = round(one.bytes / size)
                figures[f"{name}_busiest_messages"] = one.busiest
                figures[f"{name}_cpu_us_per_message"] = round(one.cpu_ns_per_message / 1000, 2)
                figures[f"{name}_cpu_us_per_member"] = round(one.cpu_ns_per_member / 1000, 1)
                ratios[f"{name}_messages_vs_paper"] = round(one.messages / one.paper_messages, 3)
                ratios[f"{name}_bytes_vs_paper"] = round(one.bytes / one.paper_bytes, 3)
        self.report.notes["rounds"] = (
            "Frames travel over a simulated network without loss. `coord` and `tree` confirm results (section 3.5), "
            "which the paper's count leaves out; our vectors have eight bytes per number and the paper's four."
        )

    # -- a group with and without stability detection --------------------------------------------------------------

    async def _throughput(self) -> None:
        on, off = Setting(members=MEMBERS), Setting(members=MEMBERS, group='mode = "availability"')
        rates: dict[str, list[float]] = {"on": [], "off": []}
        for _ in range(self.plan.rounds):
            for name, setting in (("off", off), ("on", on)):
                async with self.processes_of(setting) as processes:
                    sent, got, start_ns = await flat_out(processes, self.plan.seconds)
                    check_same(got, total_of(sent))
                    rates[name].append(rate_of(got, start_ns))
        best = {name: max(values) for name, values in rates.items()}
        for name, rate in best.items():
            self.report.figures[f"deliveries_per_s_{name}"] = round(rate)
        ratio = round(best["on"] / best["off"], 3)
        self.report.ratios["deliveries_with_stability_vs_leader_account"] = ratio
        self.report.aim("throughput_with_stability", ratio, AIM_THROUGHPUT)

    async def _held(self) -> None:
        for protocol in PROTOCOLS:
            async with self.processes_of(
                Setting(members=MEMBERS, group=f'stability = "{protocol}"')
            ) as processes:
                polling = asyncio.ensure_future(self._poll(processes))
                await flat_out(processes, self.plan.seconds)
                polling.cancel()
                held, flight, kept, lag = await polling
            self.report.figures[f"{protocol}_held_bytes_max"] = held
            self.report.figures[f"{protocol}_source_kept_bytes_max"] = kept
            self.report.figures[f"{protocol}_lag_ms_max"] = lag
            if flight:
                self.report.ratios[f"{protocol}_held_vs_bytes_in_flight"] = round(held / flight, 3)
                self.report.ratios[f"{protocol}_source_kept_vs_window"] = round(kept / flight, 3)

    async def _poll(self, processes: MemberProcesses) -> tuple[int, int, int, int]:
        """The maximum that any member held of one stream, that a source had in its window and in memory, and the
        longest lag."""
        held = flight = kept = lag = 0
        try:
            while True:
                await asyncio.sleep(POLL_S)
                for member in processes.members:
                    status: dict[str, Any] = await asyncio.to_thread(
                        ask, member.control, {"do": "status"}
                    )
                    for group in status["groups"]:
                        for stream in group["streams"].values():
                            held = max(held, int(stream["held"]))
                        lag = max(lag, int(group["stability"]["lag_ms"]))
                    for source in status["sources"]:
                        flight = max(flight, int(source["held"]))
                        kept = max(kept, int(source["kept"]))
        except asyncio.CancelledError:
            return held, flight, kept, lag

    # -- locks and barriers ----------------------------------------------------------------------------------------

    async def _services(self) -> None:
        seconds, figures, ratios = self.plan.seconds, self.report.figures, self.report.ratios
        best: dict[str, float] = {}

        def note(name: str, rate: float) -> None:
            best[name] = max(best.get(name, 0), rate)

        for _ in range(self.plan.rounds):
            note("bare_majority_trips_per_s", await majority_trips_per_s(seconds))
            note("bare_majority_trips_per_s_4", await majority_trips_per_s(seconds, CALLERS))
            async with self.processes_of(Setting(members=MEMBERS)) as processes:
                leading = processes.named(await processes.formed())
                other = next(member for member in processes.members if member is not leading)
                for name, member, callers in (
                    ("leader", leading, 1), ("other", other, 1), ("leader_4", leading, CALLERS),
                ):  # fmt: skip
                    answer = await member.ask("locks", seconds=seconds, callers=callers)
                    note(f"lock_round_trips_per_s_{name}", answer["per_s"])
                answers = await processes.all("barriers", count=BARRIERS, parties=MEMBERS)
                note("barriers_per_s", min(answer["per_s"] for answer in answers))
                await self._under_load(processes, other)
        best["barrier_arrivals_per_s"] = MEMBERS * best["barriers_per_s"]
        figures.update({name: round(rate) for name, rate in best.items()})
        for name, key, bare in (
            ("locks", "lock_round_trips_per_s_leader", ""),
            ("locks_of_4_callers", "lock_round_trips_per_s_leader_4", "_4"),
            ("barriers", "barriers_per_s", ""),
            ("barrier_arrivals", "barrier_arrivals_per_s", "_4"),
        ):
            ratio = round(best[key] / best[f"bare_majority_trips_per_s{bare}"], 3)
            ratios[f"{name}_vs_bare_majority_trip"] = ratio
            if name != "barriers":
                self.report.aim(f"{name}_vs_bare_majority_trip", ratio, AIM_SERVICES)
        self.report.notes["services"] = (
            "A lock takes two round trips, acquire and release, and both are counted. All four members arrive at a "
            "barrier at once, so the round trips of its four parties are compared with those of four concurrent "
            "callers. `barriers` compares whole passages with the trips of one caller: each of them takes two round "
            "trips of the network, to the leader and from the leader to a majority. The baseline keeps, orders and "
            "repeats nothing."
        )

    async def _under_load(self, processes: MemberProcesses, asker: MemberProcess) -> None:
        """Locks and barriers of one member while all the others send as fast as the group accepts."""
        seconds, figures = self.plan.seconds, self.report.figures
        for do, name in (("locks", "lock"), ("lone_barriers", "barrier")):
            senders = [member for member in processes.members if member is not asker]
            answer, *_ = await asyncio.gather(
                asker.ask(do, seconds=seconds),
                *(member.ask("send", size=SIZE, seconds=seconds) for member in senders),
            )
            for part, value_us in answer["latency_us"].items():
                key = f"{name}_under_load_{part}_ms"
                figures[key] = min(figures.get(key, NEVER), round(value_us / 1000, 2))
