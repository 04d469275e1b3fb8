"""The packet processing of the forwarder for one path: delay, duplicate, reorder, corrupt, limit or drop.

It uses no sockets: a packet and the time go in, and packets with departure times come out. The order is kept unless a
fault changes it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.faults.amounts import MILLION
from holdfast.faults.model import (
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
    PatternAt,
    Rate,
    Reorder,
    Slow,
)
from holdfast.types import SECOND, Nanos

_ETHERNET: Final = 14
_IPV4: Final = 0x0800
_TCP: Final = 6
_UDP: Final = 17
_CHECKSUM_AT: Final = {_TCP: 16, _UDP: 6}

Departure = tuple[Nanos, bytes]


class Packet:
    """An Ethernet frame, and the properties that faults use."""

    __slots__ = ("body", "fragment", "frame", "ip", "multicast", "protocol", "size")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.ip = len(frame) >= _ETHERNET + 20 and int.from_bytes(frame[12:14], "big") == _IPV4
        self.size = self.protocol = self.body = 0
        self.fragment = self.multicast = False
        if self.ip:
            self.size = int.from_bytes(frame[16:18], "big")
            self.protocol = frame[23]
            self.fragment = bool(int.from_bytes(frame[20:22], "big") & 0x3FFF)
            self.multicast = frame[30] >> 4 == 14
            self.body = _ETHERNET + 4 * (frame[14] & 15)

    def is_kind(self, kind: str) -> bool:
        if not self.ip:
            return False
        match kind:
            case "udp":
                return self.protocol == _UDP
            case "tcp":
                return self.protocol == _TCP
            case "multicast":
                return self.multicast
            case _:
                return self.fragment

    def flow_key(self) -> bytes:
        """Addresses and ports."""
        return self.frame[26:34] + self.frame[self.body : self.body + 4]


class _Active:
    """An active fault on one path, with its state."""

    __slots__ = (
        "busy_until_ns",
        "fault",
        "matched",
        "name",
        "room",
        "since_ns",
        "taken",
        "topped_ns",
    )

    def __init__(self, name: str, fault: Fault, since_ns: Nanos) -> None:
        self.name = name
        self.fault = fault
        self.since_ns = since_ns
        self.taken = 0
        """Packets that it dropped, changed or delayed."""
        self.matched = 0
        self.busy_until_ns = 0
        self.room = SECOND
        self.topped_ns = since_ns

    def bites(self, packet: Packet, now: Nanos) -> bool:
        fault = self.fault
        if fault.only and not packet.is_kind(fault.only):
            return False
        if not fault.active(now - self.since_ns):
            return False
        if fault.share_ppm >= MILLION:
            return True
        return packet.ip and fault.picks(packet.flow_key())

    def exceeds(self, per_s: int, now: Nanos) -> bool:
        """A token bucket that holds what one second allows."""
        self.room = min(SECOND, self.room + now - self.topped_ns)
        self.topped_ns = now
        cost = SECOND // per_s
        if self.room < cost:
            return True
        self.room -= cost
        return False


class Relay:
    """The faults of one path that the kernel cannot implement."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._active: dict[str, _Active] = {}
        self._last_ns = 0
        """When the last packet in order leaves."""

    def use(self, faults: dict[str, Fault], now: Nanos) -> None:
        """Replace the faults; those that were active before keep their state."""
        known = self._active
        self._active = {
            name: known.get(name) or _Active(name, fault, now) for name, fault in faults.items()
        }

    def taken(self) -> dict[str, int]:
        """The number of packets matched by each fault."""
        return {active.name: active.taken for active in self._active.values()}

    def take(self, frame: bytes, now: Nanos) -> list[Departure]:
        """The fate of a frame that arrived at `now`."""
        packet = Packet(frame)
        late_ns = copies = 0
        overtaken = damaged = False
        for active in self._active.values():
            if not active.bites(packet, now):
                continue
            match active.fault.what:
                case Slow(delay_ns, jitter_ns):
                    late_ns += delay_ns + (self._rng.randrange(jitter_ns) if jitter_ns else 0)
                case Duplicate(ppm) if self._hit(ppm):
                    copies += 1
                case Reorder(ppm, by_ns) if self._hit(ppm):
                    late_ns += by_ns
                    overtaken = True
                case Corrupt(ppm) if self._hit(ppm):
                    damaged = True
                case Rate(bytes_per_s, queue_bytes):
                    wait_ns = _squeeze(active, len(frame), bytes_per_s, queue_bytes, now)
                    if wait_ns < 0:
                        active.taken += 1
                        return []
                    late_ns += wait_ns
                case _ if self._loses(active, packet, now):
                    active.taken += 1
                    return []
                case _:
                    continue
            active.taken += 1
        leaves = now + late_ns
        if not overtaken:
            leaves = self._last_ns = max(leaves, self._last_ns)
        if damaged:
            frame = flip_bit(packet, self._rng)
        return [(leaves, frame)] * (1 + copies)

    def _hit(self, ppm: int) -> bool:
        return self._rng.randrange(MILLION) < ppm

    def _loses(self, active: _Active, packet: Packet, now: Nanos) -> bool:
        match active.fault.what:
            case Blackout():
                return True
            case Loss(ppm):
                return self._hit(ppm)
            case Over(size):
                return packet.size > size
            case Filter(kind):
                return packet.is_kind(kind)
            case Pattern(octets):
                return packet.ip and octets in packet.frame[_ETHERNET:]
            case PatternAt(octets, at):
                start = _ETHERNET + at
                return packet.ip and packet.frame[start : start + len(octets)] == octets
            case Every(n):
                active.matched += 1
                return active.matched % n == 0
            case Packets(per_s):
                return active.exceeds(per_s, now)
            case _:
                return False


