"""Committed entries to the application, in order, never more outstanding than it may have."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.entries import Decided, Ignoring, Resumed, decode_data
from holdfast.group.keeping import Kept, Pace
from holdfast.group.log import Cursor, Kind, Log
from holdfast.group.ports import APPLY_MAX, Apply, Batch, Decision, Output, Tell
from holdfast.group.streams import Run, Streams, label_of
from holdfast.machine import Outbox
from holdfast.telemetry.facts import DeliveryFact
from holdfast.types import Nanos
from holdfast.wire.frames import Entry, StreamId

DIGEST_MAX: Final = (1 << 32) - 1
DECISIONS_KEPT: Final = 32
TOLD: Final = (Kind.SKIP, Kind.IGNORE, Kind.RESUME, Kind.DECISION)
"""Kinds that applications are told about."""


class Delivery:
    """Hands entries out and keeps count of what has come back.

    A suspended replica hands nothing out, but goes on through the order, so that it holds nobody back and its memory
    stays bounded. Its application has to be given a state before it can be of use again.
    """

    def __init__(self, config: GroupConfig, log: Log, streams: Streams) -> None:
        self._group = config.name
        self._fast = config.delivery == "fast"
        self._unit = replica_unit(config.name)
        self._log = log
        self._streams = streams
        self.kept = Kept(config.output_bytes)
        """What the application has said to destinations that may not have it yet."""
        self.pace = Pace(config.output_bytes)
        self._out: deque[tuple[int, int, int]] = deque()
        """What the application has not processed yet: (index, bytes, messages)."""
        self._messages = 0
        """How many messages that is."""
        self.at = Cursor()
        """How far entries have been handed out."""
        self._looked = 0
        """Up to here it was looked for outputs that have arrived."""
        self.digest = 0
        self.applied = 0
        self.outstanding = 0
        self.suspended = ""
        """Why nothing is handed out any more; empty while all is well."""
        self.failed = 0
        """The entry at which the application failed; 0 while it works."""
        self.paused = False
        """A state is being put in: the application must not see anything else."""
        self._given_up = -1
        """Where the application stood when this replica gave up waiting for it."""
        self.decisions: deque[dict[str, object]] = deque(maxlen=DECISIONS_KEPT)
        """The last answers about lost messages that came by in the order, for people."""
        self.skipped: Counter[str] = Counter()
        """Messages that nobody delivers, by why."""

    def hand_out(self, now: Nanos, out: Outbox) -> None:
        """Hand over what is committed (in `fast` groups what is in the log), as much as may be outstanding: bounded
        by its size, and by the room for what the application may say about it."""
        log, at = self._log, self.at
        limit = log.last if self._fast and self._may_run_ahead() else log.commit
        if at.index >= limit:
            return
        if self.kept.full:
            self._look_ahead()
        allowed = self.pace.allowed(self.kept.room)
        while at.index < limit and self.outstanding < APPLY_MAX:
            if self.paused or self.kept.full or self._messages >= allowed:
                break
            entry = log.entry(at.index + 1)
            if entry.kind != Kind.ORDER:
                self._tell(entry, out)
            elif entry.stream is not None:
                stream = self._streams.streams[entry.stream]
                messages, runs = stream.read(entry.first, entry.last)
                self.digest = digest_after(self.digest, runs, entry.position)
                if not self.suspended:
                    size = sum([len(content) for _, content in runs])
                    batch = Batch(entry.position, stream.id, entry.first, messages)
                    effect = Apply(self._unit, entry.index, entry.log_ns, batch, size)
                    # Its own write may not be done: after a crash it begins again from a state.
                    out.effect(effect, immediate=True)
                    self._out.append((entry.index, size, len(messages)))
                    self.outstanding += size
                    self._messages += len(messages)
                    out.fact(
                        DeliveryFact(
                            now, self._group, entry.term, entry.index, entry.position, stream.label,
                            entry.first, entry.last, self.digest,
                        )
                    )  # fmt: skip
            at.advance(entry)
        self._settle()

    def _look_ahead(self) -> None:
        """That outputs have arrived stands in the order behind what waits for room: to wait for that were for ever."""
        begin = max(self._looked, self.at.index) + 1
        for entry in self._log.entries(begin, self._log.commit + 1 - begin):
            if entry.kind == Kind.OUTPUTS:
                marked = decode_data(entry)
                self.kept.mark(marked.destination, (marked.position, marked.k))
        self._looked = max(self._looked, self._log.commit)

    def _may_run_ahead(self) -> bool:
        """Not while a member awaits a state: what is left of states must not be risked, or in the end nobody has one.
        And not where there is none: to pass what is not decided only makes more states useless."""
        if self.suspended:
            return False
        view = self._log.tail.view
        return view is None or not any(m.suspended or m.promote for m in view.members)

    def _tell(self, entry: Entry, out: Outbox) -> None:
        """What was decided about messages that nobody delivers."""
        if entry.kind == Kind.CLOSE:
            closed = decode_data(entry)
            stream = self._streams.get(closed.stream)
            if stream is not None:
                stream.drop_from(closed.last + 1)
        elif entry.kind == Kind.OUTPUTS:
            marked = decode_data(entry)
            self.kept.mark(marked.destination, (marked.position, marked.k))
        elif entry.kind == Kind.SKIP:
            self.skipped[decode_data(entry).why] += entry.last - entry.first + 1
        elif entry.kind == Kind.DECISION:
            self.decisions.append(_for_people(entry.index, decode_data(entry)))
        if entry.kind in TOLD and not self.suspended:
            decision = _decision(entry)
            # In its place among the batches, which do not wait for writes either.
            out.effect(Tell(self._unit, entry.index, entry.log_ns, decision), immediate=True)

    def done(self, index: int, outputs: tuple[Output, ...] = ()) -> None:
        """The application has processed everything up to `index`, and has said `outputs` on the way."""
        if index > self.at.index:
            return
        if outputs:
            self.kept.take(outputs, self.at.rulings)
        before = self._messages
        while self._out and self._out[0][0] <= index:
            _, size, messages = self._out.popleft()
            self.outstanding -= size
            self._messages -= messages
        self.pace.note(before - self._messages, outputs)
        self._settle()

    def _settle(self) -> None:
        """Entries without messages are applied as soon as those before them are."""
        self.applied = self._out[0][0] - 1 if self._out else self.at.index

    def give_up(self) -> None:
        """The application hangs. Until it moves, others are told not to wait for it."""
        self._given_up = self.applied

    @property
    def trouble(self) -> str:
        """Why this replica should be left behind; empty while all is well."""
        return self.suspended or ("its application hangs" if self._given_up == self.applied else "")

    def suspend(self, why: str, failed: int = 0) -> None:
        self.suspended = why
        self.failed = failed
        self._out.clear()
        self.outstanding = self._messages = 0
        self._settle()  # Nobody is to wait for what it had before.

    def undo(self, why: str, at: Cursor) -> dict[StreamId, int]:
        """What was delivered above `at` is not in the order. The application's state is worth nothing any more; how
        far it had come in each stream."""
        delivered = dict(self.at.next)
        self.suspend(why)
        self.at = at.copy()
        self.applied = self._looked = at.index
        return delivered

    def restart(self, at: Cursor, digest: int, outputs: tuple[Output, ...] = ()) -> None:
        """Go on after a state that was put in."""
        self.kept.restart(outputs, at.rulings)
        self.at = at.copy()
        self.digest = digest
        self._out.clear()
        self.outstanding = self._messages = 0
        self.suspended = ""
        self.failed = 0
        self._given_up = -1
        self.paused = False
        self.applied = self._looked = at.index


def _for_people(index: int, decided: Decided) -> dict[str, object]:
    return {
        "index": index,
        "stream": label_of(decided.stream),
        "first": decided.lost[0][0] if decided.lost else 0,
        "lost": sum(last - first + 1 for first, last in decided.lost),
        "attempt": decided.attempt,
        "leader": decided.leader,
        "by": decided.by,
        "action": decided.action,
    }


def _decision(entry: Entry) -> Decision:
    """An entry as an application is told it."""
    data = decode_data(entry)
    stream, first, last = entry.stream, entry.first, entry.last
    if isinstance(data, Decided):
        stream = data.stream
        first, last = (data.lost[0][0], data.lost[-1][1]) if data.lost else (0, 0)
        text = f"{data.action} ({data.by}, {data.leader})"
    elif isinstance(data, Ignoring):
        text = data.criterion.text()
    elif isinstance(data, Resumed):
        text = f"criterion {data.criterion} ends: {data.why}"
    else:
        text = data.why
    return Decision(entry.index, Kind(entry.kind).name.lower(), stream, first, last, text)


def digest_after(digest: int, runs: list[Run], position: int) -> int:
    """The digest after the messages of one more entry: a hash of their lengths and one of their bytes, both seeded by
    their position, are added. Entries are the same everywhere, so it does not matter in what blocks messages came, and
    it matters which message is where."""
    if len(runs) == 1:
        lengths, content = runs[0]
        more = xxh3_64_intdigest(lengths, position) + xxh3_64_intdigest(content, position)
    else:
        hashes = xxh3_64(seed=position), xxh3_64(seed=position)
        for lengths, content in runs:
            hashes[0].update(lengths)
            hashes[1].update(content)
        more = hashes[0].intdigest() + hashes[1].intdigest()
    return digest + more & DIGEST_MAX
