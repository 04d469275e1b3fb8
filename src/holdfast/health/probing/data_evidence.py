"""Application data that does not arrive although heartbeats and probes do.

The link reports flows on which nothing of what applications send arrives. That is published only after a while in
which heartbeats were heard on the same flow, and only if no probe explains it: a size limit, a pattern or loss that is
found in that time is the better name. When the data has moved elsewhere, the sender tries the path with copies, and the
link reports whether they arrive. Without such reports it is forgotten after `HOLD_NS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.health.probing.liveness import Liveness
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos

SETTLE_NS: Final = 700 * MILLISECOND
HOLD_NS: Final = 600 * SECOND
SILENT_MISSES: Final = 2
REVIVED_NS: Final = 1000 * MILLISECOND


def was_silent(now: Nanos, live: Liveness) -> bool:
    """Whether heartbeats of a flow are missing as well, or were until a moment ago: then its data is no fault apart."""
    return live.misses(now) >= SILENT_MISSES or now - live.since < REVIVED_NS


class DataEvidence:
    """What the link says of application data on one path."""

    __slots__ = ("_reported", "_since", "lost")

    def __init__(self) -> None:
        self.lost = False
        """Application data does not pass, and nothing explains it."""
        self._since: dict[FlowId, Nanos] = {}
        self._reported: dict[FlowId, Nanos] = {}
        """When the link first and last said so of each flow."""

    def take(self, now: Nanos, flow: FlowId, missing: bool, still: bool = False) -> Nanos:
        """A report of the link; returns when to look at it. `still`: it repeats one, which may have been explained in
        the meantime."""
        if not missing:
            self._forget(flow)
            return now
        if flow in self._since or not still:
            self._since.setdefault(flow, now)
            self._reported[flow] = now
        return now + SETTLE_NS

    def _forget(self, flow: FlowId) -> None:
        self._since.pop(flow, None)
        self._reported.pop(flow, None)

    def look(self, now: Nanos, heard_at: Mapping[FlowId, Nanos], suspected: bool) -> bool:
        """Judge; True when `lost` has changed. `heard_at`: the last heartbeat of each living flow. `suspected`: probes
        are missing, and it is not settled yet what that means."""
        for flow in list(self._since):
            if flow not in heard_at or now - self._reported[flow] >= HOLD_NS:
                self._forget(flow)
        before = self.lost
        if not suspected or not self._since:
            self.lost = any(
                now - at >= SETTLE_NS and heard_at[flow] > at + SETTLE_NS // 2
                for flow, at in self._since.items()
            )
        return self.lost != before

    def explained(self) -> None:
        """Probes have found what is wrong with the path."""
        self._since.clear()
        self._reported.clear()

    @property
    def open(self) -> bool:
        return bool(self._since) or self.lost
