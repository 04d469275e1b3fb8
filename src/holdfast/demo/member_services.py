"""The other work of a member: it answers for a role, keeps a ledger that a dialog fills, and stores an object.

Each part is a control request, so that the story can start it on one node and look at the result on another.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from holdfast.demo.orderbook import OrderBook
from holdfast.errors import HoldfastError
from holdfast.runtime.node import Node
from holdfast.runtime.roles_handles import RoleMessage

ROLE = "quotes"
SERVICE = "ledger"
OBJECT = "/prospectus"
OBJECT_BYTES = 300_000
SLOW = b"slow"
SLOW_S = 2.0
"""An instance takes this long to answer a slow question, so that a node can die while it works."""
BATCH = 50
PAUSE_S = 0.04
"""Between two entries of the ledger."""

Handler = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]


class MemberServices:
    """What one node does besides trading."""

    def __init__(self, node: Node, book: OrderBook) -> None:
        self._node = node
        self._book = book
        self._submitting: asyncio.Task[None] | None = None
        self._sent = 0

    async def run(self) -> None:
        """Answer for the role, and write to the ledger what dialogs bring."""
        await self._node.roles.serve(ROLE, self._quote)
        await self._node.dialogs.listen(SERVICE)
        while True:
            async with self._node.dialogs.transaction() as tx:
                _, entries = await self._node.dialogs.receive_any(BATCH, tx=tx)
                numbers = [(int(entry.body),) for entry in entries]
                # The entries and their receipt are committed together, in one file.
                await tx.run(partial(_write, numbers=numbers))

    def handlers(self) -> dict[str, Handler]:
        return {
            "quotes": self.ask_for_quotes,
            "submit": self.submit,
            "ledger": self.show_ledger,
            "publish": self.publish,
            "fetch": self.fetch,
        }

    async def _quote(self, message: RoleMessage) -> bytes:
        if message.data == SLOW:
            await asyncio.sleep(SLOW_S)
        return str(self._book.state.volume).encode()

    async def ask_for_quotes(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask every instance of the role; the outcome names those that did not answer."""
        outcome = await self._node.roles.request_all(ROLE, SLOW if request.get("slow") else b"")
        return {
            "answered": sorted(outcome.answered),
            "failed": sorted(name for name, _ in outcome.failed),
            "unknown": sorted(outcome.unknown),
            "complete": outcome.complete,
        }

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send numbered entries to the ledger of a node in the background, over one dialog."""
        if self._submitting is None:
            self._submitting = asyncio.ensure_future(self._submit(request["to"], request["count"]))
        elif self._submitting.done():
            self._submitting.result()  # raises what ended it
        return {"sent": self._sent}

    async def _submit(self, to: str, count: int) -> None:
        dialog = await self._node.dialogs.open(f"holdfast://{to}/{SERVICE}")
        while self._sent < count:
            await dialog.send(str(self._sent + 1).encode())  # returns when the store has it
            self._sent += 1
            await asyncio.sleep(PAUSE_S)

    async def show_ledger(self, _: dict[str, Any]) -> dict[str, Any]:
        async with self._node.dialogs.transaction() as tx:
            numbers: list[int] = await tx.run(_read)
        return {
            "entries": len(numbers),
            "in_order": numbers == list(range(1, len(numbers) + 1)),
        }

    async def publish(self, _: dict[str, Any]) -> dict[str, Any]:
        """Create the object with three replicas."""
        content = bytes(i * i % 251 for i in range(OBJECT_BYTES))
        await self._node.objects.create(OBJECT, content, replicas=3)
        info = await self._node.objects.stat(OBJECT)
        return {
            "digest": hashlib.sha256(content).hexdigest(),
            "nodes": sorted(replica.node for replica in info.replicas),
        }

    async def fetch(self, _: dict[str, Any]) -> dict[str, Any]:
        try:
            content = await self._node.objects.read(OBJECT)
        except HoldfastError as error:
            return {"digest": "", "reason": str(error)}
        return {"digest": hashlib.sha256(content).hexdigest(), "reason": ""}


def _write(db: sqlite3.Connection, numbers: list[tuple[int]]) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS ledger (at INTEGER PRIMARY KEY, number INTEGER)")
    db.executemany("INSERT INTO ledger (number) VALUES (?)", numbers)


def _read(db: sqlite3.Connection) -> list[int]:
    db.execute("CREATE TABLE IF NOT EXISTS ledger (at INTEGER PRIMARY KEY, number INTEGER)")
    return [number for (number,) in db.execute("SELECT number FROM ledger ORDER BY at")]
