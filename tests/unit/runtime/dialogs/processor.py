"""A process that takes jobs in transactions and writes each into a table of its own; it is killed by a test."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast.node.config import parse_config
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node


async def process(text: str) -> None:
    node = Node(parse_config(text))
    await node.start()
    await node.dialogs.listen("orders", idle_ns=0, poison_after=0)
    async with node.dialogs.transaction() as tx:
        await tx.run(lambda db: db.execute("CREATE TABLE IF NOT EXISTS results (n INTEGER)"))
    while True:
        async with node.dialogs.transaction(store="default") as tx:
            dialog, jobs = await node.dialogs.receive_any(7, tx=tx)
            numbers = [(int(job.body),) for job in jobs]
            await tx.run(
                lambda db, rows=numbers: db.executemany("INSERT INTO results VALUES (?)", rows)
            )
            if dialog is not None:
                await dialog.send(b"done %d" % len(jobs), tx=tx)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(process(Path(sys.argv[1]).read_text()))
