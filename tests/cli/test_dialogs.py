"""`holdfast dialogs` against running nodes: what it shows, what it does, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.support.dialog_nodes import nodes, run
from typer.testing import CliRunner

from holdfast.cli.dialogs import app
from holdfast.dialog.ids import dialog_name
from holdfast.errors import DialogEnded, DialogFaulted

Command = Callable[..., Awaitable[Result]]


def commands(home: Path) -> Command:
    """Run `holdfast dialogs WORD HOME ...`."""

    async def command(word: str, *words: str, given: bytes | None = None) -> Result:
        arguments = [word, str(home), *words]
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=given)

    return command


async def shown(command: Command, *words: str) -> str:
    result = await command(*words)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_operator_finds_a_poison_message_and_settles_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders", poison_after=1)
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send_many([b"bad", b"good"])

            async def aborted() -> None:
                async with ben.dialogs.transaction() as tx:
                    assert (await far.receive(tx=tx)).body == b"bad"
                    raise ZeroDivisionError

            command = commands(tmp_path / "ben")
            number = ("poison", far.id.hex(), "0")
            for action in ("retry", "discard"):
                with pytest.raises(ZeroDivisionError):
                    await aborted()
                while (await far.next_event()).kind != "poison":
                    pass
                name = dialog_name(far.id)
                listed = await shown(command, "list")
                assert name in listed
                assert "poison" in listed
                assert "then: poison NUMBER retry" in await shown(command, "faults")
                found = json.loads(await shown(command, "show", name, "--json"))
                assert found["poison_bodies"] == {"0": b"bad".hex()}
                assert "poison message 0: b'bad'" in await shown(command, "show", far.id.hex()[:20])
                assert action in await shown(command, *number, action)
            assert (await far.receive(timeout_s=5)).body == b"good"
            assert "no dialog needs help" in await shown(command, "faults")
            again = await command(*number, "discard")
            assert again.exit_code != 0
            assert "not set aside as poison" in str(again.exception)
            await shown(command, "terminate", far.id.hex(), "--reason", "no longer needed")
            with pytest.raises(DialogEnded, match="no longer needed"):
                await near.completed(10)

    run(work, 60)


def test_a_message_is_sent_from_the_command_line_and_delivered_later(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann") as (ann,):
            command = commands(tmp_path / "ann")
            assert "stored; dialog" in await shown(command, "send", "orders", "from an argument")
            piped = await command("send", "orders", "-", given=b"from standard input")
            assert piped.exit_code == 0, piped.output
            listed = json.loads(await shown(command, "list", "--json"))
            assert [dialog["sent"] for dialog in listed["dialogs"]] == [1, 1]
            port = ann.config.adapter[0].address.rpartition(":")[2]
        async with nodes(tmp_path, "ann", "ben", port=int(port)) as (ann, ben):
            await ben.dialogs.listen("orders")
            for end in ann.dialogs.service.manager("default").list():  # type: ignore[union-attr]
                if end.state == "faulted":
                    await shown(command, "repair", end.dialog.hex(), "--action", "reroute")
            got = []
            for _ in range(2):
                got += (await ben.dialogs.receive_any(1, timeout_s=20))[1]
            assert sorted(m.body for m in got) == [b"from an argument", b"from standard input"]

    run(work, 60)


def test_the_list_shows_names_and_faults_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            for _ in range(2):
                await ann.dialogs.open("holdfast://nobody/a/service/with/a/long/name", wait=False)
            listed = await shown(commands(tmp_path / "ann"), "list")
            for end in ann.dialogs.service.manager("default").list():  # type: ignore[union-attr]
                assert f"{dialog_name(end.dialog)} " in listed
            assert listed.count("unknown-service") == 2

    run(work, 60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "nonsense"], "no active dialog 'nonsense' on this node; nothing was done"),
        (["terminate", ""], "name a dialog"),
        (["repair", "{id}"], "not faulted; nothing was changed"),
        (["repair", "{id}", "--action", "pray"], "not faulted; nothing was changed"),
        (["poison", "{id}", "0", "keep"], "'retry' or 'discard'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    tmp_path: Path, words: list[str], says: str
) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            command = commands(tmp_path / "ann")
            result = await command(*[word.format(id=near.id.hex()) for word in words])
            assert result.exit_code != 0
            assert says in f"{result.output} {result.exception}"

    run(work, 60)


def test_a_partner_that_does_not_answer_in_time_is_an_error_and_may_still_come(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders", automatic=False)
            with pytest.raises(DialogFaulted, match=r"within 0\.3 s; .* goes on trying"):
                await ann.dialogs.open("orders", timeout_s=0.3)
            command = commands(tmp_path / "ann")
            [listed] = json.loads(await shown(command, "list", "--json"))["dialogs"]
            assert (listed["uri"], listed["state"]) == ("orders", "inviting")
            await listener.accept(await listener.next())
            dialog = await ann.dialogs.reactivate(bytes.fromhex(listed["id"]))
            await dialog.paired(20)

    run(work, 60)


def test_a_store_that_is_not_open_needs_an_operator(tmp_path: Path) -> None:
    """Its dialogs may be in trouble too, and nothing is known of them."""
    (tmp_path / "taken").mkdir()
    closed = f"""
[[dialogs.store]]
name = "orders"
kind = "sqlite"
path = "{tmp_path / "taken"}"
"""

    async def work() -> None:
        async with nodes(tmp_path, "ann", dialogs=closed) as (ann,):
            async with asyncio.timeout(20):
                while not ann.dialogs.failures:  # noqa: ASYNC110 no event says that a store failed
                    await asyncio.sleep(0.02)
            command = commands(tmp_path / "ann")
            said = await shown(command, "faults")
            assert "store orders: not open" in said
            assert "unable to open" in said
            found = json.loads(await shown(command, "faults", "--json"))
            assert [fault["fault"] for fault in found] == ["not open"]
            refused = await command("show", "0123")
            assert refused.exit_code != 0
            assert "store orders is not open" in str(refused.exception)

    run(work, 60)
