"""One node of a lab: the same as `holdfast node`, with an optional steady flow of messages that is measured.

The messages use a channel, where every message arrives, or datagrams, which can be lost. If the node is a voter of a
group, each node sends it a message per period on request, and every replica measures how long those of all nodes take.

All namespaces share one clock, so the time from send to delivery is exact. A lab may run without certificates
(`plain`), because its packets do not leave the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import tomllib
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.group.ports import Batch, Context, Replica
from holdfast.group.section import GROUPS
from holdfast.health.placement.needs import Needs
from holdfast.lab.nodes import GROUP
from holdfast.node.config import NodeConfig
from holdfast.runtime.collector import calm_collector
from holdfast.runtime.handles import Channel, Datagrams
from holdfast.runtime.loop import run as run_loop
from holdfast.runtime.node import Node
from holdfast.runtime.parts import load_config
from holdfast.types import MILLISECOND, NodeId

PORT: Final = 900
CHANNEL: Final = "channel"
DATAGRAMS: Final = "datagrams"
"""The transport of the messages."""
_NAME: Final = 16
_HEAD: Final = 16 + _NAME
"""Number, send time, name of the sender."""


class Sending:
    """A flow to one other node: a message per period, on time even if earlier ones are delayed."""

    def __init__(
        self,
        node: Node,
        to: str,
        size: int,
        every_ns: int,
        fill: bytes,
        by: str = CHANNEL,
        needs: Needs | None = None,
    ) -> None:
        self._node = node
        self._to = to
        self._needs = needs
        self._datagrams = node.datagrams(to, PORT, needs) if by == DATAGRAMS else None
        self._every_ns = every_ns
        name = node.config.name.encode()[:_NAME].ljust(_NAME)
        self._rest = name + (fill * (size // len(fill) + 1))[: max(0, size - _HEAD)]
        self.sent = 0
        self.ended = 0
        """How often the channel ended because a session was lost."""

    async def run(self) -> None:
        due = monotonic_ns()
        while True:
            message = (self.sent + 1).to_bytes(8, "big") + due.to_bytes(8, "big") + self._rest
            try:
                await self._handle().send(message)
                self.sent += 1
            except HoldfastError:
                self.ended += 1
            due += self._every_ns
            await asyncio.sleep(max(0, due - monotonic_ns()) / 1e9)

    def _handle(self) -> Channel | Datagrams:
        """A channel ends with its session and is then replaced."""
        if self._datagrams is not None:
            return self._datagrams
        channel = self._node.channel(self._to, PORT)
        if channel.needs != self._needs:
            channel.needs = self._needs
        return channel

    def stop(self) -> None:
        """End the flow and withdraw its needs."""
        self._needs = None
        with contextlib.suppress(HoldfastError):
            self._handle().needs = None


class Reception:
    """The received part of the flow from one other node."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self.last_ns = 0
        self.reset()

    def reset(self) -> None:
        """Reset. The last arrival is kept: silence may start with the next message."""
        self.missing = 0
        self.latency_ns_max = 0
        self.gap_ns_max = 0

    def hear(self, message: memoryview) -> None:
        now = monotonic_ns()
        number, sent_ns = int.from_bytes(message[:8], "big"), int.from_bytes(message[8:16], "big")
        self.count += 1
        self.missing += max(0, number - self.last - 1)
        self.last = number
        self.latency_ns_max = max(self.latency_ns_max, now - sent_ns)
        if self.last_ns:
            self.gap_ns_max = max(self.gap_ns_max, now - self.last_ns)
        self.last_ns = now

    def report(self) -> dict[str, Any]:
        silent = monotonic_ns() - self.last_ns if self.last_ns else 0
        return {
            "messages": self.count,
            "missing": self.missing,
            "latency_ms_max": round(self.latency_ns_max / MILLISECOND, 2),
            "gap_ms_max": round(max(self.gap_ns_max, silent) / MILLISECOND, 2),
        }


class GroupWatch(Replica):
    """A replica that measures how long messages take, and how long none is delivered."""

    quick = True

    def __init__(self) -> None:
        self.reset()
        self.last_ns = 0

    def reset(self) -> None:
        self.latency_ns_max = self.gap_ns_max = 0

    def apply(self, batch: Batch, context: Context) -> None:
        now = monotonic_ns()
        for message in batch.messages:
            sent_ns = int.from_bytes(message[:8], "big")
            self.latency_ns_max = max(self.latency_ns_max, now - sent_ns)
        if self.last_ns:
            self.gap_ns_max = max(self.gap_ns_max, now - self.last_ns)
        self.last_ns = now

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """The state is what this replica has measured itself."""

    def report(self, reset: bool) -> dict[str, Any]:
        silent = monotonic_ns() - self.last_ns if self.last_ns else 0
        answer = {
            "latency_ms_max": round(self.latency_ns_max / MILLISECOND, 2),
            "gap_ms_max": round(max(self.gap_ns_max, silent) / MILLISECOND, 2),
        }
        if reset:
            self.reset()
        return answer


