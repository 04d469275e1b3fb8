"""Holdfast nodes on the hosts of a lab: their files, certificates and processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError
from holdfast.lab.plan import MULTICAST_PORT, PORT, Plan
from holdfast.lab.state import Process, running
from holdfast.transports.authority import issue, load_authority, make_authority, write_pair
from holdfast.types import SECOND

if TYPE_CHECKING:
    from holdfast.lab.lab import Lab

DAYS: Final = 7
GROUP: Final = "lab"
"""The name of the group that nodes have on request: `holdfast.lab.member` measures it."""
_UP_NS: Final = 60 * SECOND


def directory_of(lab: Path) -> Path:
    return lab / "nodes"


def data_of(lab: Path, host: str) -> Path:
    """The data directory of the node of a host."""
    return directory_of(lab) / host


def config_of(lab: Path, host: str) -> Path:
    return directory_of(lab) / f"{host}.toml"


def log_of(lab: Path, host: str) -> Path:
    return directory_of(lab) / f"{host}.log"


def write(lab: Path, plan: Plan, plain: bool, group: bool = False) -> None:
    """A configuration for every host, and the files it refers to."""
    folder = directory_of(lab)
    folder.mkdir(exist_ok=True)
    write_pair(folder, "ca", make_authority(plan.name, DAYS), force=True)
    authority = load_authority(folder)
    for host in plan.hosts:
        write_pair(folder, host, issue(authority, host, DAYS), force=True)
        data_of(lab, host).mkdir(exist_ok=True)
        config_of(lab, host).write_text(_toml(plan, host, plain, group))


def _toml(plan: Plan, host: str, plain: bool, group: bool) -> str:
    join = ", ".join(f'"{plan.address(plan.hosts[0], s)}:{PORT}"' for s in plan.subnets)
    adapters = "".join(
        f'\n[[adapter]]\nname = "{s}"\naddress = "{plan.address(host, s)}:{PORT}"\nmtu = {plan.mtu}\n'
        f'multicast = "{plan.group(s)}:{MULTICAST_PORT}"\n'
        for s in plan.subnets
    )
    security = f"""mode = "tls"
authority = "ca.pem"
certificate = "{host}.pem"
key = "{host}.key"
"""
    voters = ", ".join(f'"{name}"' for name in plan.hosts)
    replicas = f'[[group]]\nname = "{GROUP}"\nvoters = [{voters}]\n' if group else ""
    return f"""domain = "{plan.name}"
name = "{host}"
data = "{host}"
join = [{join}]
{adapters}
[security]
{'mode = "plain"' if plain else security}
{replicas}"""


def start(lab: Lab, host: str) -> subprocess.Popen[Any]:
    with log_of(lab.directory, host).open("ab") as log:
        return lab.popen(
            host,
            [sys.executable, "-m", "holdfast.lab.member", str(config_of(lab.directory, host))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def state_of(process: Process | None) -> str:
    if process is None:
        return "none"
    return "running" if running(process) else "ended"


def wait_until_up(lab: Lab) -> None:
    """Wait until every node has a session with every other, on every subnet."""
    deadline = monotonic_ns() + _UP_NS
    waiting = list(lab.plan.hosts)
    while waiting:
        waiting = [host for host in waiting if not _is_up(lab, host)]
        if waiting and monotonic_ns() > deadline:
            tail = log_of(lab.directory, waiting[0]).read_text(errors="replace")[-800:]
            raise HoldfastError(
                f"node {waiting[0]} has not found all other nodes; the end of its log:\n{tail}"
            )
        time.sleep(0.05)


def _is_up(lab: Lab, host: str) -> bool:
    try:
        status = lab.ask(host, "status")
    except HoldfastError:
        return False
    others = len(lab.plan.hosts) - 1
    links = [link for link in status["links"] if link["state"] == "up"]
    alive = {(p["sender"], p["subnet"]) for p in _heard(status, host) if p["alive"]}
    return len(links) == others and len(alive) == others * len(lab.plan.subnets)


def _heard(status: dict[str, Any], host: str) -> list[dict[str, Any]]:
    return [path for path in status["paths"] if path["listener"] == host]
