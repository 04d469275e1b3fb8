"""The disk of a host: slow, sometimes full, and as unreliable after a crash as a real one.

Writes that were reported survive a crash. Unreported turns may survive, completely and in turn order up to some turn.
The commit that the crash interrupted is not there at all, as with SQLite.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreError, StoreFull
from holdfast.machine import Erase, Put, Write
from holdfast.types import MICROSECOND, Nanos

if TYPE_CHECKING:
    from holdfast.sim.world import World

OUTSTANDING_MAX: Final = 16 << 20
"""Bytes that wait for the disk; above it, the host accepts no inputs until some are written."""

Tables = dict[str, dict[bytes, bytes]]


def write_size(write: Write) -> int:
    if isinstance(write, Put):
        return len(write.key) + len(write.value)
    return len(write.first) + len(write.stop)


def apply_writes(tables: Tables, writes: Sequence[Write]) -> None:
    """Apply the writes of one commit, in order."""
    for write in writes:
        table = tables.setdefault(write.table, {})
        if isinstance(write, Erase):
            doomed = [key for key in table if write.first <= key < write.stop]
            for key in doomed:
                del table[key]
        else:
            table[write.key] = write.value


class Disk:
    """Tables that outlive the process, and the commits in progress."""

    def __init__(
        self,
        world: World,
        random: Random,
        lag_ns: Nanos = 400 * MICROSECOND,
        jitter_ns: Nanos = 400 * MICROSECOND,
    ) -> None:
        self._world = world
        self._random = random
        self._lag_ns = lag_ns
        self._jitter_ns = jitter_ns
        self._tables: Tables = {}
        self._pending: deque[tuple[int, list[Write], int]] = deque()
        self._syncing = 0
        """How many of the pending turns the current sync includes."""
        self._epoch = 0
        """A sync of an ended process is not reported."""
        self.slow_ns = 0
        self.full = False
        self.outstanding_bytes = 0
        self.commits = 0
        self.on_written: Callable[[int], None] = _ignore
        self.on_failed: Callable[[StoreError], None] = _ignore

    # -- for the driver ------------------------------------------------------------------------------------------

    def submit(self, turn: int, writes: list[Write]) -> None:
        """Queue the writes of a turn. One sync takes several turns, all that wait or fewer."""
        size = sum(map(write_size, writes))
        self._pending.append((turn, writes, size))
        self.outstanding_bytes += size
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        waiting = len(self._pending)
        self._syncing = waiting if self._random.getrandbits(2) else self._random.randint(1, waiting)
        lag_ns = (
            self._lag_ns + self.slow_ns + (self._random.getrandbits(16) * self._jitter_ns >> 16)
        )
        self._world.at(self._world.now + lag_ns, self._synced, self._epoch)

    def _synced(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        if self.full:
            self._epoch += 1
            self._forget()
            self.on_failed(StoreFull("no room on the disk: make room and start the node again"))
            return
        turn = 0
        for _ in range(self._syncing):
            turn = self._commit_next()
        self._syncing = 0
        if self._pending:
            self._sync()
        self.on_written(turn)

    def _commit_next(self) -> int:
        turn, writes, size = self._pending.popleft()
        apply_writes(self._tables, writes)
        self.outstanding_bytes -= size
        self.commits += 1
        return turn

    # -- the end of a process ------------------------------------------------------------------------------------

    def crash(self) -> int:
        """The process died; returns the number of turns that were saved without being reported."""
        self._epoch += 1
        saved = self._random.randint(0, len(self._pending)) if not self.full else 0
        for _ in range(saved):
            self._commit_next()
        self._forget()
        return saved

    def flush(self) -> None:
        """A clean stop waits until everything is written."""
        self._epoch += 1
        while self._pending and not self.full:
            self._commit_next()
        self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._syncing = 0
        self.outstanding_bytes = 0

    # -- for the store port --------------------------------------------------------------------------------------

    def rows(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Rows for a running process, as `Store.load` returns them, including its own queued writes."""
        seen: Tables = {table: dict(self._tables.get(table, {}))}
        for _, writes, _ in self._pending:
            apply_writes(seen, [write for write in writes if write.table == table])
        found = [
            (key, value)
            for key, value in sorted(seen[table].items())
            if key >= first and (not stop or key < stop)
        ]
        return found[:limit] if limit else found

    def durable(self, table: str) -> list[tuple[bytes, bytes]]:
        """The contents after a power failure in which nothing unreported survived."""
        return sorted(self._tables.get(table, {}).items())

    @property
    def full_queue(self) -> bool:
        """Whether so much waits for the disk that the host accepts no inputs."""
        return self.outstanding_bytes > OUTSTANDING_MAX

    def commit_now(self, writes: Sequence[Write]) -> None:
        if self.full:
            raise StoreFull("no room on the disk: make room and start the node again")
        apply_writes(self._tables, writes)
        self.commits += 1


def _ignore(_: object) -> None:
    """No process waits for this disk."""


class DiskStore:
    """The `Store` port of one process on a disk. Direct commits are for the start, before there are turns."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._refused: StoreError | None = None

    def load(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> list[tuple[bytes, bytes]]:
        return self._disk.rows(table, first, stop, limit)

    def commit(self, writes: Sequence[Write]) -> None:
        if self._refused is not None:
            raise StoreError(f"takes no more writes since: {self._refused}")
        try:
            self._disk.commit_now(writes)
        except StoreError as error:
            self._refused = error
            raise

    def close(self) -> None:
        self._refused = StoreError("the store is closed")
