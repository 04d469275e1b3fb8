"""P7: what real nodes record about objects and links satisfies the audit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow.parquet as pq
from tests.pipeline.guarantee_rows import subjects
from tests.support.object_nodes import config_text, object_port, ready

from holdfast import Node, parse_config
from holdfast.pipeline.guarantees import GuaranteeVerdict, GuaranteeViolation
from holdfast.pipeline.judges import judge_subject

NAMES = "abc"


async def use_objects(directory: Path) -> None:
    """Three nodes; two of them write and read one object in turn."""
    port = object_port()
    nodes = []
    for number, name in enumerate(NAMES, 1):
        text = config_text(directory, name, number, port, NAMES)
        nodes.append(Node(parse_config(text.replace("telemetry.enabled = false\n", ""))))
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        for node in nodes:
            await node.until_up(*[n for n in NAMES if n != node.config.name], timeout_s=30)
        await ready(nodes)
        await nodes[0].objects.create("/x", b"0")
        for turn in range(6):
            writer, reader = nodes[turn % 2], nodes[(turn + 1) % 2]
            await writer.objects.write("/x", b"%d" % turn)
            assert await reader.objects.read("/x") == b"%d" % turn


def audited(directory: Path) -> tuple[list[GuaranteeVerdict], list[GuaranteeViolation]]:
    facts = [
        (path.parent.parent.name, row)
        for path in sorted(directory.glob("**/landing/*/day=*/*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    verdicts: list[GuaranteeVerdict] = []
    violations: list[GuaranteeViolation] = []
    for (guarantee, subject), rows in subjects(facts).items():
        found = judge_subject(guarantee, subject, rows, {})
        verdicts += found[0]
        violations += found[1]
    return verdicts, violations


def test_objects_of_real_nodes_are_linearisable_and_one_hop_away(tmp_path: Path) -> None:
    asyncio.run(use_objects(tmp_path))
    verdicts, violations = audited(tmp_path)
    assert violations == []
    checked = {
        name: sum(verdict.checked for verdict in verdicts if verdict.guarantee == name)
        for name in ("objects", "one hop")
    }
    assert checked["objects"] > 30, checked
    assert checked["one hop"] >= 26, "two replicas for each of 13 operations"
