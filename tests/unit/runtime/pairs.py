"""Two nodes on loopback, and how long a test waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.conformance.worlds import free_port

from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig
from holdfast.runtime.node import Node

PATIENCE_S = 20


def config(
    name: str, port: int, join: int = 0, data: str = "", host: str = "127.0.0.1"
) -> NodeConfig:
    return NodeConfig(
        domain="unit",
        name=name,
        data=data,
        join=(f"{host}:{join}",) if join else (),
        adapter=(AdapterConfig("lo", f"{host}:{port}"),),
        security=SecurityConfig(mode="plain"),
    )


@asynccontextmanager
async def pair(tmp_path: Path | None = None) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that have found each other."""
    first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
    data = str(tmp_path / "ann") if tmp_path else ""
    async with (
        Node(config("ann", first, data=data)) as ann,
        Node(config("ben", second, first)) as ben,
    ):
        await ann.until_up("ben", timeout_s=PATIENCE_S)
        await ben.until_up("ann", timeout_s=PATIENCE_S)
        yield ann, ben


async def eventually(check: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():  # noqa: ASYNC110 any check will do, so there is no event
            await asyncio.sleep(0.005)
