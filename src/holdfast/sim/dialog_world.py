"""Three simulated nodes with a dialog store each, on two subnets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from holdfast.sim.host import Host
from holdfast.sim.world import World

SUBNETS: Final = ("red", "blue")
NODES: Final = 3
PORT: Final = 7400


def text(number: int) -> str:
    """The configuration of one node, as its file would contain it."""
    adapters = "".join(
        f'[[adapter]]\nname = "{subnet}"\naddress = "127.{index}.0.{number}:{PORT}"\n'
        for index, subnet in enumerate(SUBNETS, 1)
    )
    return f"""
domain = "sim"
name = "n{number}"
join = ["127.1.0.1:{PORT}", "127.2.0.1:{PORT}"]
security.mode = "plain"
{adapters}
[dialogs]
roles = false
serve = false
[[dialogs.store]]
name = "default"
kind = "memory"
"""


def add_nodes(world: World, make_core: Callable[..., Any]) -> list[Host]:
    """Add the hosts, not started yet. Their stores are simulated disks, regardless of `kind`."""
    from holdfast.node.config import parse_config

    for subnet in SUBNETS:
        world.network.subnet(subnet, mtu=1500)
    hosts = []
    for number in range(1, NODES + 1):
        boot = partial(make_core, config=parse_config(text(number)))
        host = world.add_host(f"n{number}", boot)
        for index, subnet in enumerate(SUBNETS, 1):
            world.network.attach(host, subnet, subnet, (f"127.{index}.0.{number}", PORT))
        hosts.append(host)
    return hosts
