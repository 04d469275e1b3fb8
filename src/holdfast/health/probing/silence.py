"""Which flows of a path are dead: what their silence means, together and alone.

If nothing at all is heard, all flows die together. One flow dies alone only while another is heard. A TCP connection
may be stuck behind a large message, so the connections that measure have a say as well.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Final

from holdfast.health.config import BASIC_SIZE
from holdfast.health.probing.congestion import HEARD_NS, Congestion
from holdfast.health.probing.evidence import miss_weight
from holdfast.health.probing.lane import Lane
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.signature import PAST
from holdfast.health.probing.state import Heard
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos

STREAMS_SILENT_NS: Final = 1000 * MILLISECOND
CONNECTS_NS: Final = 4 * SECOND
PEER_MISSES: Final = 3
"""What it counts that the peer hears nothing of TCP: as much as so many measuring connections."""
CROWDED_SILENCE_NS: Final = 3000 * MILLISECOND
STREAM_LATE_MIN: Final = 2
"""Heartbeats that the connection with data must miss before those that measure are asked."""
ASK_NS: Final = 90 * MILLISECOND
SILENT_MIN: Final = 5
"""Heartbeats of one flow that must be missing before a path is dead: a delay that begins looks like silence, too."""


class Silence:
    """What is known of the TCP connections of a path besides their heartbeats, and the judgement on silent flows."""

    __slots__ = (
        "_connected_at",
        "asked_at",
        "asks",
        "heard_at",
        "lost_at",
        "orphaned_at",
        "segments",
        "unheard_streams",
    )

    def __init__(self) -> None:
        self._connected_at: Nanos = PAST
        """When a TCP connection was last agreed on: small segments passed then, both ways."""
        self.unheard_streams = False
        """The peer hears nothing of TCP either. A connection needs both directions, so that is evidence here, too."""
        self.segments: dict[int, bool] = {}
        """Measuring connections that are gone, or of which probes are missing, since nothing of TCP was heard there."""
        self.orphaned_at: Nanos = NEVER
        """When the connection with data that is gone now was last heard; `NEVER` while there is one, or TCP is dead."""
        self.lost_at: Nanos = PAST
        """When that connection was lost."""

        self.heard_at: Nanos = PAST
        """When anything arrived on the path, as the link says; asked while no heartbeat is heard."""
        self.asked_at: Nanos = PAST
        self.asks = False
        """The link must be asked what arrives."""

    # -- connections ---------------------------------------------------------------------------------------------

    def connected(self, now: Nanos, carries_data: bool) -> None:
        """A TCP connection was opened."""
        self._connected_at = now
        self.segments.clear()
        if carries_data:
            self.orphaned_at = NEVER

    def disconnected(self, now: Nanos, live: Liveness) -> None:
        """The connection with data is gone."""
        if live.alive:
            self.orphaned_at, self.lost_at = live.heard_at, now

    def segments_silent(self, sizes: Iterable[int]) -> None:
        """The connections that measure these sizes are gone, or lack a probe; until one of them is heard."""
        self.segments.update(dict.fromkeys(sizes, True))

    def orphan_dies(
        self, now: Nanos, flows: Iterable[Heard], lane: Lane | None, connected: Container[int]
    ) -> bool:
        """Whether TCP is dead: there is no connection with data, and those that measure are silent. While datagrams
        live, that is the claim of a filter. It needs datagrams that are heard now, because a process that ends closes
        its connections at once, a moment before its datagrams are missed; and every size that passed must be silent.
        `connected`: the sizes that have a connection."""
        if self.orphaned_at == NEVER or self.segments_pass(now - STREAMS_SILENT_NS, lane):
            return False
        datagrams = [h.live for h in flows if not h.live.stream and not h.live.judged_dead]
        if datagrams:
            if lane is not None and any(
                size <= lane.size and size in connected and size not in self.segments
                for size in lane.plan.sizes
            ):
                return False  # measured rarely: nothing is known of this size
            if not any(
                live.heard_at > self.lost_at + live.promise_ns and not live.overdue(now)
                for live in datagrams
            ):
                return False
        self.orphaned_at = NEVER
        return True

    def orphan_dies_too(self, since: Nanos, lane: Lane | None, connected: Collection[int]) -> bool:
        """Whether TCP died with all other flows of the path: those that measure are gone, or silent since then."""
        if self.orphaned_at == NEVER or (connected and self.segments_pass(since, lane)):
            return False
        self.orphaned_at = NEVER
        return True

    def segments_pass(self, since: Nanos, lane: Lane | None) -> bool:
        """Whether a connection that measures was heard since then, or one was opened: TCP passes, whatever stops that
        with data. Where no measured size passes, a connection stops at once, and the next one is opened much later."""
        if lane is not None and lane.size == BASIC_SIZE:
            since -= CONNECTS_NS
        return (lane is not None and lane.heard_at > since) or self._connected_at > since

    @staticmethod
    def streams_silent(now: Nanos, live: Liveness, lane: Lane) -> bool:
        """Whether nothing arrives on streams at all, which is not a question of size. The one that carries data says
        less than the measuring ones, because it may be blocked behind a large message."""
        silent = now - live.heard_at > 3 * live.promise_ns // 2
        return silent and now - lane.heard_at > STREAMS_SILENT_NS

    @staticmethod
    def stream_is_late(now: Nanos, flows: Iterable[Heard]) -> bool:
        """Whether the connection with data misses heartbeats while datagrams are heard."""
        late = heard = False
        for item in flows:
            live = item.live
            if live.stream:
                late = late or (live.alive and live.misses(now) >= STREAM_LATE_MIN)
            else:
                heard = heard or (live.alive and not live.overdue(now))
        return late and heard

    # -- silent flows --------------------------------------------------------------------------------------------

    def check(
        self,
        now: Nanos,
        evidence: int,
        flows: Iterable[Heard],
        lane: Lane | None,
        congestion: Congestion,
        busy: bool = False,
    ) -> list[Heard]:
        """The flows that die now. If nothing at all is heard, all of them die together: that one kind of packets does
        not pass can be claimed only while another is heard to pass. `lane`: the sizes of TCP. `busy`: this node is so
        late that it makes no such claim."""
        self.ask(now)
        known = list(flows)
        loss_ppm = max((h.live.loss.judged_ppm for h in known), default=0)
        open_flows = [h for h in known if not h.live.judged_dead]
        if open_flows and all(h.live.overdue(now) for h in open_flows):
            return self._all(now, evidence, loss_ppm, open_flows, congestion)
        if busy:
            return []
        dead = []
        for heard in sorted(open_flows, key=lambda h: h.live.stream):
            live = heard.live
            others = [h.live for h in open_flows if h.live.alive and h.live.heard_at > live.fell_at]
            datagrams = any(not other.stream for other in others)
            if live.stream and self.segments_pass(live.fell_at, lane):
                continue  # this connection is stuck, but TCP passes
            crowded = congestion.lately(now) or any(
                other.trip.delay.crowded for other in (live, *others)
            )
            crowded = crowded or (heard.lane == "udp" and congestion.outlives(now, live))
            if crowded and now - live.heard_at < CROWDED_SILENCE_NS:
                continue  # a full queue may have dropped its heartbeats
            if (
                others
                and live.stream
                and datagrams
                and self._stream_dies(now, live, evidence, known)
            ):
                live.die(now)
                dead.append(heard)
            elif others and live.silent(now, evidence, loss_ppm if live.stream else 0, datagrams):
                dead.append(heard)
        return dead

    def ask(self, now: Nanos) -> None:
        """Ask the link what arrives, if it was not asked a moment ago."""
        if now - self.asked_at >= ASK_NS:
            self.asked_at, self.asks = now, True

    def filled(self, now: Nanos, flows: Iterable[Heard], congestion: Congestion) -> bool:
        """Whether data arrives on the path while the heartbeats of all flows are missing: it fills the path. The
        alternate port has too few of them to be missed soon; but while it is heard, the path is not full."""
        if not congestion.by_data:
            return False  # probes arrive: some flows are dead, and others are not
        lives, last, alternate = [], PAST, PAST
        for heard in flows:
            live = heard.live
            if heard.lane == "alt":
                alternate = max(alternate, live.heard_at)
            elif not live.judged_dead:
                lives.append(live)
                last = max(last, live.heard_at)
        if not lives or now - self.heard_at >= HEARD_NS:
            return False
        promise_ns = min(live.promise_ns for live in lives)
        if alternate - last > promise_ns or self.heard_at - last <= promise_ns:
            return False
        return all(live.overdue(now) for live in lives)

    def _all(
        self, now: Nanos, evidence: int, loss_ppm: int, flows: list[Heard], congestion: Congestion
    ) -> list[Heard]:
        heard_at = max(h.live.heard_at for h in flows)
        crowded = congestion.lately(now) or any(
            h.live.trip.delay.crowded or (h.lane == "udp" and congestion.outlives(now, h.live))
            for h in flows
        )
        if (crowded or self.filled(now, flows, congestion)) and now - heard_at < CROWDED_SILENCE_NS:
            return []  # a full queue drops heartbeats, too
        if not _all_silent(now, evidence, loss_ppm, flows):
            return []
        for heard in flows:
            heard.live.die(now)
        return flows

    def _stream_dies(
        self, now: Nanos, live: Liveness, evidence: int, flows: Iterable[Heard]
    ) -> bool:
        """Whether the silence of the connection with data, and of those that measure, is evidence enough: each that
        lacks a probe is one miss, because everything behind that waits."""
        misses = live.misses(now)
        loss_ppm = max(heard.live.loss.judged_ppm for heard in flows)
        silent = len(self.segments) + PEER_MISSES * self.unheard_streams
        weight = (misses + silent) * miss_weight(loss_ppm)
        return silent > 0 and misses >= live.grace and weight >= evidence


def _all_silent(now: Nanos, evidence: int, loss_ppm: int, flows: list[Heard]) -> bool:
    """Whether the silence of all flows together is evidence enough: they share the path, and its fate."""
    misses = [h.live.misses(now) for h in flows]
    weight = sum(
        count * miss_weight(max(loss_ppm if h.live.stream else 0, h.live.loss.judged_ppm))
        for h, count in zip(flows, misses, strict=True)
    )
    return weight >= evidence and max(misses) >= max(SILENT_MIN, *(h.live.grace for h in flows))
