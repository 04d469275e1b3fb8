"""Multicast probes: what any listener of an adapter is due goes out once, for all of them."""

from __future__ import annotations

from holdfast.health.path import Path
from holdfast.health.speaker import Speaker, pair_at
from holdfast.health.throttle import Buckets, Throttle
from holdfast.links.ports import SendFrame, multicast_unit
from holdfast.machine import Outbox
from holdfast.types import SYNC, Nanos

Group = tuple[str, int]
"""An adapter, and the plan of those listeners behind it that have the same: a number means the same to them."""


class Caster:
    """Sends to the multicast groups of this node's adapters."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._buckets: dict[str, Buckets] = {}

    def cast(self, now: Nanos, due: list[Path], out: Outbox) -> dict[Group, list[int]]:
        """Send what the listeners of these paths are due. For each group what went out, to be announced to all."""
        wanted: dict[Group, dict[int, Speaker]] = {}
        bad: dict[Group, tuple[str, ...]] = {}
        for path in due:
            speaker = path.speaker
            if speaker.hears_casts:
                group = group_of(path)
                bad[group] = bad.get(group, ()) + speaker.lanes["multicast"].bad
            if speaker.calm_until <= now and speaker.due_at <= now:
                for index in path.speaker.casts(now):
                    wanted.setdefault(group_of(path), {})[index] = path.speaker
        sent: dict[Group, list[int]] = {}
        for group, indexes in wanted.items():
            adapter = group[0]
            ordered = sorted(indexes.items(), key=lambda item: item[0])
            sends, cost = _probes(now, ordered, bad.get(group, ()))
            if sends and self._throttle.take(now, self._buckets_of(now, adapter), cost):
                sent[group] = list(indexes)
                for send in sends:
                    out.down(multicast_unit(adapter), send, True)
                for path in due:
                    if path.key[1] == adapter and path.speaker.hears_casts:
                        path.speaker.pay(cost)
        return sent

    def _buckets_of(self, now: Nanos, adapter: str) -> Buckets:
        found = self._buckets.get(adapter)
        if found is None:
            own = self._throttle.path_bucket(now)
            found = self._buckets[adapter] = self._throttle.buckets(now, own, adapter)
        return found


def group_of(path: Path) -> Group:
    return path.key[1], path.speaker.plan.id


def _probes(
    now: Nanos, wanted: list[tuple[int, Speaker]], bad: tuple[str, ...]
) -> tuple[list[SendFrame], int]:
    """Probes, each made by one of the speakers that want it, and their bytes. A mixed one holds no pattern that is
    `bad` for any of those who should hear it: they would miss it and be in doubt again and again."""
    sends = []
    cost = 0
    for index, speaker in wanted:
        lane = speaker.lanes["multicast"]
        rung, fill = divmod(index, lane.plan.fills)
        size, flow = lane.plan.sizes[rung], speaker.flow_of(lane, 0)
        if flow is not None:
            probe = speaker.probe(lane, index, fill, size, pair_at(now), bad)
            sends.append(SendFrame(probe, SYNC, flow, size))
            cost += size
    return sends, cost
