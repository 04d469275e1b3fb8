"""Entries of the leader wait until their messages have arrived, then they are appended.

Appending is acknowledging, and acknowledging is claiming in a later election. An entry therefore enters the log only
when every message in it is held. Until then it waits outside, and a new term discards it (rule 1 in
docs/design/groups.md).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.group.frames import Append, Entry
from holdfast.group.log.entries import decode_data
from holdfast.group.log.replicated_log import Kind, Log, is_sound
from holdfast.group.streams.stream_buffer import Streams

PENDING_MAX: Final = 8192
"""The maximum number of pending entries; the leader resends what finds no room."""


class PendingEntries:
    """Accepts entries of the leader, as far as they follow from what is here."""

    __slots__ = (
        "_binding", "_lacks", "_log", "_streams", "broken", "diverged", "entries", "hint", "leader_commit", "verified",
    )  # fmt: skip

    def __init__(self, log: Log, streams: Streams, binding: bool = True) -> None:
        """`binding`: committed entries are in the log of every later leader; not so in `availability` groups."""
        self._binding = binding
        self.diverged = False
        """The log of the leader differs where ours is committed: another side of a partition has won."""
        self._log = log
        self._streams = streams
        self.entries: deque[Entry] = deque()
        """The entries that follow the last one of the log."""
        self.verified = 0
        """Up to this index our entries are those of the leader. Above may be remains of an earlier leader."""
        self.leader_commit = 0
        self.hint = 0
        """Where the leader should continue, after `take` returned False."""
        self.broken = 0
        """Frames that no correct leader sends."""
        self._lacks = 0
        """The entry whose messages are missing, at the last check."""

    @property
    def end(self) -> int:
        return self._log.tail.index + len(self.entries)

    @property
    def match(self) -> int:
        """The index that can be acknowledged."""
        return min(self._log.tail.index, self.verified)

    def new_term(self) -> None:
        """Another term: only committed entries are verified, and pending ones may never have been committed."""
        # rule: 1c
        self.entries.clear()
        self._lacks = 0
        self.verified = self._log.commit if self._binding else 0
        self.leader_commit = self._log.commit

    def restart(self) -> None:
        """The log continues from an installed snapshot. If sides of a partition commit separately, it may be one of the
        losing side, whose provider may not know that yet."""
        self.new_term()
        # rule: 11f
        if self._binding:
            self.verified = max(self.verified, self._log.ground.index)

    def take(self, frame: Append) -> bool:
        """Accept entries; False if they do not follow from what is here, and `hint` is where they would."""
        prev = frame.prev_index
        if not self._is_sound(frame):
            self.broken += 1
            self.hint = self._log.commit
            return False
        if prev > self.end:
            self.hint = self.end
            return False
        if not self._binding and not self.verified and prev < self._log.ground.index:
            # The log of the leader ends below what was committed and freed here.
            self._conflict(prev)
        known = self._term_at(prev)
        if known is not None and known != frame.prev_term:
            self._conflict(prev)
            if prev > self._log.commit:
                # The leader's log may not reach back to where ours diverges: then a snapshot is needed.
                # rule: 1h
                self._cut(prev)
            self.hint = self._log.commit
            return False
        taken = prev
        for entry in frame.entries:
            if not self._take_one(entry):
                break
            taken = entry.index
        if taken > self.verified:
            self.verified = taken
        if frame.commit > self.leader_commit:
            self.leader_commit = frame.commit
        return True

    def _is_sound(self, frame: Append) -> bool:
        index, term = frame.prev_index, frame.prev_term
        if index < 0 or term < 0:
            return False
        for entry in frame.entries:
            index += 1
            if entry.index != index or not term <= entry.term <= frame.term or not is_sound(entry):
                return False
            term = entry.term
        return True

    def _take_one(self, entry: Entry) -> bool:
        index = entry.index
        if index <= self._log.ground.index:
            return True
        known = self._term_at(index) if index <= self._log.tail.index + len(self.entries) else None
        if known == entry.term:
            return True
        if known is not None:
            if index <= self._log.commit:
                self._conflict(index)
                return False
            self._cut(index)
        if len(self.entries) >= PENDING_MAX:
            return False
        self.entries.append(entry)
        return True

    def _conflict(self, index: int) -> None:
        if index <= self._log.commit:
            self.broken += self._binding
            # rule: 11k
            self.diverged = not self._binding

    def _term_at(self, index: int) -> int | None:
        at = index - self._log.tail.index - 1
        if at >= 0:
            return self.entries[at].term if at < len(self.entries) else None
        return self._log.term_at(index)

    def _cut(self, index: int) -> None:
        """Our entries from `index` on are not those of the leader."""
        if index <= self._log.last:
            passed = self._log.tail.next
            self._log.truncate(index)
            self.entries.clear()
            # What the order had passed or skipped is missing again: a gap that is not detected otherwise.
            for stream, number in passed.items():
                # rule: 1e
                if self._log.tail.next.get(stream) != number:
                    self._streams.look_at(stream)
        while self.entries and self.entries[-1].index >= index:
            self.entries.pop()

    def settle(self) -> None:
        """Append complete pending entries, and commit up to the commit index of the leader."""
        entries, log = self.entries, self._log
        while entries:
            entry = entries[0]
            if not log.tail.fits(entry):
                self.broken += 1
                entries.clear()
                self.verified = min(self.verified, log.last)
                break
            stream = entry.stream if entry.kind == Kind.ORDER else None
            # rule: 1b
            if stream is not None and not self._streams.holds(stream, entry.first, entry.last):
                if entry.index != self._lacks:
                    # It may have been freed or skipped in an order that was truncated: an undetected gap.
                    self._lacks = entry.index
                    # rule: 1d
                    self._streams.look_at(stream)
                break
            log.append_fitting(entries.popleft())
            if entry.kind == Kind.OPEN:
                self._opened(entry)
        if self.leader_commit > log.commit:
            decided = min(self.leader_commit, self.match)
            if decided > log.commit:
                log.commit_to(decided)

    def _opened(self, entry: Entry) -> None:
        """The order may start the stream below what is held of it: that is a gap."""
        self._streams.look_at(decode_data(entry).stream)
