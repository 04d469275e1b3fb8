"""The definition of a lab and the names in it. Nothing here changes the machine.

One namespace is the switch: a bridge per subnet, and one port per host on it. Each host is a namespace with one adapter
per subnet, named like the subnet. Faults are in the switch, so hosts cannot detect them locally.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import MisuseError

RUN: Final = Path("/run/holdfast-lab")
"""The state directory of labs; a reboot removes its contents together with the namespaces."""
COLOURS: Final = ("red", "blue", "green", "gold", "grey", "pink", "teal", "plum")
HOSTS_MAX: Final = 50
SUBNETS_MAX: Final = len(COLOURS)
PORT: Final = 7400
MULTICAST_PORT: Final = 7500

_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,15}")


class Plan(msgspec.Struct, frozen=True):
    """The shape of one lab."""

    name: str
    hosts: tuple[str, ...]
    subnets: tuple[str, ...]
    mtu: int = 1500

    @property
    def switch(self) -> str:
        return f"{prefix(self.name)}switch"

    def namespace(self, host: str) -> str:
        if host not in self.hosts:
            raise MisuseError(f"lab {self.name} has no host {host!r}: {', '.join(self.hosts)}")
        return f"{prefix(self.name)}{host}"

    def namespaces(self) -> tuple[str, ...]:
        return (self.switch, *map(self.namespace, self.hosts))

    def address(self, host: str, subnet: str) -> str:
        return f"10.{70 + self.subnets.index(subnet)}.0.{self.hosts.index(host) + 1}"

    def group(self, subnet: str) -> str:
        """The multicast group of a subnet."""
        return f"239.255.70.{self.subnets.index(subnet) + 1}"

    def mac(self, host: str, subnet: str) -> str:
        """The hardware address of an adapter, by which the switch identifies the sender."""
        return f"02:48:46:00:{self.subnets.index(subnet):02x}:{self.hosts.index(host) + 1:02x}"

    @staticmethod
    def port(host: str, subnet: str) -> str:
        """The port of the switch for a host."""
        return f"{subnet}-{host}"

    def paths(self) -> Iterator[tuple[str, str, str]]:
        """(subnet, sender, listener), in a fixed order."""
        for subnet in self.subnets:
            for sender in self.hosts:
                for listener in self.hosts:
                    if sender != listener:
                        yield subnet, sender, listener


def prefix(name: str) -> str:
    """The common prefix of all namespaces of a lab, and of no others: names of labs contain no dash."""
    return f"hf-{name}-"


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise MisuseError(
            "the name of a lab must be 1 to 16 lower-case letters and digits, starting with a "
            f"letter, not {name!r}"
        )
    return name


def make_plan(name: str, hosts: int, subnets: int, mtu: int) -> Plan:
    check_name(name)
    if not 2 <= hosts <= HOSTS_MAX:
        raise MisuseError(f"a lab has 2 to {HOSTS_MAX} hosts, not {hosts}")
    if not 1 <= subnets <= SUBNETS_MAX:
        raise MisuseError(f"a lab has 1 to {SUBNETS_MAX} subnets, not {subnets}")
    if not 576 <= mtu <= 65_535:
        raise MisuseError(f"the MTU of a lab must be from 576 to 65535, not {mtu}")
    return Plan(name, tuple(f"n{i + 1}" for i in range(hosts)), COLOURS[:subnets], mtu)
