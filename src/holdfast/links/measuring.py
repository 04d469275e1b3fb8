"""The purpose of a flow: carrying data, or measuring faults before they affect data.

| use | flow | carries data |
| --- | --- | --- |
| (empty) | the adapter's own socket, or a TLS connection | yes |
| `alt` | datagrams from another source port: a fault can affect only some 5-tuples | if the others fail |
| `frag` | datagrams that IP may fragment | no |
| `mss:1240` | a connection outside TLS whose segments carry at most this many bytes | no |

Both ends of a path must enable a measurement. The node with the smaller id opens the flow; both measure on it.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.frames import AdapterInfo

ALT: Final = "alt"
FRAG: Final = "frag"
MSS: Final = "mss"
SEGMENTS: Final = (0, 536, 160, 88)
"""Segment sizes to try for a connection whose handshake does not complete: a certificate needs packets over 1200 bytes,
and a path may pass only packets as small as a basic heartbeat. The last one is the smallest that Linux accepts."""
MEASURE: Final = (ALT, FRAG, MSS)
"""Everything that can be measured on separate flows."""
IP_TCP: Final = 40
"""Size of the IP and TCP headers without options. Options reduce the payload of a segment."""
MSS_RUNGS: Final = (536, 960, 1240, 1460, 3960, 8960)
"""Measured segment sizes, as far as both adapters support them. Packets are larger by `IP_TCP`."""


def uses(mine: AdapterInfo, theirs: AdapterInfo) -> list[tuple[str, str]]:
    """The (transport, use) of the measuring flows between two adapters."""
    kinds = [kind for kind in MEASURE if kind in mine.measure and kind in theirs.measure]
    transports = [name for name in mine.transports if name in theirs.transports]
    found: list[tuple[str, str]] = []
    if "udp" in transports:
        found += [("udp", kind) for kind in kinds if kind != MSS]
    if "tcp" in transports and MSS in kinds:
        room = min(mine.mtu, theirs.mtu) - IP_TCP
        found += [("tcp", f"{MSS}:{rung}") for rung in MSS_RUNGS if rung <= room]
    return found


def mss_of(use: str) -> int:
    """The segment size of a use `mss:N`; 0 for any other use."""
    kind, _, number = use.partition(":")
    if kind != MSS or not (number.isascii() and number.isdigit()) or len(number) > 5:
        return 0
    return int(number)


def carries(use: str) -> bool:
    """Whether data may use such a flow."""
    return use in ("", ALT)


def accepted(use: str, stream: bool) -> str:
    """The purpose of an inbound flow according to the peer; unknown values count as data."""
    if stream:
        return use if mss_of(use) else ""
    return use if use in (ALT, FRAG) else ""


def smaller_segment(segment: int) -> int:
    """The size to try after a handshake with segments of this size did not complete; after the smallest, the list
    starts again."""
    return SEGMENTS[(SEGMENTS.index(segment) + 1) % len(SEGMENTS)]
