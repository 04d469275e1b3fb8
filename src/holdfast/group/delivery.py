"""Delivers committed entries to the application, in order and with bounded outstanding work."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.entries import Decided, Ignoring, Resumed, decode_data
from holdfast.group.log.replicated_log import Cursor, Kind, Log
from holdfast.group.outputs.output_buffer import ApplyWindow, OutputBuffer
from holdfast.group.ports import Apply, Batch, Decision, Output, Tell
from holdfast.group.streams.stream_buffer import Run, Streams, label_of
from holdfast.machine import Outbox
from holdfast.telemetry.facts import DeliveryFact, MessageFact
from holdfast.types import Nanos

DIGEST_MAX: Final = (1 << 32) - 1
DECISIONS_KEPT: Final = 32
TOLD: Final = (Kind.SKIP, Kind.IGNORE, Kind.RESUME, Kind.DECISION)
"""Kinds that are passed to applications."""


class Delivery:
    """Passes entries on and tracks what was processed.

    A suspended replica delivers nothing but follows the order, so that it does not block others and its memory stays
    bounded. Its application needs a snapshot before it can continue.
    """

    def __init__(
        self, config: GroupConfig, log: Log, streams: Streams, zones: tuple[str, ...] = ()
    ) -> None:
        self._zones = zones
        """The zones whose messages are delivered here."""
        self._group = config.name
        self._fast = config.delivery == "fast"
        self._unit = replica_unit(config.name)
        self._log = log
        self._streams = streams
        self._apply_bytes = config.apply_bytes
        self._trace = config.trace
        self.output_buffer = OutputBuffer(config.output_bytes)
        """Outputs of the application that their destinations may not have yet."""
        self.apply_window = ApplyWindow(config.output_bytes, config.first_messages)
        self._out: deque[tuple[int, int, int]] = deque()
        """Entries that the application has not processed yet: (index, bytes, messages)."""
        self._messages = 0
        """The number of messages in `_out`."""
        self.at = Cursor()
        """The cursor after the last delivered entry."""
        self._looked = 0
        """Up to here the log was checked for arrived outputs."""
        self.digest = 0
        self.applied = 0
        self.outstanding = 0
        self.suspended = ""
        """Why delivery has stopped; empty while it has not."""
        self.failed = 0
        """The entry at which the application failed; 0 while it works."""
        self.paused = False
        """A snapshot is being restored: the application must not receive anything else."""
        self._given_up = -1
        """The progress of the application when this replica gave up waiting for it."""
        self.decisions: deque[dict[str, object]] = deque(maxlen=DECISIONS_KEPT)
        """The last decisions about lost messages, for display."""
        self.skipped: Counter[str] = Counter()
        """Messages that are not delivered, by reason."""

    def hand_out(self, now: Nanos, out: Outbox) -> None:
        """Deliver what is committed (in `fast` groups what is in the log), bounded by the outstanding size and by the
        room for outputs of the application."""
        log, at = self._log, self.at
        # rule: 3a
        limit = log.last if self._fast and self._may_run_ahead() else log.commit
        if at.index >= limit:
            return
        if self.output_buffer.full:
            # rule: 10d
            self._look_ahead()
        allowed = self.apply_window.allowed(self.output_buffer.room)
        # rule: 9c
        while at.index < limit and self.outstanding < self._apply_bytes:
            if self.paused or self.output_buffer.full or self._messages >= allowed:
                break
            entry = log.entry(at.index + 1)
            if entry.kind != Kind.ORDER:
                self._tell(entry, out)
            elif entry.stream is not None:
                stream = self._streams.streams[entry.stream]
                messages, runs = stream.read(entry.first, entry.last)
                self.digest = digest_after(self.digest, runs, entry.position)
                if not self.suspended and self._is_for_us(entry):
                    size = sum([len(content) for _, content in runs])
                    batch = Batch(entry.position, stream.id, entry.first, messages)
                    services = at.metadata.services
                    locks = services.tokens if services.locks else None
                    effect = Apply(self._unit, entry.index, entry.log_ns, batch, size, locks)
                    # Its own write may not be done: after a crash it starts from a snapshot.
                    out.effect(effect, immediate=True)
                    self._out.append((entry.index, size, len(messages)))
                    self.outstanding += size
                    self._messages += len(messages)
                    out.fact(
                        DeliveryFact(
                            now, self._group, entry.term, entry.index, entry.position, stream.label,
                            entry.first, entry.last, self.digest, log.epoch,
                        )
                    )  # fmt: skip
                    if self._trace:
                        self._trace_messages(now, entry, stream.label, messages, out)
            at.advance(entry)
        self._settle()

    def _trace_messages(
        self, now: Nanos, entry: Entry, label: str, messages: list[memoryview], out: Outbox
    ) -> None:
        """A fact for each message of an entry."""
        for k, message in enumerate(messages):
            position = entry.position + k
            digest = xxh3_64_intdigest(message, position) & DIGEST_MAX
            out.fact(
                MessageFact(
                    now, self._group, entry.index, position, label, entry.first + k, len(message),
                    digest, self._log.epoch,
                )
            )  # fmt: skip

    def _is_for_us(self, entry: Entry) -> bool:
        """Whether the application receives the messages of an entry: a zone filters delivery only."""
        if not entry.data:
            return True
        zone = decode_data(entry).zone
        # rule: S-14c
        return not zone or zone in self._zones

    def _look_ahead(self) -> None:
        """The acknowledgement of outputs is queued behind the blocked entry; waiting for it would deadlock."""
        begin = max(self._looked, self.at.index) + 1
        for entry in self._log.entries(begin, self._log.commit + 1 - begin):
            if entry.kind == Kind.OUTPUTS:
                marked = decode_data(entry)
                self.output_buffer.mark(marked.destination, (marked.position, marked.k))
        self._looked = max(self._looked, self._log.commit)

    def _may_run_ahead(self) -> bool:
        """Not while a member waits for a snapshot: the remaining states must not be put at risk. And not without a
        state: passing uncommitted entries only invalidates more states."""
        if self.suspended:
            return False
        view = self._log.tail.view
        # rule: 11n
        return view is None or not any(m.suspended or m.promote for m in view.members)

    def _tell(self, entry: Entry, out: Outbox) -> None:
        """A decision about messages that are not delivered."""
        if entry.kind == Kind.CLOSE:
            closed = decode_data(entry)
            stream = self._streams.get(closed.stream)
            if stream is not None:
                stream.drop_from(closed.last + 1)
        elif entry.kind == Kind.OUTPUTS:
            marked = decode_data(entry)
            self.output_buffer.mark(marked.destination, (marked.position, marked.k))
        elif entry.kind == Kind.SKIP:
            self.skipped[decode_data(entry).why] += entry.last - entry.first + 1
        elif entry.kind == Kind.DECISION:
            self.decisions.append(_for_people(entry.index, decode_data(entry)))
        if entry.kind in TOLD and not self.suspended:
            decision = _decision(entry)
            # At its position among the batches, which do not wait for writes either.
            out.effect(Tell(self._unit, entry.index, entry.log_ns, decision), immediate=True)

    def done(self, index: int, outputs: tuple[Output, ...] = ()) -> None:
        """The application has processed everything up to `index`, and created `outputs`."""
        if index > self.at.index:
            return
        if outputs:
            self.output_buffer.take(outputs, self.at.metadata)
        before = self._messages
        while self._out and self._out[0][0] <= index:
            _, size, messages = self._out.popleft()
            self.outstanding -= size
            self._messages -= messages
        self.apply_window.note(before - self._messages, outputs)
        self._settle()

    def _settle(self) -> None:
        """Entries without messages are applied as soon as those before them are."""
        self.applied = self._out[0][0] - 1 if self._out else self.at.index

    def give_up(self) -> None:
        """The application hangs. Until it makes progress, the others do not wait for it."""
        self._given_up = self.applied

    @property
    def trouble(self) -> str:
        """Why this replica should be left behind; empty if it should not."""
        return self.suspended or ("its application hangs" if self._given_up == self.applied else "")

    def suspend(self, why: str, failed: int = 0) -> None:
        self.suspended = why
        self.failed = failed
        self._out.clear()
        self.outstanding = self._messages = 0
        self._settle()  # earlier work must not block others

    def undo(self, why: str, at: Cursor) -> dict[StreamId, int]:
        """Messages delivered after `at` are not in the order, so the state of the application is invalid. Returns its
        progress in each stream."""
        delivered = dict(self.at.next)
        self.suspend(why)
        self.at = at.copy()
        self.applied = self._looked = at.index
        return delivered

    def restart(self, at: Cursor, digest: int, outputs: tuple[Output, ...] = ()) -> None:
        """Continue after a restored snapshot."""
        self.output_buffer.restart(outputs, at.metadata)
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
    """An entry as passed to an application."""
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
    """The digest after the messages of one more entry: adds a hash of their lengths and one of their bytes, both seeded
    by their position. Entries are the same on all replicas, so it is independent of blocks and depends on the place of
    each message."""
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
