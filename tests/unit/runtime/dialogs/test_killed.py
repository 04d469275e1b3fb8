"""Real processes, killed with SIGKILL at random moments: every job is processed exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.conformance.worlds import free_port
from tests.support.dialog_nodes import SQLITE, config_text, run

from holdfast.node.config import parse_config
from holdfast.runtime.node import Node

JOBS = 400


def start(directory: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("processor.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(directory / "ben.toml")], env=dict(os.environ)
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_job_is_processed_once_although_the_processor_is_killed(tmp_path: Path) -> None:
    port = free_port(["127.0.41.1", "127.0.41.2"])
    (tmp_path / "ben.toml").write_text(config_text("ben", 2, port, tmp_path, SQLITE))
    random = Random(1)
    child = start(tmp_path)

    async def work() -> int:
        nonlocal child
        node = Node(parse_config(config_text("ann", 1, port, tmp_path, SQLITE)))
        await node.start()
        dialog = await node.dialogs.open("orders", wait=False, idle_ns=0)
        sent = done = kills = 0
        while done < JOBS:
            if sent < JOBS:
                await dialog.send_many([b"%d" % n for n in range(sent, sent + 20)])
                sent += 20
            if (await node.dialogs.look(dialog)).state == "faulted":
                await dialog.repair("reroute")
            for reply in await dialog.receive_many(100, timeout_s=0.3):
                done += int(reply.body.split()[1])
            if done and kills < 5 and random.random() < 0.4:
                child.send_signal(signal.SIGKILL)
                child.wait()
                kills += 1
                await asyncio.sleep(random.random())
                child = start(tmp_path)
        await node.stop()
        return kills

    try:
        kills = run(work, 500)
    finally:
        child.kill()
        child.wait()
    db = sqlite3.connect(tmp_path / "ben" / "dialogs-default.sqlite")
    rows = [n for (n,) in db.execute("SELECT n FROM results")]
    db.close()
    assert kills > 0
    assert rows == list(range(JOBS)), "once, and in order"
