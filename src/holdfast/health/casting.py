"""Multicast probes: what any listener of an adapter is due goes out once, for all of them."""

from __future__ import annotations

from holdfast.health.path import Path
from holdfast.health.speaker import Speaker, pair_at
from holdfast.health.throttle import Bucket, Throttle
from holdfast.links.ports import SendFrame, multicast_unit
from holdfast.machine import Outbox
from holdfast.types import SYNC, Nanos


class Caster:
    """Sends to the multicast groups of this node's adapters."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._buckets: dict[str, Bucket] = {}

    def cast(self, now: Nanos, due: list[Path], out: Outbox) -> dict[str, list[int]]:
        """Send what the listeners of these paths are due. For each adapter what went out, to be announced to all."""
        wanted: dict[str, dict[int, Speaker]] = {}
        for path in due:
            if path.speaker.due_at <= now:
                for index in path.speaker.casts(now):
                    wanted.setdefault(path.key[1], {})[index] = path.speaker
        sent: dict[str, list[int]] = {}
        for adapter, indexes in wanted.items():
            sends, cost = _probes(now, sorted(indexes.items(), key=lambda item: item[0]))
            if sends and self._throttle.take(now, self._bucket(now, adapter), adapter, cost):
                sent[adapter] = list(indexes)
                for send in sends:
                    out.down(multicast_unit(adapter), send, True)
                for path in due:
                    if path.key[1] == adapter and path.speaker.hears_casts:
                        path.speaker.pay(now, cost)
        return sent

    def _bucket(self, now: Nanos, adapter: str) -> Bucket:
        bucket = self._buckets.get(adapter)
        if bucket is None:
            bucket = self._buckets[adapter] = self._throttle.path_bucket(now)
        return bucket


def _probes(now: Nanos, wanted: list[tuple[int, Speaker]]) -> tuple[list[SendFrame], int]:
    """Probes, each made by one of the speakers that want it, and their bytes."""
    sends = []
    cost = 0
    for index, speaker in wanted:
        lane = speaker.lanes["multicast"]
        rung, fill = divmod(index, lane.plan.fills)
        size, flow = lane.plan.sizes[rung], speaker.flow_of(lane, 0)
        if flow is not None:
            probe = speaker.probe(lane, index, fill, size, pair_at(now))
            sends.append(SendFrame(probe, SYNC, flow, size))
            cost += size
    return sends, cost
