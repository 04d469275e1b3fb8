"""Faults as packet-filter rules of the switch.

Rules apply where a packet leaves the switch towards its listener, and identify the sender by its hardware address: one
path in one direction. The `forwarder` sends delayed packets from the same ports, so the rules apply to them as well.
Faults that the kernel cannot implement (see `in_kernel`) are done by the forwarder; a second table then stops the
bridge from forwarding on the paths that the forwarder serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.faults.amounts import MILLION
from holdfast.faults.model import (
    ANY,
    Blackout,
    Every,
    Fault,
    Filter,
    Loss,
    Mtu,
    Over,
    Packets,
    PatternAt,
    Watch,
    What,
)
from holdfast.lab.plan import Plan
from holdfast.lab.words import covers

TABLE: Final = "netdev holdfast"
SERVED: Final = "bridge holdfast"

KIND: Final = {
    "": "",
    "udp": "ip protocol udp",
    "tcp": "ip protocol tcp",
    "multicast": "ip daddr 224.0.0.0/4",
    "frag": "ip frag-off & 0x3fff != 0",
}
"""Packets of one kind. A fragment has an offset, or the flag 'more fragments'; 'do not fragment' is another bit."""

VLAN_TAG: Final = 4
"""A port passes packets that exceed its MTU by this much, because they might have a VLAN tag."""

_FLOW: Final = "jhash ip saddr . ip daddr . @th,0,32 mod 1000000 seed 0x486f6c64"
"""One number per flow, from its addresses and ports."""

Faults = Mapping[str, Fault]
"""By name, in the order of creation."""


def in_kernel(fault: Fault) -> bool:
    """Whether the packet filter can implement it; otherwise the forwarder does."""
    if fault.off_ns:
        return False
    kinds = Blackout | Loss | Over | Filter | Every | Packets | PatternAt | Watch
    return isinstance(fault.what, kinds)


def path_counter(subnet: str, sender: str, listener: str) -> str:
    return f"{subnet}_{sender}_{listener}"


def setup(plan: Plan) -> str:
    """The tables, with a counter per path for everything sent on it."""
    lines = [f"add table {TABLE}", f"add table {SERVED}"]
    lines += [f"add counter {TABLE} {path_counter(*path)}" for path in plan.paths()]
    for subnet in plan.subnets:
        for host in plan.hosts:
            port = plan.port(host, subnet)
            hook = f'type filter hook egress device "{port}" priority 0; policy accept;'
            lines.append(f"add chain {TABLE} {port} {{ {hook} }}")
    lines.append(f"add chain {SERVED} served {{ type filter hook forward priority 0; }}")
    return "\n".join([*lines, *_rules(plan, {})]) + "\n"


def apply(plan: Plan, before: Faults, after: Faults) -> str:
    """One transaction that replaces the faults of `before` by those of `after`; counters stay."""
    lines = []
    for subnet in plan.subnets:
        lines += [f"flush chain {TABLE} {plan.port(host, subnet)}" for host in plan.hosts]
    lines += [f"delete counter {TABLE} {name}" for name in before if name not in after]
    lines += [f"add counter {TABLE} {name}" for name in after if name not in before]
    return "\n".join([*lines, *_rules(plan, after)]) + "\n"


def _rules(plan: Plan, faults: Faults) -> Iterable[str]:
    for path in plan.paths():
        subnet, sender, listener = path
        start = (
            f"add rule {TABLE} {plan.port(listener, subnet)} ether saddr {plan.mac(sender, subnet)}"
        )
        yield f"{start} counter name {path_counter(*path)}"
        for name, fault in faults.items():
            if in_kernel(fault) and covers(fault, *path):
                end = "" if isinstance(fault.what, Watch) else "drop"
                yield " ".join(f"{start} {match(fault)} counter name {name} {end}".split())


def match(fault: Fault) -> str:
    """The match expression of a fault. Expressions that count packets come last, so that they count only matching
    ones."""
    flows = ""
    if fault.share_ppm < MILLION:
        flows = f"{_FLOW} {fault.from_ppm}-{fault.from_ppm + fault.share_ppm - 1}"
    return f"{KIND[fault.only]} {flows} {_what(fault.what)}"


def _what(what: What) -> str:
    match what:
        case Loss(ppm):
            return f"numgen random mod {MILLION} < {ppm}"
        case Over(size) | Watch(size):
            return f"ip length > {size}"
        case Filter(kind):
            return KIND[kind]
        case Every(n):
            return f"numgen inc mod {n} == {n - 1}"
        case Packets(per_s):
            return f"limit rate over {per_s}/second"
        case PatternAt(octets, at):
            return f"@nh,{8 * at},{8 * len(octets)} 0x{octets.hex()}"
        case _:
            return ""


def serve(plan: Plan, faults: Faults) -> str:
    """The bridge forwards nothing on the paths that the forwarder serves."""
    lines = [f"flush chain {SERVED} served"]
    for subnet, sender, listener in served(plan, faults):
        ports = f'iifname "{plan.port(sender, subnet)}" oifname "{plan.port(listener, subnet)}"'
        lines.append(f"add rule {SERVED} served {ports} drop")
    return "\n".join(lines) + "\n"


def served(plan: Plan, faults: Faults) -> list[tuple[str, str, str]]:
    """The paths with a fault that only the forwarder can implement."""
    return [
        path
        for path in plan.paths()
        if any(_by_forwarder(fault) and covers(fault, *path) for fault in faults.values())
    ]


def _by_forwarder(fault: Fault) -> bool:
    return not in_kernel(fault) and not isinstance(fault.what, Mtu)


def mtus(plan: Plan, faults: Faults) -> dict[str, int]:
    """The MTU of each port of the switch."""
    widths = {}
    for subnet in plan.subnets:
        for host in plan.hosts:
            limits = [
                fault.what.size - VLAN_TAG
                for fault in faults.values()
                if isinstance(fault.what, Mtu) and _is_at(fault, subnet, host)
            ]
            widths[plan.port(host, subnet)] = min([plan.mtu, *limits])
    return widths


def _is_at(fault: Fault, subnet: str, host: str) -> bool:
    """Whether a port fault is at the port of this host."""
    where = fault.where
    return where.subnet in (ANY, subnet) and where.listener in (ANY, host, f"{host}/{subnet}")
