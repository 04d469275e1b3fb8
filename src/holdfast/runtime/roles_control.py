"""Roles, trees and finds on the control socket, for `holdfast roles`, `trees` and `find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import MisuseError
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import Location
from holdfast.runtime.roles_handles import Outcome
from holdfast.subsystem import Control

if TYPE_CHECKING:
    from holdfast.runtime.roles import Roles


class RolesControl:
    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    def handlers(self) -> dict[str, Control]:
        return {
            "roles": self._list,
            "tree": self._tree,
            "find": self._find,
            "ask_role": self._ask,
        }

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        """What this node knows: its own roles, and the instances that it has routes to."""
        machine, name = self._roles.service.machine, self._roles.name_of
        inspect = machine.inspect
        known = [
            {
                "tree": tree.id.hex(),
                "role": role.name,
                "built": inspect.built(tree.id, role.name),
                "routes": [
                    {"node": name(node_of(instance)), "via": name(link)}
                    for instance, link in inspect.routes(tree.id, role.name).items()
                ],
            }
            for tree in machine.cache.all()
            for role in tree.roles.values()
        ]
        return {"local": machine.status()["roles"], "known": known}

    async def _tree(self, request: dict[str, Any]) -> dict[str, Any]:
        nodes, complete = await self._roles.walk_tree(_tree_of(request))
        return {"nodes": nodes, "complete": complete}

    async def _find(self, request: dict[str, Any]) -> dict[str, Any]:
        role = request.get("role")
        if not isinstance(role, str):
            raise MisuseError("say which role to find")
        found = await self._roles.locate(role, _tree_of(request), bool(request.get("realm_only")))
        first = await self._roles.search(role, _tree_of(request))
        return {
            "first": first,
            "instances": [self._place(place) for place in found.locations],
            "complete": found.complete,
            "reason": "" if found.complete else found.reason,
        }

    def _place(self, place: Location) -> dict[str, str]:
        return {
            "node": self._roles.name_of(place.node),
            "realm": place.realm,
            "instance": place.instance.hex(),
        }

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a text to all instances; for operators and tests."""
        role, text = request.get("role"), request.get("text", "")
        if not isinstance(role, str) or not isinstance(text, str):
            raise MisuseError("say which role, and the text to send")
        outcome: Outcome = await self._roles.request_all(
            role, text.encode(), tree=_tree_of(request)
        )
        return {
            "kind": outcome.kind,
            "replies": [
                {"node": r.node, "text": r.data.decode(errors="replace")} for r in outcome.replies
            ],
            "failed": [list(pair) for pair in outcome.failed],
            "incomplete": outcome.incomplete,
            "reason": outcome.reason,
        }


def _tree_of(request: dict[str, Any]) -> str | bytes:
    """By name, or by the hexadecimal digits of its id after `id:`."""
    tree = request.get("tree", "default")
    if not isinstance(tree, str):
        raise MisuseError("a tree has a name, or id: and 32 hexadecimal digits")
    if not tree.startswith("id:"):
        return tree
    try:
        return bytes.fromhex(tree[3:])
    except ValueError:
        raise MisuseError(f"{tree!r} is not id: and 32 hexadecimal digits") from None
