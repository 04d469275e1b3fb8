"""The rate of copies to this node: repairs must leave room for applications, here and in the domain.

A node copies at no more than `repair_mb_per_s`, and at no more than its share of `repair_domain_mb_per_s`. It announces
that it repairs with its offer, and each node divides the limit of the domain by the number of nodes that do. A few
chunks are free, so small repairs neither wait nor announce anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.objects.hub import Hub
from holdfast.objects.members import Members
from holdfast.objects.values import CHUNK
from holdfast.types import NEVER, SECOND, Nanos

BURST: Final = 8 * CHUNK
"""Bytes that a node may copy at once after a pause."""
RATE_MIN: Final = 1 << 20
"""However many nodes repair: slower copies would be given up by the nodes that wait for them."""
QUIET_NS: Final = 2 * SECOND
"""After this time without a copy, the node does not count any more."""


class Pace:
    def __init__(self, hub: Hub, members: Members) -> None:
        self._hub = hub
        self._members = members
        self._until: Nanos = 0
        self._quiet_at: Nanos = NEVER
        self.announce: Callable[[], None] = lambda: None

    @property
    def rate(self) -> int:
        """Bytes per second now."""
        config = self._hub.config
        share = config.repair_domain_bytes_per_s // (1 + self._members.others_repairing())
        return max(RATE_MIN, min(config.repair_bytes_per_s, share))

    @property
    def ready_at(self) -> Nanos:
        """When the next chunk may be asked for."""
        return self._until

    def take(self, size: int) -> None:
        """A chunk is asked for."""
        now, rate = self._hub.now, self.rate
        free = BURST * SECOND // rate
        self._until = max(self._until, now - free) + size * SECOND // rate
        if self._until >= now and not self._members.repairing:
            self._members.repairing = True
            self.announce()
        if self._members.repairing:
            self._quiet_at = max(self._until, now) + QUIET_NS

    def run(self) -> None:
        """Say that the repairs are over, when they are."""
        if self._hub.now >= self._quiet_at:
            self._quiet_at = NEVER
            self._members.repairing = False
            self.announce()

    def next_deadline(self) -> Nanos:
        return self._quiet_at
