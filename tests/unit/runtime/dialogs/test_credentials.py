"""A certificate expires under a living dialog: fault, repair, and the dialog continues where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.conformance.worlds import free_port
from tests.support.dialog_nodes import run
from tests.unit.transports.harness import authority_in, credentials
from typer.testing import CliRunner

from holdfast.cli.ca import app as ca
from holdfast.cli.dialogs import app
from holdfast.dialog.ports import RepairWanted
from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.node import Node
from holdfast.transports import TcpTransport, load_tls

HOSTS = ["127.0.44.1", "127.0.44.2"]
LONG_AGO = datetime.now(UTC) - timedelta(days=60)


def config(name: str, number: int, port: int, home: Path) -> str:
    files = credentials(home / "ca", name)
    return f"""
domain = "demo"
name = "{name}"
data = "{home / name}"
join = ["{HOSTS[0]}:{port}"]
telemetry.enabled = false
[security]
authority = "{files.authority}"
certificate = "{files.certificate}"
key = "{files.key}"
[[adapter]]
name = "red"
address = "{HOSTS[number]}:{port}"
transports = ["tcp"]
measure = []
[dialogs]
roles = false
[[dialogs.store]]
kind = "sqlite"
"""


@asynccontextmanager
async def two_nodes(home: Path) -> AsyncIterator[tuple[Node, Node]]:
    (home / "ca").mkdir()
    authority_in(home / "ca", now=LONG_AGO)
    port = free_port(HOSTS)
    ann, ben = (
        Node(parse_config(config(name, n, port, home))) for n, name in enumerate(("ann", "ben"))
    )
    await ann.start()
    await ben.start()
    try:
        await ann.until_up("ben", timeout_s=20)
        yield ann, ben
    finally:
        await ann.stop()
        await ben.stop()


def expire(node: Node, home: Path) -> None:
    """From now on the node uses a certificate that expired a month ago."""
    files = credentials(home / "ca", f"{node.config.name}", days=30, now=LONG_AGO)
    old = load_tls(files, "demo", node.config.name, LONG_AGO + timedelta(days=1))
    for transport in node._drive().transports.values():
        assert isinstance(transport, TcpTransport)
        transport.use_tls(old)


def test_a_repair_handler_renews_the_certificate(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_nodes(tmp_path) as (ann, ben):
            listener = await ben.dialogs.listen("orders", idle_ns=0)
            near = await ann.dialogs.open("holdfast://ben/orders", idle_ns=0)
            far = await listener.next()
            await near.send(b"1")
            assert (await far.receive()).body == b"1"
            faults: list[RepairWanted] = []

            async def renew(_dialog: Dialog, fault: RepairWanted) -> str:
                faults.append(fault)
                credentials(tmp_path / "ca", "ann")
                await ann.renew_credentials()
                return "resume"

            ann.dialogs.repair_with("credentials", renew)
            expire(ann, tmp_path)
            await ben.stop()
            await near.send_many([b"2", b"3"])
            await ben.start()
            far = await ben.dialogs.reactivate(near.id)
            got = [(await far.receive(timeout_s=40)).body for _ in range(2)]
            assert got == [b"2", b"3"]
            assert [fault.code for fault in faults] == ["credentials"]
            assert "certificate" in faults[0].detail

    run(work, 60)


def test_an_operator_sees_the_fault_and_what_to_do(tmp_path: Path) -> None:
    """No handler: `holdfast dialogs faults` names it. After new files and `repair` the dialog continues."""

    async def work() -> None:
        async with two_nodes(tmp_path) as (ann, ben):
            await ben.dialogs.listen("orders", idle_ns=0)
            near = await ann.dialogs.open("holdfast://ben/orders", idle_ns=0)
            expire(ann, tmp_path)
            await ben.stop()
            await near.send(b"1")
            await ben.start()
            while (await near.next_event()).kind != "faulted":
                pass

            def command(*words: str) -> str:
                result = CliRunner().invoke(app, [words[0], str(tmp_path / "ann"), *words[1:]])
                assert result.exit_code == 0, result.output
                return result.output

            shown = await asyncio.to_thread(command, "faults")
            assert "credentials" in shown
            assert "renew the certificate" in shown
            credentials(tmp_path / "ca", "ann")
            reloaded = await asyncio.to_thread(
                CliRunner().invoke, ca, ["reload", str(tmp_path / "ann")]
            )
            assert reloaded.exit_code == 0, reloaded.output
            await asyncio.to_thread(command, "repair", near.id.hex())
            far = await ben.dialogs.reactivate(near.id)
            assert (await far.receive(timeout_s=40)).body == b"1"
            assert "no dialog needs help" in await asyncio.to_thread(command, "faults")

    run(work, 60)


def test_a_foreign_certificate_is_a_fault_and_no_message_is_lost(tmp_path: Path) -> None:
    """An authority of the same name signed it, and the partner's node does not know that authority."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    authority_in(foreign)

    async def work() -> None:
        async with two_nodes(tmp_path) as (ann, ben):
            await ben.dialogs.listen("orders", idle_ns=0)
            near = await ann.dialogs.open("holdfast://ben/orders", idle_ns=0)
            await near.send(b"1")
            wrong = load_tls(credentials(foreign, "ann"), "demo", "ann")
            for transport in ann._drive().transports.values():
                assert isinstance(transport, TcpTransport)
                transport.use_tls(wrong)
            await ben.stop()
            await near.send(b"2")
            await ben.start()
            while (event := await near.next_event()).kind != "faulted":
                pass
            assert event.code == "credentials"
            assert "certificate" in event.detail
            await ann.renew_credentials()
            far = await ben.dialogs.reactivate(near.id)
            got = [(await far.receive(timeout_s=40)).body for _ in range(2)]
            assert got == [b"1", b"2"]

    run(work, 60)
