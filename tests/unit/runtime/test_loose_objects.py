"""O13, loose objects over sockets: both sides of a partition write, and the application's handler merges them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.support.object_nodes import eventually, object_nodes, until

from holdfast import Node


def cut(nodes: Sequence[Node], lonely: Node) -> None:
    """Nothing passes between one node and the others, in both directions."""
    for node in nodes:
        others = [lonely] if node is not lonely else [n for n in nodes if n is not lonely]
        for other in others:
            host = f"127.0.83.{nodes.index(other) + 1}"
            node._lab.control()["fault"]({"do": "fault", "fault": "blackout", "host": host})


def heal(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node._lab.control()["heal"]({"do": "heal"})


def test_what_both_sides_of_a_partition_wrote_is_merged_by_the_handler(tmp_path: Path) -> None:
    seen: list[tuple[bytes | None, ...]] = []

    def merge(_: str, versions: tuple[bytes | None, ...]) -> bytes:
        seen.append(versions)
        return b"+".join(sorted(version for version in versions if version is not None))

    async def story() -> None:
        async with object_nodes(tmp_path, extra="lab.faults = true") as nodes:
            a, b, c = nodes
            for node in nodes:
                node.objects.on_conflict(merge)
            made = await a.objects.create("/x", b"start", mode="loose", nodes=("a", "b", "c"))
            await eventually(lambda: b.objects.open("/x"))
            opened = [await node.objects.open("/x") for node in (b, c)]
            cut(nodes, c)
            await until(lambda: len(a.objects.service.machine.members.offers) == 2)
            await until(lambda: len(c.objects.service.machine.members.offers) == 1)
            await made.write(b"left")
            await opened[1].write(b"right")
            assert not seen, "the sides have not met"
            heal(nodes)

            async def merged() -> bool:
                found = [await item.read(fresh=False) for item in (made, *opened)]
                return found == [b"left+right"] * 3

            await eventually(merged, 60)
            assert sorted(seen[0]) == [b"left", b"right"]  # type: ignore[type-var]  # neither is deleted
            assert (await made.stat()).conflicts == 0

    asyncio.run(story())
