"""What nobody needs any more. The leader finds it out and says it (`Tally`), every replica lets go of it (`Release`).

An entry is needed while any replica's application has not processed it: until then that replica may ask for it and
for its messages. A replica that cannot be reached holds the others back until somebody may have no room; then it is
left behind, and will be given a state when it is back. A replica that can be reached and is slow slows the sources
down; only when its application stands still for long is it left behind too.

One that takes a state needs everything that was ordered since that was taken, or it needs another state at once, and
under steady load so for ever. So what comes after the state is kept for it as well, and full buffers slow the sources
down, for as long as a replica may stand still. One that is not back by then is not waited for so soon again.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import source_unit
from holdfast.group.core import Core
from holdfast.group.delivery import Delivery
from holdfast.group.log import Log
from holdfast.group.peers import Peer, post
from holdfast.group.progress import Progress
from holdfast.group.streams import Streams
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import SECOND, Nanos, NodeId
from holdfast.wire.frames import Freed, StreamId

STREAMS_PER_FRAME: Final = 256
STREAMS_PER_PERIOD: Final = 64
"""So many more streams of which something is free, and it is said so one period later."""
MISSES_MAX: Final = 3
"""Each time that a replica is not back in time doubles the time in which it is not waited for, so often."""
REPEAT_NS: Final = SECOND
"""Everything that is free is said again this often: frames get lost, replicas come late."""


class Release:
    """Lets go of messages and entries that every replica has applied."""

    def __init__(self, log: Log, streams: Streams, delivery: Delivery) -> None:
        self._log = log
        self._streams = streams
        self._delivery = delivery
        self._upto: dict[StreamId, int] = {}
        self.index = 0
        """Entries up to here are free as well, those without messages too."""

    def take(self, frame: Freed) -> None:
        """The leader says what is free. What was not delivered here is kept all the same."""
        self.index = max(self.index, frame.index)
        known = self._delivery.at.next
        for stream, number in frame.upto[:STREAMS_PER_FRAME]:
            if stream in known or self._delivery.at.is_over(stream):
                self._upto[stream] = max(number, self._upto.get(stream, 0))
                self._drop(stream)
        self._trim()

    def _drop(self, stream: StreamId) -> None:
        found = self._streams.get(stream)
        # What was handed out before it was decided may be undone, and is read again then.
        if found is not None and self._delivery.at.index <= self._log.commit:
            upto = self._upto[stream] + 1
            found.drop_below(min(upto, self._delivery.at.next.get(stream, upto)))

    def _trim(self) -> None:
        """Forget entries from the oldest on, as long as they are free and were handed out here."""
        log = self._log
        free = log.ground.index
        gone: dict[StreamId, int] = {}
        for index in range(free + 1, min(self._delivery.at.index, log.commit) + 1):
            entry = log.entry(index)
            if index > self.index and (
                entry.stream is None or entry.last > self._upto.get(entry.stream, 0)
            ):
                break
            free = index
            if entry.stream is not None:
                gone[entry.stream] = entry.last
        log.trim(free)
        for stream, last in gone.items():
            found = self._streams.get(stream)
            if found is not None:
                found.drop_below(last + 1)
        self._streams.forget_over(log.ground)
        if len(self._upto) > 2 * STREAMS_PER_FRAME:
            known = log.ground.next
            self._upto = {
                stream: number for stream, number in self._upto.items() if stream in known
            }


class Tally:
    """The leader's account of who has applied what."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._node = core.node
        self._log = core.log
        self._streams = core.streams
        self._delivery = core.delivery
        self._peers = core.peers
        self._unsaid: dict[StreamId, int] = {}
        self._free_upto = 0
        self._said_ns = 0
        self._look_ns = 0
        """Not every turn is worth a look at all streams."""
        self._full_ns = 0
        """When outputs were last not taken: then all applications wait, and none is to blame."""
        self._repeat_ns = 0
        self._said = (-1, -1)
        """The number of the view that everybody was told, and who could be reached then."""
        self._told: dict[NodeId, tuple[Peer, int]] = {}
        """Nodes without a replica: in which session they were told which view."""

    def settle(self, progress: dict[str, Progress], now: Nanos, out: Outbox) -> dict[str, str]:
        """Free what everybody has applied, and say so, not too often. Who holds the others back too long, and why."""
        free = self._free_upto = self._needed_by_nobody(progress, now, out)
        behind: dict[str, str] = {}
        if self._delivery.kept.full:
            self._full_ns = now
        if free < self._delivery.applied and now >= self._look_ns:
            self._look_ns = now + self._config.free_period_ns
            behind = self._behind(progress, free, now)
        if free > self._log.ground.index:
            self._free(free)
        if now >= self._repeat_ns or self._news() != self._said:
            self._repeat_ns = now + REPEAT_NS
            if free >= self._log.ground.index:
                self._unsaid = self._all_free()
            self._say(now, out)
        elif self._unsaid and now >= self._said_ns + self._period_ns:
            self._say(now, out)
        return behind

    def _all_free(self) -> dict[StreamId, int]:
        """What is free of the streams whose sources can be told. To replicas the index of the log says it."""
        at = self._peers.at
        return {
            stream: number - 1
            for stream, number in self._log.ground.next.items()
            if at(NodeId(stream.source)) is not None or stream.source == self._node
        }

    def _needed_by_nobody(self, progress: dict[str, Progress], now: Nanos, out: Outbox) -> int:
        """Up to where the log is needed neither by a member that applies it nor by one that takes a state."""
        free = self._applied_by_all(progress)
        for other in progress.values():
            if other.member.suspended:
                free = min(free, self._kept_for(other, free, now, out))
            else:
                other.held = -1
        return free

    def _kept_for(self, other: Progress, free: int, now: Nanos, out: Outbox) -> int:
        """Up to where nothing is kept for a suspended replica: for a while it is waited for."""
        patience_ns = self._config.patience_ns
        if not self._peers.is_here(other.member) or now < other.out_until_ns:
            other.held = -1
            return free
        if other.held < 0:
            if other.next > self._log.ground.index:
                return free  # Its log goes on: what it will need it keeps itself.
            other.held, other.held_ns = free, now
        elif now - other.held_ns >= patience_ns:
            other.held = -1
            other.out_until_ns = now + (patience_ns << other.misses)
            other.misses = min(other.misses + 1, MISSES_MAX)
            detail = f"{other.member.name} was waited for while it took a state, and is not back"
            self._core.fact("left behind", detail, now, out)
            return free
        # What it has in its log it does not ask for again, once it has a state.
        return other.held if other.why else max(other.held, other.match)

    def _applied_by_all(self, progress: dict[str, Progress]) -> int:
        """By every member of the decided view that is not suspended (DESIGN, Groups, rule 6)."""
        applied = min(self._delivery.applied, self._log.commit)
        view = self._log.committed_view
        # A side that goes on alone cannot suspend the other one. It keeps what the other lacks while there is room, so
        # that it can be ordered again if the other side wins.
        waits = self._config.mode == "majority" or not self._core.is_tight
        for member in view.members if view is not None else ():
            if member.suspended or member.name == self._core.name:
                continue
            other = progress.get(member.name)
            if other is None:
                # A change that is not decided takes it out: until it is, nothing that it may ask for is let go.
                return self._log.ground.index
            if not waits and not self._peers.is_here(member):
                continue
            applied = min(applied, other.applied)
        return applied

    def _behind(self, progress: dict[str, Progress], free: int, now: Nanos) -> dict[str, str]:
        """Replicas that hold everybody back and need not be waited for, if there is need."""
        if not self._core.is_tight:
            return {}
        slow = {name: other for name, other in progress.items() if other.applied <= free}
        gone = {name: self._why(other, now) for name, other in slow.items()}
        return {name: why for name, why in gone.items() if why}

    def _why(self, other: Progress, now: Nanos) -> str:
        """Why a replica need not be waited for; empty if it is to be."""
        if not self._peers.is_here(other.member):
            return "it cannot be reached"
        if now - other.heard_ns >= self._config.lack_ns:
            return f"it does not answer since {(now - other.heard_ns) // SECOND} s"
        stands_ns = now - max(other.moved_ns, self._full_ns)
        if stands_ns >= self._config.patience_ns:
            return f"its application stands still since {stands_ns // SECOND} s"
        return ""

    def _free(self, upto: int) -> None:
        log = self._log
        for entry in log.entries(log.ground.index + 1, upto - log.ground.index):
            if entry.stream is not None:
                self._unsaid[entry.stream] = entry.last
        log.trim(upto)
        for stream, number in self._unsaid.items():
            found = self._streams.get(stream)
            if found is not None:
                found.drop_below(number + 1)
        self._streams.forget_over(log.ground)

    def _news(self) -> tuple[int, int]:
        view = self._log.committed_view
        return (view.number if view is not None else 0, self._peers.changed)

    def _say(self, now: Nanos, out: Outbox) -> None:
        self._said_ns = now
        upto = list(self._unsaid.items())
        self._unsaid = {}
        view = self._log.committed_view
        names = tuple(member.name for member in view.members) if view is not None else ()
        number = view.number if view is not None else 0
        is_news, self._said = self._news() != self._said, self._news()
        # A log that begins with a state may begin above what others have applied: that is not free for that.
        index = min(self._log.ground.index, self._free_upto)
        group = self._config.name
        replicas = [peer.node for peer in self._peers.replicas]
        for start in range(0, max(1, len(upto)), STREAMS_PER_FRAME):
            part = tuple(upto[start : start + STREAMS_PER_FRAME])
            frame = Freed(group, part, number, names, index)
            post(out, replicas, frame)
            out.up(source_unit(group), Received(self._node, [frame], now))
        unaware = self._unaware(number) if is_news else []
        for node, own in self._by_source(upto, unaware).items():
            post(out, [node], Freed(group, tuple(own), number, names, index))

    def _unaware(self, view: int) -> list[NodeId]:
        """Nodes without a replica that were not told of this view in the session that they have now."""
        before, self._told = self._told, {}
        unaware: list[NodeId] = []
        for peer in self._peers.all:
            if self._peers.replica_at(peer.node) is None:
                session, told = before.get(peer.node, (None, 0))
                if session is not peer or told != view:
                    unaware.append(peer.node)
                self._told[peer.node] = (peer, view)
        return unaware

    def _by_source(
        self, upto: list[tuple[StreamId, int]], unaware: list[NodeId]
    ) -> dict[NodeId, list[tuple[StreamId, int]]]:
        """What nodes without a replica are told: each what concerns its own streams, and what is news to it."""
        peers = self._peers
        told: dict[NodeId, list[tuple[StreamId, int]]] = {node: [] for node in unaware}
        for stream, number in upto:
            source = NodeId(stream.source)
            if peers.at(source) is not None and peers.replica_at(source) is None:
                told.setdefault(source, []).append((stream, number))
        return told

    @property
    def _period_ns(self) -> Nanos:
        """Every source is told by a frame of its own: where they are many, less often."""
        return self._config.free_period_ns * (1 + len(self._unsaid) // STREAMS_PER_PERIOD)

    def deadline(self) -> Nanos:
        if self._unsaid:
            return self._said_ns + self._period_ns
        return self._repeat_ns
