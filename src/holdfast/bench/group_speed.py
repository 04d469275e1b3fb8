"""Throughput of a group, its pause when the leader fails, the cost of loss, its memory, and the share of telemetry.

Four members on loopback, each a replica and a source in a separate process; one `send` call per message. Measurements
that this version does not support are listed under `not_measured` with the reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.bench.group_loss import measure_loss
from holdfast.bench.group_memory import measure_memory
from holdfast.bench.group_steps import (
    MEMBERS,
    PARTS,
    SIZE,
    Bench,
    Plan,
    add_fault,
    check_same,
    flat_out,
    paced,
    rate_of,
    total_of,
)
from holdfast.bench.group_telemetry import measure_telemetry
from holdfast.bench.member_processes import MemberProcesses, Setting, member_host, raw_processes
from holdfast.bench.report import Report, new_report
from holdfast.errors import HoldfastError
from holdfast.types import SECOND

__all__ = ["PARTS", "Plan", "bench_group"]

AIM_DELIVERIES_PER_S: Final = 150_000
AIM_DATAGRAMS_PER_S: Final = 60_000
AIM_RATIO: Final = 0.35
AIM_P50_US: Final = 1_200
AIM_P99_US: Final = 4_000
AIM_LIGHT_P50_US: Final = 800
AIM_GAP_MS: Final = 500

JUMBO: Final = 9000
DATAGRAM: Final = Setting(transports=("tcp", "udp"), group='transport = "datagram"')
SETTINGS: Final = {
    "memory_tcp": Setting(),
    "memory_tcp_quick": Setting(quick=True),
    "memory_tls": Setting(security="tls"),
    "memory_datagram": DATAGRAM,
    "memory_datagram_jumbo": msgspec.structs.replace(DATAGRAM, mtu=JUMBO),
    "durable_tcp": Setting(group='durability = "durable"'),
}
LIGHT: Final = ("memory_tcp", "memory_tcp_quick")
LIGHT_PER_S: Final = 400.0
"""Latency of single messages without other load."""


def bench_group(plan: Plan) -> Report:
    report = new_report("group")
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        asyncio.run(_Bench(report, plan, Path(directory)).run())
    return report


class _Bench(Bench):
    async def run(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "throughput": self._throughput,
            "leader": self._leader,
            "loss": partial(measure_loss, self),
            "memory": partial(measure_memory, self),
            "telemetry": partial(measure_telemetry, self),
        }
        for name in self.plan.parts:
            await parts[name]()

    # -- deliveries per second, latency --------------------------------------------------------------------------

    async def _throughput(self) -> None:
        """Baseline and group alternate, so that a slower machine affects both."""
        figures = self.report.figures
        for _ in range(self.plan.rounds):
            for form in ("single", "packed"):
                self._best(f"raw_fanout_{form}_per_s", await self._raw(form))
            for name, setting in SETTINGS.items():
                await self.attempt(name, setting, partial(self._flat_out, name, setting))
        raw = max(figures["raw_fanout_single_per_s"], figures["raw_fanout_packed_per_s"])
        for name, setting in SETTINGS.items():
            rate = figures.get(f"{name}_deliveries_per_s")
            if rate is None:
                continue
            self.report.ratios[f"{name}_deliveries_vs_raw_fanout"] = round(rate / raw, 3)
            tenth = min(rate, AIM_DELIVERIES_PER_S) / 10
            await self.attempt(name, setting, partial(self._paced, name, setting, tenth))
            if name in LIGHT:
                light = f"{name}_light"
                await self.attempt(
                    light, setting, partial(self._paced, light, setting, LIGHT_PER_S)
                )
        if "durable_tcp_deliveries_per_s" in figures:
            figures["disk_syncs_per_s"] = disk_syncs_per_s(self.directory)
        self._throughput_aims()

    def _throughput_aims(self) -> None:
        figures, ratios = self.report.figures, self.report.ratios
        name = "memory_tcp"
        if f"{name}_deliveries_per_s" in figures:
            rate = figures[f"{name}_deliveries_per_s"]
            self.report.aim(f"{name}_deliveries_per_s", rate, AIM_DELIVERIES_PER_S)
            ratio = ratios[f"{name}_deliveries_vs_raw_fanout"]
            self.report.aim(f"{name}_deliveries_vs_raw_fanout", ratio, AIM_RATIO)
        light = f"{name}_light_p50_us"
        if light in figures:
            self.report.aim_below(light, figures[light], AIM_LIGHT_P50_US)
        for share, aim in (("p50", AIM_P50_US), ("p99", AIM_P99_US)):
            if f"{name}_{share}_us" in figures:
                self.report.aim_below(f"{name}_{share}_us", figures[f"{name}_{share}_us"], aim)
        for figure in (
            "memory_datagram_deliveries_per_s",
            "memory_datagram_jumbo_deliveries_per_s",
        ):
            if figure in figures:
                self.report.aim(figure, figures[figure], AIM_DATAGRAMS_PER_S)

    def _best(self, name: str, rate: float) -> None:
        self.report.figures[name] = round(max(rate, self.report.figures.get(name, 0.0)))

    async def _raw(self, form: str) -> float:
        async with raw_processes(MEMBERS, form) as processes:
            start_ns = monotonic_ns()
            await processes.all("send", size=SIZE, seconds=self.plan.seconds)
            return rate_of(await processes.all("settled"), start_ns)

    async def _flat_out(self, name: str, setting: Setting) -> None:
        async with self.processes_of(setting) as processes:
            if "udp" in setting.transports:
                size = await processes.measured(setting.mtu)
                self.report.figures[f"{name}_packet_bytes"] = size
            sent, answers, start_ns = await flat_out(processes, self.plan.seconds)
            check_same(answers, total_of(sent))
            self._best(f"{name}_deliveries_per_s", rate_of(answers, start_ns))

    async def _paced(self, name: str, setting: Setting, rate: float) -> None:
        async with self.processes_of(setting) as processes:
            _, answers = await paced(processes, rate, self.plan.seconds)
            self.report.figures[f"{name}_paced_per_s"] = round(rate)
            self.latency(name, answers)

    # -- the leader fails ----------------------------------------------------------------------------------------

    async def _leader(self) -> None:
        for way, durability in (
            ("killed", "memory"), ("stopped", "memory"), ("cut_off", "memory"), ("killed", "durable"),
        ):  # fmt: skip
            name = f"leader_{way}" if durability == "memory" else f"leader_{way}_durable"
            extra = "" if durability == "memory" else 'durability = "durable"'
            setting = Setting(faults=way == "cut_off", group=extra)
            await self.attempt(name, setting, partial(self._fail_leader, name, setting, way))
            gap_ms = self.report.figures.get(f"{name}_gap_ms")
            if gap_ms is not None:
                self.report.aim_below(f"{name}_gap_ms", gap_ms, AIM_GAP_MS)

    async def _fail_leader(self, name: str, setting: Setting, way: str) -> None:
        """A paced load; after a while the leader fails; the longest time in which the others delivered nothing."""
        async with self.processes_of(setting) as processes:
            leader = await processes.formed()
            others = MemberProcesses(
                [member for member in processes.members if member.name != leader]
            )
            await others.all("begin")
            sending = asyncio.create_task(others.all("send", size=SIZE, seconds=8, rate=2000))
            await asyncio.sleep(3)
            _break(processes, leader, way)
            sent = await sending
            answers = await others.all("settled", expect=total_of(sent))
            if not _goes_on(answers, sent):
                raise HoldfastError(
                    "nothing was delivered after the leader failed: there was no new leader"
                )
            check_same(answers, None)
            self.report.figures[f"{name}_gap_ms"] = round(max(a["gap_ms"] for a in answers), 1)
            lost = total_of(sent) - min(a["count"] for a in answers)
            self.report.figures[f"{name}_lost"] = max(0, lost)
            self.report.figures[f"{name}_doubled"] = max(a["doubled"] for a in answers)


def _break(processes: MemberProcesses, leader: str, way: str) -> None:
    member = processes.named(leader)
    if way == "killed":
        member.signal(signal.SIGKILL)
    elif way == "stopped":
        member.signal(signal.SIGSTOP)
    else:
        host = member_host(processes.members.index(member))
        for other in processes.members:
            if other is member:
                add_fault(other.control, fault="blackout")
            else:
                add_fault(other.control, fault="blackout", host=host)


def _goes_on(answers: list[dict[str, Any]], sent: list[dict[str, Any]]) -> bool:
    """Whether deliveries ended with the load and not with the leader, five seconds earlier."""
    total = total_of(sent)
    return min(int(answer["count"]) for answer in answers) > total * 3 // 4


def disk_syncs_per_s(directory: Path, seconds: float = 1.0) -> float:
    """The speed of the disk: writes of 64 KiB, each made durable before the next."""
    block, count = bytes(64 << 10), 0
    file = os.open(directory / "syncs", os.O_CREAT | os.O_WRONLY)
    try:
        begin_ns = monotonic_ns()
        while monotonic_ns() - begin_ns < seconds * SECOND:
            os.write(file, block)
            os.fdatasync(file)
            count += 1
        return round(count * SECOND / (monotonic_ns() - begin_ns))
    finally:
        os.close(file)
