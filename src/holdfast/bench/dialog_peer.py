"""The remote end of `holdfast bench dialog`: a process that receives everything, or answers, and reports how much it
has."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node

TAKEN_AT_ONCE = 2000


def config_text(name: str, number: int, port: int, data: str, store: str, source: str) -> str:
    """The configuration of one of the two nodes. `source` is the database, or the socket of an express daemon."""
    key = "dsn" if store == "postgres" else "path"
    line = f'{key} = "{source}"' if source else ""
    return f"""
domain = "bench"
name = "{name}"
data = "{data}"
join = ["127.0.0.1:{port}"]
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "red"
address = "127.0.0.{number}:{port}"
transports = ["tcp"]
[[dialogs.store]]
name = "{name}"
kind = "{store}"
{line}
"""


def idle_config(data: Path) -> str:
    """A node with two dialog stores, which opens dialogs with itself."""
    return f"""
domain = "bench"
name = "idle"
data = "{data}"
security.mode = "plain"
telemetry.enabled = false
[dialogs]
serve = false
roles = false
[[adapter]]
name = "red"
address = "127.0.0.1:7494"
transports = ["tcp"]
[[dialogs.store]]
name = "near"
budget_mb = 100000
[[dialogs.store]]
name = "far"
budget_mb = 100000
"""


QUOTA: Final[dict[str, Any]] = {
    "quota_messages": 20_000,
    "quota_bytes": 20_000 * 8192,
    "message_bytes_max": 8192,
}


async def take_all(dialog: Dialog) -> None:
    """The first message selects the mode: `take` messages up to `end` and send `done`, or `echo` each up to `end`."""
    while True:
        order = (await dialog.receive()).body.decode().split()
        if order[0] == "take":
            while (await dialog.receive_many(TAKEN_AT_ONCE))[-1].body != b"end":
                pass
            await dialog.send(b"done")
        elif order[0] == "echo":
            body = b""
            while body != b"end":
                body = (await dialog.receive()).body
                await dialog.send(body)
        else:
            return


async def serve(text: str) -> None:
    node = Node(parse_config(text))
    await node.start()
    listener = await node.dialogs.listen("bench", **QUOTA)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    stdin = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def dialogs() -> None:
        while True:
            tasks.append(asyncio.ensure_future(take_all(await listener.next())))

    tasks: list[asyncio.Future[None]] = []
    tasks.append(asyncio.ensure_future(dialogs()))
    await stdin  # Until the other process ends it.
    for task in tasks:
        task.cancel()
    await node.stop()


def main() -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(sys.stdin.readline().encode().decode("unicode_escape")))


if __name__ == "__main__":
    main()
