"""The log: entries of the order, and cursors at places of it.

As in Raft, an entry is identified by its index and term, and two logs that agree on one entry agree on everything
before it. The log starts after its *ground*, the place up to which entries are no longer needed. A *cursor* is the
result of the entries up to a place (the next position, the next number of each stream): the ground is one, the tail is
one, and the place that delivery has reached is one. An entry can therefore be checked against what it claims to follow.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.entries import Closed, Ignoring, Opened, View, decode_data, decode_view
from holdfast.group.log.replicated_metadata import ReplicatedMetadata
from holdfast.group.loss.criteria import is_sound_criterion
from holdfast.group.services.values import Served, is_sound_service
from holdfast.types import Nanos
from holdfast.wire.blocks import MESSAGES_MAX

NUMBER_MAX: Final = 1 << 60
"""No stream, log or order gets this far; a higher number is invalid."""
OVER_KEPT: Final = 1 << 16
"""The number of sources whose ended incarnations are recorded."""
LIVES_KEPT: Final = 8
"""The number of incarnations recorded per source; older ones are over, and their messages are not ordered."""


class Kind(IntEnum):
    """The effect of an entry."""

    ORDER = 1
    """Delivers a range of a stream."""
    TERM = 2
    """A term starts. It commits the entries of earlier terms."""
    SKIP = 3
    """A range of a stream that is not delivered; `data` has the reason."""
    VIEW = 4
    """The members of the group from here on."""
    OPEN = 5
    CLOSE = 6
    """A stream starts, and ends with its last number."""
    IGNORE = 7
    RESUME = 8
    """An ignore criterion starts and ends."""
    OUTPUTS = 9
    """How far a destination has the outputs of the group."""
    DECISION = 10
    """A loss question and its answer."""
    SERVICE = 11
    """A request to a lock or a barrier."""


PLAIN: Final = (
    Kind.OPEN,
    Kind.CLOSE,
    Kind.IGNORE,
    Kind.RESUME,
    Kind.OUTPUTS,
    Kind.DECISION,
    Kind.SERVICE,
)
"""Kinds whose entries have everything in `data`."""


def is_sound_stream(stream: StreamId) -> bool:
    return len(stream.source) == 16 and stream.incarnation >= 0 and stream.stream >= 0


def is_sound(entry: Entry) -> bool:
    """Whether an entry is valid by itself."""
    if not (1 <= entry.term < NUMBER_MAX and 1 <= entry.index < NUMBER_MAX):
        return False
    if entry.kind == Kind.TERM:
        return entry.stream is None
    if entry.kind == Kind.VIEW:
        return entry.stream is None and decode_view(entry.data) is not None
    if entry.kind in PLAIN:
        return entry.stream is None and _is_sound_data(decode_data(entry))
    if (entry.kind == Kind.SKIP or entry.data) and decode_data(entry) is None:
        return False
    return (
        entry.kind in (Kind.ORDER, Kind.SKIP)
        and entry.stream is not None
        and is_sound_stream(entry.stream)
        and 1 <= entry.first <= entry.last < NUMBER_MAX
        and entry.last - entry.first < MESSAGES_MAX
    )


def _is_sound_data(data: Any) -> bool:
    if isinstance(data, Opened):
        return is_sound_stream(data.stream) and 1 <= data.first < NUMBER_MAX
    if isinstance(data, Closed):
        return is_sound_stream(data.stream) and 0 <= data.last < NUMBER_MAX
    if isinstance(data, Ignoring):
        return is_sound_criterion(data.criterion)
    if isinstance(data, Served):
        return is_sound_service(data)
    return data is not None


class Cursor:
    """The result of the entries up to `index`. The same log gives the same cursor on every replica."""

    __slots__ = ("index", "log_ns", "metadata", "next", "over", "position", "term", "view")

    def __init__(
        self,
        index: int = 0,
        term: int = 0,
        position: int = 1,
        log_ns: Nanos = 0,
        following: dict[StreamId, int] | None = None,
        over: dict[tuple[bytes, int], int] | None = None,
        view: View | None = None,
        metadata: ReplicatedMetadata | None = None,
    ) -> None:
        self.index = index
        self.term = term
        self.position = position
        """Of the next message."""
        self.log_ns = log_ns
        self.next = following if following is not None else {}
        """The next number of each stream."""
        self.over = over if over is not None else {}
        """Of each (source, stream): incarnations up to this one are removed."""
        self.view = view
        """The members of the group; None before its first entry."""
        self.metadata = metadata if metadata is not None else ReplicatedMetadata()
        """Ignore criteria, delivered requests, and arrived outputs."""

    def copy(self) -> Cursor:
        return Cursor(
            self.index, self.term, self.position, self.log_ns, dict(self.next), dict(self.over), self.view,
            self.metadata.copy(),
        )  # fmt: skip

    def is_over(self, stream: StreamId) -> bool:
        return bool(self.over) and stream.incarnation <= self.over.get(
            (stream.source, stream.stream), -1
        )

    def fits(self, entry: Entry) -> bool:
        """Whether a sound entry follows from here. The first entry of a stream may start at any number: a re-created
        group finds streams that have already started."""
        # rule: 4a
        if (
            entry.index != self.index + 1
            or entry.position != self.position
            or entry.term < self.term
            or entry.log_ns < self.log_ns
        ):
            return False
        stream = entry.stream
        if stream is None:
            return entry.kind != Kind.CLOSE or self._can_close(decode_data(entry))
        first = entry.first
        # rule: 3b
        return self.next.get(stream, first) == first and not (self.over and self.is_over(stream))

    def advance(self, entry: Entry) -> None:
        self.index = entry.index
        self.term = entry.term
        self.log_ns = entry.log_ns
        stream = entry.stream
        if stream is not None:
            if entry.kind == Kind.ORDER:
                self.position += entry.last - entry.first + 1
            if stream not in self.next:
                self._open(stream)
            # rule: 3c
            self.next[stream] = entry.last + 1
        elif entry.kind == Kind.OPEN:
            opened = decode_data(entry)
            self._open(opened.stream)
            self.next.setdefault(opened.stream, opened.first)
        elif entry.kind == Kind.CLOSE:
            self._close(decode_data(entry).stream)
        elif entry.kind == Kind.VIEW:
            self.view = decode_view(entry.data)
        if entry.data:
            self.metadata.advance(entry)

    def _can_close(self, closed: Closed) -> bool:
        return self.next.get(closed.stream) == closed.last + 1

    def _close(self, stream: StreamId) -> None:
        """This incarnation of the source is over, and so is every earlier one."""
        key = (stream.source, stream.stream)
        self.over[key] = max(stream.incarnation, self.over.get(key, -1))
        if len(self.over) > OVER_KEPT:
            del self.over[next(iter(self.over))]
        for life in [s for s in self.next if (s.source, s.stream) == key and self.is_over(s)]:
            del self.next[life]

    def _open(self, stream: StreamId) -> None:
        """A new incarnation of a source ends the oldest recorded one."""
        lives = [s for s in self.next if s.source == stream.source and s.stream == stream.stream]
        if len(lives) >= LIVES_KEPT:
            oldest = min(lives, key=lambda life: life.incarnation)
            del self.next[oldest]
            self.over[(stream.source, stream.stream)] = oldest.incarnation


class Log:
    """Entries from `ground.index + 1` to `tail.index`. Committed entries are never truncated."""

    __slots__ = (
        "_entries",
        "_views",
        "commit",
        "cut_at",
        "epoch",
        "ground",
        "pressing_index",
        "tail",
    )

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._views: list[tuple[int, View]] = []
        """The views of entries above the ground, by index."""
        self.epoch = 0
        """The group epoch that the entries belong to; 0 while this replica knows of no group."""
        self.commit = 0
        self.ground = Cursor()
        self.tail = Cursor()
        self.cut_at = 0
        """The lowest index that was truncated since the last check; 0: none."""
        self.pressing_index = 0
        """The last entry that is not a request of a service: applications may wait for its commit."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> int:
        return self.tail.index

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None outside of this log."""
        at = index - self.ground.index - 1
        if at >= 0:
            return self._entries[at].term if at < len(self._entries) else None
        return self.ground.term if at == -1 else None

    def entry(self, index: int) -> Entry:
        at = index - self.ground.index - 1
        assert at >= 0, "an entry below the ground is gone"
        return self._entries[at]

    def entries(self, first: int, count: int) -> tuple[Entry, ...]:
        """Up to `count` entries from index `first` on."""
        at = first - self.ground.index - 1
        assert at >= 0, "an entry below the ground is gone"
        return tuple(self._entries[at : at + count])

    @property
    def view_index(self) -> int:
        """The index of the last entry that changed the view."""
        return self._views[-1][0] if self._views else 0

    @property
    def view_before(self) -> View | None:
        """The members before the last entry that changed the view."""
        return self._views[-2][1] if len(self._views) > 1 else self.ground.view

    @property
    def committed_view(self) -> View | None:
        """The committed members of the group."""
        for index, view in reversed(self._views):
            if index <= self.commit:
                return view
        return self.ground.view

    def append(self, entry: Entry) -> None:
        assert self.tail.fits(entry), f"entry {entry.index} does not follow {self.tail.index}"
        self.append_fitting(entry)

    def append_fitting(self, entry: Entry) -> None:
        """Append an entry that was just checked."""
        self._entries.append(entry)
        self.tail.advance(entry)
        if entry.kind != Kind.SERVICE:
            self.pressing_index = entry.index
        if entry.kind == Kind.VIEW and self.tail.view is not None:
            self._views.append((entry.index, self.tail.view))

    def commit_to(self, index: int) -> None:
        assert index <= self.last, "only what is in the log can be committed"
        self.commit = max(self.commit, index)

    def truncate(self, first: int) -> None:
        """Truncate everything from index `first` on: another leader has replaced it."""
        assert first > self.commit, f"entry {first} is committed (up to {self.commit})"
        del self._entries[first - self.ground.index - 1 :]
        while self._views and self._views[-1][0] >= first:
            self._views.pop()
        self.cut_at = min(first, self.cut_at or first)
        self.tail = self.ground.copy()
        for entry in self._entries:
            self.tail.advance(entry)

    def trim(self, upto: int) -> None:
        """Remove entries up to index `upto`: they are no longer requested."""
        assert upto <= self.commit, "only what is committed can be forgotten"
        count = upto - self.ground.index
        if count <= 0:
            return
        for entry in self._entries[:count]:
            self.ground.advance(entry)
        del self._entries[:count]
        while self._views and self._views[0][0] <= upto:
            del self._views[0]

    def restart_empty(self) -> None:
        """Discard this log."""
        self._entries.clear()
        self._views.clear()
        self.ground, self.tail = Cursor(), Cursor()
        self.commit = 0
        self.cut_at = 1

    def cursor_at(self, index: int) -> Cursor:
        """The cursor at `index`."""
        cursor = self.ground.copy()
        for entry in self._entries[: index - self.ground.index]:
            cursor.advance(entry)
        return cursor

    def restart(self, ground: Cursor) -> bool:
        """Continue from a snapshot of another replica; True if nothing of this log is left.

        Entries above the snapshot are kept if they follow from it: they were acknowledged. If they do not, they were
        never committed.
        """
        if ground.index >= self.ground.index and self.term_at(ground.index) == ground.term:
            self.commit = max(self.commit, ground.index)
            self.trim(ground.index)
            return False
        self._entries.clear()
        self._views.clear()
        self.ground = ground.copy()
        self.tail = ground.copy()
        self.commit = ground.index
        return True
