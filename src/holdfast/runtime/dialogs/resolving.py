"""From the URI of a dialog to the nodes of its service.

1. A resolver that the application gave (`resolve_with`).
2. A URI that names a node, or a route of the configuration that names nodes.
3. A role of the overlay: that of the route or of its partition, or `dialog/SERVICE` where there is no route. Every
   node that listens to a service publishes the latter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol
from zlib import crc32

from holdfast.dialog import ports
from holdfast.dialog.routes import resolve, role_of
from holdfast.dialog.section import DialogsConfig
from holdfast.links.subsystem import LinkService
from holdfast.subsystem import Port
from holdfast.types import NodeId

log = logging.getLogger("holdfast")

TREE: Final = "dialogs"
"""The tree of the overlay that services are published on."""
Resolver = Callable[[str, bytes], Awaitable[list[NodeId]]]
Found = tuple[list[bytes], str]


class RoleFinder(Protocol):
    """The part of `node.roles` that is used here."""

    async def publish(self, role: str, tree: str | bytes = TREE) -> Any: ...
    async def find(self, role: str, tree: str | bytes = TREE) -> Any: ...


class Resolution:
    """Answers `Resolve`."""

    def __init__(self) -> None:
        self.resolver: Resolver | None = None
        self.roles: RoleFinder | None = None

    def at_once(self, port: Port, config: DialogsConfig, effect: ports.Resolve) -> Found | None:
        """The answer where it needs no waiting: the configuration names the nodes, or nothing can."""
        if self.resolver is not None or self._role(config, effect):
            return None
        found = resolve(config.route, members(port), effect.uri, effect.key, effect.dialog)
        return ([], found) if isinstance(found, str) else (found, "")

    def _role(self, config: DialogsConfig, effect: ports.Resolve) -> str:
        if self.roles is None:
            return ""
        return role_of(config.route, effect.uri, effect.key, config.roles)

    async def resolve(self, port: Port, config: DialogsConfig, effect: ports.Resolve) -> Found:
        """The nodes to ask, best first, or why there is none."""
        if self.resolver is not None:
            try:
                nodes = [bytes(n) for n in await self.resolver(effect.uri, effect.key)]
            except Exception as error:
                log.exception(
                    "the resolver failed for %s",
                    effect.uri,
                    extra={"event": "resolver_failed", "subsystem": "dialog", "uri": effect.uri},
                )
                return [], repr(error)
            if nodes:
                return nodes, ""
        role = self._role(config, effect)
        if role:
            return await self._by_role(role, effect)
        found = resolve(config.route, members(port), effect.uri, effect.key, effect.dialog)
        return ([], found) if isinstance(found, str) else (found, "")

    async def _by_role(self, role: str, effect: ports.Resolve) -> Found:
        assert self.roles is not None
        try:
            locations = await self.roles.find(role, TREE)
        except Exception as error:  # noqa: BLE001 the dialog faults with the reason and can be rerouted
            return [], f"role {role!r} was not found: {error}"
        nodes = sorted({bytes(location.node) for location in locations})
        if not nodes:
            return [], f"no route to service {effect.uri!r}, and no node has the role {role!r}"
        # Dialogs are spread over the instances by their ids.
        first = crc32(effect.dialog) % len(nodes)
        return nodes[first:] + nodes[:first], ""

    async def publish(self, role: str) -> Any:
        return await self.roles.publish(role, TREE) if self.roles is not None else None


def members(port: Port) -> dict[str, bytes]:
    """The id of every known node, by name."""
    links = port.core.service(LinkService)
    known = {member.name: bytes(node) for node, member in links.directory.members.items()}
    known[port.core.me.name] = bytes(port.core.me.node)
    return known
