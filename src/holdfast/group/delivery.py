"""Committed entries to the application, in order, never more outstanding than it may have."""

from __future__ import annotations

from collections import deque

from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.log import Cursor, Log
from holdfast.group.ports import APPLY_MAX, Apply, Batch
from holdfast.group.streams import Streams
from holdfast.machine import Outbox
from holdfast.telemetry.facts import DeliveryFact
from holdfast.types import Nanos
from holdfast.wire.frames import StreamId


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
        self._out: deque[tuple[int, int]] = deque()
        """What the application has not processed yet: (index, bytes)."""
        self.at = Cursor()
        """How far entries have been handed out."""
        self.digest = 0
        self.applied = 0
        self.outstanding = 0
        self.suspended = ""
        """Why nothing is handed out any more; empty while all is well."""
        self.failed = 0
        """The entry at which the application failed; 0 while it works."""
        self.paused = False
        """A state is being put in: the application must not see anything else."""

    def hand_out(self, now: Nanos, out: Outbox) -> None:
        """Hand over what is committed (in `fast` groups what is in the log), as much as may be outstanding."""
        log = self._log
        limit = log.last if self._fast else log.commit
        while self.at.index < limit and self.outstanding < APPLY_MAX and not self.paused:
            entry = log.entry(self.at.index + 1)
            if entry.stream is not None:
                stream = self._streams.streams[entry.stream]
                messages, size, self.digest = stream.read(entry.first, entry.last, self.digest)
                if not self.suspended:
                    batch = Batch(entry.position, stream.id, entry.first, messages)
                    effect = Apply(self._unit, entry.index, entry.log_ns, batch, size)
                    # Its own write may not be done: after a crash it begins again from a state.
                    out.effect(effect, immediate=True)
                    self._out.append((entry.index, size))
                    self.outstanding += size
                    out.fact(
                        DeliveryFact(
                            now, self._group, entry.term, entry.index, entry.position, stream.label,
                            entry.first, entry.last, self.digest,
                        )
                    )  # fmt: skip
            self.at.advance(entry)
        self._settle()

    def done(self, index: int) -> None:
        """The application has processed everything up to `index`."""
        if index > self.at.index:
            return
        while self._out and self._out[0][0] <= index:
            self.outstanding -= self._out.popleft()[1]
        self._settle()

    def _settle(self) -> None:
        """Entries without messages are applied as soon as those before them are."""
        self.applied = self._out[0][0] - 1 if self._out else self.at.index

    def suspend(self, why: str, failed: int = 0) -> None:
        self.suspended = why
        self.failed = failed
        self._out.clear()
        self.outstanding = 0

    def undo(self, why: str, at: Cursor) -> dict[StreamId, int]:
        """What was delivered above `at` is not in the order. The application's state is worth nothing any more; how
        far it had come in each stream."""
        delivered = dict(self.at.next)
        self.suspend(why)
        self.at = at.copy()
        self.applied = at.index
        return delivered

    def restart(self, at: Cursor, digest: int) -> None:
        """Go on after a state that was put in."""
        self.at = at.copy()
        self.digest = digest
        self._out.clear()
        self.outstanding = 0
        self.suspended = ""
        self.failed = 0
        self.paused = False
        self.applied = at.index
