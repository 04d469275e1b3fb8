"""The cost of idle dialogs: memory and CPU time of open ones, disk space of deactivated ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from holdfast.bench.dialog_peer import idle_config
from holdfast.dialog.ids import StoreId, dialog_id
from holdfast.dialog.records import DIALOG, INACTIVE, POSITION, DialogRow, InactiveRow, PositionRow
from holdfast.dialog.records import decode as decode_row
from holdfast.dialog.records import encode as encode_row
from holdfast.machine import Put
from holdfast.node.config import parse_config
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node
from holdfast.stores.dialogs.sqlite import SqliteDialogStore
from holdfast.types import NodeId

AT_ONCE: Final = 200
QUIET_S: Final = 3.0
"""How long CPU time is measured while the dialogs are idle."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
ROWS_AT_ONCE: Final = 10_000


class Idle(msgspec.Struct, frozen=True):
    """Figures of idle dialogs."""

    dialogs: int
    bytes_each: int
    cpu_percent: float
    disk_each: int


def resident() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * PAGE


def measure_open(count: int) -> Idle:
    """Open dialogs from one store of a node to another, in a separate process. Each has two ends, and both are
    counted."""
    return _in_process("open", count)


def measure_deactivated(count: int) -> Idle:
    """Start a node whose store holds deactivated dialogs, and use one of them."""
    return _in_process("deactivated", count)


def _in_process(what: str, count: int) -> Idle:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.bench.dialog_idle", what, str(count)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Idle)


async def _open(directory: Path, count: int) -> Idle:
    node = Node(parse_config(idle_config(directory)))
    await node.start()
    await node.dialogs.listen("idle", store="far", idle_ns=0)
    before = resident()
    for start in range(0, count, AT_ONCE):
        number = min(AT_ONCE, count - start)
        opening = [
            node.dialogs.open("holdfast://idle/idle", idle_ns=0, message_bytes_max=1024)
            for _ in range(number)
        ]
        await asyncio.gather(*opening)
    each = (resident() - before) // (2 * count)
    cpu = await _quiet_cpu()
    await node.stop()
    return Idle(2 * count, each, cpu, _disk(directory) // (2 * count))


async def _deactivated(directory: Path, count: int) -> Idle:
    node = Node(parse_config(idle_config(directory)))
    await node.start()
    await node.dialogs.listen("idle", store="far", idle_ns=0)
    dialog = await node.dialogs.open("holdfast://idle/idle", idle_ns=0)
    own = bytes(node.id)
    await node.stop()
    empty = _disk(directory)
    _multiply(directory / "dialogs-near.sqlite", own, dialog.id, count)
    before = resident()
    again = Node(parse_config(idle_config(directory)))
    await again.start()
    await again.dialogs.listen("idle", store="far", idle_ns=0)
    await again.dialogs.reactivate(dialog.id)
    each = max(0, resident() - before) // count
    cpu = await _quiet_cpu()
    wanted = dialog_id(NodeId(own), StoreId(again.dialogs.store_id("near")), count)
    await again.dialogs.reactivate(wanted)
    await again.stop()
    return Idle(count, each, cpu, (_disk(directory) - empty) // count)


def _multiply(path: Path, node: bytes, dialog: bytes, count: int) -> None:
    """Write rows as deactivation does: copies of those of one dialog, with new ids."""
    store = SqliteDialogStore(path, os.urandom)
    owner = store.open()
    row = decode_row(DialogRow, dict(store.load(DIALOG))[dialog])
    position = decode_row(PositionRow, dict(store.load(POSITION))[dialog])
    value = encode_row(InactiveRow(row, position))
    for start in range(0, count, ROWS_AT_ONCE):
        stop = min(count, start + ROWS_AT_ONCE)
        store.commit(
            [
                Put(INACTIVE, dialog_id(NodeId(node), StoreId(owner.store), number), value)
                for number in range(start + 1, stop + 1)
            ]
        )
    store.close()


async def _quiet_cpu() -> float:
    """CPU time while the dialogs are idle, as a percentage of one core."""
    await asyncio.sleep(1.0)
    begin, cpu = time.perf_counter_ns(), time.process_time_ns()
    await asyncio.sleep(QUIET_S)
    return round(100 * (time.process_time_ns() - cpu) / (time.perf_counter_ns() - begin), 2)


def _disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main(what: str, count: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        work = _open if what == "open" else _deactivated
        idle = runner.run(work(Path(name), count))
    sys.stdout.write(msgspec.json.encode(idle).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
