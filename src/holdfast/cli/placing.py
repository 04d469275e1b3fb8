"""Finds group replicas that should move according to the advice of the pipeline. The nodes choose the targets."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.cli.group_requests import view_of


class Leaving(msgspec.Struct, frozen=True):
    """A replica that should be on another node."""

    group: str
    node: str
    why: str


def leaving(status: dict[str, Any]) -> list[Leaving]:
    """At most one replica of each group, on the worst node; the next call sees the result. `status` is that of a node
    with advice in force."""
    advice = status["advice"]
    names = {member["id"]: member["name"] for member in status["members"]}
    shares = {names[node]: share for node, share in advice["placements"].items() if node in names}
    unsound = [names[one["node"]] for one in advice["unsound"] if one["node"] in names]
    found = []
    for group in status["groups"]:
        node = next((name for name in unsound if name in view_of(group)), "")
        if node:
            why = f"{shares.get(node, 1.0):.0%} of the paths of {node} are bad or at risk"
            found.append(Leaving(group["name"], node, why))
    return found
