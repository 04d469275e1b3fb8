"""What flows are for: data, or measuring what data must not suffer from.

| use | flow | carries data |
| --- | --- | --- |
| (empty) | the adapter's own socket, or a TLS connection | yes |
| `alt` | datagrams from another source port: a fault can hit some 5-tuples only | when the others are broken |
| `frag` | datagrams that IP may fragment | no |
| `mss:1240` | a connection outside TLS whose segments carry at most that | no |

Both ends of a path must want a measurement. The node with the smaller id opens the flow; both measure on it.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.frames import AdapterInfo

ALT: Final = "alt"
FRAG: Final = "frag"
MSS: Final = "mss"
MEASURE: Final = (ALT, FRAG, MSS)
"""Everything that can be measured with flows of its own."""
IP_TCP: Final = 40
"""Bytes that IP and TCP, both without options, put before what a segment carries. Options take their share of it."""
MSS_RUNGS: Final = (536, 960, 1240, 1460, 3960, 8960)
"""Sizes of segments that are measured, as far as both adapters take them. Packets are larger by `IP_TCP`."""


def uses(mine: AdapterInfo, theirs: AdapterInfo) -> list[tuple[str, str]]:
    """The (transport, use) of the flows that measure between two adapters."""
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
    """What an inbound flow is for, given what the peer says; anything unknown is taken for data."""
    if stream:
        return use if mss_of(use) else ""
    return use if use in (ALT, FRAG) else ""
