"""A job queue with exactly-once processing into a PostgreSQL table.

python jobs.py submit DIRECTORY COUNT     hand jobs to the node of the submitter, and exit
python jobs.py node DIRECTORY NAME        run a node that hosts dialogs for applications
python jobs.py work DIRECTORY DSN         run the worker's node and process jobs until it is killed
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast import Node, connect_dialogs, parse_config

PORT = 7461
CONFIG = """
domain = "jobs"
name = "{name}"
data = "{data}"
join = ["127.0.51.1:{port}"]
security.mode = "plain"

[[adapter]]
name = "lan"
address = "127.0.51.{number}:{port}"

[[dialogs.store]]
name = "{name}"
kind = "{kind}"
dsn = "{dsn}"

[[dialogs.route]]
service = "jobs"
nodes = ["worker"]
"""


def config(directory: Path, name: str, dsn: str = "") -> str:
    """The submitter keeps its dialogs in SQLite, the worker in the database of its results."""
    number = 1 if name == "submitter" else 2
    kind = "postgres" if dsn else "sqlite"
    data = directory / name
    return CONFIG.format(name=name, data=data, number=number, port=PORT, kind=kind, dsn=dsn)


async def submit(directory: Path, count: int) -> None:
    """Store jobs with the submitter's node, and exit. The node delivers them, now or later."""
    async with connect_dialogs(directory / "submitter") as dialogs:
        jobs = await dialogs.open("jobs", wait=False, quota_messages=100_000)
        await jobs.send_many([b"%d" % number for number in range(count)])
        await jobs.complete()


async def work(directory: Path, dsn: str) -> None:
    """Take each job and insert its result, in one transaction."""
    async with Node(parse_config(config(directory, "worker", dsn))) as node:
        await node.dialogs.listen("jobs", quota_messages=100_000)
        while True:
            async with node.dialogs.transaction(store="worker") as tx:
                _, jobs = await node.dialogs.receive_any(10, tx=tx)
                rows = [(int(job.body), int(job.body) ** 2) for job in jobs]
                await tx.connection.executemany("INSERT INTO results VALUES ($1, $2)", rows)


async def run_node(directory: Path, name: str, dsn: str) -> None:
    async with Node(parse_config(config(directory, name, dsn))) as node:
        await node.wait_stopped()


def main(words: list[str]) -> None:
    match words:
        case ["submit", directory, count]:
            asyncio.run(submit(Path(directory), int(count)))
        case ["work", directory, dsn]:
            asyncio.run(work(Path(directory), dsn))
        case ["node", directory, name]:
            asyncio.run(run_node(Path(directory), name, ""))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
