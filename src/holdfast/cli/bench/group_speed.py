"""How fast a group is, how long it stands still when its leader fails, what loss costs, and how much memory it takes.

Four members, each a replica and a source in a process of its own, on loopback; one `send` call for each message. What
this version of Holdfast cannot do yet is named under `not_measured`, with the reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.cli.bench.crew import (
    Crew,
    Setting,
    config_text,
    crew_of,
    member_host,
    member_names,
    raw_crew,
)
from holdfast.cli.bench.report import Report, new_report
from holdfast.errors import ConfigError, HoldfastError
from holdfast.node.config import parse_config
from holdfast.runtime.control import ask
from holdfast.types import SECOND

MEMBERS: Final = 4
SIZE: Final = 1000
AIM_DELIVERIES_PER_S: Final = 150_000
AIM_RATIO: Final = 0.35
AIM_P50_US: Final = 500
AIM_P99_US: Final = 5_000
AIM_GAP_MS: Final = 500
AIM_LOSS_P99_US: Final = {"recover": 25_000, "drop": 5_000, "ignore": 5_000}

SETTINGS: Final = {
    "memory_tcp": Setting(),
    "memory_tls": Setting(security="tls"),
    "memory_datagram": Setting(transports=("tcp", "udp"), group='transport = "datagram"'),
    "durable_tcp": Setting(group='durability = "durable"'),
}
POLICIES: Final = {
    "recover": "",
    "drop": '[[group.loss]]\npriority = 1\nat_once = true\naction = "drop"',
    "ignore": '[[group.loss]]\npriority = 1\nat_once = true\naction = "drop and ignore"\nignore_s = 1.0',
}
PARTS: Final = ("throughput", "leader", "loss", "memory")


class Plan(msgspec.Struct, frozen=True):
    """What is measured, and how long."""

    parts: tuple[str, ...] = PARTS
    seconds: float = 3.0
    rounds: int = 2
    slow_messages: int = 400_000
    """Messages of the measurement of memory, by all sources together."""


def bench_group(plan: Plan) -> Report:
    report = new_report("group")
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        asyncio.run(_Bench(report, plan, Path(directory)).run())
    return report


class _Bench:
    def __init__(self, report: Report, plan: Plan, directory: Path) -> None:
        self._report = report
        self._plan = plan
        self._directory = directory
        self._crews = 0

    async def run(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "throughput": self._throughput,
            "leader": self._leader,
            "loss": self._loss,
            "memory": self._memory,
        }
        for name in self._plan.parts:
            await parts[name]()

    def _crew_of(self, setting: Setting) -> Any:
        self._crews += 1
        return crew_of(setting, self._directory / f"crew{self._crews}")

    async def _try(
        self, name: str, setting: Setting, measure: Callable[[], Awaitable[None]]
    ) -> None:
        """Measure, or say why not: this version does not know the setting, or the run did not work out."""
        reason = _unknown(setting)
        if not reason:
            try:
                await measure()
            except HoldfastError as error:
                reason = str(error)
        if reason:
            self._report.not_measured[name] = reason

    # -- deliveries per second, latency --------------------------------------------------------------------------

    async def _throughput(self) -> None:
        """Opponent and ours in turn, so that a machine that slows down slows down for both."""
        figures = self._report.figures
        for _ in range(self._plan.rounds):
            for form in ("single", "packed"):
                self._best(f"raw_fanout_{form}_per_s", await self._raw(form))
            for name, setting in SETTINGS.items():
                await self._try(name, setting, partial(self._flat_out, name, setting))
        raw = max(figures["raw_fanout_single_per_s"], figures["raw_fanout_packed_per_s"])
        for name, setting in SETTINGS.items():
            rate = figures.get(f"{name}_deliveries_per_s")
            if rate is None:
                continue
            self._report.ratios[f"{name}_deliveries_vs_raw_fanout"] = round(rate / raw, 3)
            await self._try(name, setting, partial(self._paced, name, setting, rate / 10))
        if "durable_tcp_deliveries_per_s" in figures:
            figures["disk_syncs_per_s"] = disk_syncs_per_s(self._directory)
        self._throughput_aims()

    def _throughput_aims(self) -> None:
        figures, ratios = self._report.figures, self._report.ratios
        name = "memory_tcp"
        if f"{name}_deliveries_per_s" in figures:
            rate = figures[f"{name}_deliveries_per_s"]
            self._report.aim(f"{name}_deliveries_per_s", rate, AIM_DELIVERIES_PER_S)
            ratio = ratios[f"{name}_deliveries_vs_raw_fanout"]
            self._report.aim(f"{name}_deliveries_vs_raw_fanout", ratio, AIM_RATIO)
        for share, aim in (("p50", AIM_P50_US), ("p99", AIM_P99_US)):
            if f"{name}_{share}_us" in figures:
                self._report.aim_below(f"{name}_{share}_us", figures[f"{name}_{share}_us"], aim)

    def _best(self, name: str, rate: float) -> None:
        self._report.figures[name] = round(max(rate, self._report.figures.get(name, 0.0)))

    async def _raw(self, form: str) -> float:
        async with raw_crew(MEMBERS, form) as crew:
            start_ns = monotonic_ns()
            await crew.all("send", size=SIZE, seconds=self._plan.seconds)
            return _rate(await crew.all("settled"), start_ns)

    async def _flat_out(self, name: str, setting: Setting) -> None:
        async with self._crew_of(setting) as crew:
            warm = await crew.all("send", size=SIZE, seconds=0.5)
            await crew.all("settled", expect=_total(warm))
            await crew.all("begin")
            start_ns = monotonic_ns()
            sent = await crew.all("send", size=SIZE, seconds=self._plan.seconds)
            answers = await crew.all("settled", expect=_total(sent))
            _check_same(answers, _total(sent))
            self._best(f"{name}_deliveries_per_s", _rate(answers, start_ns))

    async def _paced(self, name: str, setting: Setting, rate: float) -> None:
        async with self._crew_of(setting) as crew:
            answers = await _paced(crew, rate, self._plan.seconds)
            self._report.figures[f"{name}_paced_per_s"] = round(rate)
            self._latency(name, answers)

    def _latency(self, name: str, answers: list[dict[str, Any]]) -> None:
        for share in ("p50", "p99", "max"):
            value = median(answer["latency_us"][share] for answer in answers)
            self._report.figures[f"{name}_{share}_us"] = round(value)

    # -- the leader fails ----------------------------------------------------------------------------------------

    async def _leader(self) -> None:
        for way, durability in (
            ("killed", "memory"), ("stopped", "memory"), ("cut_off", "memory"), ("killed", "durable"),
        ):  # fmt: skip
            name = f"leader_{way}" if durability == "memory" else f"leader_{way}_durable"
            extra = "" if durability == "memory" else 'durability = "durable"'
            setting = Setting(faults=way == "cut_off", group=extra)
            await self._try(name, setting, partial(self._fail_leader, name, setting, way))
            gap_ms = self._report.figures.get(f"{name}_gap_ms")
            if gap_ms is not None:
                self._report.aim_below(f"{name}_gap_ms", gap_ms, AIM_GAP_MS)

    async def _fail_leader(self, name: str, setting: Setting, way: str) -> None:
        """A paced load; after a while the leader fails; the longest time in which the others delivered nothing."""
        async with self._crew_of(setting) as crew:
            leader = await crew.formed()
            others = Crew([hand for hand in crew.hands if hand.name != leader])
            await others.all("begin")
            sending = asyncio.create_task(others.all("send", size=SIZE, seconds=8, rate=2000))
            await asyncio.sleep(3)
            _break(crew, leader, way)
            sent = await sending
            answers = await others.all("settled", expect=_total(sent))
            if not _goes_on(answers, sent):
                raise HoldfastError(
                    "nothing was delivered after the leader failed: nobody took its place"
                )
            _check_same(answers, None)
            self._report.figures[f"{name}_gap_ms"] = round(max(a["gap_ms"] for a in answers), 1)
            lost = _total(sent) - min(a["count"] for a in answers)
            self._report.figures[f"{name}_lost"] = max(0, lost)
            self._report.figures[f"{name}_doubled"] = max(a["doubled"] for a in answers)

    # -- loss ----------------------------------------------------------------------------------------------------

    async def _loss(self) -> None:
        for percent in (1, 5):
            for policy, lines in POLICIES.items():
                name = f"loss_{percent}pct_{policy}"
                group = f'transport = "datagram"\npriorities = 2\n{lines}'
                setting = Setting(transports=("tcp", "udp"), faults=True, group=group)
                await self._try(name, setting, partial(self._lossy, name, setting, percent))
                p99 = self._report.figures.get(f"{name}_p99_us")
                if p99 is not None:
                    self._report.aim_below(f"{name}_p99_us", p99, AIM_LOSS_P99_US[policy])

    async def _lossy(self, name: str, setting: Setting, percent: int) -> None:
        async with self._crew_of(setting) as crew:
            for hand in crew.hands:
                _fault(hand.control, kind="loss", loss_ppm=percent * 10_000, transport="udp")
            answers = await _paced(crew, 8_000, self._plan.seconds, {"priority": 1})
            self._latency(name, answers)
            self._report.figures[f"{name}_dropped"] = max(answer["holes"] for answer in answers)

    # -- memory --------------------------------------------------------------------------------------------------

    async def _memory(self) -> None:
        setting = Setting()
        await self._try("slow_replica", setting, partial(self._slow_replica, setting))

    async def _slow_replica(self, setting: Setting) -> None:
        """One replica applies at a tenth of the speed of the others; how much everybody holds, how fast they are."""
        rate = self._report.figures.get("memory_tcp_deliveries_per_s") or 50_000.0
        each = self._plan.slow_messages // MEMBERS
        async with self._crew_of(setting) as crew:
            before = await crew.all("settled", expect=0)
            await crew.all("begin")
            slow = crew.hands[-1]
            await slow.ask("begin", slow_ns=int(10 * SECOND / rate))
            start_ns = monotonic_ns()
            await crew.all("send", size=SIZE, seconds=3600, count=each)
            answers = await crew.all("settled", expect=each * MEMBERS)
            _check_same(answers, each * MEMBERS)
        figures = self._report.figures
        figures["slow_replica_messages"] = each * MEMBERS
        figures["slow_replica_deliveries_per_s"] = round(_rate(answers, start_ns))
        grown = [a["rss_mb_max"] - b["rss_mb_max"] for a, b in zip(answers, before, strict=True)]
        figures["slow_replica_memory_grown_mb_max"] = round(max(grown), 1)
        # Own window and stream, one stream of each source, batches at the application, queues of links.
        figures["slow_replica_memory_bound_mb"] = 2 * 16 * (MEMBERS + 1) + 16 + 8 * MEMBERS


# -- steps that several measurements share -----------------------------------------------------------------------


def _unknown(setting: Setting) -> str:
    """Why this version cannot do what a setting asks for; empty when it can."""
    names = member_names(setting.members)
    plain = msgspec.structs.replace(setting, security="plain")
    text = config_text(plain, names, list(range(7001, 7001 + len(names))), 0, Path("/nowhere"))
    try:
        parse_config(text, "this version")
    except ConfigError as error:
        return str(error)
    return ""


def _rate(answers: list[dict[str, Any]], start_ns: int) -> float:
    """Deliveries per second and member."""
    rates = [int(a["count"]) * SECOND / max(1, int(a["last_ns"]) - start_ns) for a in answers]
    return sum(rates) / len(rates)


def _check_same(answers: list[dict[str, Any]], sent: int | None) -> None:
    """A figure counts only if all replicas applied the same, and everything (if `sent` says how much that is)."""
    if len({answer["digest"] for answer in answers}) > 1:
        raise HoldfastError(f"replicas applied different orders: {answers}")
    counts = {answer["count"] for answer in answers}
    if any(answer["doubled"] for answer in answers) or (sent is not None and counts != {sent}):
        raise HoldfastError(f"{sent} messages were sent, {sorted(counts)} were applied")


async def _paced(
    crew: Crew, rate: float, seconds: float, options: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """`rate` deliveries per second, from all sources together; how long each message took."""
    each = rate / len(crew.hands)
    warm = await crew.all("send", size=SIZE, seconds=0.5, rate=each, options=options or {})
    await crew.all("settled", expect=_total(warm))
    await crew.all("begin", timed=True)
    sent = await crew.all("send", size=SIZE, seconds=seconds, rate=each, options=options or {})
    return await crew.all("settled", expect=_total(sent))


def _total(sent: list[dict[str, Any]]) -> int:
    return sum(int(answer["sent"]) for answer in sent)


def _break(crew: Crew, leader: str, way: str) -> None:
    hand = crew.named(leader)
    if way == "killed":
        hand.signal(signal.SIGKILL)
    elif way == "stopped":
        hand.signal(signal.SIGSTOP)
    else:
        host = member_host(crew.hands.index(hand))
        for other in crew.hands:
            if other is hand:
                _fault(other.control, kind="drop_all")
            else:
                _fault(other.control, kind="drop_all", host=host)


def _fault(control: Path, **rule: Any) -> None:
    ask(control, {"do": "fault", **rule})


def _goes_on(answers: list[dict[str, Any]], sent: list[dict[str, Any]]) -> bool:
    """Whether deliveries came to an end with the load and not with the leader, five seconds before it."""
    total = _total(sent)
    return min(int(answer["count"]) for answer in answers) > total * 3 // 4


def disk_syncs_per_s(directory: Path, seconds: float = 1.0) -> float:
    """What the disk can do: writes of 64 KiB, each made durable before the next."""
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
