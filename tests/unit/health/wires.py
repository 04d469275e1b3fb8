"""Health units joined by wires: every kind of flow there is, faults by packet, virtual time, and nothing else.

Links are left out: what a unit sends on a flow arrives at the unit at its other end, unless a fault takes it; what it
sends by channel arrives always. So is the keeper: rows go straight from each listener to everybody. So a
test sees single messages, and an hour of many paths takes little time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from tests.support.virtual_network import VirtualTime

from holdfast.health.config import HealthConfig
from holdfast.health.frames import Heartbeat, PathRow, PathRows, Probe
from holdfast.health.monitor import HealthMachine
from holdfast.health.ports import RowsHeard
from holdfast.links.ports import (
    AskHeard,
    FlowLost,
    FlowReady,
    FlowVerdict,
    PathHeard,
    PeerUp,
    Received,
    RenewFlow,
    SendChannel,
    SendFrame,
    link_unit,
)
from holdfast.machine import Lagged, Outbox
from holdfast.subsystem import LocalNode
from holdfast.telemetry.facts import PathFact
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import decode_frame, encode
from holdfast.wire.frames import Frame, MemberInfo

BASIC_BYTES = 128
Packet = tuple[str, str, FlowReady, Frame, int]
"""Sender, listener, the sender's flow, the frame, its size on the wire."""


class Unit:
    """A health unit and what is around it."""

    def __init__(self, name: str, number: int, machine: HealthMachine) -> None:
        self.name = name
        self.id = NodeId(bytes([number]) * 16)
        self.machine = machine
        self.paused_until: Nanos = 0
        self.waiting: list[Any] = []
        self.clock: Nanos = 0
        """Added to the time of the world: a clock may jump."""
        self.facts: list[PathFact] = []
        self.verdicts: dict[FlowId, FlowVerdict] = {}
        self.armed_at: Nanos = NEVER


