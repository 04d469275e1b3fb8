"""The flows that a link should have, and the attempts to open them.

Every pair of adapters on one subnet gets a flow for each common transport, and one for each common measurement. The
node with the smaller id opens streams and measuring flows; the other one does so only after waiting in vain. Both ends
open datagram flows for data.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from holdfast.links.flow import FlowState
from holdfast.links.measuring import ALT, smaller_segment, uses
from holdfast.links.ports import FlowOpened, OpenFailed, OpenFlow
from holdfast.subsystem import LocalNode
from holdfast.types import NEVER, FlowId, Nanos
from holdfast.wire.frames import AdapterInfo, MemberInfo

_OPENING: Final = FlowId(-1)

Key = tuple[str, str, str, str]
"""Local adapter, remote adapter, transport, use."""


class _Wanted:
    __slots__ = (
        "flow",
        "host",
        "key",
        "next_at",
        "old",
        "port",
        "ready_at",
        "rotate_at",
        "segment",
        "since",
        "tries",
    )

    def __init__(self, key: Key, host: str, port: int, now: Nanos) -> None:
        self.key = key
        self.host = host
        self.port = port
        self.flow: FlowId | None = None
        self.old: FlowId | None = None
        """The flow that is used until `flow`, its successor, is established."""
        self.rotate_at: Nanos = NEVER
        self.ready_at: Nanos = NEVER
        """Since when the flow is in use."""
        self.since = now
        self.next_at = now
        self.tries = 0
        self.segment = 0
        """The largest segment of the next connection, if a handshake with larger ones did not complete."""

    @property
    def measures(self) -> bool:
        return bool(self.key[3])

    def fits(self, item: FlowOpened | OpenFailed) -> bool:
        adapter, _, transport, use = self.key
        return (adapter, transport, use, self.host, self.port) == (
            item.adapter,
            item.transport,
            item.use,
            item.host,
            item.port,
        )


class WantedFlows:
    """The flows that should exist between this node and one peer."""

    def __init__(self, me: LocalNode, peer: bytes, unit: str, rng: Random) -> None:
        self.deadline: Nanos = NEVER
        self._me = me
        self._own = {(adapter.host, adapter.port) for adapter in me.adapters}
        self._opens = me.node < peer
        self._unit = unit
        self._rng = rng
        self._wanted: dict[Key, _Wanted] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def update(self, member: MemberInfo, now: Nanos) -> None:
        """The peer is reachable at exactly these addresses."""
        before, self._wanted = self._wanted, {}
        for mine in self._me.adapters:
            for theirs in member.adapters:
                if mine.subnet != theirs.subnet or (theirs.host, theirs.port) in self._own:
                    continue  # our own address: it belonged to that node before
                for transport, use in _flows_between(mine, theirs):
                    key = (mine.name, theirs.name, transport, use)
                    known = before.get(key)
                    if known is None or (known.host, known.port) != (theirs.host, theirs.port):
                        known = _Wanted(key, theirs.host, theirs.port, now)
                    self._wanted[key] = known
        self._wake_at(now + 1)

    def opened(self, info: FlowOpened) -> str:
        """A flow exists; returns the name of the remote adapter if it was wanted."""
        for wanted in self._wanted.values():
            if wanted.fits(info):
                wanted.flow = info.flow
                return wanted.key[1]
        return ""

    def failed(self, item: OpenFailed, now: Nanos) -> None:
        for wanted in self._wanted.values():
            if wanted.flow == _OPENING and wanted.fits(item):
                if item.connected:
                    self._narrow(wanted)
                self._retry(wanted, now)

    def narrow(self, flow: FlowId) -> None:
        """Nothing passes on this stream although it was established: the next one uses smaller segments."""
        for wanted in self._wanted.values():
            if wanted.flow == flow:
                self._narrow(wanted)

    @staticmethod
    def _narrow(wanted: _Wanted) -> None:
        if not wanted.measures and wanted.old is None:
            wanted.segment = smaller_segment(wanted.segment)

    def closed(self, flow: FlowId, now: Nanos) -> None:
        for wanted in self._wanted.values():
            if wanted.flow == flow:
                self._retry(wanted, now)
            elif wanted.old == flow:
                wanted.old = None
            elif wanted.flow is None:
                wanted.since = now
                self._wake_at(now + self._me.timing.takeover_ns)

    def settled(self, flow: FlowId, now: Nanos) -> FlowId | None:
        """The flow is in use: if it is lost, the next attempt need not wait long. Returns the flow that it replaces, if
        any."""
        for wanted in self._wanted.values():
            if wanted.flow != flow:
                continue
            wanted.tries = 0
            wanted.ready_at = now
            if wanted.segment and wanted.key[3] == "":
                # Small segments are slow: check periodically whether larger ones pass again.
                wanted.rotate_at = now + self._me.timing.rotate_ns
                self._wake_at(wanted.rotate_at)
            if wanted.key[3] == ALT:
                # Spread over time, so that they are not all replaced at once.
                rotate_ns = self._me.timing.rotate_ns
                wanted.rotate_at = now + rotate_ns - self._rng.randrange(rotate_ns // 4)
                self._wake_at(wanted.rotate_at)
            old, wanted.old = wanted.old, None
            if old is not None and not wanted.measures:
                wanted.segment = 0
                wanted.rotate_at = NEVER
            return old
        return None

    def persists(self, flow: FlowId) -> bool:
        """Whether this is a wanted flow for data: it is requested repeatedly until it is answered."""
        return any(w.flow == flow and not w.measures for w in self._wanted.values())

    def wake(self, now: Nanos) -> None:
        """Check again soon: the link is up, so measuring flows can be opened."""
        self._wake_at(now + 1)

    def due(
        self, now: Nanos, flows: dict[FlowId, FlowState], has_key: bool, is_up: bool
    ) -> Iterator[OpenFlow]:
        """The flows to open now; sets `deadline` to the next attempt."""
        self.deadline = NEVER
        for wanted in self._wanted.values():
            if wanted.flow is not None and not self._rotates(wanted, now):
                continue
            mine, _, transport, use = wanted.key
            if (use and not is_up) or (not has_key and (use or transport == "udp")):
                continue
            if now < wanted.next_at or self._waits(wanted, now, flows):
                self._wake_at(wanted.next_at)
                continue
            wanted.flow = _OPENING
            wanted.tries += 1
            segment = wanted.segment if wanted.old is None and transport == "tcp" else 0
            yield OpenFlow(
                mine, transport, wanted.host, wanted.port, self._unit, use, segment=segment
            )

    def _rotates(self, wanted: _Wanted, now: Nanos) -> bool:
        """Whether it is time for a successor; the current flow then becomes the predecessor."""
        if wanted.rotate_at > now:
            self._wake_at(wanted.rotate_at)
            return False
        wanted.old, wanted.flow = wanted.flow, None
        wanted.rotate_at = NEVER
        wanted.next_at = now
        return True

    def _waits(self, wanted: _Wanted, now: Nanos, flows: dict[FlowId, FlowState]) -> bool:
        """Whether the peer should open this one, and has had too little time to give up on it."""
        mine, theirs, transport, use = wanted.key
        if self._opens or wanted.old is not None or (transport == "udp" and not use):
            return False
        stream = transport == "tcp"
        if any(
            (f.adapter, f.remote_adapter, f.stream, f.use) == (mine, theirs, stream, use)
            for f in flows.values()
        ):
            wanted.since = now
        timing = self._me.timing
        patience = timing.takeover_ns + (timing.remeasure_ns if use else 0)
        wanted.next_at = wanted.since + patience
        return now < wanted.next_at

    def _retry(self, wanted: _Wanted, now: Nanos) -> None:
        timing = self._me.timing
        if wanted.old is not None:
            # The successor failed. The current flow continues, and the next one is tried later.
            wanted.flow, wanted.old = wanted.old, None
            wait = timing.remeasure_ns if wanted.measures else timing.rotate_ns
            wanted.rotate_at = now + wait
            self._wake_at(wanted.rotate_at)
            return
        wait = min(timing.reconnect_ns << min(wanted.tries, 10), timing.reconnect_ns_max)
        if wanted.measures:
            # A flow that was in use got stuck; one that never was is not retried quickly.
            served = now - wanted.ready_at >= timing.hello_ns
            wait = timing.renew_ns if served else timing.remeasure_ns
        wanted.flow = None
        wanted.rotate_at = wanted.ready_at = NEVER
        wanted.since = now
        wanted.next_at = now + wait // 2 + self._rng.randrange(wait // 2)
        self._wake_at(wanted.next_at)

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline


def _flows_between(mine: AdapterInfo, theirs: AdapterInfo) -> list[tuple[str, str]]:
    """The (transport, use) of all flows between two adapters; those that carry data come first."""
    data = [(transport, "") for transport in mine.transports if transport in theirs.transports]
    return data + uses(mine, theirs)
