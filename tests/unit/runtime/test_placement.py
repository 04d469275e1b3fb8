"""Saying what traffic needs, on real nodes over loopback with faults of their own making."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.worlds import free_port
from tests.unit.runtime.pairs import PATIENCE_S, eventually

from holdfast import Needs, Node, parse_config
from holdfast.errors import MisuseError
from holdfast.types import SECOND

FILE = """
domain = "unit"
name = "{name}"
join = [{join}]
[security]
mode = "plain"
[lab]
faults = true
[[adapter]]
name = "red"
address = "127.0.1.1:{port}"
[[adapter]]
name = "blue"
address = "127.0.2.1:{port}"
{more}
"""
LARGE, SMALL = 20, 21


@asynccontextmanager
async def pair(more: str = "") -> AsyncIterator[tuple[Node, Node]]:
    hosts = ["127.0.1.1", "127.0.2.1"]
    first, second = free_port(hosts), free_port(hosts)
    ann = Node(parse_config(FILE.format(name="ann", port=first, join="", more=more)))
    join = f'"127.0.1.1:{first}"'
    ben = Node(parse_config(FILE.format(name="ben", port=second, join=join, more="")))
    async with ann, ben:
        await ann.until_up("ben", timeout_s=PATIENCE_S)
        await eventually(lambda: _measured(ann))
        yield ann, ben


def _measured(node: Node) -> bool:
    """Both paths to the peer are known to carry everything."""
    rows = [row for row in node.status()["paths"] if row["sender"] == "ann"]
    return sum(row["transport"] == "udp" and row["size"] == 1500 for row in rows) == 2


def test_large_datagrams_move_small_ones_stay_and_the_handle_says_why() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            got: list[int] = []
            ben.listen(LARGE, lambda _, messages: got.append(len(messages)), channel=False)
            large = ann.datagrams("ben", LARGE, Needs(size=1200, move_back_ns=SECOND))
            small = ann.datagrams("ben", SMALL, Needs(size=200))
            assert large.placement.path == ""
            for handle in (large, small):
                await handle.send(bytes(100))
            await eventually(lambda: large.placement.path and small.placement.path)
            home = large.placement.path.split("/")[0]
            assert small.placement.path == f"{home}/{home}/udp"
            ann._lab._add({"fault": "over 1000", "adapter": home})
            await eventually(lambda: not large.placement.path.startswith(home))
            assert large.placement.reason == (
                f"{home}/{home}/udp: packets over 1000 bytes do not pass, 1200 are needed"
            )
            assert small.placement.path == f"{home}/{home}/udp"
            got.clear()
            await large.send(bytes(1100))
            await eventually(lambda: got)
            ann._lab._remove({})
            await eventually(lambda: large.placement.path.startswith(home))

    asyncio.run(run())


def test_needs_of_a_channel_change_while_it_runs_and_channels_say_where_they_are() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            got: list[bytes] = []
            ben.listen(LARGE, lambda _, messages: got.extend(map(bytes, messages)))
            channel = ann.channel("ben", LARGE, Needs(adapter="blue", choice="require"))
            await channel.send(b"1")
            await eventually(lambda: got == [b"1"])
            # Datagrams may pass before the first connection is there.
            await eventually(lambda: channel.placement.path == "blue/blue/tcp")
            channel.needs = Needs(adapter="red", choice="require", protocol="udp")
            await channel.send(b"2")
            await eventually(lambda: got == [b"1", b"2"])
            assert channel.placement.path == "red/red/udp"
            assert ann.channel("ben", LARGE).needs == channel.needs
            again = ann.channel("ben", LARGE, Needs(size=1200))
            assert again is channel
            assert channel.needs == Needs(size=1200)

    asyncio.run(run())


def test_a_datagram_that_no_path_carries_is_counted_on_its_handle_with_the_reason() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            datagrams = ann.datagrams("ben", LARGE)
            await datagrams.send(bytes(200_000))
            await eventually(lambda: datagrams.refused)
            assert datagrams.refused == 1
            assert datagrams.refusal == "over 130816 bytes: use a channel"

    asyncio.run(run())


def test_a_node_follows_the_needs_in_its_configuration() -> None:
    more = '[[needs]]\nport = 20\nadapter = "blue"\nchoice = "require"\npeer = "ben"\n'

    async def run() -> None:
        async with pair(more) as (ann, _):
            channel = ann.channel("ben", LARGE)
            await channel.send(b"x")
            await eventually(lambda: channel.placement.path)
            assert channel.placement.path == "blue/blue/tcp"

    asyncio.run(run())


def test_needs_that_cannot_be_leave_everything_as_it_was() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            with pytest.raises(MisuseError, match="protocol must be one of"):
                ann.channel("ben", LARGE, Needs(protocol="ipx"))
            channel: Any = ann.channel("ben", LARGE)
            with pytest.raises(MisuseError, match=r"holdfast\.Needs.*nothing was changed"):
                channel.needs = {"size": 1200}
            with pytest.raises(MisuseError, match=r"not 'fast'; nothing was changed"):
                ann.datagrams("ben", LARGE, "fast")  # type: ignore[arg-type]  # on purpose
            assert channel.needs is None

    asyncio.run(run())
