"""Entries of the leader wait until their messages are here, then they are appended.

To append is to acknowledge, and to acknowledge is to claim in a later election. So an entry enters the log only when
every message in it is held; until then it waits outside, and a new term discards what waits (DESIGN, Groups, rule 1).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.group.entries import decode_data
from holdfast.group.log import Kind, Log, is_sound
from holdfast.group.streams import Streams
from holdfast.wire.frames import Append, Entry

WAITING_MAX: Final = 8192
"""Entries that may wait; the leader sends again what finds no room."""


class Waiting:
    """Takes the leader's entries in, as far as they follow from what is here."""

    __slots__ = (
        "_binding", "_lacks", "_log", "_streams", "broken", "diverged", "entries", "hint", "leader_commit", "verified",
    )  # fmt: skip

    def __init__(self, log: Log, streams: Streams, binding: bool = True) -> None:
        """`binding`: what is committed is in the log of every later leader; in `availability` groups it may not be."""
        self._binding = binding
        self.diverged = False
        """The leader's log is otherwise where ours is committed: another side of a cut has won."""
        self._log = log
        self._streams = streams
        self.entries: deque[Entry] = deque()
        """The entries that follow the log's last."""
        self.verified = 0
        """Up to this index our entries are the leader's. Above may be what an earlier leader left."""
        self.leader_commit = 0
        self.hint = 0
        """Where the leader should go on, after `take` has said no."""
        self.broken = 0
        """Frames that no leader in its right mind sends."""
        self._lacks = 0
        """The entry whose messages are not here, as was seen last."""

    @property
    def end(self) -> int:
        return self._log.tail.index + len(self.entries)

    @property
    def match(self) -> int:
        """What can be acknowledged."""
        return min(self._log.tail.index, self.verified)

    def new_term(self) -> None:
        """Another term: nothing is verified but what is committed, and what waits may never have been decided."""
        self.entries.clear()
        self._lacks = 0
        self.verified = self._log.commit if self._binding else 0
        self.leader_commit = self._log.commit

    def restart(self) -> None:
        """The log goes on from a state that was taken in. Where sides of a cut decide for themselves, it may be one of
        a side that has lost: whoever gave it need not have heard of that."""
        self.new_term()
        if self._binding:
            self.verified = max(self.verified, self._log.ground.index)

    def take(self, frame: Append) -> bool:
        """Take entries in; False when they do not follow from what is here, then `hint` says from where they would."""
        prev = frame.prev_index
        if not self._is_sound(frame):
            self.broken += 1
            self.hint = self._log.commit
            return False
        if prev > self.end:
            self.hint = self.end
            return False
        if not self._binding and not self.verified and prev < self._log.ground.index:
            # The leader's log ends below what was decided and forgotten here.
            self._conflict(prev)
        known = self._term_at(prev)
        if known is not None and known != frame.prev_term:
            self._conflict(prev)
            if prev > self._log.commit:
                # The leader's log may not go back to where ours parts from it: only a state helps then.
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
        if len(self.entries) >= WAITING_MAX:
            return False
        self.entries.append(entry)
        return True

    def _conflict(self, index: int) -> None:
        if index <= self._log.commit:
            self.broken += self._binding
            self.diverged = not self._binding

    def _term_at(self, index: int) -> int | None:
        at = index - self._log.tail.index - 1
        if at >= 0:
            return self.entries[at].term if at < len(self.entries) else None
        return self._log.term_at(index)

    def _cut(self, index: int) -> None:
        """Our entries from `index` on are not the leader's."""
        if index <= self._log.last:
            passed = self._log.tail.next
            self._log.truncate(index)
            self.entries.clear()
            # What the order had passed, or skipped, is missing again: a gap that nobody else would see.
            for stream, number in passed.items():
                if self._log.tail.next.get(stream) != number:
                    self._streams.look_at(stream)
        while self.entries and self.entries[-1].index >= index:
            self.entries.pop()

    def settle(self) -> None:
        """Append what waits and is whole now, and commit as far as the leader says."""
        entries, log = self.entries, self._log
        while entries:
            entry = entries[0]
            if not log.tail.fits(entry):
                self.broken += 1
                entries.clear()
                self.verified = min(self.verified, log.last)
                break
            stream = entry.stream if entry.kind == Kind.ORDER else None
            if stream is not None and not self._streams.holds(stream, entry.first, entry.last):
                if entry.index != self._lacks:
                    # It may have been let go of, or skipped, in an order that was cut off: a gap that nobody has seen.
                    self._lacks = entry.index
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
        """The order may begin the stream below what is held of it: that is a gap."""
        self._streams.look_at(decode_data(entry).stream)
