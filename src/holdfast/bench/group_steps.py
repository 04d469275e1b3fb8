"""Common parts of the group measurements: the plan, the report, and the steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.bench.member_processes import (
    MemberProcesses,
    Setting,
    config_text,
    member_names,
    processes_of,
)
from holdfast.bench.report import Report
from holdfast.errors import ConfigError, HoldfastError
from holdfast.node.config import parse_config
from holdfast.runtime.control import ask
from holdfast.types import SECOND

MEMBERS: Final = 4
SIZE: Final = 1000
PARTS: Final = ("throughput", "leader", "loss", "memory", "telemetry")


class Plan(msgspec.Struct, frozen=True):
    """The parts to measure, and their duration."""

    parts: tuple[str, ...] = PARTS
    seconds: float = 3.0
    rounds: int = 2
    loss_rate: float = 1000.0
    """Messages per second, of all sources together, for the measurement of loss."""
    slow_messages: int = 400_000
    """Messages of the memory measurement, of all sources together."""


class Bench:
    """One run: its plan, its report, and a directory for the processes."""

    def __init__(self, report: Report, plan: Plan, directory: Path) -> None:
        self.report = report
        self.plan = plan
        self.directory = directory
        self._started = 0

    def processes_of(self, setting: Setting) -> AbstractAsyncContextManager[MemberProcesses]:
        self._started += 1
        return processes_of(setting, self.directory / f"group{self._started}")

    async def attempt(
        self, name: str, setting: Setting, measure: Callable[[], Awaitable[None]]
    ) -> None:
        """Measure, or record why not: this version does not support the setting, or the run failed."""
        reason = unknown(setting)
        if not reason:
            try:
                await measure()
            except HoldfastError as error:
                reason = str(error)
        if reason:
            self.report.not_measured[name] = reason

    def latency(self, name: str, answers: list[dict[str, Any]]) -> None:
        """The median latency over all members."""
        for share in ("p50", "p99", "max"):
            value = median(answer["latency_us"][share] for answer in answers)
            self.report.figures[f"{name}_{share}_us"] = round(value)


def unknown(setting: Setting) -> str:
    """Why this version does not support a setting; empty if it does."""
    names = member_names(setting.members)
    plain = msgspec.structs.replace(setting, security="plain")
    text = config_text(plain, names, list(range(7001, 7001 + len(names))), 0, Path("/nowhere"))
    try:
        parse_config(text, "this version")
    except ConfigError as error:
        return str(error)
    return ""


def rate_of(answers: list[dict[str, Any]], start_ns: int) -> float:
    """Deliveries per second and member."""
    rates = [int(a["count"]) * SECOND / max(1, int(a["last_ns"]) - start_ns) for a in answers]
    return sum(rates) / len(rates)


def check_same(answers: list[dict[str, Any]], sent: int | None) -> None:
    """A figure counts only if all replicas applied the same, and everything (if `sent` gives the number)."""
    if len({answer["digest"] for answer in answers}) > 1:
        raise HoldfastError(f"replicas applied different orders: {answers}")
    counts = {answer["count"] for answer in answers}
    if any(answer["doubled"] for answer in answers) or (sent is not None and counts != {sent}):
        raise HoldfastError(f"{sent} messages were sent, {sorted(counts)} were applied")


async def paced(
    processes: MemberProcesses, rate: float, seconds: float, options: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`rate` messages per second, from all sources together: results of the sources and of the replicas. The sources
    take turns, so that at a low rate each message is alone."""
    each = rate / len(processes.members)
    await processes.all("begin")
    warm = await processes.in_turn("send", size=SIZE, seconds=0.5, rate=each, **(options or {}))
    await processes.all("settled", expect=total_of(warm))
    await processes.all("begin", timed=True)
    sent = await processes.in_turn("send", size=SIZE, seconds=seconds, rate=each, **(options or {}))
    return sent, await processes.all("settled", expect=total_of(sent))


async def flat_out(
    processes: MemberProcesses, seconds: float, options: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """As fast as the group accepts: results of the sources and of the replicas, and the start time."""
    await processes.all("begin")
    warm = await processes.all("send", size=SIZE, seconds=0.5, **(options or {}))
    await processes.all("settled", expect=total_of(warm))
    await processes.all("begin")
    start_ns = monotonic_ns()
    sent = await processes.all("send", size=SIZE, seconds=seconds, **(options or {}))
    return sent, await processes.all("settled", expect=total_of(sent)), start_ns


def total_of(sent: list[dict[str, Any]]) -> int:
    return sum(int(answer["sent"]) for answer in sent)


def add_fault(control: Path, **rule: Any) -> None:
    ask(control, {"do": "fault", **rule})
