"""H17: a node whose paths have soft errors moves its replicas of objects away by itself, and takes them again later."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.object_nodes import eventually, object_nodes, until

POLICY = "policy = true\npolicy_after_s = 1.0"


def test_a_node_that_loses_large_packets_on_all_paths_drains_itself(tmp_path: Path) -> None:
    """All its paths have one cause, so they are one incident. Each of them counts."""

    async def story() -> None:
        async with object_nodes(
            tmp_path, names="abcd", extra="lab.faults = true", objects=POLICY
        ) as nodes:
            a, b, *_ = nodes
            made = await a.objects.create("/x", b"data", nodes=("a", "b", "c"))
            b._lab.control()["fault"]({"do": "fault", "fault": "over 1000"})

            async def left() -> bool:
                info = await made.stat()
                return sorted(replica.node for replica in info.replicas) == ["a", "c", "d"]

            await eventually(left, 90)
            watches = [node.objects.conditions for node in nodes]
            assert [w.policy.is_drained for w in watches if w] == [False, True, False, False]
            assert watches[1] is not None
            assert watches[1].penalties()[b.id] == 3, "its paths to each of the others"
            assert await made.read() == b"data"
            b._lab.control()["heal"]({"do": "heal"})
            await until(lambda: not b.objects.service.machine.members.draining, 90)

    asyncio.run(story())
