"""The faults of a path, and their text form: one model for the simulator, the lab and the faults below real sockets.

A fault states a place (subnet, sender, listener), an effect, and optional restrictions: one packet kind, a share of the
flows, some of the time. `holdfast.faults.text` parses its text form:

    red n1->n2 over 1000
    * n1<->* loss 20% only udp
    * *->n2 filter multicast
    red n1->n2 filter frag
    blue n3->n4 pattern 5555aaaa share 25% flap 200ms/1s

A packet is what crosses the wire: a datagram, a fragment, or a TCP segment. The kinds are `tcp`, `udp` (which includes
the next two), `frag` and `multicast`.

Not every environment supports all effects: see `SIMULATED`, `LAB` and `BELOW_SOCKETS`.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from holdfast.faults.amounts import MILLION, share_text, time_text
from holdfast.types import Nanos

ANY: Final = "*"
KINDS: Final = {
    "tcp": ("tcp",),
    "udp": ("udp",),
    "frag": ("udp", "frag"),
    "multicast": ("udp", "multicast"),
}
"""Packet kinds, and the words that include each of them: a fragment is UDP as well."""


# -- effects -----------------------------------------------------------------------------------------------------


class Blackout(msgspec.Struct, frozen=True, tag=True):
    """Drops everything."""


class Loss(msgspec.Struct, frozen=True, tag=True):
    """Drops a share of the packets; a TCP flow retransmits them later."""

    ppm: int


class Over(msgspec.Struct, frozen=True, tag=True):
    """Drops packets of more than `size` bytes on the wire; they stall a TCP flow."""

    size: int


class Filter(msgspec.Struct, frozen=True, tag=True):
    """Drops one packet kind: `tcp`, `udp`, or only `frag` (fragments) or `multicast`."""

    kind: str


class Pattern(msgspec.Struct, frozen=True, tag=True):
    """Drops packets that contain these bytes."""

    octets: bytes


class Corrupt(msgspec.Struct, frozen=True, tag=True):
    """Flips one bit in a share of the packets, on TCP too: an offloaded checksum does not protect."""

    ppm: int


class Duplicate(msgspec.Struct, frozen=True, tag=True):
    """Duplicates a share of the datagrams."""

    ppm: int


class Reorder(msgspec.Struct, frozen=True, tag=True):
    """Delays a share of the datagrams by `by_ns`, so that others overtake them."""

    ppm: int
    by_ns: Nanos


class Slow(msgspec.Struct, frozen=True, tag=True):
    """Delays everything."""

    delay_ns: Nanos
    jitter_ns: Nanos = 0


class Rate(msgspec.Struct, frozen=True, tag=True):
    """Limits the bandwidth, with a queue in front. Packets that do not fit into the queue are dropped."""

    bytes_per_s: int
    queue_bytes: int


class Every(msgspec.Struct, frozen=True, tag=True):
    """Drops every n-th packet."""

    n: int


class Packets(msgspec.Struct, frozen=True, tag=True):
    """Drops packets beyond this number per second: a policer without a queue."""

    per_s: int


class Mtu(msgspec.Struct, frozen=True, tag=True):
    """The switch port of a host carries no larger packets, in either direction, from any sender."""

    size: int


class PatternAt(msgspec.Struct, frozen=True, tag=True):
    """Drops packets with these bytes at this offset from the start of the IP header."""

    octets: bytes
    at: int


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Has no effect: packets of more than `size` bytes are counted."""

    size: int


What = (
    Blackout
    | Loss
    | Over
    | Filter
    | Pattern
    | Corrupt
    | Duplicate
    | Reorder
    | Slow
    | Rate
    | Every
    | Packets
    | Mtu
    | PatternAt
    | Watch
)
BELOW_SOCKETS: Final = (Blackout, Loss, Over)
SIMULATED: Final = (
    *BELOW_SOCKETS,
    Filter,
    Pattern,
    Corrupt,
    Duplicate,
    Reorder,
    Slow,
    Rate,
    Every,
    Packets,
)
LAB: Final = (*SIMULATED, Mtu, PatternAt, Watch)


# -- places and restrictions -------------------------------------------------------------------------------------


class Where(msgspec.Struct, frozen=True):
    """Paths, by subnet and by host (`n1`), adapter (`n1/red`) or several (`n1,n2`) at either end; `*` is any."""

    subnet: str = ANY
    sender: str = ANY
    listener: str = ANY
    both: bool = False
    """Both directions."""

    def covers(self, subnet: str, sender: tuple[str, str], listener: tuple[str, str]) -> bool:
        """Whether the path is included; ends are (host, adapter)."""
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
    """One fault on some paths."""

    where: Where
    what: What
    only: str = ""
    """Restricts the fault to one packet kind."""
    share_ppm: int = MILLION
    """The share of affected flows; selected by the ends and ports of a flow, so a flow is always or never affected."""
    on_ns: Nanos = 0
    off_ns: Nanos = 0
    """Flapping: active for `on_ns`, inactive for `off_ns`, repeated; 0 for always active."""
    from_ppm: int = 0
    """Where the share of the flows starts."""

    def active(self, age_ns: Nanos) -> bool:
        """Whether it is active at this age (a flapping fault starts active)."""
        return not self.off_ns or age_ns % (self.on_ns + self.off_ns) < self.on_ns

    def picks(self, flow_key: bytes) -> bool:
        """Whether this flow is affected."""
        return self.share_ppm >= MILLION or (
            0 <= crc32(flow_key) % MILLION - self.from_ppm < self.share_ppm
        )

    def text(self) -> str:
        words = [self.where.text(), what_text(self.what)]
        if self.only:
            words.append(f"only {self.only}")
        if self.share_ppm < MILLION:
            words.append(f"share {share_text(self.share_ppm)}")
        if self.from_ppm:
            words.append(f"from {share_text(self.from_ppm)}")
        if self.off_ns:
            words.append(f"flap {time_text(self.on_ns)}/{time_text(self.off_ns)}")
        return " ".join(words)


# -- text --------------------------------------------------------------------------------------------------------


WORDS: Final[dict[type, str]] = {
    Blackout: "blackout", Loss: "loss", Over: "over", Filter: "filter", Pattern: "pattern", Corrupt: "corrupt",
    Duplicate: "duplicate", Reorder: "reorder", Slow: "slow", Rate: "rate", Every: "every", Packets: "packets",
    Mtu: "mtu", PatternAt: "pattern", Watch: "watch",
}  # fmt: skip
"""The word that each effect starts with."""


def what_text(what: What) -> str:
    word = WORDS[type(what)]
    match what:
        case Blackout():
            return word
        case Loss(ppm) | Corrupt(ppm) | Duplicate(ppm):
            return f"{word} {share_text(ppm)}"
        case Over(number) | Every(number) | Packets(number) | Mtu(number) | Watch(number):
            return f"{word} {number}"
        case Filter(kind):
            return f"{word} {kind}"
        case Pattern(octets):
            return f"{word} {octets.hex()}"
        case PatternAt(octets, at):
            return f"{word} {octets.hex()} at {at}"
        case Reorder(ppm, by_ns):
            return f"{word} {share_text(ppm)} by {time_text(by_ns)}"
        case Slow(delay_ns, jitter_ns):
            jitter = f" jitter {time_text(jitter_ns)}" if jitter_ns else ""
            return f"{word} {time_text(delay_ns)}{jitter}"
        case Rate(bytes_per_s, queue_bytes):
            return f"{word} {bytes_per_s} queue {queue_bytes}"
