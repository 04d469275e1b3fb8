"""One path: from one adapter to another, in one direction, and the fate of each packet on it."""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.faults.amounts import MILLION
from holdfast.faults.model import (
    KINDS,
    Blackout,
    Corrupt,
    Duplicate,
    Every,
    Fault,
    Filter,
    Loss,
    Over,
    Packets,
    Pattern,
    Rate,
    Reorder,
    Slow,
    What,
)
from holdfast.types import MICROSECOND, SECOND, Nanos


class Subnet(msgspec.Struct, frozen=True):
    """A named set of adapters that reach each other, and the delay between them without faults."""

    name: str
    delay_ns: Nanos = 100 * MICROSECOND
    jitter_ns: Nanos = 50 * MICROSECOND
    mtu: int = 65_535
    """A larger datagram does not leave the sender or, on a socket that allows it, is split into fragments of this size.
    TCP data is split into segments of this size."""


class Fate:
    """The effect of the faults of a path on one packet. The instance is reused for each packet."""

    __slots__ = ("copies", "corrupted", "late_ns", "lost", "overtaken", "packet")

    def __init__(self) -> None:
        self.begin(b"")

    def begin(self, packet: bytes) -> None:
        self.packet = packet
        self.lost = False
        self.late_ns = 0
        self.copies = 1
        self.overtaken = False
        """It may arrive after packets that were sent later."""
        self.corrupted = False


class ActiveFault:
    """An active fault on one path."""

    __slots__ = (
        "busy_until_ns",
        "fault",
        "flows",
        "id",
        "matched",
        "room_ns",
        "since_ns",
        "topped_ns",
    )

    def __init__(self, number: int, fault: Fault, since_ns: Nanos) -> None:
        self.id = number
        self.fault = fault
        self.since_ns = since_ns
        self.busy_until_ns = 0
        """When the bottleneck of a `Rate` has sent everything that it was given."""
        self.matched = 0
        self.room_ns = SECOND
        """Of a `Packets`: a token bucket that holds what one second allows, and when it was last filled."""
        self.topped_ns = since_ns
        self.flows: dict[bytes, bool] = {}
        """Cache of affected flows: the selection is a hash of the ends and ports of a flow."""

    def bites(self, now: Nanos, kind: str, flow_key: bytes) -> bool:
        fault = self.fault
        if fault.only and fault.only not in KINDS[kind]:
            return False
        if fault.off_ns and not fault.active(now - self.since_ns):
            return False
        if fault.share_ppm >= MILLION:
            return True
        picked = self.flows.get(flow_key)
        if picked is None:
            picked = self.flows[flow_key] = fault.picks(flow_key)
        return picked

    def refuses(self, now: Nanos) -> bool:
        """The faults that count packets."""
        match self.fault.what:
            case Every(n):
                self.matched += 1
                return self.matched % n == 0
            case Packets(per_s):
                self.room_ns = min(SECOND, self.room_ns + now - self.topped_ns)
                self.topped_ns = now
                cost = SECOND // per_s
                if self.room_ns < cost:
                    return True
                self.room_ns -= cost
        return False


class Path:
    """Delay, order and faults from one adapter to another. Without faults nothing is lost or overtaken."""

    __slots__ = (
        "delay_ns",
        "draw",
        "faults",
        "jitter_ns",
        "last_ns",
        "listener",
        "lost",
        "mtu",
        "random",
        "sender",
        "sent",
        "subnet",
        "wire_bytes",
    )

    def __init__(
        self,
        subnet: Subnet,
        sender: tuple[str, str],
        listener: tuple[str, str],
        random: Random,
    ) -> None:
        self.subnet = subnet
        self.sender = sender
        """(host, adapter)"""
        self.listener = listener
        self.delay_ns = subnet.delay_ns
        self.jitter_ns = subnet.jitter_ns
        self.mtu = subnet.mtu
        self.random = random
        self.draw = random.getrandbits
        self.faults: list[ActiveFault] = []
        self.last_ns = 0
        """When the datagram that was sent last arrives: nothing overtakes it without a fault."""
        self.sent = 0
        self.lost = 0
        self.wire_bytes = dict.fromkeys(KINDS, 0)
        """Bytes sent on this path, by packet kind, including IP, UDP and TCP headers."""

    def base_ns(self) -> Nanos:
        """How long one packet takes without faults."""
        return self.delay_ns + (self.draw(16) * self.jitter_ns >> 16)

    def judge(
        self, now: Nanos, kind: str, flow_key: bytes, packet: bytes, size: int, fate: Fate
    ) -> None:
        """Fill `fate` for a packet of `size` bytes on the wire."""
        fate.begin(packet)
        for active in self.faults:
            if not active.bites(now, kind, flow_key):
                continue
            what = active.fault.what
            if self._kills(what, kind, packet, size) or active.refuses(now):
                fate.lost = True
            else:
                self._bends(active, now, kind, size, fate)
            if fate.lost:
                self.lost += 1
                return

    def _hit(self, ppm: int) -> bool:
        return self.draw(32) * MILLION >> 32 < ppm

    def _kills(self, what: What, kind: str, packet: bytes, size: int) -> bool:
        """The faults that drop a packet."""
        match what:
            case Blackout():
                return True
            case Loss(ppm):
                return self._hit(ppm)
            case Over(limit):
                return size > limit
            case Filter(filtered):
                return filtered in KINDS[kind]
            case Pattern(octets):
                return octets in packet
        return False

    def _bends(self, active: ActiveFault, now: Nanos, kind: str, size: int, fate: Fate) -> None:
        """The faults that change a packet or its time."""
        match active.fault.what:
            case Slow(delay_ns, jitter_ns):
                fate.late_ns += delay_ns + (self.draw(32) * jitter_ns >> 32)
            case Rate(bytes_per_s, queue_bytes):
                begin = max(now, active.busy_until_ns)
                # A full queue drops datagrams. A TCP flow slows down instead, and is bounded by its own buffer.
                if kind != "tcp" and (begin - now) * bytes_per_s > queue_bytes * SECOND:
                    fate.lost = True
                    return
                active.busy_until_ns = begin + size * SECOND // bytes_per_s
                fate.late_ns += active.busy_until_ns - now
            case Corrupt(ppm):
                if fate.packet and self._hit(ppm):
                    fate.packet = self._flip(fate.packet)
                    fate.corrupted = True
            case Duplicate(ppm):
                if self._hit(ppm):
                    fate.copies += 1
            case Reorder(ppm, by_ns):
                if self._hit(ppm):
                    fate.late_ns += by_ns
                    fate.overtaken = True

    def _flip(self, packet: bytes) -> bytes:
        """The packet with one bit flipped."""
        bit = self.random.randrange(len(packet) * 8)
        damaged = bytearray(packet)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        return bytes(damaged)