def _squeeze(active: _Active, size: int, bytes_per_s: int, queue_bytes: int, now: Nanos) -> Nanos:
    """How long a packet waits for a bandwidth limit; -1 if the queue is full."""
    begins = max(now, active.busy_until_ns)
    if (begins - now) * bytes_per_s // SECOND > queue_bytes:
        return -1
    active.busy_until_ns = begins + size * SECOND // bytes_per_s
    return active.busy_until_ns - now


def flip_bit(packet: Packet, rng: Random) -> bytes:
    """Flip one bit of the payload and correct the checksum, as after a network card that recomputes it.

    Packets without payload, and fragments, whose checksum is in another packet, stay as they are.
    """
    at = _CHECKSUM_AT.get(packet.protocol)
    frame, body = packet.frame, packet.body
    end = _ETHERNET + packet.size
    if at is None or packet.fragment or end > len(frame):
        return frame
    head = 8 if packet.protocol == _UDP else 4 * (frame[body + 12] >> 4)
    start = body + head
    if start >= end:
        return frame
    flipped = bytearray(frame)
    place = rng.randrange(start, end)
    flipped[place] ^= 1 << rng.randrange(8)
    _mend_checksum(frame, flipped, body, (place - body) & ~1, at)
    return bytes(flipped)


def _mend_checksum(old: bytes, new: bytearray, body: int, word: int, at: int) -> None:
    """The checksum after one changed word (RFC 1624); a UDP checksum of 0 means that there is none."""
    where = body + at
    before = int.from_bytes(old[where : where + 2], "big")
    if before == 0 and at == _CHECKSUM_AT[_UDP]:
        return
    was = int.from_bytes(old[body + word : body + word + 2].ljust(2, b"\0"), "big")
    is_now = int.from_bytes(bytes(new[body + word : body + word + 2]).ljust(2, b"\0"), "big")
    total = (~before & 0xFFFF) + (~was & 0xFFFF) + is_now
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    new[where : where + 2] = ((~total & 0xFFFF) or 0xFFFF).to_bytes(2, "big")
