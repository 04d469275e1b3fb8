"""What passes between a network model and the members on it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.types import Nanos


class Send(msgspec.Struct, frozen=True, gc=False):
    """One message to several nodes, a packet each."""

    position: int
    """Before which arrival of the slot it is sent."""
    now: Nanos
    source: int
    targets: tuple[int, ...]
    transmit_ns: Nanos
    tag: int
    """What the caller wants to have back when a packet arrives."""


class Traffic(msgspec.Struct, frozen=True):
    """What the network counted."""

    sent: int
    hops: int
    lost: int
    longest_queue: int
    samples: list[int]
    """Packets in the network, every `SAMPLE_NS`, from time 0."""


class Network(Protocol):
    """Moves packets; the caller hands in what nodes send and gets what arrives, slot by slot."""

    @property
    def is_empty(self) -> bool:
        """No packet is on its way."""

    def open_slot(self, until_ns: Nanos) -> list[list[int]]:
        """Arrivals in the next slot that has packets, at the latest in the slot of `until_ns`.

        Each is (position, time, source, target, tag). `close_slot` must follow.
        """

    def slot_end_ns(self, until_ns: Nanos) -> Nanos:
        """The end of the open slot; that of the slot of `until_ns` when no packets arrive before."""

    def position(self, now: Nanos) -> int:
        """How many arrivals of the open slot are earlier than `now`."""

    def close_slot(self, sends: list[Send]) -> None:
        """Move the packets of the slot on, and take what nodes sent in it."""

    def traffic(self) -> Traffic:
        """What was counted so far."""
