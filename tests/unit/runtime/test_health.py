"""`node.health` and `holdfast health` on real nodes: what they tell, and how they refuse."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtime.pairs import PATIENCE_S, eventually, pair
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.errors import MisuseError, NodeStopped, PeerUnknown, StoreError
from holdfast.runtime.control import ask
from holdfast.runtime.health import PathChanged, PathSnapshot
from holdfast.runtime.node import Node


async def measured(*nodes: Node) -> None:
    """Until both know what passes both ways."""
    for node in nodes:
        await eventually(lambda node=node: node.health.find(size=1500, protocol="udp").everyone)


def test_questions_are_answered_with_names() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            await measured(ann, ben)
            (pair_found,) = ann.health.find(size=1000).pairs
            assert [str(adapter) for adapter in pair_found] == ["ann/lo", "ben/lo"]
            values = ben.health.values("lo")
            assert [kind.transport for kind in values.kinds][-1] == "udp"
            assert values.kinds[-1].size_all == 1500
            assert "adapter: ann/lo" in ben.health.report("ann/lo")
            there = ann.health.explain("ann", "ben/lo")
            assert [path.state for path in there] == ["ok", "ok"]
            assert ann.health.incidents() == []
            assert {state.listener for state in ann.health.table()} == {"ann", "ben"}
            assert [entry.errors for entry in ann.health.history("ben")][-1] == ()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("question", "error", "says"),
    [
        (lambda h: h.find(protocol="upd"), MisuseError, "did you mean 'udp'"),
        (lambda h: h.find(size=-1), MisuseError, "0 to 65535"),
        (lambda h: h.values("blue"), MisuseError, "not a subnet; known: lo"),
        (lambda h: h.report("ann/eth9"), MisuseError, "ann has ann/lo"),
        (lambda h: h.explain("ann", "cat"), PeerUnknown, "there are ann, ben"),
        (lambda h: h.explain("ann", "ann"), MisuseError, "there is no measured path"),
        (lambda h: h.history(error_class="sise"), MisuseError, "did you mean 'size'"),
        (lambda h: h.reset("ann", "ben", by=" "), MisuseError, "who resets"),
        (lambda h: h.reset("ann", "ben", by=7), MisuseError, "as text; nothing was reset"),
        (lambda h: h.reset("ann", "ben", "me", note={}), MisuseError, "as text"),
        (lambda h: h.reset("ann", "ben", "me", note="\ud800"), MisuseError, "as text"),
        (lambda h: h.tune("diag"), MisuseError, "not a signature"),
        (lambda h: h.tune("diag_active"), MisuseError, "nothing was changed"),
        (lambda h: h.tune("diag_active", period_ms=0.5), MisuseError, "integer.* not 0.5"),
        (lambda h: h.subscribe(size_min="1500"), MisuseError, "size_min must be an integer"),
        (lambda h: h.subscribe(loss_ppm_min=None), MisuseError, "nothing was changed"),
        (lambda h: h.subscribe(history=[1]), MisuseError, "history must be an integer"),
        (lambda h: h.subscribe(kinds=["tpc"]), MisuseError, "did you mean 'tcp'"),
        (lambda h: h.subscribe(attributes=["speed"]), MisuseError, "attribute"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_what_would(
    question: Any, error: type[Exception], says: str
) -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            await eventually(ann.health.table)
            with pytest.raises(error, match=says):
                question(ann.health)

    asyncio.run(run())


def test_a_subscriber_hears_of_a_peer_that_stops_and_is_told_when_the_node_does() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            await measured(ann)
            subscription = ann.health.subscribe(members=["ben"], attributes=["alive"], history=5)
            async with asyncio.timeout(PATIENCE_S):
                first = await anext(subscription)
                assert isinstance(first, PathSnapshot)
                assert {path.transport for path in first.paths} >= {"udp", "tcp"}
                assert first.history
                await ben.stop()
                known = {(path.sender, path.transport): path for path in first.paths}
                while known:
                    item = await anext(subscription)
                    assert isinstance(item, PathChanged)
                    path = item.after or item.before
                    assert path is not None
                    known[path.sender, path.transport] = path
                    if item.after is None:
                        del known[path.sender, path.transport]
            await ann.stop()
            with pytest.raises(NodeStopped):
                await anext(subscription)

    asyncio.run(run())


def test_a_subscriber_is_told_when_the_node_fails() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            subscription = ann.health.subscribe(size_min=1 << 30)
            async with asyncio.timeout(PATIENCE_S):
                assert isinstance(await anext(subscription), PathSnapshot)
                waits = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(0)
                ann._fail(StoreError("no disk"))
                with pytest.raises(NodeStopped):
                    await waits

    asyncio.run(run())


def test_history_survives_a_restart_and_is_reset_with_a_note(tmp_path: Path) -> None:
    async def run() -> None:
        async with pair(tmp_path) as (ann, ben):
            await measured(ann)
            before = ann.health.history("ben", "ann")
            assert before
            config = ann.config
            await ann.stop()
            async with Node(config) as again:
                await again.until_up("ben", timeout_s=PATIENCE_S)
                assert again.health.history("ben", "ann")[: len(before)] == before
                assert again.health.reset("ben", "ann", by="cat", note="cable") == [
                    "ben/lo -> ann/lo"
                ]
                await eventually(lambda: again.health.history("ben", "ann")[0].by == "cat")
                assert again.health.history("ann", "ben"), "the other direction has its own"
            del ben

    asyncio.run(run())


def test_the_command_asks_a_running_node(tmp_path: Path) -> None:
    where = str(tmp_path / "ann")

    def command(*words: str) -> Any:
        done = CliRunner().invoke(app, ["health", words[0], where, *words[1:]])
        assert done.exit_code == 0, done.output
        return json.loads(done.output) if "--json" in words else done.output

    async def run() -> None:
        async with pair(tmp_path) as (ann, _):
            await measured(ann)

            async def do(*words: str) -> Any:
                return await asyncio.to_thread(command, *words)

            assert "ben/lo -> ann" in (await do("table")).replace("\n", " ")
            assert len(await do("table", "--json")) >= 4
            assert "ann/lo <-> ben/lo (lo)" in await do("find", "--size", "1500")
            assert "no two adapters can" in await do("find", "--pattern", "abcd")
            assert (await do("values", "lo", "--json"))["subnet"] == "lo"
            assert "subnet lo: ann/lo, ben/lo" in await do("values", "lo")
            assert (await do("report", "ben/lo")).startswith("adapter: ben/lo\nlisteners: ann/lo")
            assert ": ok" in await do("explain", "ann", "ben")
            assert "nothing is wrong" in await do("incidents")
            assert "ben/lo -> ann/lo" in await do("history", "--from", "ben", "--since", "1h")
            assert "reset: ann/lo -> ben/lo" in await do("reset", "ann", "ben", "--by", "me")
            assert await do("tune", "diag_active", "--period-ms", "500") == "tuned\n"
            with pytest.raises(MisuseError, match="not a duration"):
                await asyncio.to_thread(
                    CliRunner().invoke,
                    app,
                    ["health", "history", where, "--since", "x"],
                    catch_exceptions=False,
                )

    asyncio.run(run())


def test_watching_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        async with pair(tmp_path) as (ann, ben):
            await measured(ann)
            socket = tmp_path / "ann" / "control.sock"

            async def watch(**fields: Any) -> Any:
                request = {"do": "health", "what": "watch", **fields}
                return await asyncio.to_thread(ask, socket, request, 20.0)

            first = await watch(attributes=["alive"])
            assert [news["kind"] for news in first["news"]] == ["snapshot"]
            await ben.stop()
            seen: list[Any] = []
            while sum(news["after"] is None for news in seen) < len(first["news"][0]["paths"]):
                seen += (await watch(watcher=first["watcher"]))["news"]
            assert (await watch(watcher=first["watcher"], wait_s=0.01))["news"] == []
            with pytest.raises(MisuseError, match="start again"):
                await watch(watcher=99)

    asyncio.run(run())
