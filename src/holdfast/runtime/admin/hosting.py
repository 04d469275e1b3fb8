"""What this node can take, and what the others can."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.group.config import replica_unit
from holdfast.group.subsystem import GroupService
from holdfast.runtime.admin.values import Hosting, pack, unpack
from holdfast.runtime.dialogs.edge import DialogEdge
from holdfast.subsystem import Port

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge

ASKED_MAX: Final = 128
"""Nodes that are asked what they can take; in a larger domain, those with the best paths."""


class Hosts:
    """The reachable nodes and what each can take, as of one moment."""

    def __init__(self, hosts: dict[str, Hosting], penalties: dict[str, int]) -> None:
        self._hosts = hosts
        self._penalties = penalties
        self._given: dict[str, int] = {}
        """Instances that the present plan gives to each node."""

    def get(self, name: str) -> Hosting | None:
        return self._hosts.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def best(self, names: list[str]) -> str:
        """The node with the fewest bad paths, then the fewest instances of this plan; empty if there is none."""
        left = [name for name in names if name in self._hosts]
        rank = lambda name: (self._penalties.get(name, 0), self._given.get(name, 0), name)
        chosen = min(left, key=rank, default="")
        self._given[chosen] = self._given.get(chosen, 0) + 1
        return chosen

    def with_group(self, group: str) -> list[str]:
        return [n for n, host in self._hosts.items() if group in host.groups and not host.draining]

    def with_service(self, service: str) -> list[str]:
        """Nodes with a dialog store and an application that listens to a service."""
        return [
            name
            for name, host in self._hosts.items()
            if host.store and service in host.services and not host.draining
        ]

    def draining(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self._hosts and self._hosts[name].draining]


def own_hosting(edge: ObjectEdge, port: Port, dialogs: DialogEdge | None) -> Hosting:
    """What this node can take."""
    turns, groups = port.core.turns, port.core.service(GroupService).groups
    hosted = [name for name in groups if turns.machine(replica_unit(name)) is not None]
    has_stores = dialogs is not None and bool(dialogs.stores.configs)
    store = dialogs.store_id() if dialogs is not None and has_stores else b""
    services = tuple(sorted(dialogs.listening)) if dialogs is not None else ()
    return Hosting(tuple(hosted), store, services, edge.service.machine.members.draining)


async def ask_hosts(edge: ObjectEdge) -> Hosts:
    """Ask every reachable node but this one."""
    hub = edge.service.machine.hub
    watch = edge.conditions
    penalties = watch.penalties() if watch is not None else {}
    peers = sorted(hub.up, key=lambda node: (penalties.get(node, 0), node))[:ASKED_MAX]

    async def ask(node: bytes) -> Hosting | None:
        try:
            return unpack(Hosting, await edge.ask_node(node, "hosting"))
        except HoldfastError:
            return None  # It is gone, or does not take part: it takes nothing.

    answers = await asyncio.gather(*(ask(node) for node in peers))
    found = {
        edge.name_of(node): answer
        for node, answer in zip(peers, answers, strict=True)
        if answer is not None
    }
    return Hosts(found, {edge.name_of(node): bad for node, bad in penalties.items()})


def hosting_body(edge: ObjectEdge, port: Port, dialogs: DialogEdge | None) -> bytes:
    return pack(own_hosting(edge, port, dialogs))
