"""H17, P9: a node that advice about placements calls unsound moves its object replicas away by itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from time import time_ns

from tests.support.advice import edition
from tests.support.object_nodes import config_text, object_port, ready

from holdfast import Node, parse_config
from holdfast.recording.advice import encode_advice
from holdfast.telemetry.advice import PPM, Placement

NAMES = "abcd"
POLICY = "space_reserve_mb = 1\npolicy = true\npolicy_after_s = 1.0"


def node(directory: Path, name: str, number: int, port: int) -> Node:
    text = config_text(directory, name, number, port, "abc")
    text = text.replace("space_reserve_mb = 1", POLICY)
    advice = f'[advice]\ndirectory = "{directory / "advice"}"\nevery_s = 0.2\n'
    return Node(parse_config(text + advice))


def test_a_node_that_is_advised_to_be_left_drains_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = object_port()
        (tmp_path / "advice").mkdir()
        nodes = [node(tmp_path, name, number, port) for number, name in enumerate(NAMES, 1)]
        async with AsyncExitStack() as stack:
            for one in nodes:
                await one.start()
                stack.push_async_callback(one.stop)
            for one in nodes:
                others = [name for name in NAMES if name != one.config.name]
                await one.until_up(*others, timeout_s=30)
            await ready(nodes)
            await nodes[0].objects.create("/x", b"data", replicas=3)
            before = [replica.node for replica in (await nodes[0].objects.stat("/x")).replicas]
            sick = next(name for name in before if name != "a")
            publish(tmp_path, nodes, sick)
            async with asyncio.timeout(45):
                now = before
                while sick in now or len(now) < 3:
                    await asyncio.sleep(0.2)
                    now = [one.node for one in (await nodes[0].objects.stat("/x")).replicas]
            assert sorted([*now, sick]) == list(NAMES)
            assert await nodes[0].objects.read("/x") == b"data"
            watch = nodes[NAMES.index(sick)].objects.conditions
            assert watch is not None
            assert watch.policy.is_drained

    asyncio.run(scenario())


def publish(directory: Path, nodes: list[Node], sick: str) -> None:
    """An edition that gives every node sound paths, except for one."""
    placements = tuple(
        Placement(one.id.hex(), PPM // 10 if one.config.name == sick else PPM, 0) for one in nodes
    )
    advice = edition(time_ns() // 1000, placements=placements)
    (directory / "advice" / "00000001.parquet").write_bytes(encode_advice(advice))
