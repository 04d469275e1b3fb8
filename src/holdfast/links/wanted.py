"""Which flows a link should have, and the attempts to open them.

Every pair of adapters of one subnet gets a flow for each transport that both have. The node with the smaller id
opens streams; the other one does so only after waiting for it in vain. Both ends open datagram flows.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from holdfast.links.config import Self
from holdfast.links.flow import FlowState
from holdfast.links.ports import FlowOpened, OpenFailed, OpenFlow
from holdfast.types import NEVER, FlowId, Nanos
from holdfast.wire.frames import MemberInfo

_OPENING: Final = FlowId(-1)


class _Wanted:
    __slots__ = ("flow", "host", "key", "next_at", "port", "since", "tries")

    def __init__(self, key: tuple[str, str, str], host: str, port: int, now: Nanos) -> None:
        self.key = key
        self.host = host
        self.port = port
        self.flow: FlowId | None = None
        self.since = now
        self.next_at = now
        self.tries = 0

    def fits(self, item: FlowOpened | OpenFailed) -> bool:
        adapter, _, transport = self.key
        return (adapter, transport, self.host, self.port) == (
            item.adapter,
            item.transport,
            item.host,
            item.port,
        )


class WantedFlows:
    """The flows that should exist between this node and one peer."""

    def __init__(self, me: Self, peer: bytes, unit: str, rng: Random) -> None:
        self.deadline: Nanos = NEVER
        self._me = me
        self._own = {(adapter.host, adapter.port) for adapter in me.adapters}
        self._opens_streams = me.node < peer
        self._unit = unit
        self._rng = rng
        self._wanted: dict[tuple[str, str, str], _Wanted] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def update(self, member: MemberInfo, now: Nanos) -> None:
        """The peer is reachable at these addresses, and no others."""
        before, self._wanted = self._wanted, {}
        for mine in self._me.adapters:
            for theirs in member.adapters:
                if mine.subnet != theirs.subnet or (theirs.host, theirs.port) in self._own:
                    continue  # our own address: it belonged to that node before us
                for transport in mine.transports:
                    if transport not in theirs.transports:
                        continue
                    key = (mine.name, theirs.name, transport)
                    known = before.get(key)
                    if known is None or (known.host, known.port) != (theirs.host, theirs.port):
                        known = _Wanted(key, theirs.host, theirs.port, now)
                    self._wanted[key] = known
        self._wake_at(now + 1)

    def opened(self, info: FlowOpened) -> str:
        """A flow exists; the name of the peer's adapter if it was wanted."""
        for wanted in self._wanted.values():
            if wanted.fits(info):
                wanted.flow = info.flow
                return wanted.key[1]
        return ""

    def failed(self, item: OpenFailed, now: Nanos) -> None:
        for wanted in self._wanted.values():
            if wanted.flow == _OPENING and wanted.fits(item):
                self._retry(wanted, now)

    def closed(self, flow: FlowId, now: Nanos) -> None:
        for wanted in self._wanted.values():
            if wanted.flow == flow:
                self._retry(wanted, now)
            elif wanted.flow is None:
                wanted.since = now
                self._wake_at(now + self._me.timing.takeover_ns)

    def settled(self, flow: FlowId) -> None:
        """The flow is in use: the next attempt, should it be lost, need not wait long."""
        for wanted in self._wanted.values():
            if wanted.flow == flow:
                wanted.tries = 0

    def due(self, now: Nanos, flows: dict[FlowId, FlowState], has_key: bool) -> Iterator[OpenFlow]:
        """What to open now; sets `deadline` to when to ask again."""
        self.deadline = NEVER
        for wanted in self._wanted.values():
            if wanted.flow is not None:
                continue
            mine, theirs, transport = wanted.key
            if transport == "udp" and not has_key:
                continue
            if transport == "tcp" and not self._opens_streams:
                takeover_ns = self._me.timing.takeover_ns
                if any(
                    (f.adapter, f.remote_adapter, f.stream) == (mine, theirs, True)
                    for f in flows.values()
                ):
                    wanted.since = now
                wanted.next_at = max(wanted.next_at, wanted.since + takeover_ns)
            if now < wanted.next_at:
                self._wake_at(wanted.next_at)
                continue
            wanted.flow = _OPENING
            wanted.tries += 1
            yield OpenFlow(mine, transport, wanted.host, wanted.port, self._unit)

    def _retry(self, wanted: _Wanted, now: Nanos) -> None:
        timing = self._me.timing
        wait = min(timing.reconnect_ns << min(wanted.tries, 10), timing.reconnect_ns_max)
        wanted.flow = None
        wanted.since = now
        wanted.next_at = now + wait // 2 + self._rng.randrange(wait // 2)
        self._wake_at(wanted.next_at)

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline
