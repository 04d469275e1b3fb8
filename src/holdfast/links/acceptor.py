"""New flows: identifies their owner and passes them to the link.

An unknown peer sends a `Hello` first (over TLS in a sealed domain). A datagram from an unknown address is accepted only
by its session number, which identifies the link whose key must then match.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from holdfast.links.handshake import bare_hello, check_hello, refusal
from holdfast.links.measuring import smaller_segment
from holdfast.links.ports import (
    ACCEPTOR,
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
from holdfast.links.session_table import SessionTable
from holdfast.machine import Machine, Outbox
from holdfast.subsystem import LocalNode
from holdfast.telemetry.facts import NodeFact
from holdfast.types import NEVER, SECOND, FlowId, Nanos
from holdfast.wire.codec import Rejected
from holdfast.wire.frames import Hello, MemberInfo, Refuse
from holdfast.wire.packet import read_head, read_plain

CANNOT_JOIN: Final = "cannot_join"
TELL_NS: Final = 3 * SECOND
TELL_NS_MAX: Final = 600 * SECOND
"""A node that cannot join reports it first after the first interval, then at doubling intervals up to the second."""
STRANGERS_MAX: Final = 256
"""Flows of unknown owners; beyond this, the oldest is closed."""


class AcceptorMachine(Machine):
    """Unit `acceptor`: all inputs about flows arrive here first."""

    layer: ClassVar[str] = "acceptor"

    def __init__(
        self,
        me: LocalNode,
        join: tuple[tuple[str, int], ...],
        session_table: SessionTable,
        spawn: Callable[[Nanos, MemberInfo], bool],
        rng: Random,
        now: Nanos,
    ) -> None:
        self.me = me
        self.last_refusal = ""
        self.rejected: dict[str, int] = {}
        own = {(adapter.host, adapter.port) for adapter in me.adapters}
        self._join = [_Joining(host, port) for host, port in join if (host, port) not in own]
        self._session_table = session_table
        self._spawn = spawn
        self._rng = rng
        self._owner = session_table.owners
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
                for joining in self._join:
                    if joining.flow == info.flow and info.transport == "tcp":
                        joining.segment = smaller_segment(joining.segment)
                self._turn_away(now, info, Refuse("late", "no Hello arrived in time"), out)
            elif limit < self.deadline:
                self.deadline = limit
        for joining in self._join:
            self._knock(now, joining, out)

    # -- joining -------------------------------------------------------------------------------------------------

    def _knock(self, now: Nanos, joining: _Joining, out: Outbox) -> None:
        """Open a flow to an address of the configuration, until a node there has a link to us."""
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
        segment = joining.segment if transport == "tcp" else 0
        place = (adapter.name, transport, joining.host, joining.port)
        out.effect(OpenFlow(*place, ACCEPTOR, segment=segment))

    def _retry(self, now: Nanos, joining: _Joining, out: Outbox) -> None:
        self._tell_failed(now, joining, out)
        timing = self.me.timing
        wait = min(timing.reconnect_ns << min(joining.tries, 10), timing.reconnect_ns_max)
        joining.flow = None
        joining.next_at = now + wait // 2 + self._rng.randrange(wait // 2)
        self.deadline = min(self.deadline, joining.next_at)

    def _open_failed(self, now: Nanos, failed: OpenFailed, out: Outbox) -> None:
        if failed.unit != ACCEPTOR:
            out.up(failed.unit, failed)
            return
        self.last_refusal = failed.reason
        for joining in self._join:
            if (joining.host, joining.port) == (
                failed.host,
                failed.port,
            ) and joining.flow is not None:
                if failed.connected:
                    joining.segment = smaller_segment(joining.segment)
                joining.reason = failed.reason
                self._retry(now, joining, out)

    def _tell_failed(self, now: Nanos, joining: _Joining, out: Outbox) -> None:
        """Report that the node cannot join: after a moment, and then at growing intervals."""
        if joining.since == NEVER:
            joining.since, joining.told_at = now, now + TELL_NS
        if now < joining.told_at:
            return
        waited = now - joining.since
        joining.told_at = now + min(max(waited, TELL_NS), TELL_NS_MAX)
        out.fact(NodeFact(now, CANNOT_JOIN, self._failure(joining, waited), joining.tries))

    @staticmethod
    def _failure(joining: _Joining, waited: Nanos) -> str:
        where = f"{joining.host}:{joining.port}"
        why = joining.reason or "no answer"
        return (
            f"cannot join through {where}: {joining.tries} attempts in {waited // SECOND} s: {why}"
        )

    def is_joining(self) -> bool:
        """Whether an address of `join` has neither admitted nor refused this node so far."""
        return any(not joining.done and joining.since == NEVER for joining in self._join)

    def joining(self, now: Nanos) -> list[dict[str, Any]]:
        """The addresses of `join` through which this node has not joined, each with the reason."""
        return [
            {
                "address": f"{joining.host}:{joining.port}",
                "tries": joining.tries,
                "since_s": round((now - joining.since) / SECOND, 1),
                "reason": joining.reason or "no answer",
                "text": self._failure(joining, now - joining.since),
            }
            for joining in self._join
            if not joining.done and joining.since != NEVER
        ]

    # -- flows ---------------------------------------------------------------------------------------------------

    def _opened(self, now: Nanos, info: FlowOpened, out: Outbox) -> None:
        if info.unit and info.unit != ACCEPTOR:
            self._asked_for(info, out)
            return
        if info.flow in self._owner:
            # Our datagram went to an address that a link uses already.
            for joining in self._join:
                joining.done = joining.done or (joining.host, joining.port) == (
                    info.host,
                    info.port,
                )
            return
        self._strangers[info.flow] = (info, now)
        self.deadline = min(self.deadline, now + self.me.timing.handshake_ns)
        if info.unit == ACCEPTOR:
            for joining in self._join:
                if (joining.host, joining.port) == (info.host, info.port):
                    joining.flow = info.flow
            out.effect(Transmit(info.flow, [bare_hello(self.me, info.adapter)]))
        if len(self._strangers) > STRANGERS_MAX:
            oldest, _ = next(iter(self._strangers.values()))
            self._turn_away(now, oldest, Refuse("crowded", "too many flows without an owner"), out)

    def _asked_for(self, info: FlowOpened, out: Outbox) -> None:
        """A link receives the flow that it requested, unless another link has it: two nodes can have the same address
        one after the other, and the flow stays with the link that uses it until it is released."""
        if self._owner.get(info.flow, info.unit) != info.unit:
            reason = "another link uses this address"
            place = (info.adapter, info.transport, info.host, info.port)
            out.up(info.unit, OpenFailed(*place, info.unit, reason, info.use))
            return
        # A datagram flow may exist before it is requested.
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
                joining.reason = joining.reason or closed.reason
                self._retry(now, joining, out)

    def _stranger(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        """The first packets of a flow without an owner."""
        known = self._strangers.get(item.flow)
        if known is None:
            # A flow from before this unit was rebuilt: its state is lost, so it must start again.
            out.effect(CloseFlow(item.flow, "not known here"))
            return
        info = known[0]
        packet = read_head(item.packets[0])
        if isinstance(packet, Rejected):
            self._reject(now, info, packet, out)
            return
        if packet.session:
            unit = self._session_table.unit(packet.session)
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
            mine = [joining for joining in self._join if joining.flow == info.flow]
            for joining in mine:
                joining.reason = f"refused: {self.last_refusal}"
                # One of this node's own addresses under another name: there is nothing to join.
                joining.done = joining.done or first.code == "self"
            if not mine:  # that it cannot join is reported with this reason, ever more rarely
                who = f"by {info.host}:{info.port}"
                self._count(now, "refused", f"{who}: {self.last_refusal}", out)
            out.effect(CloseFlow(info.flow, "refused"))
            return
        if not isinstance(first, Hello):
            self._reject(now, info, Rejected("hello", "the first frame is not a Hello"), out)
            return
        refuse = check_hello(self.me, first, info.identity, info.transport == "tcp")
        if refuse is None and not self._spawn(now, first.member):
            refuse = Refuse("member", f"{first.member.name} cannot be accepted now")
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
        if not (
            self.me.sealed and _has_no_tls(info)
        ):  # nothing is sent unsealed, not even a refusal
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
    """Whether a flow never has TLS: datagrams, and measuring streams."""
    return info.transport != "tcp" or bool(info.use)


class _Joining:
    """An address to join."""

    __slots__ = (
        "done", "flow", "host", "next_at", "port", "reason", "segment", "since", "told_at", "tries"
    )  # fmt: skip

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.flow: FlowId | None = None
        self.next_at: Nanos = 0
        self.tries = 0
        self.segment = 0
        """The largest segment of the next connection, if a handshake with larger ones did not complete."""
        self.reason = ""
        """Why the last attempt failed."""
        self.since: Nanos = NEVER
        self.told_at: Nanos = NEVER
        """Since when it fails, and when that is reported next."""
        self.done = False
