"""Messages, bytes and CPU of one round, with the production code on a simulated network without loss.

Frames are delivered in the order in which they were sent, each to one receiver after the other, as if every hop took
the same time. CPU is measured around the protocol calls of a whole round.
"""

from __future__ import annotations

from collections import deque
from time import process_time_ns

import msgspec
import numpy as np

from holdfast.stability.config import COORD, CUBE, FULL, TREE, StabilityConfig
from holdfast.stability.detector import PROTOCOL_CLASSES
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.hypercube import dimensions
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import Protocol, Sends
from holdfast.types import SECOND

HEADER_BYTES = 32
NUMBER_BYTES = 4
"""The paper's sizes of a message header and of a sequence number."""


class Figures(msgspec.Struct, frozen=True):
    """One round of one protocol."""

    protocol: str
    members: int
    slots: int
    messages: int
    bytes: int
    """Of encoded frames, without packet headers."""
    paper_messages: int
    paper_bytes: int
    busiest: int
    """Messages that the member with the largest load sends and receives."""
    hops: int
    """Steps of communication, one after the other, until the last member knows the result."""
    cpu_ns: int
    cpu_ns_per_message: int
    cpu_ns_per_member: int
    stable: tuple[int, ...]


def paper_messages(protocol: str, size: int) -> int:
    """The paper's count for one round, without the confirmations that section 3.5 adds for lossy channels."""
    m = dimensions(size)
    return {
        CUBE: size * m * (m + 1),
        COORD: 3 * (size - 1),
        TREE: 3 * (size - 1),
        FULL: size * (size - 1),
    }[protocol]


def paper_bytes(protocol: str, size: int, slots: int) -> int:
    """Header and array in every message; START has no array."""
    with_array = paper_messages(protocol, size)
    empty = size - 1 if protocol in (COORD, TREE) else 0
    return with_array * HEADER_BYTES + (with_array - empty) * slots * NUMBER_BYTES


def build(protocol: str, size: int, slots: int, config: StabilityConfig) -> list[Protocol]:
    """All members of one view. Member k has 1000 + k messages of every stream, but for one slot each."""
    members: list[Protocol] = []
    for place in range(size):
        mine = np.arange(slots, dtype=np.int64) * 3 + 1000 + place
        mine[place % slots] = 500 + place
        seat = Seat(config, "g", 7, 1, 1, 1, place, size, slots)
        members.append(PROTOCOL_CLASSES[protocol](seat, mine))
    return members


def lowest(members: list[Protocol]) -> tuple[int, ...]:
    """The stable numbers: the minimum over all reports, computed directly."""
    return tuple(np.min([member.mine for member in members], axis=0).tolist())


def run_round(members: list[Protocol]) -> tuple[int, int, int, list[tuple[int, StabilityFrame]]]:
    """Run one round. Returns messages, hops, CPU and every multicast with its number of receivers."""
    queue: deque[tuple[int, int, StabilityFrame, int]] = deque()
    multicasts: list[tuple[int, StabilityFrame]] = []
    load = [0] * len(members)
    messages = hops = 0
    now = SECOND
    begin = process_time_ns()
    sends: Sends = []
    for member in members:
        if member.initiates:
            member.want(now, sends)
            for places, frame in sends:
                multicasts.append((len(places), frame))
                queue.extend((member.seat.place, place, frame, 1) for place in places)
            sends.clear()
    while queue:
        sender, place, frame, hop = queue.popleft()
        messages += 1
        load[sender] += 1
        load[place] += 1
        member = members[place]
        version = member.version
        member.take(sender, frame, now, sends)
        if member.version != version:
            hops = max(hops, hop)
        for places, answer in sends:
            multicasts.append((len(places), answer))
            queue.extend((place, there, answer, hop + 1) for there in places)
        sends.clear()
    cpu_ns = process_time_ns() - begin
    return messages, hops, cpu_ns, [(max(load), multicasts[0][1]), *multicasts]


def measure(protocol: str, size: int, slots: int = 50) -> Figures:
    """One round with every member in step."""
    members = build(
        protocol, size, slots, StabilityConfig(protocol=protocol, gap_ns=SECOND, period_ns=SECOND)
    )
    messages, hops, cpu_ns, multicasts = run_round(members)
    (busiest, _), sent = multicasts[0], multicasts[1:]
    encode = msgspec.msgpack.Encoder().encode
    return Figures(
        protocol, size, slots, messages,
        sum(receivers * len(encode(frame)) for receivers, frame in sent),
        paper_messages(protocol, size),
        paper_bytes(protocol, size, slots),
        busiest, hops, cpu_ns, cpu_ns // messages, cpu_ns // size,
        tuple(members[-1].stable.tolist()),
    )  # fmt: skip
