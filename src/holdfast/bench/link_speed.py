"""Messages per second between two processes on loopback, from `try_send` to a callback per message."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Any, Final

from holdfast.bench import raw
from holdfast.bench.peer import PORT
from holdfast.bench.report import Report, new_report
from holdfast.errors import HoldfastError
from holdfast.node.config import parse_config
from holdfast.runtime.node import Node
from holdfast.transports.authority import issue, load_authority, make_authority, write_pair

SIZES: Final = (100, 1000)
AIMS: Final = {100: 0.4, 1000: 0.6}
DOMAIN: Final = "bench"


def bench_links(seconds: float, rounds: int) -> Report:
    report = new_report("links")
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        asyncio.run(_all(report, seconds, rounds, Path(directory)))
    for size in SIZES:
        figures = report.figures
        raw_tcp = max(figures[f"raw_tcp_{form}_{size}B_per_s"] for form in ("single", "packed"))
        raw_udp = max(figures[f"raw_udp_{form}_{size}B_per_s"] for form in ("single", "packed"))
        for name, base in (
            ("channel_tcp", raw_tcp),
            ("channel_tls", raw_tcp),
            ("datagram_udp", raw_udp),
        ):
            opponent = "raw_tcp" if base == raw_tcp else "raw_udp"
            ratio = figures[f"{name}_{size}B_per_s"] / base
            report.ratios[f"{name}_{size}B_vs_{opponent}"] = round(ratio, 3)
        report.aim(
            f"channel_tcp_{size}B", report.ratios[f"channel_tcp_{size}B_vs_raw_tcp"], AIMS[size]
        )
        report.aim(
            f"datagram_udp_{size}B", report.ratios[f"datagram_udp_{size}B_vs_raw_udp"], AIMS[size]
        )
    return report


async def _all(report: Report, seconds: float, rounds: int, directory: Path) -> None:
    """Baselines and links alternate, so that a slower machine affects both."""
    for _ in range(rounds):
        for size in SIZES:
            message = bytes(size)
            for form in ("single", "packed"):
                rate = await _raw_tcp(message, form, seconds)
                _best(report, f"raw_tcp_{form}_{size}B_per_s", rate)
                rate = await _raw_udp(message, form, seconds)
                _best(report, f"raw_udp_{form}_{size}B_per_s", rate)
            for name, transport, mode in (
                ("channel_tcp", "tcp", "plain"),
                ("channel_tls", "tcp", "tls"),
                ("datagram_udp", "udp", "plain"),
            ):
                rate = await _node(message, transport, mode, seconds, directory)
                _best(report, f"{name}_{size}B_per_s", rate)


def _best(report: Report, name: str, rate: float) -> None:
    report.figures[name] = round(max(rate, report.figures.get(name, 0.0)))


class Peer:
    """The receiving process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        if not line:
            raise HoldfastError("the receiving process of the benchmark ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def count(self) -> tuple[int, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(b"count\n")
        answer = await self.hear()
        return answer["messages"], answer["last_ns"]


@asynccontextmanager
async def _peer(kind: str, config: str = "") -> AsyncIterator[tuple[Peer, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.bench.peer",
        kind,
        config,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        peer = Peer(process)
        ready = await peer.hear()
        yield peer, int(ready["ready"])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _until(seconds: float) -> tuple[int, Callable[[], bool]]:
    start = monotonic_ns()
    end = start + int(seconds * 1e9)
    return start, lambda: monotonic_ns() < end


async def _rate(peer: Peer, start_ns: int) -> float:
    messages, last_ns = await peer.count()
    return messages * 1e9 / max(1, last_ns - start_ns)


async def _raw_tcp(message: bytes, form: str, seconds: float) -> float:
    async with _peer(f"tcp-{form}") as (peer, port):
        loop = asyncio.get_running_loop()
        transport, sender = await loop.create_connection(raw.Sender, "127.0.0.1", port)
        start, more = _until(seconds)
        await sender.run(message, form == "packed", more)
        rate = await _rate(peer, start)
        transport.close()
        return rate


async def _raw_udp(message: bytes, form: str, seconds: float) -> float:
    async with _peer(f"udp-{form}") as (peer, port):
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port)
        )
        start, more = _until(seconds)
        await raw.send_datagrams(transport, message, form == "packed", more)
        rate = await _rate(peer, start)
        transport.close()
        return rate


async def _node(
    message: bytes, transport: str, mode: str, seconds: float, directory: Path
) -> float:
    ports = [_free_port(), _free_port()]
    mine = _config("sender", ports[0], [], transport, mode, directory)
    theirs = _config("receiver", ports[1], [ports[0]], transport, mode, directory)
    async with Node(parse_config(mine)) as node, _peer("node", theirs) as (peer, _):
        handle = await _reach(node, transport)
        await asyncio.sleep(0.6)  # the first probes are answered and the flow has found its size
        start, more = _until(seconds)
        try_send = handle.try_send
        while more():
            for _ in range(raw.BURST):
                if not try_send(message):
                    await handle.writable()
                    break
            else:
                await asyncio.sleep(0)
        return await _rate(peer, start)


async def _reach(node: Node, transport: str) -> Any:
    """The handle to the receiver, once the link is up."""
    for _ in range(1000):
        up = [m for m in node.status()["members"] if m["name"] == "receiver" and m["state"] == "up"]
        if up:
            return (
                node.channel("receiver", PORT)
                if transport == "tcp"
                else node.datagrams("receiver", PORT)
            )
        await asyncio.sleep(0.01)
    raise HoldfastError("the two nodes of the benchmark did not find each other within ten seconds")


def _config(
    name: str, port: int, join: list[int], transport: str, mode: str, directory: Path
) -> str:
    if mode == "tls":
        if not (directory / "ca.pem").exists():
            write_pair(directory, "ca", make_authority(DOMAIN, days=1), force=True)
        if not (directory / f"{name}.pem").exists():
            write_pair(directory, name, issue(load_authority(directory), name, days=1), force=True)
    addresses = ", ".join(f'"127.0.0.1:{p}"' for p in join)
    return f"""
domain = "{DOMAIN}"
name = "{name}"
join = [{addresses}]
[telemetry]
enabled = false
[security]
mode = "{mode}"
authority = "{directory}/ca.pem"
certificate = "{directory}/{name}.pem"
key = "{directory}/{name}.key"
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
transports = ["{transport}"]
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
