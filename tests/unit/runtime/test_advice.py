"""P9: a running node reads advice when a new edition appears, and says why it does not follow one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.conformance.worlds import free_port
from tests.support.advice import edition
from tests.unit.runtime.pairs import config, eventually

from holdfast.health.advice_config import AdviceConfig
from holdfast.recording.advice import encode_advice
from holdfast.runtime.node import Node


def advised(directory: Path) -> Node:
    plain = config("ann", free_port(["127.0.0.1"]))
    section = {"advice": AdviceConfig(str(directory), every_s=0.1)}
    return Node(msgspec.structs.replace(plain, sections=section))


def test_a_node_follows_new_editions_and_reports_damaged_and_missing_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with advised(tmp_path / "advice") as node:
            advice: Any = lambda: node.status()["advice"]
            await eventually(lambda: "no readable advice" in advice()["problem"])
            assert not advice()["in_force"]
            (tmp_path / "advice").mkdir()
            path = (node.id.hex(), "lo", "ab" * 16, "lo")
            content = encode_advice(edition(time.time_ns() // 1000, path, snapshot=7))
            (tmp_path / "advice" / "00000007.parquet").write_bytes(content)
            await eventually(lambda: advice()["in_force"])
            assert advice()["snapshot"] == 7
            assert tuple(advice()["avoided"][0]["path"][:2]) == (node.id.hex(), "lo")
            (tmp_path / "advice" / "00000008.parquet").write_bytes(content[:-9])
            await eventually(lambda: advice()["damaged"])
            assert advice()["in_force"], "the newest readable edition counts"
            assert "00000008.parquet: not an advice file" in advice()["damaged"][0]
            for file in (tmp_path / "advice").iterdir():
                file.unlink()
            await eventually(lambda: not advice()["in_force"])
            events = [event["text"] for event in node.status()["events"]]
            assert any("advice: in force, 1 avoided" in text for text in events)
            assert any("advice: not followed, this node works as before" in text for text in events)

    asyncio.run(scenario())


def test_a_node_without_the_setting_follows_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(config("ann", free_port(["127.0.0.1"]))) as node:
            advice = node.status()["advice"]
            assert (advice["in_force"], advice["source"]) == (False, "")

    asyncio.run(scenario())
