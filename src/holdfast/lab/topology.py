"""Creating and removing the namespaces of a lab."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from time import monotonic_ns
from typing import Final

from holdfast.errors import HoldfastError, SetupError
from holdfast.lab import rules
from holdfast.lab.plan import Plan, prefix
from holdfast.lab.tools import namespaces, run, run_in
from holdfast.types import SECOND

_PATIENCE_NS: Final = 5 * SECOND
# With offload, a host passes unsegmented packets and uncomputed checksums to the switch: sizes on the wire would be
# wrong, and damaged packets would reach applications.
_OFFLOAD: Final = "rx off tx off sg off tso off gso off gro off"


def build(plan: Plan) -> None:
    """Create all namespaces, veth pairs, bridges and tables."""
    run(["ip", "-batch", "-"], "".join(f"netns add {name}\n" for name in plan.namespaces()))
    run(["ip", "-n", plan.switch, "-batch", "-"], _switch(plan))
    for host in plan.hosts:
        run(["ip", "-n", plan.namespace(host), "-batch", "-"], _host(plan, host))
    for name, devices in _devices(plan).items():
        # An older ethtool complains about features that a device does not have, and does the rest.
        script = f"for d in {' '.join(devices)}; do ethtool -K $d {_OFFLOAD} >/dev/null 2>&1 || true; done"
        script += "; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 || true"
        # Otherwise a bridge reassembles and re-fragments packets, and sizes pass that should not.
        script += "; sysctl -qw net.bridge.bridge-nf-call-iptables=0 2>/dev/null || true"
        run_in(name, ["sh", "-c", script])
    try:
        run_in(plan.switch, ["nft", "-f", "-"], rules.setup(plan))
    except HoldfastError as error:
        raise SetupError(
            f"this kernel's packet filter cannot do what a lab needs (egress hooks, Linux 5.16 or newer): {error}"
        ) from None


def _switch(plan: Plan) -> str:
    lines = []
    for subnet in plan.subnets:
        # Without snooping, multicast goes to every port, as in a plain switch.
        lines.append(f"link add {subnet} type bridge mcast_snooping 0 forward_delay 0")
        for host in plan.hosts:
            port, far = plan.port(host, subnet), plan.namespace(host)
            mac = plan.mac(host, subnet)
            lines.append(
                f"link add {port} mtu {plan.mtu} type veth "
                f"peer name {subnet} mtu {plan.mtu} address {mac} netns {far}"
            )
            lines.append(f"link set {port} master {subnet} up")
        lines.append(f"link set {subnet} mtu {plan.mtu} up")
    return "\n".join([*lines, "link set lo up"]) + "\n"


def _host(plan: Plan, host: str) -> str:
    lines = ["link set lo up"]
    for subnet in plan.subnets:
        lines.append(f"addr add {plan.address(host, subnet)}/24 dev {subnet}")
        lines.append(f"link set {subnet} up")
    # A program that does not select an adapter for multicast uses the first.
    lines.append(f"route add 224.0.0.0/4 dev {plan.subnets[0]}")
    return "\n".join(lines) + "\n"


def _devices(plan: Plan) -> dict[str, list[str]]:
    ports = [plan.port(host, subnet) for subnet in plan.subnets for host in plan.hosts]
    return {plan.switch: ports} | {plan.namespace(host): list(plan.subnets) for host in plan.hosts}


def tear_down(name: str) -> list[str]:
    """Remove everything with the name of the lab: processes in its namespaces, then the namespaces. Returns them."""
    mine = [one for one in namespaces() if one.startswith(prefix(name))]
    _end_processes(mine)
    for one in mine:
        run(["ip", "netns", "delete", one])
    return mine


def _end_processes(names: list[str]) -> None:
    """Terminate, wait, then kill."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _pids(names):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = monotonic_ns() + _PATIENCE_NS
        while _pids(names) and monotonic_ns() < deadline:
            time.sleep(0.02)


def _pids(names: list[str]) -> list[int]:
    found = [int(pid) for name in names for pid in run(["ip", "netns", "pids", name]).split()]
    return [pid for pid in found if pid != os.getpid()]
