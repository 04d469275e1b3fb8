"""The door: flows that belong to nobody yet. It finds out whose they are and hands them to that link.

A stranger shows a `Hello` first (over TLS where the domain is sealed). A datagram from an address that was never
seen is only let in by its session number, which finds the link, whose key must then fit.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from holdfast.links.config import Self
from holdfast.links.handshake import bare_hello, check_hello, refusal
from holdfast.links.ports import (
    DOOR,
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    OpenFailed,
    OpenFlow,
    Transmit,
    link_unit,
)
from holdfast.links.sessions import Sessions
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import NEVER, FlowId, Nanos
from holdfast.wire.codec import Rejected
from holdfast.wire.frames import Hello, MemberInfo, Refuse
from holdfast.wire.packet import read_head, read_plain

STRANGERS_MAX: Final = 256
"""Flows whose owner is not known yet; the oldest goes when there are more."""


class DoorMachine(Machine):
    """Unit `door`, layer 0: every input about flows comes here first."""

    layer: ClassVar[int] = 0

    def __init__(
        self,
        me: Self,
        join: tuple[tuple[str, int], ...],
        sessions: Sessions,
        spawn: Callable[[Nanos, MemberInfo], bool],
        rng: Random,
        now: Nanos,
    ) -> None:
        self.me = me
        self.last_refusal = ""
        self.rejected: dict[str, int] = {}
        own = {(adapter.host, adapter.port) for adapter in me.adapters}
        self._join = [_Joining(host, port) for host, port in join if (host, port) not in own]
        self._sessions = sessions
        self._spawn = spawn
        self._rng = rng
        self._owner = sessions.owners
        self._strangers: dict[FlowId, tuple[FlowOpened, Nanos]] = {}
        self.deadline = now + 1 if self._join else NEVER

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Arrived:
                owner = self._owner.get(item.flow)
                if owner is not None:
                    out.up(owner, item)
                else:
                    self._stranger(now, item, out)
            elif kind is FlowOpened:
                self._opened(now, item, out)
            elif kind is FlowClosed:
                self._closed(now, item, out)
            elif kind is Credit:
                owner = self._owner.get(item.flow)
                if owner is not None:
                    out.up(owner, item)
            elif kind is OpenFailed:
                self._open_failed(now, item, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self.deadline = NEVER
        for info, since in list(self._strangers.values()):
            limit = since + self.me.timing.handshake_ns
            if limit <= now:
                self._turn_away(now, info, Refuse("late", "no Hello came in time"), out)
            elif limit < self.deadline:
                self.deadline = limit
        for joining in self._join:
            self._knock(now, joining, out)

    # -- joining -------------------------------------------------------------------------------------------------

    def _knock(self, now: Nanos, joining: _Joining, out: Outbox) -> None:
        """Open a flow to an address of the configuration, until somebody there has a link to us."""
        if joining.done or joining.flow is not None:
            return
        if joining.next_at > now:
            self.deadline = min(self.deadline, joining.next_at)
            return
        adapters = [a for a in self.me.adapters if "tcp" in a.transports] or list(self.me.adapters)
        adapter = adapters[joining.tries % len(adapters)]
        transport = "tcp" if "tcp" in adapter.transports else adapter.transports[0]
        joining.tries += 1
        joining.flow = FlowId(-1)
        out.effect(OpenFlow(adapter.name, transport, joining.host, joining.port, DOOR))

    def _retry(self, now: Nanos, joining: _Joining) -> None:
        timing = self.me.timing
        wait = min(timing.reconnect_ns << min(joining.tries, 10), timing.reconnect_ns_max)
        joining.flow = None
        joining.next_at = now + wait // 2 + self._rng.randrange(wait // 2)
        self.deadline = min(self.deadline, joining.next_at)

    def _open_failed(self, now: Nanos, failed: OpenFailed, out: Outbox) -> None:
        if failed.unit != DOOR:
            out.up(failed.unit, failed)
            return
        self.last_refusal = failed.reason
        for joining in self._join:
            if (joining.host, joining.port) == (
                failed.host,
                failed.port,
            ) and joining.flow is not None:
                self._retry(now, joining)

    # -- flows ---------------------------------------------------------------------------------------------------

    def _opened(self, now: Nanos, info: FlowOpened, out: Outbox) -> None:
        if info.unit and info.unit != DOOR:
            self._asked_for(info, out)
            return
        if info.flow in self._owner:
            # We knocked by datagram at an address that a link talks to already.
            for joining in self._join:
                joining.done = joining.done or (joining.host, joining.port) == (
                    info.host,
                    info.port,
                )
            return
        self._strangers[info.flow] = (info, now)
        self.deadline = min(self.deadline, now + self.me.timing.handshake_ns)
        if info.unit == DOOR:
            for joining in self._join:
                if (joining.host, joining.port) == (info.host, info.port):
                    joining.flow = info.flow
            out.effect(Transmit(info.flow, [bare_hello(self.me, info.adapter)]))
        if len(self._strangers) > STRANGERS_MAX:
            oldest, _ = next(iter(self._strangers.values()))
            self._turn_away(now, oldest, Refuse("crowded", "too many strangers at the door"), out)

    def _asked_for(self, info: FlowOpened, out: Outbox) -> None:
        """A link gets the flow that it asked for, unless another has it: two nodes, one after the other, can have
        the same address, and then the flow stays with the one that uses it until that lets go."""
        if self._owner.get(info.flow, info.unit) != info.unit:
            reason = "another link uses this address"
            place = (info.adapter, info.transport, info.host, info.port)
            out.up(info.unit, OpenFailed(*place, info.unit, reason, info.use))
            return
        # A datagram flow may have been heard of before it was asked for.
        self._strangers.pop(info.flow, None)
        self._owner[info.flow] = info.unit
        out.up(info.unit, info)

    def _closed(self, now: Nanos, closed: FlowClosed, out: Outbox) -> None:
        owner = self._owner.pop(closed.flow, None)
        if owner is not None:
            out.up(owner, closed)
        self._strangers.pop(closed.flow, None)
        for joining in self._join:
            if joining.flow == closed.flow and not joining.done:
                self._retry(now, joining)

    def _stranger(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        """The first packets of a flow that belongs to nobody."""
        known = self._strangers.get(item.flow)
        if known is None:
            # A flow of before this unit was rebuilt: nobody remembers it, so it must begin again.
            out.effect(CloseFlow(item.flow, "not known here"))
            return
        info = known[0]
        packet = read_head(item.packets[0])
        if isinstance(packet, Rejected):
            self._reject(now, info, packet, out)
            return
        if packet.session:
            unit = self._sessions.unit(packet.session)
            if unit is None:
                self._reject(now, info, Rejected("session", "unknown"), out)
            else:
                self._hand_over(info, unit, item, out)
            return
        if self.me.sealed and _has_no_tls(info):
            self._reject(now, info, Rejected("seal", "a plain packet"), out)
            return
        frames = read_plain(packet, authenticated=info.identity is not None)
        if isinstance(frames, Rejected):
            self._reject(now, info, frames, out)
            return
        self._first_frames(now, info, frames, item, out)

    def _first_frames(
        self, now: Nanos, info: FlowOpened, frames: list[Any], item: Arrived, out: Outbox
    ) -> None:
        first = frames[0] if frames else None
        if isinstance(first, Refuse):
            self.last_refusal = first.text[:200]
            for joining in self._join:
                # One of our own addresses, under another name: nothing to join there.
                joining.done = joining.done or (first.code == "self" and joining.flow == info.flow)
            out.fact(NodeFact(now, "refused", f"by {info.host}:{info.port}: {self.last_refusal}"))
            out.effect(CloseFlow(info.flow, "refused"))
            return
        if not isinstance(first, Hello):
            self._reject(now, info, Rejected("hello", "the first frame is not a Hello"), out)
            return
        refuse = check_hello(self.me, first, info.identity, info.transport == "tcp")
        if refuse is None and not self._spawn(now, first.member):
            refuse = Refuse("member", f"{first.member.name} cannot be let in now")
        if refuse is not None:
            self._turn_away(now, info, refuse, out)
            return
        for joining in self._join:
            if joining.flow == info.flow:
                joining.done = True
        self._hand_over(info, link_unit(first.member.node), item, out)

    def _hand_over(self, info: FlowOpened, unit: str, item: Arrived, out: Outbox) -> None:
        del self._strangers[info.flow]
        self._owner[info.flow] = unit
        out.up(unit, info)
        out.up(unit, item)

    def _turn_away(self, now: Nanos, info: FlowOpened, refuse: Refuse, out: Outbox) -> None:
        self._strangers.pop(info.flow, None)
        who = f"{info.host}:{info.port}"
        if not (self.me.sealed and _has_no_tls(info)):  # nothing leaves unsealed, not even a no
            out.effect(Transmit(info.flow, [refusal(refuse)]))
        self.last_refusal = refuse.text
        self._count(now, "refused", f"{who}: {refuse.text}", out)
        out.effect(CloseFlow(info.flow, refuse.text))

    def _reject(self, now: Nanos, info: FlowOpened, rejected: Rejected, out: Outbox) -> None:
        self._strangers.pop(info.flow, None)
        detail = f"{info.host}:{info.port} {info.transport}: {rejected.reason} {rejected.detail}"
        self._count(now, "rejected", detail, out)
        if rejected.reason == "format" and info.transport == "tcp" and not info.use:
            out.effect(Transmit(info.flow, [refusal(Refuse("version", rejected.detail))]))
        out.effect(CloseFlow(info.flow, detail))

    def _count(self, now: Nanos, event: str, detail: str, out: Outbox) -> None:
        count = self.rejected.get(event, 0) + 1
        self.rejected[event] = count
        if count & (count - 1) == 0:
            out.fact(NodeFact(now, event, detail, count))


def _has_no_tls(info: FlowOpened) -> bool:
    """Whether a flow never has TLS: datagrams, and streams that measure."""
    return info.transport != "tcp" or bool(info.use)


class _Joining:
    """An address to join by."""

    __slots__ = ("done", "flow", "host", "next_at", "port", "tries")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.flow: FlowId | None = None
        self.next_at: Nanos = 0
        self.tries = 0
        self.done = False
