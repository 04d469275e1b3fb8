"""Parses faults of the lab. All effects are supported; some names of paths are not.

    red n1->n2 over 1000
    blue *->n2 filter multicast
    red n1<->n2 loss 20% only udp share 25% flap 200ms/1s

Only in the lab: `mtu 800` (the MTU of the switch port of a host), `pattern 5555 at 100` (bytes at one offset of the IP
packet) and `watch 1000`, which has no effect: it counts the packets that `over 1000` would drop.
"""

from __future__ import annotations

from holdfast.errors import MisuseError
from holdfast.faults.amounts import MILLION
from holdfast.faults.model import ANY, LAB, Fault, Mtu, Watch
from holdfast.faults.text import Words, parse_fault


def parse_lab_fault(text: str, hosts: tuple[str, ...], subnets: tuple[str, ...]) -> Fault:
    """Parse a fault; every error quotes the text."""
    try:
        words = Words(text)
        fault = parse_fault(words, LAB)
        words.end()
        _check_names(fault, hosts, subnets)
    except MisuseError as error:
        hint = "; quote it, because the shell interprets >" if ">" not in text else ""
        raise MisuseError(f"{text!r}: {error}{hint}; nothing was broken") from None
    return fault


def covers(fault: Fault, subnet: str, sender: str, listener: str) -> bool:
    """Whether the path is included. In a lab, adapters are named like their subnet."""
    return fault.where.covers(subnet, (sender, subnet), (listener, subnet))


def _check_names(fault: Fault, hosts: tuple[str, ...], subnets: tuple[str, ...]) -> None:
    where = fault.where
    if where.subnet not in (ANY, *subnets):
        raise MisuseError(f"there is no subnet {where.subnet!r}: {', '.join(subnets)} or *")
    for end in (where.sender, where.listener):
        host, _, adapter = end.partition("/")
        if host not in (ANY, *hosts) or (adapter and adapter not in subnets):
            raise MisuseError(f"there is no host {end!r}: {', '.join(hosts)} or *")
    if isinstance(fault.what, Mtu):
        whole = fault.only == "" and fault.off_ns == 0 and fault.share_ppm == MILLION
        if where.sender != ANY or not where.both or not whole:
            raise MisuseError(
                f"the MTU of a port affects all paths, both ways: write {where.subnet} "
                f"*<->{where.listener} mtu N"
            )
    if isinstance(fault.what, Watch) and fault.off_ns:
        raise MisuseError("watch cannot be combined with flap")
