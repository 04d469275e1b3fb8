"""The interface between a network model and the members on it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.types import Nanos


class Send(msgspec.Struct, frozen=True, gc=False):
    """One message to several nodes, a packet each."""

    position: int
    """The arrival of the slot before which it is sent."""
    now: Nanos
    source: int
    targets: tuple[int, ...]
    transmit_ns: Nanos
    tag: int
    """Returned to the caller when a packet arrives."""


class Traffic(msgspec.Struct, frozen=True):
    """The counters of the network."""

    sent: int
    hops: int
    lost: int
    longest_queue: int
    samples: list[int]
    """Packets in the network, every `SAMPLE_NS`, from time 0."""


class Network(Protocol):
    """Moves packets; the caller passes in what nodes send and receives what arrives, slot by slot."""

    @property
    def is_empty(self) -> bool:
        """Whether no packet is in flight."""

    def open_slot(self, until_ns: Nanos) -> list[list[int]]:
        """Arrivals in the next slot that has packets, at the latest in the slot of `until_ns`.

        Each is (position, time, source, target, tag). `close_slot` must follow.
        """

    def slot_end_ns(self, until_ns: Nanos) -> Nanos:
        """The end of the open slot; that of the slot of `until_ns` if no packets arrive before."""

    def position(self, now: Nanos) -> int:
        """How many arrivals of the open slot are earlier than `now`."""

    def close_slot(self, sends: list[Send]) -> None:
        """Forward the packets of the slot, and accept what nodes sent in it."""

    def traffic(self) -> Traffic:
        """The counts so far."""
