"""`holdfast bench dialog`: exactly-once in-order messages between two processes on loopback, by store.

Each store is measured with 100 bytes and 4 KB, pipelined and one at a time. The baseline is the bare store in the same
run: the cost of the same durability without a protocol (`dialog_bare`). Every part has a time limit.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.bench.dialog_bare import bare_rate, queue_rate
from holdfast.bench.dialog_idle import Idle, measure_deactivated, measure_open
from holdfast.bench.dialog_peer import QUOTA, config_text
from holdfast.bench.report import Report, new_report
from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node

SENT_AT_ONCE: Final = 1000
AHEAD: Final = 8
"""The maximum number of batches in flight."""
SIZES: Final = (100, 4096)
PART_S: Final = 12.0
"""Time limit of each pipelined part; messages delivered until then count."""
SINGLE: Final = 300
SINGLE_S: Final = 4.0
"""Requests and responses, and the time limit of that part."""
STARTED_S: Final = 20.0
"""How long an express daemon may take to start."""
PORT: Final = 7493


def bench_dialog(
    stores: list[str], messages: int, dsn: str = "", open_dialogs: int = 0, deactivated: int = 0
) -> Report:
    """Measure each store, and the cost of idle dialogs."""
    report = new_report("dialog")
    for store in stores:
        with tempfile.TemporaryDirectory() as directory, source_of(store, dsn) as source:
            for size, (rate, single_us) in measure(
                Path(directory), store, messages, source
            ).items():
                name = f"{store}_{size}B"
                report.figures[f"{name}_messages_per_s"] = round(rate)
                report.figures[f"{name}_request_response_p50_us"] = round(single_us)
                _compare(report, name, store, size, rate, _count(messages, size), source)
    for size in SIZES:
        ratio = report.ratios.get(f"sqlite_{size}B_vs_bare_sqlite")
        if ratio is not None:
            report.aim(f"sqlite_{size}B_vs_bare_sqlite", ratio, 0.5)
    for kind, idle in _idle(open_dialogs, deactivated):
        report.figures[f"{kind}_dialogs"] = idle.dialogs
        report.figures[f"{kind}_memory_bytes_per_dialog"] = idle.bytes_each
        report.figures[f"{kind}_idle_cpu_percent"] = idle.cpu_percent
        report.figures[f"{kind}_disk_bytes_per_dialog"] = idle.disk_each
    report.notes["bare"] = (
        "two processes, one row for each message in a table of each end, one commit for each 1000, the same "
        "durability, nothing else (dialog_bare); postgres_queue: two connections and one table, where each message is "
        "written once"
    )
    return report


def _count(messages: int, size: int) -> int:
    return max(SENT_AT_ONCE, (messages if size <= 100 else messages // 5) // 1000 * 1000)


def _compare(
    report: Report, name: str, store: str, size: int, rate: float, count: int, source: str
) -> None:
    """The bare store with the same number of messages."""
    with tempfile.TemporaryDirectory() as directory:
        bare = bare_rate(store, source or directory, size, count)
    report.figures[f"{name}_bare_messages_per_s"] = round(bare)
    report.ratios[f"{name}_vs_bare_{store}"] = round(rate / bare, 3)
    if store == "postgres":
        queue = asyncio.run(queue_rate(source, size, count))
        report.figures[f"{name}_queue_messages_per_s"] = round(queue)
        report.ratios[f"{name}_vs_postgres_queue"] = round(rate / queue, 3)


@contextmanager
def source_of(store: str, dsn: str) -> Iterator[str]:
    """Where both ends keep a store: the database, or the socket of an express daemon that runs meanwhile."""
    if store != "express":
        yield dsn if store == "postgres" else ""
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "express.sock"
        daemon = subprocess.Popen(
            [sys.executable, "-m", "holdfast.stores.dialogs.express", str(path)]
        )
        try:
            end = time.perf_counter_ns() + int(STARTED_S * 1e9)
            while not path.exists() and time.perf_counter_ns() < end:
                time.sleep(0.02)
            yield str(path)
        finally:
            daemon.terminate()
            daemon.wait(10)


def _idle(open_dialogs: int, deactivated: int) -> list[tuple[str, Idle]]:
    parts = []
    if open_dialogs:
        parts.append(("open", measure_open(open_dialogs)))
    if deactivated:
        parts.append(("deactivated", measure_deactivated(deactivated)))
    return parts


def measure(
    directory: Path, store: str, messages: int, source: str
) -> dict[int, tuple[float, float]]:
    """By size: messages per second, and the median of a request and its response in microseconds."""
    peer = subprocess.Popen(
        [sys.executable, "-m", "holdfast.bench.dialog_peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    text = config_text("far", 2, PORT, str(directory / "far"), store, source)
    peer.stdin.write(text.replace("\n", "\\n") + "\n")
    peer.stdin.flush()
    try:
        peer.stdout.readline()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_near(directory, store, messages, source))
    finally:
        peer.stdin.close()
        try:
            peer.wait(30)
        except subprocess.TimeoutExpired:
            peer.kill()


async def _near(
    directory: Path, store: str, messages: int, source: str
) -> dict[int, tuple[float, float]]:
    node = Node(parse_config(config_text("near", 1, PORT, str(directory / "near"), store, source)))
    await node.start()
    results = {}
    try:
        await node.until_up("far", timeout_s=30)
        dialog = await node.dialogs.open("holdfast://far/bench", **QUOTA)
        await _pipelined(dialog, 100, 2 * SENT_AT_ONCE)
        for size in SIZES:
            rate = await _pipelined(dialog, size, _count(messages, size))
            results[size] = (rate, await _one_by_one(dialog, size, SINGLE))
        return results
    finally:
        await node.stop()


async def _pipelined(dialog: Dialog, size: int, count: int) -> float:
    """Send batches until `count` or the time limit; the peer reports when it has received all."""
    batch = [os.urandom(size) for _ in range(SENT_AT_ONCE)]
    begin = time.perf_counter_ns()
    deadline = begin + int(PART_S * 1e9)
    await dialog.send(b"take")
    pending: list[asyncio.Task[Any]] = []
    sent = 0
    while sent < count and time.perf_counter_ns() < deadline:
        pending.append(asyncio.ensure_future(dialog.send_many(batch, timeout_s=120)))
        sent += SENT_AT_ONCE
        if len(pending) >= AHEAD:
            await pending.pop(0)
    await asyncio.gather(*pending)
    await dialog.send(b"end")
    await dialog.receive(timeout_s=120)
    took = time.perf_counter_ns() - begin
    return sent * 1e9 / took


async def _one_by_one(dialog: Dialog, size: int, count: int) -> float:
    body = bytes(size)
    deadline = time.perf_counter_ns() + int(SINGLE_S * 1e9)
    await dialog.send(b"echo")
    times: list[float] = []
    while len(times) < count and (not times or time.perf_counter_ns() < deadline):
        begin = time.perf_counter_ns()
        await dialog.request(body, timeout_s=30)
        times.append((time.perf_counter_ns() - begin) / 1000)
    await dialog.request(b"end", timeout_s=30)
    times.sort()
    return times[len(times) // 2]
