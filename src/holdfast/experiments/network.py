"""The packet network for protocol machines, compiled: each packet crosses every hop of its route and queues there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from holdfast.errors import HoldfastError
from holdfast.experiments import wires
from holdfast.experiments.compiling import compiled
from holdfast.experiments.topology import Ints, Topology
from holdfast.experiments.traffic import Send, Traffic
from holdfast.experiments.wires import Wires, make_wires, with_more_rows
from holdfast.types import Nanos

ROWS: Final = 1 << 14
ROWS_MAX: Final = 1 << 26


class NetworkOverrun(HoldfastError):
    """A queue became longer than the model supports. The round was aborted."""


@compiled
def _handle(w: Any, table: Any, rows: Any, sends: Any, targets: Any) -> None:
    """Forward the packets of a slot, remove those that are at their target, and let nodes send, in order of time."""
    at, used = 0, 0
    for k in range(len(rows) + 1):
        while at < len(sends) and sends[at, 0] == k:
            now, source, count = sends[at, 1], sends[at, 2], sends[at, 3]
            wires.sample(w, now)
            for target in targets[used : used + count]:
                row = wires.take_row(w)
                w.packets[row, wires.SOURCE] = source
                w.packets[row, wires.TARGET] = target
                w.packets[row, wires.TRANSMIT] = sends[at, 4]
                w.packets[row, wires.TAG] = sends[at, 5]
                wires.enqueue(w, row, table[target, source], now)
            w.numbers[wires.SENT] += count
            w.numbers[wires.IN_NETWORK] += count
            used += count
            at += 1
        if k < len(rows):
            row = rows[k]
            now = w.packets[row, wires.ARRIVE]
            wires.sample(w, now)
            node = wires.leave(w, row)
            if node == w.packets[row, wires.TARGET]:
                w.numbers[wires.IN_NETWORK] -= 1
                wires.give_back(w, row)
            elif node >= 0:
                wires.enqueue(w, row, table[w.packets[row, wires.TARGET], node], now)


@compiled
def _open(w: Any, limit: int) -> Any:
    """The next slot: its packets in order, and for each (position, time, source, target, tag) that arrives."""
    if not wires.next_slot(w, limit):
        empty = np.empty(0, np.int64)
        return empty, np.empty((0, 5), np.int64)
    rows = wires.arrivals(w)
    found = np.empty((len(rows), 5), np.int64)
    count = 0
    for k in range(len(rows)):
        row = rows[k]
        target = w.packets[row, wires.TARGET]
        if w.packets[row, wires.IS_LOST] or w.links[w.packets[row, wires.LINK], wires.TO] != target:
            continue
        found[count, 0] = k
        found[count, 1] = w.packets[row, wires.ARRIVE]
        found[count, 2] = w.packets[row, wires.SOURCE]
        found[count, 3] = target
        found[count, 4] = w.packets[row, wires.TAG]
        count += 1
    return rows, found[:count]


@compiled
def _position(w: Any, rows: Any, now: int) -> int:
    """How many arrivals of the slot are earlier than `now`."""
    for k in range(len(rows)):
        if w.packets[rows[k], wires.ARRIVE] >= now:
            return k
    return len(rows)


class CompiledNetwork:
    """Moves packets; the caller passes in what nodes send and receives what arrives, slot by slot."""

    def __init__(self, topology: Topology, table: Ints, seed: int) -> None:
        self._table = table
        self._wires: Wires = make_wires(topology, seed, ROWS)
        self._rows: Any = np.empty(0, np.int64)

    @property
    def is_empty(self) -> bool:
        return bool(self._wires.numbers[wires.PENDING] == 0)

    def open_slot(self, until_ns: Nanos) -> list[list[int]]:
        """Arrivals in the next slot that has packets, or in the one that `until_ns` is in, whichever is earlier.

        Each is (position, time, source, target, tag). `close_slot` must follow.
        """
        limit = until_ns // wires.SLOT_NS + 1
        self._rows, found = _open(self._wires, limit)
        return found.tolist()  # type: ignore[no-any-return]

    def slot_end_ns(self, until_ns: Nanos) -> Nanos:
        """The end of the open slot; that of the slot of `until_ns` if no packets arrive before."""
        if len(self._rows):
            return int(self._wires.numbers[wires.NOW] + 1) * wires.SLOT_NS
        return (until_ns // wires.SLOT_NS + 1) * wires.SLOT_NS

    def position(self, now: Nanos) -> int:
        return int(_position(self._wires, self._rows, now))

    def close_slot(self, sends: list[Send]) -> None:
        """Forward the packets of the slot, and accept what nodes sent in it."""
        rows = self._rows
        targets = [target for send in sends for target in send.targets]
        self._make_room(len(targets))
        table = np.array(
            [(s.position, s.now, s.source, len(s.targets), s.transmit_ns, s.tag) for s in sends],
            np.int64,
        ).reshape(-1, 6)
        if sends and not len(rows):
            self._wires.numbers[wires.NOW] = sends[0].now // wires.SLOT_NS
        _handle(self._wires, self._table, rows, table, np.array(targets, np.int64))
        if self._wires.numbers[wires.TOO_FAR]:
            raise NetworkOverrun(
                f"a packet would wait longer than {wires.SLOTS * wires.SLOT_NS / 1e9:.1f} s for a link; "
                "the round was aborted. Use fewer nodes or more links"
            )
        self._rows = np.empty(0, np.int64)

    def _make_room(self, packets: int) -> None:
        pending, have = int(self._wires.numbers[wires.PENDING]), len(self._wires.packets)
        if pending + packets <= have:
            return
        need = 1 << (pending + packets).bit_length()
        if need > ROWS_MAX:
            raise NetworkOverrun(f"{pending + packets} packets at once; the round was aborted")
        self._wires = with_more_rows(self._wires, need)

    def traffic(self) -> Traffic:
        return wires.traffic_of(self._wires)
