"""Log agreement: one committed log, no leader without it, and one leader per term."""

from __future__ import annotations

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.replicated_log import Kind, Log
from holdfast.group.ports import Apply
from holdfast.sim.checkers.sight import Sight, Violation

_RANGES = (Kind.ORDER, Kind.SKIP)


class Agreement:
    """For one group epoch: the committed log, as first reported."""

    def __init__(self) -> None:
        self.committed: dict[int, Entry] = {}
        self.top = 0
        self._tops: dict[int, int] = {}
        """Per term: how far its leader has committed."""
        self._leaders: dict[int, tuple[str, int]] = {}
        self._next: dict[StreamId, int] = {}
        """The next number of each stream, as far as entries were seen without a gap."""
        self._position = 1
        """The next position."""
        self._unseen: dict[StreamId, int] = {}
        """Numbers that were skipped by entries that were not seen."""
        self._undecided: dict[int, Entry] = {}
        """Uncommitted entries of a replica that commits alone: a `fast` application may have applied them by then."""
        self._noted = 0
        self._read: dict[tuple[str, int], int] = {}
        """Per process: up to where its committed entries were compared."""
        self._led: dict[tuple[str, int], int] = {}
        """Per process: the last term in which it was seen to lead."""

    def see(self, sight: Sight) -> None:
        if sight.leading and self._led.get(sight.life) != sight.term:
            self._leads(sight)
        if sight.log.commit > self._read.get(sight.life, 0):
            self._compare(sight)
        view = sight.log.tail.view
        if view is not None and len(view.voters) == 1:
            self._note_undecided(sight.log)

    def _note_undecided(self, log: Log) -> None:
        first = max(log.commit, log.ground.index, self._noted) + 1
        if log.last < self._noted:
            first, self._undecided = max(log.commit, log.ground.index) + 1, {}
        for entry in log.entries(first, log.last):
            self._undecided[entry.index] = entry
        self._noted = log.last

    # -- leaders -------------------------------------------------------------------------------------------------

    def see_leader(self, sight: Sight) -> None:
        """A term has one leader, in every mode."""
        self._led[sight.life] = sight.term
        other = self._leaders.setdefault(sight.term, sight.life)
        if other != sight.life:
            raise Violation(
                "one leader in a term",
                f"{sight.group}: {sight.host} leads term {sight.term}, and so did {other[0]} "
                f"(its process {other[1]})",
            )

    def _leads(self, sight: Sight) -> None:
        """A term starts: it has one leader, and nothing committed in an earlier term is missing."""
        self.see_leader(sight)
        needed = max((top for term, top in self._tops.items() if term < sight.term), default=0)
        log = sight.log
        if log.last < needed:
            self._lacks(sight, log.last + 1, needed)
        first = log.ground.index + 1
        for entry in log.entries(first, needed - first + 1) if needed >= first else ():
            known = self.committed.get(entry.index)
            if known is not None and known != entry:
                self._lacks(sight, entry.index, needed)

    def _lacks(self, sight: Sight, index: int, needed: int) -> None:
        raise Violation(
            "a leader has everything that was delivered",
            f"{sight.group}: {sight.host} leads term {sight.term} without entry {index}; "
            f"earlier terms committed up to {needed}",
        )

    # -- the committed log ---------------------------------------------------------------------------------------

    def _compare(self, sight: Sight) -> None:
        log = sight.log
        commit = min(log.commit, log.last)
        self._check_ground(sight)
        if log.ground.index > self.top:
            self._leap(sight)
        first = max(self._read.get(sight.life, 0), log.ground.index) + 1
        for entry in log.entries(first, commit - first + 1) if commit >= first else ():
            known = self.committed.get(entry.index)
            if known is None:
                self._enter(sight, entry)
            elif known != entry:
                raise Violation(
                    "replicas commit one log",
                    f"{sight.group}: entry {entry.index} is {_text(entry)} on {sight.host}, "
                    f"elsewhere {_text(known)}",
                )
        self._read[sight.life] = commit
        self.top = max(self.top, commit)
        if sight.leading:
            self._tops[sight.term] = max(commit, self._tops.get(sight.term, 0))

    def _check_ground(self, sight: Sight) -> None:
        """The freed or restored part of a log must end at a position of the committed log."""
        ground = sight.log.ground
        known = self.committed.get(ground.index)
        if known is not None and (known.term != ground.term or _end(known) != ground.position):
            raise Violation(
                "replicas commit one log",
                f"{sight.group}: {sight.host} continues after entry {ground.index} of term {ground.term} at "
                f"position {ground.position}; elsewhere it is {_text(known)}",
            )

    def _leap(self, sight: Sight) -> None:
        """If one replica commits alone, entries can be committed and freed in one turn. Those created in it have no
        messages: they were not seen, but the cursor behind them shows what they skipped. An epoch that continues
        another one starts with such a cursor too."""
        ground = sight.log.ground
        for index in range(self.top + 1, ground.index + 1):
            if index in self._undecided:
                self._enter(sight, self._undecided[index])
        later = {index: e for index, e in self._undecided.items() if index > ground.index}
        self._undecided = later
        if self.top and ground.position != self._position:
            raise Violation(
                "replicas commit one log",
                f"{sight.group}: {sight.host} has freed messages up to position {ground.position} in the turn that "
                f"committed them; only those before {self._position} were seen",
            )
        for stream, following in ground.next.items():
            if self.top:
                count = following - self._next.get(stream, 1)
                self._unseen[stream] = self._unseen.get(stream, 0) + count
            self._next[stream] = following
        self._position = ground.position

    def _enter(self, sight: Sight, entry: Entry) -> None:
        self.committed[entry.index] = entry
        self._position = max(self._position, _end(entry))
        stream = entry.stream
        if stream is None or entry.kind not in _RANGES:
            return
        expected = self._next.get(stream)
        if expected is not None and entry.first != expected:
            raise Violation(
                "every number is covered once",
                f"{sight.group}: entry {entry.index} of {sight.host} covers {entry.first} to {entry.last} "
                f"of a stream that continues with {expected}",
            )
        self._next[stream] = entry.last + 1

    # -- deliveries ----------------------------------------------------------------------------------------------

    def delivers(self, host: str, effect: Apply) -> None:
        """`safe`: only committed entries are delivered, as the log has them; skipped numbers are not delivered."""
        batch = effect.batch
        entry = self.committed.get(effect.index)
        if entry is None:
            raise Violation(
                "nothing is delivered that is not committed",
                f"{effect.unit} on {host} delivers entry {effect.index}; committed is {self.top}",
            )
        last = batch.first + len(batch.messages) - 1
        given = (Kind.ORDER, entry.stream, entry.first, entry.last, entry.position)
        if given != (entry.kind, batch.stream, batch.first, last, batch.position):
            raise Violation(
                "deliveries match the log",
                f"{effect.unit} on {host} delivers {batch.first} to {last} at position {batch.position} "
                f"for entry {effect.index}, which is {_text(entry)}",
            )

    def skipped(self) -> dict[StreamId, int]:
        """How many messages of each stream are not delivered."""
        counts = dict(self._unseen)
        for entry in self.committed.values():
            if entry.kind == Kind.SKIP and entry.stream is not None:
                count = entry.last - entry.first + 1
                counts[entry.stream] = counts.get(entry.stream, 0) + count
        return counts


def _end(entry: Entry) -> int:
    """The position after an entry."""
    messages = entry.last - entry.first + 1 if entry.kind == Kind.ORDER else 0
    return entry.position + messages


def _text(entry: Entry) -> str:
    kind = Kind(entry.kind).name.lower() if entry.kind in Kind.__members__.values() else entry.kind
    where = f"term {entry.term}, position {entry.position}"
    if entry.stream is None:
        return f"{kind} ({where})"
    return f"{kind} {entry.first} to {entry.last} of {entry.stream.source.hex()[:8]} ({where})"
