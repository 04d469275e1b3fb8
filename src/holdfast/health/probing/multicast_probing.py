"""Multicast probes: those due to any listener of an adapter are sent once for all."""

from __future__ import annotations

from holdfast.health.probing.path import Path
from holdfast.health.probing.probe_sender import ProbeSender, pair_at
from holdfast.health.probing.throttle import Buckets, Throttle
from holdfast.links.ports import SendFrame, multicast_unit
from holdfast.machine import Outbox
from holdfast.types import SYNC, Nanos

Group = tuple[str, int]
"""An adapter, and the plan of the listeners that share it, for which a number means the same."""


class MulticastProber:
    """Sends to the multicast groups of the adapters of this node."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._buckets: dict[str, Buckets] = {}

    def cast(self, now: Nanos, due: list[Path], out: Outbox) -> dict[Group, list[int]]:
        """Send what is due to the listeners of these paths. Returns what was sent per group, to be announced to all."""
        wanted: dict[Group, dict[int, ProbeSender]] = {}
        bad: dict[Group, tuple[str, ...]] = {}
        for path in due:
            probe_sender = path.probe_sender
            if probe_sender.hears_casts:
                group = group_of(path)
                bad[group] = bad.get(group, ()) + probe_sender.lanes["multicast"].bad
            if probe_sender.calm_until <= now and probe_sender.due_at <= now:
                for index in path.probe_sender.casts(now):
                    wanted.setdefault(group_of(path), {})[index] = path.probe_sender
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
                    if path.key[1] == adapter and path.probe_sender.hears_casts:
                        path.probe_sender.pay(cost)
        return sent

    def _buckets_of(self, now: Nanos, adapter: str) -> Buckets:
        found = self._buckets.get(adapter)
        if found is None:
            own = self._throttle.path_bucket(now)
            found = self._buckets[adapter] = self._throttle.buckets(now, own, adapter)
        return found


def group_of(path: Path) -> Group:
    return path.key[1], path.probe_sender.plan.id


def _probes(
    now: Nanos, wanted: list[tuple[int, ProbeSender]], bad: tuple[str, ...]
) -> tuple[list[SendFrame], int]:
    """Probes, each built by one of the senders that need it, and their size. A mixed one contains no pattern that is
    `bad` for any listener, because that listener would miss it repeatedly."""
    sends = []
    cost = 0
    for index, probe_sender in wanted:
        lane = probe_sender.lanes["multicast"]
        rung, fill = divmod(index, lane.plan.fills)
        size, flow = lane.plan.sizes[rung], probe_sender.flow_of(lane, 0)
        if flow is not None:
            probe = probe_sender.probe(lane, index, fill, size, pair_at(now), bad)
            sends.append(SendFrame(probe, SYNC, flow, size))
            cost += size
    return sends, cost
