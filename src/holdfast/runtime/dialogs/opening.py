"""Opening the dialog stores of a node, off the event loop, and again after one failed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.dialog.ports import OpenStore, dialog_unit
from holdfast.dialog.records import LOADED
from holdfast.dialog.section import StoreConfig
from holdfast.errors import DialogError, MisuseError
from holdfast.runtime.dialogs.stores import Worker, make_store, make_worker
from holdfast.runtime.dialogs.writer import DialogWriter
from holdfast.stores.dialogs.memory import MemoryDialogStore, Shelf
from holdfast.stores.dialogs.port import DialogStore
from holdfast.subsystem import Port
from holdfast.types import NEVER, SECOND, Nanos

log = logging.getLogger("holdfast")

REOPEN_S: Final = 1.0
REOPEN_S_MAX: Final = 30.0
Begun = Callable[[OpenStore], bool]


class OpenStores:
    """The stores of one node: their writers, and the workers that run transactions on them."""

    def __init__(self) -> None:
        self.configs: dict[str, StoreConfig] = {}
        self.failures: dict[str, str] = {}
        """Why a store is not open, by name."""
        self.ready: dict[str, asyncio.Event] = {}
        self._still: dict[str, None] = {}
        """Stores whose unit failed repeatedly: requests are refused until they are open again."""
        self._shelves: dict[str, Shelf] = {}
        """Memory stores live as long as the process that made the node."""
        self._writers: dict[str, DialogWriter] = {}
        self._workers: dict[str, Worker] = {}
        self._made: dict[str, DialogStore] = {}
        self._closing = threading.Event()
        self._port: Port | None = None
        self._begun: Begun = lambda _: True

    def inspect(self, name: str) -> Any:
        """A store that is open, for people and tests."""
        return self._made[name]

    def start(
        self,
        port: Port,
        configs: Mapping[str, StoreConfig],
        begun: Begun,
        failures: dict[str, str],
    ) -> None:
        """Open every store. `begun` is called on the event loop with each that is open. `failures` is kept up to date
        with why a store is not open."""
        self.configs = dict(configs)
        self.failures = failures
        self._still.clear()
        self._port, self._begun = port, begun
        self._closing.clear()
        self._loop = asyncio.get_running_loop()
        self.ready = {name: asyncio.Event() for name in self.configs}
        for name in self.configs:
            self._open_in_thread(name, 0.0)

    def _open_in_thread(self, name: str, delay_s: float) -> None:
        thread = threading.Thread(
            target=self._open, args=(name, delay_s), name=f"holdfast-open-{name}", daemon=True
        )
        thread.start()

    def _open(self, name: str, delay_s: float) -> None:
        """In a thread: open a store, take it over and read it. Tries again until it works."""
        if self._closing.wait(delay_s):
            return
        config = self.configs[name]
        data = self._port.config.data if self._port is not None else ""
        try:
            store = make_store(config, data, self._shelves.get(name))
            ownership = store.open()
            tables = {table: store.load(table) for table in LOADED}
        except Exception as error:  # noqa: BLE001 whatever is wrong with it, the node continues without this store
            self.failures[name] = str(error)
            log.error(
                "dialog store %s: %s",
                name,
                error,
                extra=_fields("store_not_opened", name, str(error)),
            )
            self._open_in_thread(name, min(max(REOPEN_S, 2 * delay_s), REOPEN_S_MAX))
            return
        if isinstance(store, MemoryDialogStore):
            self._shelves[name] = store.shelf
        budget = config.budget_mb << 20
        opened = OpenStore(name, ownership.store, ownership.epoch, tables, budget)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._opened, opened, store)

    def _opened(self, opened: OpenStore, store: DialogStore) -> None:
        port = self._port
        if port is None:
            store.close()
            return
        name = opened.name
        unit = dialog_unit(name)
        old = self._writers.pop(name, None)
        if old is not None:
            threading.Thread(target=old.close, daemon=True).start()
        writer = self._writers[name] = DialogWriter(
            store,
            lambda turn: port.written(turn, unit),
            lambda error: port.write_failed(error, unit),
        )
        port.use_store(unit, writer)
        self._made[name] = store
        if name not in self._workers:
            self._workers[name] = make_worker(self.configs[name], store)
        failed = name in self.failures
        if self._begun(opened):
            self.failures.pop(name, None)
            if failed:
                extra = {"event": "store_open_again", "subsystem": "dialog", "store": name}
                log.info("dialog store %s: open again", name, extra=extra)
            self._still.pop(name, None)
            self.ready[name].set()

    def lost(self, name: str, wait_ns: Nanos) -> None:
        """A store failed, or its unit did: read it again, after a wait if it failed repeatedly."""
        reason = self.failures[name]
        event = "store_halted" if wait_ns else "store_lost"
        log.error("dialog store %s: %s", name, reason, extra=_fields(event, name, reason))
        if wait_ns:
            self._still[name] = None
            self.ready[name].set()  # Requests that wait for the store are refused.
        self.ready[name].clear()
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.close()
        if wait_ns < NEVER:
            self._open_in_thread(name, max(REOPEN_S, wait_ns / SECOND))

    async def until_open(self, name: str) -> None:
        """Wait until a store is open. A request of a store whose dialogs halt is refused."""
        self.check(name)
        ready = self.ready[name]
        while not ready.is_set() and not self._closing.is_set():
            await ready.wait()
            self.check(name)

    def read(self, name: str, work: Callable[[DialogStore], Any]) -> Any:
        """Call `work(store)` on the store's thread, after every turn submitted so far; gives a future."""
        store = self._made[name]
        return self._writers[name].call(lambda: work(store))

    def worker(self, name: str) -> Worker:
        self.check(name)
        worker = self._workers.get(name)
        if worker is None:
            raise DialogError(
                f"dialog store {name!r} is not open: {self.failures.get(name, 'it is being opened')}; nothing was done"
            )
        return worker

    async def settle(self, name: str, tx: bytes) -> bool:
        return bool(await asyncio.to_thread(self._made[name].settle, tx))

    def check(self, name: str) -> None:
        if name not in self.configs:
            known = ", ".join(self.configs) or "none; add [[dialogs.store]] to the configuration"
            raise MisuseError(f"this node has no dialog store {name!r}; it has {known}")
        if name in self._still:
            raise DialogError(
                f"dialog store {name!r}: {self.failures.get(name, '')}; this request had no effect"
            )

    def halt(self) -> None:
        self._port = None
        self._closing.set()
        for event in self.ready.values():
            event.set()
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def close(self) -> None:
        """Off the event loop: write what was submitted and close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _fields(event: str, store: str, error: str) -> dict[str, str]:
    """What the log knows about a store that cannot be used."""
    return {"event": event, "subsystem": "dialog", "store": store, "error": error}
