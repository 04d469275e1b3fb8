"""`holdfast bench overlay`: messages compared with flooding in the simulator; requests per second over sockets.

Over sockets, each node is a process in a chain, and the client is the first. One hop: the client and a node that serves
a role. Three hops: two nodes in between, which only forward messages. The baseline is a raw asyncio echo in the same
run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from os import sysconf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns, process_time
from typing import Final

from holdfast.bench.overlay_node import ROLE
from holdfast.bench.overlay_scale import measure
from holdfast.bench.report import Report, new_report
from holdfast.errors import HoldfastError
from holdfast.runtime.collector import calm_collector
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node
from holdfast.types import SECOND

DATA: Final = bytes(100)
PIPELINE: Final = 64
HOPS: Final = (1, 3)
PORT: Final = 17_500
START_S: Final = 180.0
AIM_RATIO: Final = 0.3
AIM_P50_MS: Final = 1.0

Call = Callable[[], Awaitable[object]]


def bench_overlay(seconds: float, sizes: tuple[int, ...], sockets: bool) -> Report:
    report = new_report("overlay")
    for nodes in sizes:
        measure(report, nodes)
    if sizes:
        report.notes["simulated"] = "message counts and virtual times come from the simulator"
    if sockets:
        with (
            TemporaryDirectory(prefix="holdfast-bench-") as directory,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(_sockets(report, seconds, Path(directory)))
    return report


async def _sockets(report: Report, seconds: float, directory: Path) -> None:
    figures = report.figures
    raw_rate, raw_cpu_us = await _raw(seconds)
    figures["raw_echo_pipelined_per_s"] = raw_rate
    figures["raw_echo_cpu_us_per_request"] = raw_cpu_us
    for hops in HOPS:
        folder = directory / f"hops{hops}"
        folder.mkdir()
        async with AsyncExitStack() as stack:
            asker, others = await _row(stack, folder, hops)

            async def call(asker: Node = asker) -> object:
                return await asker.roles.request_one(ROLE, DATA)

            await _until_served(call)
            calm_collector()
            rate, times = await _drive(call, seconds, 1)
            times.sort()
            figures[f"requests_{hops}_hop_one_at_a_time_per_s"] = rate
            figures[f"p50_{hops}_hop_ms"] = round(times[len(times) // 2] / 1e6, 3)
            figures[f"p99_{hops}_hop_ms"] = round(times[len(times) * 99 // 100] / 1e6, 3)
            before_s = _cpu_s(others)
            rate, times = await _drive(call, seconds, PIPELINE)
            cpu_us = round((_cpu_s(others) - before_s) * 1e6 / len(times), 1)
            figures[f"requests_{hops}_hop_cpu_us_per_request"] = cpu_us
            figures[f"requests_{hops}_hop_pipelined_per_s"] = rate
            report.ratios[f"requests_{hops}_hop_cpu_vs_raw_echo"] = round(cpu_us / raw_cpu_us, 2)
            ratio = rate / figures["raw_echo_pipelined_per_s"]
            report.ratios[f"requests_{hops}_hop_pipelined_vs_raw_echo"] = round(ratio, 3)
    report.aim(
        "pipelined_1_hop_vs_raw_echo",
        report.ratios["requests_1_hop_pipelined_vs_raw_echo"],
        AIM_RATIO,
    )
    report.aim_below("p50_1_hop_ms", figures["p50_1_hop_ms"], AIM_P50_MS)


async def _until_served(call: Call) -> None:
    """Wait until the domain has formed and the role is served."""
    deadline = monotonic_ns() + int(START_S) * SECOND
    while True:
        try:
            await call()
            return
        except HoldfastError:
            if monotonic_ns() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _drive(call: Call, seconds: float, at_once: int) -> tuple[float, list[int]]:
    """Calls per second at this concurrency, and the duration of each."""
    times: list[int] = []
    begin = monotonic_ns()
    end = begin + int(seconds * SECOND)

    async def worker() -> None:
        while (start := monotonic_ns()) < end:
            await call()
            times.append(monotonic_ns() - start)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return round(len(times) * SECOND / (monotonic_ns() - begin), 1), times


def _cpu_s(others: list[int]) -> float:
    """CPU time of this process and of others: unlike rates, it does not depend on the load of the machine."""
    ticks = 0
    for pid in others:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return process_time() + ticks / sysconf("SC_CLK_TCK")


async def _raw(seconds: float) -> tuple[float, float]:
    """Requests and replies of the same size over one asyncio stream, at the same concurrency: the rate, and
    microseconds of CPU for each, both ends together."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    waiting: list[asyncio.Future[None]] = []

    async def read() -> None:
        while True:
            await reader.readexactly(len(DATA))
            future = waiting.pop(0)
            if not future.done():
                future.set_result(None)

    async def call() -> None:
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        writer.write(DATA)
        await future

    reading = asyncio.ensure_future(read())
    before_s = process_time()
    rate, times = await _drive(call, seconds, PIPELINE)
    cpu_us = round((process_time() - before_s) * 1e6 / len(times), 1)
    reading.cancel()
    writer.close()
    server.close()
    return rate, cpu_us


async def _row(stack: AsyncExitStack, folder: Path, hops: int) -> tuple[Node, list[int]]:
    """A chain of processes behind this one, and their ids. `mesh = "join"` links each only to the one before it."""
    others = []
    asker = await stack.enter_async_context(Node(_config(folder, 0, hops)))
    for k in range(1, hops + 1):
        role = "serve" if k == hops else "pass"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.bench.overlay_node", str(_config(folder, k, hops)), role,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        stack.push_async_callback(_end, process)
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            await process.stdout.readline()
        others.append(process.pid)
    return asker, others


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _config(folder: Path, place: int, hops: int) -> Path:
    join = f'join = ["127.0.61.{place}:{PORT + hops}"]' if place else ""
    path = folder / f"n{place}.toml"
    path.write_text(
        f"""
domain = "bench"
name = "n{place}"
data = "{folder / f"n{place}"}"
mesh = "join"
{join}
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "red"
address = "127.0.61.{place + 1}:{PORT + hops}"
transports = ["tcp"]
measure = []
"""
    )
    return path
