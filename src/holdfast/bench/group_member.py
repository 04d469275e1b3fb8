"""A member of the group of `holdfast bench group`: a replica and a source in a separate process.

Started by the benchmark. It receives JSON lines on standard input and answers each with one on standard output. All
processes of a machine share the monotonic clock, so a message carries its send time, and the replica that applies it
knows its latency.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct
from time import monotonic_ns, sleep
from typing import Any, Final
from zlib import crc32

import msgspec

from holdfast.bench.fanout import FanOut
from holdfast.bench.raw import BURST
from holdfast.group.ports import Batch, Context, Replica
from holdfast.node.config import parse_config
from holdfast.runtime.collector import calm_collector
from holdfast.runtime.loop import run as run_loop
from holdfast.runtime.node import Node
from holdfast.types import MILLISECOND, SECOND

GROUP: Final = "bench"
_STAMP: Final = Struct("<qB")
"""The send time of a message, and whether it is urgent."""
_TICK_NS: Final = MILLISECOND
_SILENCE_NS: Final = 5 * SECOND
"""If nothing arrives for this long, nothing more is expected."""


class Account(msgspec.Struct):
    """The messages that a replica has applied. It is the state, so a restarted replica continues with it."""

    count: int = 0
    digest: int = 0
    next: dict[str, int] = {}
    holes: int = 0
    """Missing messages of a stream."""
    doubled: int = 0


class Recorder(Replica):
    """Counts messages, one call each, and measures times."""

    def __init__(self) -> None:
        self.account = Account()
        self.slow_ns_per_message = 0
        self.timed = False
        self.restores = 0
        """How often this replica was left behind, or restarted, and restored a snapshot."""
        self.begin()

    def begin(self) -> None:
        """Start measuring latencies and pauses."""
        self.latencies_ns: list[int] = []
        self.urgent = 0
        self.last_ns = 0
        self.gap_ns_max = 0
        self.gap_at_ns = 0
        self.begun_count = self.account.count

    def apply(self, batch: Batch, context: Context) -> None:
        now = monotonic_ns()
        if self.last_ns and now - self.last_ns > self.gap_ns_max:
            self.gap_ns_max, self.gap_at_ns = now - self.last_ns, self.last_ns
        self._account(batch)
        if self.timed:
            unpack, append = _STAMP.unpack_from, self.latencies_ns.append
            for message in batch.messages:
                sent_ns, urgent = unpack(message)
                append(now - sent_ns)
                self.urgent += urgent
        else:
            take = self._take
            for message in batch.messages:
                take(message)
        if self.slow_ns_per_message:
            sleep(self.slow_ns_per_message * len(batch.messages) / SECOND)
        self.last_ns = monotonic_ns()

    def _take(self, message: memoryview) -> None:
        """Simulates the work of an application."""

    def _account(self, batch: Batch) -> None:
        account = self.account
        stream = f"{batch.stream.source.hex()}/{batch.stream.incarnation}/{batch.stream.stream}"
        expected = account.next.get(stream, batch.first)
        account.holes += max(0, batch.first - expected)
        account.doubled += max(0, expected - batch.first)
        account.next[stream] = batch.first + len(batch.messages)
        account.count += len(batch.messages)
        # Batches may differ between replicas, so each message counts separately, but cheaply.
        place = f"{batch.position - batch.first} {stream}".encode()
        account.digest = (account.digest + crc32(place) * len(batch.messages)) & (1 << 62) - 1

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.account)

    def restore(self, state: bytes) -> None:
        self.account = msgspec.msgpack.decode(state, type=Account)
        self.restores += 1


class QuickRecorder(Recorder):
    """The same on the event loop."""

    quick = True


class Member:
    """Executes requests."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder
        self.sent = 0
        self.urgent = 0
        self.urgent_every = 0
        """One in this many paced messages is urgent; 0: none."""

    async def status(self, _: dict[str, Any]) -> dict[str, Any]:
        members = sum(m["state"] == "up" for m in self._node.status()["members"])
        groups: list[dict[str, Any]] = self._node.status()["groups"]
        group = next((one for one in groups if one["name"] == GROUP), {})
        return {
            "up": members,
            "state": group.get("state"),
            "leader": group.get("leader"),
            "term": group.get("term"),
            "why": group.get("why"),
            "datagram_bytes": self._datagram_bytes(),
        }

    def _datagram_bytes(self) -> int:
        """The size of the largest packet that is known to pass to every member as a datagram."""
        links = [link for link in self._node.status()["links"] if link["state"] == "up"]
        flows = [flow for link in links for flow in link["flows"]]
        return min([flow["size"] for flow in flows if flow["path"].endswith("/udp")], default=0)

    async def begin(self, request: dict[str, Any]) -> dict[str, Any]:
        self._recorder.timed = bool(request.get("timed"))
        self._recorder.slow_ns_per_message = int(request.get("slow_ns", 0))
        self._recorder.begin()
        self.sent = self.urgent = 0
        return {}

    async def send(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send for some seconds, or a number of messages: as fast as the group accepts them, or paced."""
        size, rate = int(request["size"]), float(request.get("rate", 0))
        options = request.get("options", {})
        count_max = int(request.get("count", 1 << 60))
        self.urgent_every = int(request.get("urgent_every", 0))
        before, urgent, cpu_s, begin_ns = self.sent, self.urgent, _cpu_s(), monotonic_ns()
        end_ns = begin_ns + int(float(request["seconds"]) * SECOND)
        if rate:
            start_ns = begin_ns + int(float(request.get("shift", 0)) * SECOND / rate)
            await self._paced(size, rate, start_ns, end_ns, options)
        else:
            await self._flat_out(bytes(size), end_ns, before + count_max, options)
        wall_s, used_s = (monotonic_ns() - begin_ns) / SECOND, _cpu_s() - cpu_s
        return {
            "sent": self.sent - before,
            "urgent": self.urgent - urgent,
            "cpu_s": used_s,
            "cpu_share": used_s / wall_s,
        }

    async def _flat_out(
        self, message: bytes, end_ns: int, until: int, options: dict[str, Any]
    ) -> None:
        group = self._node.group(GROUP)
        try_send: Callable[[bytes], bool] = group.try_send
        if options:
            try_send = partial(group.try_send, **options)
        while monotonic_ns() < end_ns and self.sent < until:
            for _ in range(min(BURST, until - self.sent)):
                if not try_send(message):
                    break
                self.sent += 1
            else:
                await asyncio.sleep(0)
                continue
            await group.writable()

    async def _paced(
        self, size: int, rate: float, start_ns: int, end_ns: int, options: dict[str, Any]
    ) -> None:
        group = self._node.group(GROUP)
        filler = bytes(max(0, size - _STAMP.size))
        before = self.sent
        while (now := monotonic_ns()) < end_ns:
            due = before + int(max(0, now - start_ns) * rate / SECOND)
            while self.sent < due:
                urgent = bool(self.urgent_every) and not self.sent % self.urgent_every
                stamped = _STAMP.pack(monotonic_ns(), urgent) + filler
                if not group.try_send(
                    stamped, **(options | {"priority": 0} if urgent else options)
                ):
                    await group.writable()
                    continue
                self.sent += 1
                self.urgent += urgent
            await asyncio.sleep(_TICK_NS / SECOND)

    async def locks(self, request: dict[str, Any]) -> dict[str, Any]:
        """Acquire and release locks for some seconds, each of `callers` its own: round trips per second (two for each
        lock), and the time to acquire."""
        begin_ns = monotonic_ns()
        end_ns = begin_ns + int(float(request["seconds"]) * SECOND)
        names = [f"bench{number}" for number in range(int(request.get("callers", 1)))]
        took = await asyncio.gather(*(self._lock_until(name, end_ns) for name in names))
        took_ns = [one for times in took for one in times]
        rate = 2 * len(took_ns) * SECOND / (monotonic_ns() - begin_ns)
        return {"per_s": rate, "latency_us": _percentiles(took_ns)}

    async def _lock_until(self, name: str, end_ns: int) -> list[int]:
        lock, took_ns = self._node.group(GROUP).lock(name), []
        while (asked_ns := monotonic_ns()) < end_ns:
            async with lock:
                took_ns.append(monotonic_ns() - asked_ns)
        return took_ns

    async def lone_barriers(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pass barriers of one party for some seconds: the duration of each."""
        group, begin_ns = self._node.group(GROUP), monotonic_ns()
        took_ns: list[int] = []
        while monotonic_ns() - begin_ns < float(request["seconds"]) * SECOND:
            asked_ns = monotonic_ns()
            await group.barrier("lone", parties=1)
            took_ns.append(monotonic_ns() - asked_ns)
        return {"latency_us": _percentiles(took_ns)}

    async def barriers(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pass a number of barriers together with all other members: passages per second."""
        group, parties = self._node.group(GROUP), int(request["parties"])
        await group.barrier("begin", parties=parties)
        begin_ns = monotonic_ns()
        for _ in range(int(request["count"])):
            await group.barrier("bench", parties=parties)
        return {"per_s": int(request["count"]) * SECOND / (monotonic_ns() - begin_ns)}

    async def settled(self, request: dict[str, Any]) -> dict[str, Any]:
        """Wait until `expect` messages were applied since `begin`, or nothing more arrives; returns what was
        applied."""
        recorder, expect = self._recorder, int(request["expect"])
        seen, seen_ns = -1, 0
        while recorder.account.count - recorder.begun_count < expect:
            if recorder.account.count != seen:
                seen, seen_ns = recorder.account.count, monotonic_ns()
            elif monotonic_ns() - seen_ns > _SILENCE_NS:
                break
            await asyncio.sleep(0.01)
        account = recorder.account
        group = next(one for one in self._node.status()["groups"] if one["name"] == GROUP)
        return {
            "count": account.count - recorder.begun_count,
            "total": account.count,
            "last_ns": recorder.last_ns,
            "gap_ms": recorder.gap_ns_max / MILLISECOND,
            "gap_at_ns": recorder.gap_at_ns,
            "digest": account.digest,
            "holes": account.holes,
            "doubled": account.doubled,
            "urgent": recorder.urgent,
            "nacks": group["nacks"],
            "term": group["term"],
            "restores": recorder.restores,
            "questions": group["questions"],
            "rss_mb_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "latency_us": _percentiles(recorder.latencies_ns),
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _percentiles(latencies_ns: list[int]) -> dict[str, float]:
    if not latencies_ns:
        return {}
    latencies_ns = sorted(latencies_ns)
    last = len(latencies_ns) - 1
    return {
        name: latencies_ns[last * share // 1000] / 1000
        for name, share in (("p50", 500), ("p99", 990), ("max", 1000))
    }


async def serve(member: Member | FanOut) -> None:
    """Answer each line on standard input until it ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        answer = await getattr(member, request["do"])(request)
        print(json.dumps(answer), flush=True)


async def run(config: str, quick: bool) -> None:
    recorder = QuickRecorder() if quick else Recorder()
    node = Node(parse_config(config), {GROUP: recorder})
    logging.disable(logging.WARNING)  # the warning about plain mode is not needed here
    async with node:
        calm_collector()
        print(json.dumps({"ready": True}), flush=True)
        await serve(Member(node, recorder))


async def run_raw(ports: list[int], place: int, packed: bool) -> None:
    fanout = FanOut(ports, place, packed)
    await fanout.start()
    calm_collector()
    print(json.dumps({"ready": True}), flush=True)
    await serve(fanout)


if __name__ == "__main__":
    if sys.argv[1] == "raw":
        run_loop(run_raw(json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "packed"))
    else:
        run_loop(run(Path(sys.argv[1]).read_text(), sys.argv[2:] == ["quick"]))
