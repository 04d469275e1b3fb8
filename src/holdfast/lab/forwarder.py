"""The process in the switch that forwards instead of the bridge for faults that the kernel cannot implement.

    python -m holdfast.lab.forwarder RUN_DIRECTORY

It receives at the ports of the senders and sends at those of the listeners. It gets its faults over a control socket in
the directory of the lab, and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic_ns
from typing import Any, Final

from holdfast.errors import MisuseError
from holdfast.faults.model import Fault
from holdfast.lab import rules
from holdfast.lab.plan import Plan
from holdfast.lab.relay import Relay
from holdfast.lab.state import load
from holdfast.lab.words import covers, parse_lab_fault
from holdfast.runtime.control import ControlServer
from holdfast.types import Nanos

SOCKET: Final = "forwarder.sock"
_ALL_PROTOCOLS: Final = 3
_OUTGOING: Final = 4
"""A packet socket also sees packets that leave its port; these are not forwarded."""
_BATCH: Final = 64
_WAITING_MAX: Final = 20_000
"""The maximum number of delayed packets; further ones are lost, as in a switch without memory."""
_FRAME_MAX: Final = 1 << 17
_BUFFER: Final = 8 << 20

Path3 = tuple[str, str, str]


class Forwarder:
    """All paths of one lab that need it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._rng = Random(seed)
        self._loop = asyncio.get_running_loop()
        self._relays: dict[Path3, Relay] = {}
        self._taps: dict[str, socket.socket] = {}
        self._outs: dict[str, socket.socket] = {}
        self._waiting: list[tuple[Nanos, int, str, bytes]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._targets: dict[tuple[str, bytes], Path3] = {}
        """(ingress port, destination hardware address) to the path."""
        self.overflowed = 0

    def use(self, faults: dict[str, Fault]) -> None:
        """Serve exactly the paths that these faults affect."""
        now = monotonic_ns()
        paths = rules.served(self._plan, faults)
        self._open([self._plan.port(sender, subnet) for subnet, sender, _ in paths], paths)
        relays: dict[Path3, Relay] = {}
        for path in paths:
            relay = relays[path] = self._relays.get(path) or Relay(self._rng)
            mine = {
                name: fault
                for name, fault in faults.items()
                if not rules.in_kernel(fault) and covers(fault, *path)
            }
            relay.use(mine, now)
        fresh = [path for path in relays if path not in self._relays]
        subprocess.run(
            ["nft", "-f", "-"], input=rules.serve(self._plan, faults), text=True, check=True
        )
        if fresh:
            self._forget_queued()
        self._relays = relays
        self._targets = {}
        for path in paths:
            subnet, sender, listener = path
            mac = bytes.fromhex(self._plan.mac(listener, subnet).replace(":", ""))
            self._targets[self._plan.port(sender, subnet), mac] = path
        self._close_unused(paths)

    def paths(self) -> int:
        """The number of served paths."""
        return len(self._relays)

    def taken(self) -> dict[str, int]:
        """The number of packets matched by each fault."""
        total: dict[str, int] = {}
        for relay in self._relays.values():
            for name, count in relay.taken().items():
                total[name] = total.get(name, 0) + count
        return total

    # -- sockets -------------------------------------------------------------------------------------------------

    def _open(self, ports: list[str], paths: list[Path3]) -> None:
        for port in ports:
            if port not in self._taps:
                tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
                tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                tap.setblocking(False)
                tap.bind((port, _ALL_PROTOCOLS))
                self._taps[port] = tap
                self._loop.add_reader(tap.fileno(), self._read, port)
        for subnet, _, listener in paths:
            port = self._plan.port(listener, subnet)
            if port not in self._outs:
                out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                out.setblocking(False)
                out.bind((port, 0))
                self._outs[port] = out

    def _forget_queued(self) -> None:
        """Packets received before the bridge stopped forwarding were forwarded by it."""
        for tap in self._taps.values():
            with contextlib.suppress(BlockingIOError):
                while True:
                    tap.recv(_FRAME_MAX)

    def _close_unused(self, paths: list[Path3]) -> None:
        wanted = {self._plan.port(sender, subnet) for subnet, sender, _ in paths}
        for port in [port for port in self._taps if port not in wanted]:
            tap = self._taps.pop(port)
            self._loop.remove_reader(tap.fileno())
            tap.close()

    # -- packets -------------------------------------------------------------------------------------------------

    def _read(self, port: str) -> None:
        tap = self._taps[port]
        for _ in range(_BATCH):
            try:
                frame, source = tap.recvfrom(_FRAME_MAX)
            except BlockingIOError:
                break
            except OSError:
                continue  # the port was down for a moment
            if source[2] != _OUTGOING:
                self._take(port, frame)
        self._send_due()

    def _take(self, port: str, frame: bytes) -> None:
        now = monotonic_ns()
        for path in self._paths_of(port, frame):
            subnet, _, listener = path
            out = self._plan.port(listener, subnet)
            for leaves, packet in self._relays[path].take(frame, now):
                if len(self._waiting) >= _WAITING_MAX:
                    self.overflowed += 1
                    return
                self._count += 1
                heapq.heappush(self._waiting, (leaves, self._count, out, packet))

    def _paths_of(self, port: str, frame: bytes) -> list[Path3]:
        if frame[0] & 1:  # to several: each served listener gets its own copy
            return [path for (source, _), path in self._targets.items() if source == port]
        path = self._targets.get((port, frame[:6]))
        return [path] if path is not None else []

    def _send_due(self) -> None:
        waiting = self._waiting
        now = monotonic_ns()
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            # ENOBUFS: a rule at the port dropped it, or the port is full. Both are normal for a switch.
            with contextlib.suppress(OSError):
                self._outs[port].send(frame)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting:
            delay_s = max(0, waiting[0][0] - monotonic_ns()) / 1e9
            self._timer = self._loop.call_later(delay_s, self._send_due)


async def main(directory: Path) -> None:
    plan = load(directory).plan
    forwarder = Forwarder(plan, seed=monotonic_ns())

    def faults(request: dict[str, Any]) -> dict[str, Any]:
        texts = request.get("faults")
        if not isinstance(texts, dict):
            raise MisuseError("faults must be an object of names and texts; nothing was changed")
        forwarder.use(
            {
                str(name): parse_lab_fault(str(text), plan.hosts, plan.subnets)
                for name, text in texts.items()
            }
        )
        return {"paths": forwarder.paths()}

    def stats(_: dict[str, Any]) -> dict[str, Any]:
        return {"taken": forwarder.taken(), "overflowed": forwarder.overflowed}

    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with ControlServer(directory / SOCKET, {"faults": faults, "stats": stats}):
        await told.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
