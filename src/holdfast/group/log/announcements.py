"""Announcements of the leader to sources: which of their messages every member holds, and which every member has
applied.

A source forgets the bytes of the former and removes the latter from its window (rule 1 of stability). Both travel in
one `Freed`. Messages are usually applied milliseconds after they are held, so an announcement of held messages alone is
delayed a little.

The members are named only when they change, and with each repetition: in a large group, all the names to all the
members every few milliseconds would be most of the traffic.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import source_unit
from holdfast.group.core import Core
from holdfast.group.frames import Freed, StreamId
from holdfast.group.log.entries import View
from holdfast.group.membership.relay_tree import relays
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import NEVER, SECOND, Nanos, NodeId

STREAMS_PER_FRAME: Final = 256
STREAMS_PER_PERIOD: Final = 64
"""Every additional this many streams with garbage delay the announcement by one period."""
HELD_PERIODS: Final = 4
"""An announcement of held messages waits this many periods for one of applied messages."""
REPEAT_NS: Final = SECOND
"""Interval at which everything free is announced again: frames get lost, and replicas arrive late."""


class Announcer:
    """Informs the sources, at a limited rate."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._node = core.node
        self._log = core.log
        self._peers = core.peers
        self._applied: dict[StreamId, int] = {}
        self._held: dict[StreamId, int] = {}
        """Held messages that were not announced yet."""
        self._held_index = 0
        """Entries up to here are in `_held`, or were announced."""
        self._free_upto = 0
        self._said_ns: Nanos = 0
        self._repeat_ns: Nanos = 0
        self._said = (-1, -1)
        """The number of the announced view, and the members that were reachable then."""
        self._told: dict[NodeId, tuple[Peer, int]] = {}
        """Nodes without a replica: which view they were informed of, in which session."""

    # -- news ----------------------------------------------------------------------------------------------------

    def note_held(self) -> None:
        """Collect the messages of entries that every member holds since the last call."""
        stability, log = self._core.stability, self._log
        held = 0 if stability is None else stability.held_index
        start = max(min(self._held_index, held), log.ground.index)
        for entry in log.entries(start + 1, held - start) if held > start else ():
            if entry.stream is not None:
                self._held[entry.stream] = entry.last
        self._held_index = held

    def note_applied(self, upto: int) -> dict[StreamId, int]:
        """Collect the messages of entries that every member has applied, before they are removed from the log."""
        log = self._log
        for entry in log.entries(log.ground.index + 1, upto - log.ground.index):
            if entry.stream is not None:
                self._applied[entry.stream] = entry.last
        return self._applied

    def settle(self, free: int, now: Nanos, out: Outbox) -> None:
        """Announce what is due. Entries up to `free` are needed by no member."""
        self._free_upto = free
        if now >= self._repeat_ns or self._news() != self._said:
            self._repeat_ns = now + REPEAT_NS
            if free >= self._log.ground.index:
                self._applied = self._all_applied()
            self._held_index = self._log.ground.index
            self.note_held()
            self._say(now, out, with_view=True)
        elif now >= self._due_ns:
            self._say(now, out)

    @property
    def _due_ns(self) -> Nanos:
        """Every source is informed by a separate frame: if there are many, less often."""
        unsaid = max(len(self._applied), len(self._held))
        period_ns = self._config.free_period_ns * (1 + unsaid // STREAMS_PER_PERIOD)
        if self._applied:
            return self._said_ns + period_ns
        return self._said_ns + HELD_PERIODS * period_ns if self._held else NEVER

    def deadline(self) -> Nanos:
        return min(self._due_ns, self._repeat_ns)

    def _all_applied(self) -> dict[StreamId, int]:
        """The free part of the streams whose sources are reachable. Replicas derive it from the log index."""
        at = self._peers.at
        return {
            stream: number - 1
            for stream, number in self._log.ground.next.items()
            if at(NodeId(stream.source)) is not None or stream.source == self._node
        }

    def _news(self) -> tuple[int, int]:
        view = self._log.committed_view
        return (view.number if view is not None else 0, self._peers.changed)

    # -- announcing ----------------------------------------------------------------------------------------------

    def _say(self, now: Nanos, out: Outbox, with_view: bool = False) -> None:
        self._said_ns = now
        is_news, self._said = self._news() != self._said, self._news()
        view = self._log.committed_view
        named = self._named(view) if with_view else ()
        number = view.number if view is not None else 0
        streams = list(dict.fromkeys([*self._applied, *self._held]))
        replicas = [peer.node for peer in self._peers.replicas]
        for start in range(0, max(1, len(streams)), STREAMS_PER_FRAME):
            part = streams[start : start + STREAMS_PER_FRAME]
            frame = self._frame(part, number, named)
            post(out, self._to_tell(replicas, part, with_view), frame)
            out.up(source_unit(self._config.name), Received(self._node, [frame], now))
        unaware = self._unaware(number) if is_news else []
        for node, own in self._by_source(streams, unaware).items():
            post(out, [node], self._frame(own, number, named))
        self._applied, self._held = {}, {}

    def _frame(self, streams: list[StreamId], view: int, names: tuple[str, ...]) -> Freed:
        applied, held = self._applied, self._held
        # A log that starts with a snapshot may start above what others have applied: that is not free for that reason.
        index = min(self._log.ground.index, self._free_upto)
        return Freed(
            self._config.name,
            tuple([(stream, applied[stream]) for stream in streams if stream in applied]),
            view,
            names,
            index,
            tuple([(stream, held[stream]) for stream in streams if stream in held]),
        )

    def _named(self, view: View | None) -> tuple[str, ...]:
        """The members that sources send to."""
        if view is None:
            return ()
        # rule: S-11a
        members = view.voters if relays(self._config, view) else view.members
        return tuple([member.name for member in members])

    def _to_tell(
        self, replicas: list[NodeId], part: list[StreamId], with_view: bool
    ) -> list[NodeId]:
        """The replicas that need an announcement: all that are its sources. The others determine by themselves what is
        free, unless the leader's account decides."""
        stability = self._core.stability
        if with_view or stability is None or not stability.active:
            return replicas
        sources = dict.fromkeys(stream.source for stream in part)
        return [node for node in replicas if node in sources]

    def _unaware(self, view: int) -> list[NodeId]:
        """Nodes without a replica that were not informed of this view in their current session."""
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
        self, streams: list[StreamId], unaware: list[NodeId]
    ) -> dict[NodeId, list[StreamId]]:
        """Announcements for nodes without a replica: for each, the changes of its own streams."""
        peers = self._peers
        told: dict[NodeId, list[StreamId]] = {node: [] for node in unaware}
        for stream in streams:
            source = NodeId(stream.source)
            if peers.at(source) is not None and peers.replica_at(source) is None:
                told.setdefault(source, []).append(stream)
        return told
