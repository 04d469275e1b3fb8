"""The domain of the demonstration: five node processes on this machine with two subnets, and fault injection."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from holdfast.errors import HoldfastError, SetupError
from holdfast.runtime.control import ask
from holdfast.transports.authority import issue, load_authority, make_authority, write_pair

DOMAIN = "demo"
SUBNETS = ("red", "blue")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Delays an interruption until the end of the block, so that a process that was just started is not lost."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


class Member:
    """One node: its files, and its process while it runs."""

    def __init__(self, name: str, directory: Path, hosts: dict[str, str]) -> None:
        self.name = name
        self.directory = directory
        self.hosts = hosts
        self.config = directory.parent / f"{name}.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def start(self) -> None:
        with undisturbed():
            self._log = (self.directory.parent / f"{self.name}.log").open("ab")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.demo.member", str(self.config)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C is for the demonstration, which then stops its nodes in order
            )

    def kill(self) -> None:
        """Kill it like a power failure, without a clean stop."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._forget()

    def stop(self, patience_s: float = 10.0) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._forget()

    def _forget(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None
        if self._log is not None:
            self._log.close()

    def ask(self, do: str, *, timeout_s: float = 5.0, **request: Any) -> dict[str, Any]:
        """Send a request to the node; an error names the node and its log."""
        if self.process is not None and self.process.poll() is not None:
            tail = (self.directory.parent / f"{self.name}.log").read_text(errors="replace")[-800:]
            raise HoldfastError(
                f"node {self.name} stopped unexpectedly; the end of its log:\n{tail}"
            )
        return ask(self.directory / "control.sock", {"do": do, **request}, timeout_s=timeout_s)

    def try_ask(self, do: str) -> dict[str, Any] | None:
        """As `ask`, but None while the node is not available yet."""
        with contextlib.suppress(HoldfastError):
            return self.ask(do)
        return None


class Domain:
    """All members."""

    def __init__(self, directory: Path, count: int = 5) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        write_pair(directory, "ca", make_authority(DOMAIN, days=2), force=True)
        authority = load_authority(directory)
        self.members: dict[str, Member] = {}
        self.page = ""
        names = [f"n{i + 1}" for i in range(count)]
        for index, name in enumerate(names):
            write_pair(directory, name, issue(authority, name, days=2), force=True)
            hosts = {subnet: f"127.0.{10 + k}.{index + 1}" for k, subnet in enumerate(SUBNETS)}
            self.members[name] = Member(name, directory / name, hosts)
        ports = {name: _free_port(list(m.hosts.values())) for name, m in self.members.items()}
        web = _free_port(["127.0.0.1"])
        self.page = f"http://127.0.0.1:{web}/"
        first = self.members["n1"].hosts["red"]
        for name, member in self.members.items():
            member.directory.mkdir(exist_ok=True)
            page = f"127.0.0.1:{web}" if name == names[-1] else ""
            member.config.write_text(
                _toml(member, ports[name], f"{first}:{ports['n1']}", names, page)
            )

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def start(self) -> None:
        for member in self.members.values():
            member.start()

    def stop(self) -> None:
        """Stop all at once, then wait for each; a process that does not stop is killed."""
        for member in self.members.values():
            if member.process is not None:
                member.process.terminate()
        for member in self.members.values():
            member.stop()


def _toml(member: Member, port: int, join: str, names: list[str], page: str) -> str:
    root = member.directory.parent
    adapters = "".join(
        f'\n[[adapter]]\nname = "{subnet}"\naddress = "{host}:{port}"\nmtu = 9000\n'
        for subnet, host in member.hosts.items()
    )
    voters = ", ".join(f'"{name}"' for name in names)
    return f"""domain = "{DOMAIN}"
name = "{member.name}"
data = "{member.directory}"
join = ["{join}"]
{adapters}
[security]
mode = "tls"
authority = "{root}/ca.pem"
certificate = "{root}/{member.name}.pem"
key = "{root}/{member.name}.key"

[web]
address = "{page}"

[telemetry]
seal_s = 20.0

[lab]
faults = true

[objects]
root = ["n1", "n2", "n3"]

[[dialogs.store]]
name = "ledger"
kind = "sqlite"

[[group]]
name = "book"
voters = [{voters}]
leader = "n1"
"""


def _free_port(hosts: list[str]) -> int:
    """A port that is free on all these addresses, for TCP and UDP."""
    for _ in range(50):
        with socket.socket() as first:
            first.bind((hosts[0], 0))
            port: int = first.getsockname()[1]
        if all(_is_free(host, port) for host in hosts):
            return port
    raise SetupError(f"no port is free on {', '.join(hosts)}; nothing was started")


def _is_free(host: str, port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
