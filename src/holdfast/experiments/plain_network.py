"""A simple version of the packet network: one heap of arrivals, one queue per direction of a link.

It is the reference that `CompiledNetwork` must match, packet by packet; tests compare the two. It is also used if numba
is not installed.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from holdfast.experiments.topology import Ints, Topology
from holdfast.experiments.traffic import Send, Traffic
from holdfast.experiments.wires import SAMPLE_NS
from holdfast.types import NEVER, Nanos

_WORD: Final = (1 << 64) - 1

Packet = tuple[int, int, Nanos, int]
"""Source, target, transmission time, tag."""


class PlainNetwork:
    """Like `CompiledNetwork`, with slots of one arrival."""

    def __init__(self, topology: Topology, table: Ints, seed: int) -> None:
        self._table = table
        self._seed = seed
        links = len(topology.to)
        self._to: list[int] = topology.to.tolist()
        self._delay: list[int] = topology.delay_ns.tolist()
        self._lossy: list[int] = topology.lossy.tolist()
        self._free = [0] * links
        self._carried = [0] * links
        self._begins: list[deque[Nanos]] = [deque() for _ in range(links)]
        """When each packet that waits for a link will begin transmission."""
        self._arrivals: list[tuple[Nanos, int, bool, Packet]] = []
        self._longest = self._hops = self._sent = self._lost = self._inside = 0
        self._samples = [0]
        self._open_ns: Nanos = NEVER

    @property
    def is_empty(self) -> bool:
        return not self._arrivals

    def open_slot(self, until_ns: Nanos) -> list[list[int]]:
        while self._arrivals and self._arrivals[0][0] < until_ns:
            now, link, lost, packet = heapq.heappop(self._arrivals)
            self._sample(now)
            source, target, _, tag = packet
            if lost or self._to[link] == target:
                self._inside -= 1
                self._lost += lost
                if not lost:
                    self._open_ns = now
                    return [[0, now, source, target, tag]]
            else:
                self._enqueue(packet, int(self._table[target, self._to[link]]), now)
        self._open_ns = NEVER
        return []

    def slot_end_ns(self, until_ns: Nanos) -> Nanos:
        return min(self._open_ns, until_ns + 1)

    def position(self, now: Nanos) -> int:
        return 0

    def close_slot(self, sends: list[Send]) -> None:
        for send in sends:
            self._sample(send.now)
            for target in send.targets:
                packet = (send.source, target, send.transmit_ns, send.tag)
                self._enqueue(packet, int(self._table[target, send.source]), send.now)
            self._sent += len(send.targets)
            self._inside += len(send.targets)

    def _enqueue(self, packet: Packet, link: int, now: Nanos) -> None:
        begins = self._begins[link]
        while begins and begins[0] <= now:
            begins.popleft()
        begin = max(now, self._free[link])
        if begin > now:
            begins.append(begin)
            self._longest = max(self._longest, len(begins))
        self._free[link] = begin + packet[2]
        lost = self._is_lost(link)
        self._carried[link] += 1
        self._hops += 1
        arrive = self._free[link] + self._delay[link]
        heapq.heappush(self._arrivals, (arrive, link, lost, packet))

    def _is_lost(self, link: int) -> bool:
        x = self._seed + link * 0x9E3779B97F4A7C15 + self._carried[link] * 0xD1B54A32D192ED03
        x &= _WORD
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
        return x >> 32 < self._lossy[link]

    def _sample(self, now: Nanos) -> None:
        while len(self._samples) <= now // SAMPLE_NS:
            self._samples.append(self._inside)

    def traffic(self) -> Traffic:
        return Traffic(self._sent, self._hops, self._lost, self._longest, list(self._samples))
