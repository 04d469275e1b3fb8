"""`holdfast node` is killed with SIGKILL while an application sends through it: each message arrives exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.conformance.worlds import free_port
from tests.support.dialog_nodes import SQLITE, config_text, run

from holdfast import connect_dialogs
from holdfast.errors import DialogError, TransactionAborted
from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.dialogs.remote import RemoteDialogs
from holdfast.runtime.node import Node

MESSAGES = 60
KILLS = 2


def start(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "node", str(file), "--quiet"]
    return subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.DEVNULL)


async def send_once(dialogs: RemoteDialogs, dialog: Dialog, number: int) -> None:
    """Send in a transaction, again until one has committed. An aborted one left no trace."""
    while True:
        try:
            async with dialogs.transaction() as tx:
                await dialog.send(b"%d" % number, tx=tx)
        except (TransactionAborted, DialogError):
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.slow
def test_each_message_arrives_once_although_the_daemon_is_killed(tmp_path: Path) -> None:
    port = free_port(["127.0.41.1", "127.0.41.2"])
    file = tmp_path / "ann.toml"
    file.write_text(config_text("ann", 1, port, tmp_path, SQLITE))
    random = Random(3)
    moments = sorted(random.sample(range(10, MESSAGES - 10), KILLS))
    daemon = start(file)

    async def work() -> list[int]:
        nonlocal daemon
        ben = Node(parse_config(config_text("ben", 2, port, tmp_path, SQLITE)))
        await ben.start()
        await ben.dialogs.listen("orders", idle_ns=0)
        got: list[int] = []

        async def receive() -> None:
            while len(got) < MESSAGES:
                _, messages = await ben.dialogs.receive_any(50)
                got.extend(int(message.body) for message in messages)

        receiving = asyncio.ensure_future(receive())
        async with connect_dialogs(tmp_path / "ann", timeout_s=60) as dialogs:
            dialog = await dialogs.open("orders", wait=False, idle_ns=0, reroute_ns=500_000_000)
            for number in range(MESSAGES):
                sending = asyncio.ensure_future(send_once(dialogs, dialog, number))
                if number in moments:
                    await asyncio.sleep(random.random() * 0.01)
                    daemon.send_signal(signal.SIGKILL)
                    daemon.wait()
                    daemon = start(file)
                await sending
            await receiving
        await asyncio.sleep(0)
        await ben.stop()
        return got

    try:
        got = run(work, 280)
    finally:
        daemon.kill()
        daemon.wait()
    assert got == list(range(MESSAGES)), "once each, and in order"
