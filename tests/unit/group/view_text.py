"""Views of a group as text."""

from __future__ import annotations

from tests.unit.group.harness import World

from holdfast.group.log.entries import Member


def parts(world: World, name: str) -> dict[str, str]:
    """Who is what, as a replica has it decided."""
    return {
        member["name"]: member["part"] + ("/suspended" if member["suspended"] else "")
        for member in world.hosts[name].status["view"]
    }


def member(name: str, voter: bool = True) -> Member:
    return Member(name, name.encode().ljust(16, b"."), 1, voter)


def suspended(world: World) -> list[str]:
    return [name for name, part in parts(world, "n1").items() if part.endswith("suspended")]
