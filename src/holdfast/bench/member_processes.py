"""The processes of one measurement of a group: started and controlled together, and always ended."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.bench.group_member import GROUP
from holdfast.errors import HoldfastError
from holdfast.transports.authority import issue, load_authority, make_authority, write_pair

DOMAIN: Final = "bench"
PATIENCE_S: Final = 120.0


class Setting(msgspec.Struct, frozen=True):
    """The settings of the group of a measurement."""

    members: int = 4
    security: str = "plain"
    transports: tuple[str, ...] = ("tcp",)
    mtu: int = 1500
    """The MTU of the adapters, up to which health measures packet sizes."""
    faults: bool = False
    group: str = ""
    """Further lines of the group section."""
    quick: bool = False
    """The applications are `quick`."""
    telemetry: bool = False
    """The members record facts."""


class MemberProcess:
    """The process of one member."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, control: Path) -> None:
        self.name = name
        self.control = control
        self._process = process
        self.patience_s = PATIENCE_S
        """Timeout of a request."""
        self.gone = False

    async def ask(self, do: str, **values: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(self.patience_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise HoldfastError(
                f"member {self.name} of the benchmark did not answer within {self.patience_s:g} s"
            ) from None
        if not line:
            raise HoldfastError(f"member {self.name} of the benchmark ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self.gone = self.gone or number == signal.SIGKILL

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        await self._process.wait()


class MemberProcesses:
    """All processes of a measurement."""

    def __init__(self, members: list[MemberProcess]) -> None:
        self.members = members

    async def all(self, do: str, **values: Any) -> list[dict[str, Any]]:
        """Send a request to all processes at once, and wait for all answers."""
        there = [member for member in self.members if not member.gone]
        return list(await asyncio.gather(*(member.ask(do, **values) for member in there)))

    async def in_turn(self, do: str, **values: Any) -> list[dict[str, Any]]:
        """The same; `shift` spreads what they do at regular intervals over each interval."""
        there = [member for member in self.members if not member.gone]
        return list(
            await asyncio.gather(
                *(member.ask(do, shift=k / len(there), **values) for k, member in enumerate(there))
            )
        )

    def named(self, name: str) -> MemberProcess:
        return next(member for member in self.members if member.name == name)

    async def formed(self, timeout_s: float = 30.0) -> str:
        """Wait until all members see each other and there is a leader; returns its name."""
        statuses: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    statuses = await self.all("status")
                    leaders = dict.fromkeys(status["leader"] for status in statuses)
                    states = [status["state"] for status in statuses]
                    calm = all(state in ("leading", "following") for state in states)
                    if calm and states.count("leading") == 1 and len(leaders) == 1:
                        return str(next(iter(leaders)))
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise HoldfastError(
                f"the group of the benchmark did not form within {timeout_s:g} s: {statuses}"
            ) from None

    async def measured(self, size: int, timeout_s: float = 10.0) -> int:
        """Wait until health has measured that datagrams of this size pass between all members; returns the size that is
        known to pass. On a busy machine that may take longer than this waits."""
        found = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while found < size:
                    statuses = await self.all("status")
                    found = min(int(status["datagram_bytes"]) for status in statuses)
                    await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def processes_of(setting: Setting, directory: Path) -> AsyncIterator[MemberProcesses]:
    """A group in separate processes, formed."""
    members: list[MemberProcess] = []
    try:
        for name, file in _write_configs(setting, directory).items():
            arguments = [str(file), *(["quick"] if setting.quick else [])]
            members.append(await _start(name, directory / name / "control.sock", arguments))
        processes = MemberProcesses(members)
        await asyncio.gather(*(member.hear() for member in members))
        await processes.formed()
        yield processes
    finally:
        for member in members:
            await member.end()


def _write_configs(setting: Setting, directory: Path) -> dict[str, Path]:
    names, ports = member_names(setting.members), free_ports(setting.members)
    files = {name: directory / f"{name}.toml" for name in names}
    for place, (name, file) in enumerate(files.items()):
        (directory / name).mkdir(parents=True)
        file.write_text(config_text(setting, names, ports, place, directory))
    return files


@asynccontextmanager
async def raw_processes(count: int, form: str) -> AsyncIterator[MemberProcesses]:
    """The baseline, connected."""
    ports = free_ports(count)
    members: list[MemberProcess] = []
    try:
        for place in range(count):
            arguments = ["raw", json.dumps(ports), str(place), form]
            members.append(await _start(f"raw{place}", Path(), arguments))
        processes = MemberProcesses(members)
        await asyncio.gather(*(member.hear() for member in members))
        await processes.all("connect")
        yield processes
    finally:
        for member in members:
            await member.end()


async def _start(name: str, control: Path, arguments: list[str]) -> MemberProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.bench.group_member", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    return MemberProcess(name, process, control)


def member_names(members: int) -> list[str]:
    return [f"m{number}" for number in range(1, members + 1)]


def member_host(place: int) -> str:
    """A separate loopback address, so that faults can name a member."""
    return f"127.0.1.{place + 1}"


def config_text(
    setting: Setting, names: list[str], ports: list[int], place: int, directory: Path
) -> str:
    """The configuration of one member."""
    name = names[place]
    if setting.security == "tls":
        _make_certificate(directory, name)
    join = "" if place == 0 else f'"{member_host(0)}:{ports[0]}"'
    return f"""
domain = "{DOMAIN}"
name = "{name}"
data = "{directory}/{name}"
join = [{join}]
[telemetry]
enabled = {str(setting.telemetry).lower()}
[lab]
faults = {str(setting.faults).lower()}
[security]
mode = "{setting.security}"
authority = "{directory}/ca.pem"
certificate = "{directory}/{name}.pem"
key = "{directory}/{name}.key"
[[adapter]]
name = "lo"
address = "{member_host(place)}:{ports[place]}"
transports = {json.dumps(setting.transports)}
mtu = {setting.mtu}
[[group]]
name = "{GROUP}"
voters = {json.dumps(names)}
leader = "{names[0]}"
{setting.group}
"""


def _make_certificate(directory: Path, name: str) -> None:
    if not (directory / "ca.pem").exists():
        write_pair(directory, "ca", make_authority(DOMAIN, days=1), force=True)
    write_pair(directory, name, issue(load_authority(directory), name, days=1), force=True)


def free_ports(count: int) -> list[int]:
    """Free ports, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
