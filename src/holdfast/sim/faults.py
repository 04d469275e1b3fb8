"""Everything that can go wrong on a path, as a small vocabulary.

A fault says *where* (subnet, from whom, to whom), *what*, and whom it spares: one kind of packets only, a share of
the flows, some of the time. Its text is what scenarios are written in:

    red n1->n2 over 1000
    * n1<->* loss 20% only udp
    * *->n2 filter multicast
    red n1->n2 filter frag
    blue n3->n4 pattern 5555aaaa share 25% flap 200ms/1s

A packet is what crosses the cable: a datagram, a piece of one that was fragmented, a segment of TCP. The kinds are
`tcp`, `udp` (which includes the next two), `frag` and `multicast`.

`fault_text` reads it back.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from holdfast.sim.amounts import MILLION, share_text, time_text
from holdfast.types import Nanos

ANY: Final = "*"
KINDS: Final = {
    "tcp": ("tcp",),
    "udp": ("udp",),
    "frag": ("udp", "frag"),
    "multicast": ("udp", "multicast"),
}
"""Kinds of packets, and the words that name each of them: a fragment is UDP as well."""


# -- what --------------------------------------------------------------------------------------------------------


class Blackout(msgspec.Struct, frozen=True, tag=True):
    """Nothing passes."""


class Loss(msgspec.Struct, frozen=True, tag=True):
    """A share of the packets is lost; a TCP flow sends them again, later."""

    ppm: int


class Over(msgspec.Struct, frozen=True, tag=True):
    """Packets of more than `size` bytes on the wire are lost; they stall a TCP flow."""

    size: int


class Filter(msgspec.Struct, frozen=True, tag=True):
    """One kind of packets does not pass: `tcp`, `udp`, or only `frag` (pieces of datagrams) or `multicast`."""

    kind: str


class Pattern(msgspec.Struct, frozen=True, tag=True):
    """Packets that contain these bytes are lost."""

    octets: bytes


class Corrupt(msgspec.Struct, frozen=True, tag=True):
    """One bit of a share of the packets is flipped, on TCP too: an offloaded checksum does not protect."""

    ppm: int


class Duplicate(msgspec.Struct, frozen=True, tag=True):
    """A share of the datagrams arrives twice."""

    ppm: int


class Reorder(msgspec.Struct, frozen=True, tag=True):
    """A share of the datagrams is overtaken by others: it comes later by `by_ns`."""

    ppm: int
    by_ns: Nanos


class Slow(msgspec.Struct, frozen=True, tag=True):
    """Everything takes longer."""

    delay_ns: Nanos
    jitter_ns: Nanos = 0


class Rate(msgspec.Struct, frozen=True, tag=True):
    """A narrow place: so many bytes in a second, with a queue in front of it. What does not fit is lost."""

    bytes_per_s: int
    queue_bytes: int


What = Blackout | Loss | Over | Filter | Pattern | Corrupt | Duplicate | Reorder | Slow | Rate


# -- where, and whom it spares -----------------------------------------------------------------------------------


class Where(msgspec.Struct, frozen=True):
    """Paths, by subnet and by host (`n1`), adapter (`n1/red`) or several (`n1,n2`) at either end; `*` is any."""

    subnet: str = ANY
    sender: str = ANY
    listener: str = ANY
    both: bool = False
    """The way back as well."""

    def covers(self, subnet: str, sender: tuple[str, str], listener: tuple[str, str]) -> bool:
        """Whether the path lies within; ends are (host, adapter)."""
        if self.subnet not in (ANY, subnet):
            return False
        if _names(self.sender, sender) and _names(self.listener, listener):
            return True
        return self.both and _names(self.sender, listener) and _names(self.listener, sender)

    def text(self) -> str:
        return f"{self.subnet} {self.sender}{'<->' if self.both else '->'}{self.listener}"


def _names(selector: str, end: tuple[str, str]) -> bool:
    if selector in (ANY, end[0]) or selector == f"{end[0]}/{end[1]}":
        return True
    return "," in selector and any(_names(one, end) for one in selector.split(","))


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong on some paths."""

    where: Where
    what: What
    only: str = ""
    """A kind of packets: the others do not suffer."""
    share_ppm: int = MILLION
    """The share of the flows that suffer; chosen by the flow's ends and ports, so one flow always or never does."""
    on_ns: Nanos = 0
    off_ns: Nanos = 0
    """Flapping: wrong for `on_ns`, fine for `off_ns`, and again; 0 for always."""

    def active(self, age_ns: Nanos) -> bool:
        """Whether it bites now, given its age (a flapping fault begins with biting)."""
        return not self.off_ns or age_ns % (self.on_ns + self.off_ns) < self.on_ns

    def picks(self, flow_key: bytes) -> bool:
        """Whether this flow is one of those that suffer."""
        return self.share_ppm >= MILLION or crc32(flow_key) % MILLION < self.share_ppm

    def text(self) -> str:
        words = [self.where.text(), what_text(self.what)]
        if self.only:
            words.append(f"only {self.only}")
        if self.share_ppm < MILLION:
            words.append(f"share {share_text(self.share_ppm)}")
        if self.off_ns:
            words.append(f"flap {time_text(self.on_ns)}/{time_text(self.off_ns)}")
        return " ".join(words)


# -- text --------------------------------------------------------------------------------------------------------


def what_text(what: What) -> str:
    match what:
        case Blackout():
            return "blackout"
        case Loss(ppm):
            return f"loss {share_text(ppm)}"
        case Over(size):
            return f"over {size}"
        case Filter(kind):
            return f"filter {kind}"
        case Pattern(octets):
            return f"pattern {octets.hex()}"
        case Corrupt(ppm):
            return f"corrupt {share_text(ppm)}"
        case Duplicate(ppm):
            return f"duplicate {share_text(ppm)}"
        case Reorder(ppm, by_ns):
            return f"reorder {share_text(ppm)} by {time_text(by_ns)}"
        case Slow(delay_ns, 0):
            return f"slow {time_text(delay_ns)}"
        case Slow(delay_ns, jitter_ns):
            return f"slow {time_text(delay_ns)} jitter {time_text(jitter_ns)}"
        case Rate(bytes_per_s, queue_bytes):
            return f"rate {bytes_per_s} queue {queue_bytes}"