class Wires(VirtualTime):
    """Units `n1`, `n2`, ... with an adapter of each name."""

    def __init__(
        self,
        count: int = 2,
        adapters: tuple[str, ...] = ("red",),
        uses: tuple[str, ...] = ("",),
        mtu: int = 1500,
        config: HealthConfig | None = None,
        seed: int = 1,
        connect: bool = True,
    ) -> None:
        super().__init__(1000 * SECOND)
        self.rng = Random(seed)
        self.loss = 0.0
        self.jitter_ns = 20 * MICROSECOND
        self.turn_ns: dict[str, Nanos] = {}
        """How long the turns of a unit take: what they send leaves so much later, and the next one says so."""
        self.backlog_ns: dict[str, Nanos] = {}
        """How long datagrams wait in the socket of a unit before it reads them; streams are read at once."""
        self.faults: list[Callable[[Packet], bool]] = []
        """Each says whether it takes a packet."""
        self.channel_faults: list[Callable[[str, str, Frame], bool]] = []
        self.log: list[tuple[Nanos, str, str, Frame]] | None = None
        """What was said by channel, once a test has set it to a list."""
        self.data: dict[str, tuple[Callable[[], bool], int]] = {}
        """By listener: whether data of an application arrives now, and how many bytes a second of it."""
        self.bytes: dict[tuple[str, str, str], int] = {}
        self.packets: dict[tuple[str, str, str], int] = {}
        self.units: dict[str, Unit] = {}
        self.ends: dict[tuple[str, FlowId], tuple[str, FlowReady]] = {}
        """The other end of each flow, and this end as its unit knows it."""
        self.uses = uses
        self.adapters = adapters
        self.mtu = mtu
        self.config = config or HealthConfig()
        self._next_flow = 0
        for number in range(1, count + 1):
            self._add(f"n{number}", number)
        if connect:
            for a in self.units:
                for b in self.units:
                    if a < b:
                        self.join(a, b)

    def _machine(self, name: str, number: int, incarnation: int) -> HealthMachine:
        me = LocalNode(NodeId(bytes([number]) * 16), name, "lab", incarnation, (), False)
        return HealthMachine(me, self.config, dict.fromkeys(self.adapters, self.mtu))

    def _add(self, name: str, number: int) -> None:
        self.units[name] = Unit(name, number, self._machine(name, number, 1))

    # -- flows ---------------------------------------------------------------------------------------------------

    def join(self, a: str, b: str) -> None:
        for one, other in ((a, b), (b, a)):
            unit = self.units[other]
            member = MemberInfo(unit.id, unit.name, unit.machine.me.incarnation, ())
            self.give(one, PeerUp(unit.id, member))
        for adapter in self.adapters:
            for use in self.uses:
                for transport in ("udp", "tcp") if use == "" else (_transport(use),):
                    self.flow(a, b, adapter, transport, "" if use == "multicast" else use)

    def flow(self, a: str, b: str, adapter: str, transport: str, use: str = "") -> FlowId:
        """Open a flow; both ends have the same number for it."""
        self._next_flow += 1
        flow = FlowId(self._next_flow)
        for one, other in ((a, b), (b, a)):
            ready = FlowReady(self.units[other].id, flow, adapter, adapter, adapter, transport, use)
            self.ends[one, flow] = (other, ready)
            self.give(one, ready)
        return flow

    def close(self, flow: FlowId, left: bool = False) -> None:
        for (name, number), (_, ready) in list(self.ends.items()):
            if number == flow:
                del self.ends[name, flow]
                self.give(name, FlowLost(ready.peer, flow, "closed", left))

    def _renew(self, unit: Unit, flow: FlowId) -> None:
        """As links do it: the connection is gone at both ends, and another is there soon."""
        end = self.ends.get((unit.name, flow))
        if end is not None:
            other, ready = end
            self.close(flow)
            again = (unit.name, other, ready.adapter, ready.transport, ready.use)
            self.at(self.now + 20 * MILLISECOND, lambda: self.flow(*again) and None)

    def flow_number(
        self, a: str, b: str, adapter: str = "red", transport: str = "udp", use: str = ""
    ) -> FlowId:
        for (name, flow), (other, ready) in self.ends.items():
            found = (name, other, ready.adapter, ready.transport, ready.use)
            if found == (a, b, adapter, transport, use):
                return flow
        raise AssertionError(f"{a} has no such flow to {b}")

    def restart(self, name: str) -> None:
        """The unit's node restarts: its flows are lost and agreed anew."""
        unit = self.units[name]
        others = [other for other in self.units if other != name]
        for flow in [flow for (one, flow) in self.ends if one == name]:
            self.close(flow)
        self.run(0.001)
        incarnation = unit.machine.me.incarnation + 1
        unit.machine = self._machine(name, unit.id[0], incarnation)
        unit.armed_at = NEVER
        for other in others:
            self.join(*sorted((name, other)))

    # -- time ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> Wires:
        self.pass_time(round(seconds * SECOND))
        return self

    def run_until(self, condition: Callable[[], bool], seconds: float = 10) -> float:
        return self.pass_until(condition, round(seconds * SECOND)) / SECOND

    def pause(self, name: str, seconds: float) -> None:
        """The process gets no time: what arrives waits, and what it should do is late."""
        unit = self.units[name]
        unit.paused_until = self.now + round(seconds * SECOND)
        self.at(unit.paused_until, lambda: self._resume(unit))

    def _resume(self, unit: Unit) -> None:
        if unit.paused_until <= self.now:
            waiting, unit.waiting = unit.waiting, []
            self._turn(unit, [self._read(unit, item) for item in waiting])

    def _read(self, unit: Unit, item: Any) -> Any:
        """Datagrams carry the time at which the kernel received them, a stream that at which it was read."""
        end = self.ends.get((unit.name, item.flow)) if isinstance(item, Received) else None
        if end is None or end[1].transport != "tcp":
            return item
        return Received(item.peer, item.frames, self.now + unit.clock, item.flow)

    # -- units ---------------------------------------------------------------------------------------------------

    def give(self, name: str, item: Any) -> None:
        self.at(self.now, lambda: self._take(self.units[name], item))

    def _take(self, unit: Unit, item: Any) -> None:
        if unit.paused_until > self.now:
            unit.waiting.append(item)
        else:
            self._turn(unit, [item])

    def _turn(self, unit: Unit, inputs: list[Any]) -> None:
        now = self.now + unit.clock
        machine = unit.machine
        out = Outbox()
        inputs = self._keep(unit, now, inputs)
        if unit.name in self.turn_ns:
            inputs.insert(0, Lagged(self.turn_ns[unit.name]))
        if inputs:
            machine.up(now, inputs, out)
        if machine.deadline <= now:
            machine.wake(now, out)
            assert machine.deadline > now, "a deadline must move"
        for target, item, _ in out.downs:
            self._down(unit, target, item)
        unit.facts.extend(out.facts)
        self._publish(unit)
        self._arm(unit)

    def _keep(self, unit: Unit, now: Nanos, inputs: list[Any]) -> list[Any]:
        """Take in rows of others as the keeper does; what they say of our sending is for the unit."""
        left: list[Any] = []
        table = unit.machine.table
        for item in inputs:
            left.append(item)
            if isinstance(item, PeerUp):
                table.forget(item.peer, item.member.incarnation)
                self._tell(unit, item.peer, tuple(table.rows.values()))
            elif isinstance(item, Received) and item.flow is None:
                rows = [r for f in item.frames if isinstance(f, PathRows) for r in f.rows]
                news = [r for r in rows if r.listener != unit.id and table.put(r, now)]
                left.append(RowsHeard(tuple(r for r in news if r.sender == unit.id)))
        return left

    def _publish(self, unit: Unit) -> None:
        table = unit.machine.table
        own = tuple(row for _, row in table.fresh if row is not None and row.listener == unit.id)
        table.fresh.clear()
        for other in self.units.values():
            if own and other is not unit:
                self._tell(unit, other.id, own)

    def _tell(self, unit: Unit, peer: NodeId, rows: tuple[PathRow, ...]) -> None:
        self._down(unit, link_unit(peer), SendChannel(SYNC, [encode(PathRows(rows))]))

    def _arm(self, unit: Unit) -> None:
        deadline = unit.machine.deadline
        if deadline == NEVER:
            return
        at = max(deadline - unit.clock, self.now)
        if at < unit.armed_at or unit.armed_at <= self.now:
            unit.armed_at = at
            self.at(at, lambda: self._wake(unit, at))

    def _wake(self, unit: Unit, at: Nanos) -> None:
        if unit.armed_at != at:
            return
        unit.armed_at = NEVER
        if unit.paused_until <= self.now:
            self._turn(unit, [])

    def _down(self, unit: Unit, target: str, item: Any) -> None:
        if isinstance(item, SendFrame):
            self._send(unit, target, item)
        elif isinstance(item, FlowVerdict):
            unit.verdicts[item.flow] = item
        elif isinstance(item, RenewFlow):
            self._renew(unit, item.flow)
        elif isinstance(item, AskHeard):
            self._say_heard(unit, target, item)
        elif isinstance(item, SendChannel):
            for other in self.units.values():
                if link_unit(other.id) == target:
                    self._say(unit, other, item)

    def _say_heard(self, unit: Unit, target: str, item: AskHeard) -> None:
        """As the link does: what arrived, whatever it was."""
        arrives, rate = self.data.get(unit.name, (lambda: False, 0))
        peer = next(other.id for other in self.units.values() if link_unit(other.id) == target)
        now = self.now + unit.clock
        ends = (item.adapter, item.remote_adapter)
        size = (now // MICROSECOND) * rate // 1_000_000
        if arrives():
            self.give(unit.name, PathHeard(peer, *ends, now, size))

    def _say(self, unit: Unit, other: Unit, item: SendChannel) -> None:
        frames: list[Frame] = [decode_frame(message) for message in item.messages]  # type: ignore[misc]
        for frame in frames:
            if self.log is not None and not isinstance(frame, PathRows):
                self.log.append((self.now, unit.name, other.name, frame))
        frames = [
            f
            for f in frames
            if not any(lost(unit.name, other.name, f) for lost in self.channel_faults)
        ]
        if frames:
            self.at(
                self.now + 100 * MICROSECOND,
                lambda: self._take(other, Received(unit.id, frames, self.now + other.clock)),
            )

    # -- packets -------------------------------------------------------------------------------------------------

    def _send(self, unit: Unit, target: str, item: SendFrame) -> None:
        assert item.flow is not None
        size = item.wire_size or BASIC_BYTES
        if target.startswith("multicast/"):
            ends = [
                (other, ready, flow)
                for (name, flow), (other, ready) in self.ends.items()
                if name == unit.name and ready.transport == "multicast"
            ]
        else:
            end = self.ends.get((unit.name, item.flow))
            ends = [(*end, item.flow)] if end is not None else []
        for other, ready, flow in ends:
            key = (unit.name, other, ready.adapter)
            self.bytes[key] = self.bytes.get(key, 0) + size
            self.packets[key] = self.packets.get(key, 0) + 1
            packet = (unit.name, other, ready, item.frame, size)
            if any(fault(packet) for fault in self.faults):
                continue
            if self.loss and ready.transport != "tcp" and self.rng.random() < self.loss:
                continue
            delay = 100 * MICROSECOND + self.rng.randrange(self.jitter_ns + 1)
            delay += self.turn_ns.get(unit.name, 0)
            self.at(self.now + delay, lambda o=other, f=flow, p=packet: self._arrive(unit, o, f, p))  # type: ignore[misc]

    def _arrive(self, unit: Unit, other: str, flow: FlowId, packet: Packet) -> None:
        listener = self.units[other]
        received = Received(unit.id, [packet[3]], self.now + listener.clock, flow)
        waits = self.backlog_ns.get(other, 0) if packet[2].transport != "tcp" else 0
        if waits:
            self.at(self.now + waits, lambda: self._take(listener, received))
        else:
            self._take(listener, received)

    # -- seeing --------------------------------------------------------------------------------------------------

    def row(
        self, sender: str, listener: str, kind: str = "udp", adapter: str = "red", at: str = ""
    ) -> PathRow:
        key = (self.units[sender].id, adapter, self.units[listener].id, adapter, kind)
        return self.units[at or sender].machine.table.rows[key]

    def changes(self, since: Nanos = 0) -> list[PathFact]:
        return [
            fact
            for unit in self.units.values()
            for fact in unit.facts
            if fact.event == "change" and fact.now_ns - unit.clock > since
        ]

    def said(self, kind: type) -> list[tuple[str, str, Any]]:
        assert self.log is not None
        return [(a, b, frame) for _, a, b, frame in self.log if isinstance(frame, kind)]


def _transport(use: str) -> str:
    return "multicast" if use == "multicast" else "tcp" if use.startswith("mss:") else "udp"


# -- faults --------------------------------------------------------------------------------------------------------


def over(
    sender: str, listener: str, size: int, adapter: str = "red", kind: str = ""
) -> Callable[[Packet], bool]:
    """Packets larger than this do not pass; `kind`: only of this transport or use."""

    def takes(packet: Packet) -> bool:
        a, b, ready, _, length = packet
        here = (a, b, ready.adapter) == (sender, listener, adapter)
        return here and length > size and kind in ("", ready.transport, ready.use)

    return takes


def pattern(
    sender: str, listener: str, octets: bytes, adapter: str = "red"
) -> Callable[[Packet], bool]:
    def takes(packet: Packet) -> bool:
        a, b, ready, frame, _ = packet
        if (a, b, ready.adapter) != (sender, listener, adapter) or not isinstance(frame, Probe):
            return False
        return octets in bytes(frame.fill) * 8

    return takes


def flow_cut(sender: str, flow: FlowId, above: int = 0) -> Callable[[Packet], bool]:
    """One 5-tuple does not pass, or not its packets above a size."""
    return lambda packet: packet[0] == sender and packet[2].flow == flow and packet[4] > above


def only(
    kind: type[Heartbeat] | type[Probe], fault: Callable[[Packet], bool]
) -> Callable[[Packet], bool]:
    return lambda packet: isinstance(packet[3], kind) and fault(packet)


EVERYTHING = ("", "alt", "frag", "multicast", "mss:536", "mss:960", "mss:1240", "mss:1460")
JUMBO = (*EVERYTHING, "mss:3960", "mss:8960")


def with_config(**changes: Any) -> HealthConfig:
    return msgspec.structs.replace(HealthConfig(), **changes)