class GroupLoad:
    """The messages that a node sends to the group, and their control command."""

    def __init__(self, node: Node, watch: GroupWatch) -> None:
        self._node = node
        self._watch = watch
        self._task: asyncio.Task[None] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """`every_ms`, `size`: send from now on; 0 ends it. `reset`: the worst values start again."""
        if "every_ms" in request:
            self.stop()
            every_ms, size = int(request["every_ms"]), int(request.get("size", 1200))
            if every_ms > 0:
                self._task = asyncio.ensure_future(self._send(every_ms * MILLISECOND, size))
        return self._watch.report(bool(request.get("reset")))

    async def _send(self, every_ns: int, size: int) -> None:
        group, due = self._node.group(GROUP), monotonic_ns()
        while True:
            with contextlib.suppress(HoldfastError):
                await group.send(due.to_bytes(8, "big") + bytes(max(0, size - 8)))
            due += every_ns
            await asyncio.sleep(max(0, due - monotonic_ns()) / 1e9)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None


class Flows:
    """All flows that a node sends and receives, and their control commands."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sending: dict[str, tuple[Sending, asyncio.Task[None]]] = {}
        self._receptions: dict[str, Reception] = {}
        node.listen(PORT, self._hear)
        node.listen(PORT, self._hear, channel=False)

    def _hear(self, _: NodeId, messages: list[memoryview]) -> None:
        for message in messages:
            if len(message) >= _HEAD:
                name = bytes(message[16:_HEAD]).decode(errors="replace").strip()
                self._receptions.setdefault(name, Reception()).hear(message)

    def send(self, request: dict[str, Any]) -> dict[str, Any]:
        """`to`, `size`, `every_ms`, `fill` (hexadecimal), `by` (`channel` or `datagrams`), `protocol` (what its path
        must carry: `udp`, `tcp`, `multicast`). `every_ms` 0 ends it."""
        to, every_ms = str(request["to"]), int(request.get("every_ms", 50))
        self._stop(to)
        if every_ms > 0:
            try:
                fill = bytes.fromhex(str(request.get("fill", "00"))) or b"\0"
            except ValueError:
                raise MisuseError("fill must be bytes in hexadecimal; nothing is sent") from None
            size = int(request.get("size", 1200))
            by, protocol = str(request.get("by", CHANNEL)), str(request.get("protocol", ""))
            if by not in (CHANNEL, DATAGRAMS):
                raise MisuseError(
                    f"by must be {CHANNEL} or {DATAGRAMS}, not {by!r}; nothing is sent"
                )
            needs = Needs(protocol=protocol) if protocol else None
            flow = Sending(self._node, to, size, every_ms * MILLISECOND, fill, by, needs)
            self._sending[to] = flow, asyncio.ensure_future(flow.run())
        return {"to": to, "every_ms": every_ms}

    def report(self, request: dict[str, Any]) -> dict[str, Any]:
        """What was sent and received; with `reset` the worst values start again."""
        answer = {
            "sent": {
                to: {"messages": flow.sent, "ended": flow.ended}
                for to, (flow, _) in self._sending.items()
            },
            "heard": {name: one.report() for name, one in self._receptions.items()},
        }
        if request.get("reset"):
            for one in self._receptions.values():
                one.reset()
        return answer

    def _stop(self, to: str) -> None:
        if to in self._sending:
            flow, task = self._sending.pop(to)
            task.cancel()
            flow.stop()

    async def close(self) -> None:
        for to in list(self._sending):
            _, task = self._sending[to]
            self._stop(to)
            with contextlib.suppress(asyncio.CancelledError):
                await task


def lab_config(path: Path) -> NodeConfig:
    """The checked file, except that a lab may be plain off loopback."""
    raw = tomllib.loads(path.read_text())
    if raw.get("security", {}).get("mode") != "plain":
        return load_config(path)
    groups = {GROUPS.key: msgspec.convert(raw.pop(GROUPS.key, []), GROUPS.kind)}
    config = msgspec.convert(raw, NodeConfig)
    return msgspec.structs.replace(config, data=str(path.parent / config.data), sections=groups)


def _groups(path: Path) -> list[str]:
    return [group["name"] for group in tomllib.loads(path.read_text()).get("group", [])]


async def main(path: Path) -> None:
    watch = GroupWatch()
    node = Node(lab_config(path), dict.fromkeys(_groups(path), watch))
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with node:
        flows = Flows(node)
        load = GroupLoad(node, watch)
        node.answer({"flow": flows.send, "flows": flows.report, "group_load": load.ask})
        calm_collector()
        stopped = asyncio.ensure_future(node.wait_stopped())
        waiting = asyncio.ensure_future(told.wait())
        done, _ = await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
        load.stop()
        await flows.close()
        for task in done:
            task.result()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run_loop(main(Path(sys.argv[1])))
