"""Faults as rules of the switch's packet filter.

Rules sit where a packet leaves the switch towards its listener, and know the sender by its hardware address: one path
in one direction. The `forwarder` sends what it has delayed out of the same ports, so its packets meet them as well.
Faults that the kernel cannot make (`in_kernel` says which) are the forwarder's; then a second table keeps the bridge
from forwarding on the paths that the forwarder serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.cli.lab.plan import Plan
from holdfast.cli.lab.words import Every, LabFault, LabWhat, Mtu, Packets, PatternAt, Watch
from holdfast.sim.amounts import MILLION
from holdfast.sim.faults import ANY, Blackout, Filter, Loss, Over

TABLE: Final = "netdev holdfast"
SERVED: Final = "bridge holdfast"

KIND: Final = {
    "": "",
    "udp": "ip protocol udp",
    "tcp": "ip protocol tcp",
    "multicast": "ip daddr 224.0.0.0/4",
    "frag": "ip frag-off & 0x3fff != 0",
}
"""Packets of one kind. A fragment has an offset, or says that more follow; 'do not fragment' is another bit."""

VLAN_TAG: Final = 4
"""A port lets packets pass that are longer than its MTU by this: they might have a tag."""

_FLOW: Final = "jhash ip saddr . ip daddr . @th,0,32 mod 1000000 seed 0x486f6c64"
"""One number for each flow, from its addresses and ports."""

Faults = Mapping[str, LabFault]
"""By their names, in the order in which they were made."""


def in_kernel(fault: LabFault) -> bool:
    """Whether the packet filter can do it; else it is the forwarder's."""
    if fault.spared.off_ns:
        return False
    kinds = Blackout | Loss | Over | Filter | Every | Packets | PatternAt | Watch
    return isinstance(fault.what, kinds)


def path_counter(subnet: str, sender: str, listener: str) -> str:
    return f"{subnet}_{sender}_{listener}"


def setup(plan: Plan) -> str:
    """The tables, with a counter for each path: what was sent on it, whatever became of it."""
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
    """One transaction that puts the faults of `after` in the place of those of `before`; counters stay."""
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
            if in_kernel(fault) and fault.covers(*path):
                end = "" if isinstance(fault.what, Watch) else "drop"
                yield " ".join(f"{start} {match(fault)} counter name {name} {end}".split())


def match(fault: LabFault) -> str:
    """Which packets it takes. Whatever counts packets comes last, so that it counts only those that are meant."""
    spared = fault.spared
    flows = ""
    if spared.share_ppm < MILLION:
        flows = f"{_FLOW} {fault.from_ppm}-{fault.from_ppm + spared.share_ppm - 1}"
    return f"{KIND[spared.only]} {flows} {_what(fault.what)}"


def _what(what: LabWhat) -> str:
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
    """The paths with a fault that only the forwarder can make."""
    return [
        path
        for path in plan.paths()
        if any(_by_forwarder(fault) and fault.covers(*path) for fault in faults.values())
    ]


def _by_forwarder(fault: LabFault) -> bool:
    return not in_kernel(fault) and not isinstance(fault.what, Mtu)


def mtus(plan: Plan, faults: Faults) -> dict[str, int]:
    """How wide each port of the switch is."""
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


def _is_at(fault: LabFault, subnet: str, host: str) -> bool:
    """Whether a fault of ports is at the port of this host."""
    where = fault.spared.where
    return where.subnet in (ANY, subnet) and where.listener in (ANY, host, f"{host}/{subnet}")
