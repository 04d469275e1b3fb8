"""`holdfast bench objects`: put and get compared with a plain TCP copy, small objects, messages per access,
restoration.

Replicas are on three of four node processes; the benchmark is a fifth node, which holds none. The baseline copies the
same bytes to one other process and syncs them, so a put makes three copies and the baseline one.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Any, Final

from holdfast.bench.object_copy import PlainCopy
from holdfast.bench.report import Report, new_report
from holdfast.errors import HoldfastError
from holdfast.runtime.control import ask
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node
from holdfast.types import SECOND

NODES: Final = ("a", "b", "c", "d")
PORT: Final = 17_600
START_S: Final = 180.0
GRACE_S: Final = 1.0
"""How long a node must be down before it is replaced."""
AIM_GET: Final = 0.5
AIM_PUT: Final = 0.2
AT_ONCE: Final = 64
ACCESSES: Final = 20
MEGA: Final = 1_000_000


def bench_objects(megabytes: int, rounds: int, small: int) -> Report:
    report = new_report("objects")
    with (
        TemporaryDirectory(prefix="holdfast-bench-") as directory,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_measure(report, Path(directory), megabytes << 20, rounds, small))
    return report


async def _measure(report: Report, directory: Path, size: int, rounds: int, small: int) -> None:
    with _processes(directory) as processes:
        async with Node(_config(directory, "client", len(NODES) + 1)) as client:
            await _ready(client)
            with _copier(directory) as copy:
                await _large(report, client, copy, size, rounds)
            await _accesses(report, client, directory)
            await _small(report, client, small)
            await _restore(report, client, processes)


# -- large content -------------------------------------------------------------------------------------------------


async def _large(report: Report, client: Node, copy: PlainCopy, size: int, rounds: int) -> None:
    data = Random(1).randbytes(size)
    best: dict[str, float] = {}

    def note(name: str, rate: float) -> None:
        best[name] = max(best.get(name, 0.0), rate)

    for number in range(rounds):
        note("plain_put", await asyncio.to_thread(copy.put, data))
        note("plain_get", await asyncio.to_thread(copy.get, size))
        path = f"/big{number}"
        begun = monotonic_ns()
        await client.objects.create(path, data, nodes=("a", "b", "c"))
        note("put", size * SECOND / (monotonic_ns() - begun))
        begun, got = monotonic_ns(), 0
        async with client.objects.reading(path) as reader:
            async for chunk in reader:
                got += len(chunk)
        note("get", size * SECOND / (monotonic_ns() - begun))
        if got != size:
            raise HoldfastError(f"{got} of {size} bytes were returned")
        await client.objects.delete(path)
    for name, rate in best.items():
        report.figures[f"{name}_mb_per_s"] = round(rate / MEGA, 1)
    report.ratios["put_three_replicas_vs_plain_tcp_copy"] = round(
        best["put"] / best["plain_put"], 3
    )
    report.ratios["get_vs_plain_tcp_copy"] = round(best["get"] / best["plain_get"], 3)
    report.aim("get_vs_plain", report.ratios["get_vs_plain_tcp_copy"], AIM_GET)
    report.aim("put_vs_plain", report.ratios["put_three_replicas_vs_plain_tcp_copy"], AIM_PUT)


# -- small objects and messages ------------------------------------------------------------------------------------


def _sent(client: Node) -> int:
    counts: dict[str, int] = client.status()["objects"]["sent"]
    return sum(counts.values())


def _sent_by_nodes(directory: Path) -> int:
    """Frames about accesses that the other nodes have sent: replies, and anything that they pass on."""
    total = 0
    for name in NODES:
        status = ask(directory / name / "control.sock", {"do": "status"}, START_S)
        counts: dict[str, int] = status["objects"]["sent"]
        total += sum(count for kind, count in counts.items() if kind != "Offer")
    return total


async def _accesses(report: Report, client: Node, directory: Path) -> None:
    """Messages per access, once the client has opened an object. A read that no node passes on takes one hop for each
    request and one for its reply."""
    item = await client.objects.create("/item", b"x" * 1000, nodes=("a", "b", "c"))

    async def measure(name: str, access: Callable[[], Awaitable[Any]]) -> float:
        await access()
        before, others = _sent(client), await asyncio.to_thread(_sent_by_nodes, directory)
        for _ in range(ACCESSES):
            await access()
        requests = _sent(client) - before
        replies = await asyncio.to_thread(_sent_by_nodes, directory) - others
        report.figures[f"requests_per_{name}"] = round(requests / ACCESSES, 1)
        report.figures[f"messages_per_{name}"] = round((requests + replies) / ACCESSES, 1)
        return (requests + replies) / (2 * requests)

    await measure("write", lambda: item.write(b"y" * 1000))
    report.figures["hops_per_read_request"] = round(await measure("read", item.read), 2)
    report.notes["hops"] = (
        "messages of all nodes for each request and its reply; 1: no node passes them on"
    )


async def _small(report: Report, client: Node, count: int) -> None:
    """Creates, reads and writes of as many objects, with as many at once."""
    await client.objects.mkdir("/small")
    limit = asyncio.Semaphore(AT_ONCE)

    async def limited(access: Awaitable[Any]) -> Any:
        async with limit:
            return await access

    async def measure(name: str, accesses: list[Awaitable[Any]]) -> None:
        begun = monotonic_ns()
        await asyncio.gather(*map(limited, accesses))
        report.figures[name] = round(len(accesses) * SECOND / (monotonic_ns() - begun), 1)

    objects = client.objects
    paths = [f"/small/{number}" for number in range(count)]
    await measure("small_creates_per_s", [objects.create(path, b"x" * 1000) for path in paths])
    opened = await asyncio.gather(*[limited(objects.open(path)) for path in paths])
    await measure("small_reads_per_s", [item.read() for item in opened])
    await measure("small_writes_per_s", [item.write(b"z" * 1000) for item in opened])


# -- restoration ---------------------------------------------------------------------------------------------------


async def _restore(report: Report, client: Node, processes: dict[str, Any]) -> None:
    """Kill a node that has a replica; how long until another node has it."""
    item = await client.objects.create("/lost", b"x" * (1 << 20), nodes=("b", "c", "d"))
    processes["d"].send_signal(signal.SIGKILL)
    begun = monotonic_ns()
    deadline = begun + int(START_S) * SECOND
    while monotonic_ns() < deadline:
        info = await item.stat()
        nodes = {replica.node for replica in info.replicas if replica.state == "sound"}
        if len(nodes) >= 3:
            break
        await asyncio.sleep(0.05)
    else:
        report.not_measured["restore_s"] = "no other node received a replica in time"
        return
    report.figures["restore_s"] = round((monotonic_ns() - begun) / SECOND, 2)
    report.figures["restore_grace_s"] = GRACE_S / 4
    report.notes["restore"] = (
        "from SIGKILL; includes failure detection and the grace period with a bare majority"
    )


# -- processes -----------------------------------------------------------------------------------------------------


def _config(directory: Path, name: str, number: int) -> Path:
    file = directory / f"{name}.toml"
    store = "false" if name == "client" else "true"
    file.write_text(
        f'domain = "bench"\nname = "{name}"\ndata = "{directory}/{name}"\njoin = ["127.0.0.1:{PORT + 1}"]\n'
        'security.mode = "plain"\ntelemetry.enabled = false\n'
        f'[objects]\nroot = ["a", "b", "c"]\nstore = {store}\nreplace_after_s = {GRACE_S}\n'
        f'[[adapter]]\nname = "lo"\naddress = "127.0.0.1:{PORT + number}"\nmeasure = []\n'
    )
    return file


@contextmanager
def _processes(directory: Path) -> Iterator[dict[str, Any]]:
    running: dict[str, Any] = {}
    try:
        for number, name in enumerate(NODES, 1):
            command = [
                sys.executable,
                "-m",
                "holdfast",
                "node",
                str(_config(directory, name, number)),
                "--quiet",
            ]
            running[name] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@contextmanager
def _copier(directory: Path) -> Iterator[PlainCopy]:
    command = [sys.executable, "-m", "holdfast.bench.object_copy", str(directory / "copy")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        copy = PlainCopy(int(process.stdout.readline()))
        try:
            yield copy
        finally:
            copy.close()
    finally:
        process.kill()
        process.wait()


async def _ready(client: Node) -> None:
    """Wait until all nodes are up and the root directory exists."""
    await client.until_up(*NODES, timeout_s=START_S)
    deadline = monotonic_ns() + int(START_S) * SECOND
    while True:
        try:
            await client.objects.list("/")
            machine = client.objects.service.machine
            if sum(bool(offer.disk) for offer in machine.members.offers.values()) == len(NODES):
                return
        except HoldfastError:
            if monotonic_ns() > deadline:
                raise
        await asyncio.sleep(0.1)
