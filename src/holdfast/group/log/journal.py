"""The durable state of a replica: its term and vote, the entries of its log, their messages, and a snapshot.

Everything is written in the turn in which it changes: one row per block of messages and one for all entries of the
turn, in one commit. The turn holds acknowledgements and votes until then (`machine.turn`). The leader, which does not
acknowledge to itself, is informed by `Durable` when its own writes are done.

Rows are erased only below a complete snapshot on disk. Memory is freed by other rules, earlier.

    group/<name>/vote      one row: epoch, term, vote
    group/<name>/log       first index -> entries; a row replaces everything that earlier rows have from there on
    group/<name>/messages  stream and first number -> block
    group/<name>/state     index and part -> a part of a snapshot; one row states which snapshot is complete
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final

import msgspec

from holdfast.errors import StoreError
from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.core import Core
from holdfast.group.frames import Entry, MessageMetadata, Payload, StreamId
from holdfast.group.log.replicated_log import Cursor, Kind
from holdfast.group.log.values import Durable, StoredVote
from holdfast.group.streams.stream_buffer import is_sound_payload
from holdfast.group.transfer.checkpoint import Checkpoint, decode_checkpoint
from holdfast.machine import Erase, Outbox, Put

CHUNKS_PER_TURN: Final = 16
"""The batch of a snapshot that is written while the replica works: the rest follows when it is on disk."""
STREAMS_MAX: Final = 1 << 14

Rows = list[tuple[bytes, bytes]]

_INDEX: Final = Struct(">Q")
_PART: Final = Struct(">QI")
_STREAM: Final = Struct(">16sQQQ")
_BLOCK: Final = Struct("<QQI")
_END: Final = b"\xff" * 9
_WHOLE: Final = b"whole"
_VOTE: Final = b"vote"
_encode: Final = msgspec.msgpack.Encoder().encode
_entries: Final = msgspec.msgpack.Decoder(tuple[Entry, ...])


_about: Final = msgspec.msgpack.Decoder(MessageMetadata | None)
_vote: Final = msgspec.msgpack.Decoder(StoredVote)
_whole: Final = msgspec.msgpack.Decoder(tuple[int, int])


def tables(group: str) -> tuple[str, str, str, str]:
    """The tables of one group: vote, log, messages, state."""
    prefix = f"group/{group}/"
    return prefix + "vote", prefix + "log", prefix + "messages", prefix + "state"


class Journal:
    """Writes what has changed, once per turn."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._vote_table, self._log_table, self._message_table, self._state_table = tables(
            core.config.name
        )
        self._unit = replica_unit(core.config.name)
        self._vote = StoredVote()
        self._rows: list[int] = []
        """First indexes of the rows of the log."""
        self._logged = 0
        self._cuts = 0
        self._taken: list[Payload] = []
        self._streams: dict[StreamId, None] = {}
        """Streams that may have rows."""
        self._state: memoryview | None = None
        self._state_at = Cursor()
        self._next_part = 0
        self._waits = False
        self.bytes = 0
        """Bytes of messages written since the last snapshot."""
        self.durable = 0
        """Our own log up to here is on disk."""
        self.durable_term = 0
        self.state_index = 0
        """Where the log starts with the last complete snapshot on disk."""

    # -- changes -------------------------------------------------------------------------------------------------

    def taken(self, frame: Payload) -> None:
        """A block of messages is held now."""
        self._taken.append(frame)
        self.bytes += len(frame.block)

    @property
    def wants_state(self) -> bool:
        """Enough was written since the last snapshot for another one."""
        config, delivery = self._core.config, self._core.delivery
        much = self.bytes >= config.snapshot_bytes or len(self._rows) >= config.log_entries
        idle = self._state is None and not delivery.suspended and not delivery.paused
        return much and idle and delivery.at.index > self.state_index

    def keep_state(self, at: Cursor, checkpoint: memoryview) -> None:
        """Write a snapshot of our own application, piece by piece."""
        self._state, self._state_at, self._next_part = checkpoint, at, 0
        self.bytes = 0

    def begin_again(self, at: Cursor, checkpoint: memoryview, emptied: bool, out: Outbox) -> None:
        """The log continues after `at`, with a received snapshot. It is written at once, because what follows cannot be
        acknowledged before. `emptied`: nothing of our own log is left; it is behind the snapshot, or was never
        committed."""
        if at.index < self.state_index and not emptied:
            return  # a later snapshot of our own is on disk, and the log from there on
        self.keep_state(at, checkpoint)
        while self._state is not None:
            self._write_state(out)
        if emptied:
            out.write(Erase(self._log_table, b"", _END))
            self._rows = []
            self._logged = at.index
            self._cuts += 1
            self.durable = 0
            self._core.log.cut_at = 0

    def settle(self, out: Outbox) -> None:
        """Write the changes of this turn, and request a notice when they are on disk."""
        before = len(out.writes)
        self._write_vote(out)
        self._write_messages(out)
        self._write_log(out)
        if self._state is not None and not self._waits:
            self._waits = True
            for _ in range(CHUNKS_PER_TURN):
                if self._state is not None:
                    self._write_state(out)
        if len(out.writes) > before:
            term = self._core.leadership.term
            out.down(self._unit, Durable(self._logged, term, self._cuts))

    def written(self, item: Durable) -> None:
        self._waits = False
        self.durable_term = max(self.durable_term, item.term)
        if item.cuts == self._cuts:
            self.durable = max(self.durable, item.index)

    def _write_vote(self, out: Outbox) -> None:
        leadership = self._core.leadership
        # rule: 2g
        vote = StoredVote(self._core.group_epoch, leadership.term, leadership.voted)
        if vote != self._vote:
            self._vote = vote
            out.write(Put(self._vote_table, _VOTE, _encode(vote)))

    def _write_messages(self, out: Outbox) -> None:
        for frame in self._taken:
            stream = frame.stream
            self._streams[stream] = None
            about = _encode(frame.about)
            head = _BLOCK.pack(frame.count, frame.created_ns, len(about)) + about
            out.write(
                Put(
                    self._message_table, _stream_key(stream, frame.first), head + bytes(frame.block)
                )
            )
        self._taken.clear()

    def _write_log(self, out: Outbox) -> None:
        log = self._core.log
        if log.cut_at:
            if log.cut_at <= max(self.state_index, self._state_at.index):
                # rule: 11h
                self._give_up_state(out)
            if log.cut_at <= self._logged:
                out.write(Erase(self._log_table, _INDEX.pack(log.cut_at), _END))
                out.write(Put(self._log_table, _INDEX.pack(log.cut_at), _encode(())))
                self._rows = [first for first in self._rows if first < log.cut_at]
                self._logged = log.cut_at - 1
                self._cuts += 1
                self.durable = min(self.durable, self._logged)
            log.cut_at = 0
        if log.last > self._logged:
            first = self._logged + 1
            entries = log.entries(first, log.last - self._logged)
            out.write(Put(self._log_table, _INDEX.pack(first), _encode(entries)))
            self._rows.append(first)
            self._logged = log.last

    # -- snapshots -----------------------------------------------------------------------------------------------

    def _write_state(self, out: Outbox) -> None:
        """The next piece; with the last one the snapshot is complete, and what is below it is erased."""
        checkpoint, index, part = self._state, self._state_at.index, self._next_part
        assert checkpoint is not None, "there is a state to write"
        size = self._core.config.stored_chunk_bytes
        data = checkpoint[part * size : (part + 1) * size]
        out.write(Put(self._state_table, _PART.pack(index, part), bytes(data)))
        # rule: 2h
        self._next_part += 1
        parts = max(1, -(-len(checkpoint) // size))
        if self._next_part < parts:
            return
        out.write(Put(self._vote_table, _WHOLE, _encode((index, parts))))
        out.write(Erase(self._state_table, b"", _PART.pack(index, 0)))
        self._erase_below(self._state_at, out)
        self._state = None
        self.state_index = index

    def _give_up_state(self, out: Outbox) -> None:
        """Discard the snapshot on disk, or on its way there: it is after entries that another side of a partition has
        replaced."""
        out.write(Erase(self._vote_table, _WHOLE, _WHOLE + b"\0"))
        out.write(Erase(self._state_table, b"", _END))
        self._state, self._state_at, self.state_index = None, Cursor(), 0

    def _erase_below(self, at: Cursor, out: Outbox) -> None:
        below = 0
        while below + 1 < len(self._rows) and self._rows[below + 1] <= at.index + 1:
            below += 1
        if below:
            out.write(Erase(self._log_table, b"", _INDEX.pack(self._rows[below])))
            del self._rows[:below]
        for stream in list(self._streams):
            number = at.next.get(stream, 0)
            if at.is_over(stream):
                number = 1 << 62
                del self._streams[stream]
            found = self._core.streams.get(stream)
            if found is not None:
                # A block that reaches above the snapshot is still needed.
                number = min([number, *(piece.start for piece in found.pieces(number, number))])
            if number:
                first, stop = _stream_key(stream, 0), _stream_key(stream, number)
                out.write(Erase(self._message_table, first, stop))

    # -- the start -----------------------------------------------------------------------------------------------

    def load(self, stored: Mapping[str, Rows]) -> Checkpoint | None:
        """Load everything that was written; returns the initial snapshot, if there is one."""
        core = self._core
        checkpoint = self._load_vote_and_state(stored)
        if checkpoint is not None:
            core.log.restart(checkpoint.begin.cursor())
        for key, value in stored.get(self._message_table, []):
            self._load_message(key, value)
        entries = self._load_entries(stored)
        for entry in entries:
            if entry.index <= core.log.last:
                continue
            stream = entry.stream if entry.kind == Kind.ORDER else None
            held = stream is None or core.streams.holds(stream, entry.first, entry.last)
            if not core.log.tail.fits(entry) or not held:
                raise self._broken(
                    f"entry {entry.index} does not follow, or its messages are missing"
                )
            core.log.append(entry)
        self._logged = max(core.log.last, self.state_index)
        self.durable, self.durable_term = self._logged, core.leadership.term
        core.pending.restart()
        return checkpoint

    def _load_vote_and_state(self, stored: Mapping[str, Rows]) -> Checkpoint | None:
        core, rows = self._core, dict(stored.get(self._vote_table, []))
        try:
            self._vote = _vote.decode(rows[_VOTE]) if _VOTE in rows else StoredVote()
            whole = _whole.decode(rows[_WHOLE]) if _WHOLE in rows else None
        except (msgspec.DecodeError, ValueError) as error:
            raise self._broken(str(error)) from None
        core.group_epoch = self._vote.group_epoch
        core.leadership.term = self._vote.term
        core.leadership.voted = self._vote.voted
        if whole is None:
            return None
        index, parts = whole
        chunks = dict(stored.get(self._state_table, []))
        keys = [_PART.pack(index, part) for part in range(parts)]
        checkpoint = decode_checkpoint(b"".join(chunks.get(key, b"") for key in keys))
        if checkpoint is None or checkpoint.begin.index != index:
            raise self._broken(f"the snapshot at entry {index} is incomplete")
        self.state_index = index
        return checkpoint

    def _load_message(self, key: bytes, value: bytes) -> None:
        try:
            source, incarnation, number, first = _STREAM.unpack(key)
            count, created_ns, size = _BLOCK.unpack_from(value)
            start = _BLOCK.size + size
            about = _about.decode(value[_BLOCK.size : start])
        except (msgspec.DecodeError, ValueError, StructError) as error:
            raise self._broken(str(error)) from None
        stream = StreamId(source, incarnation, number)
        block = memoryview(value)[start:]
        frame = Payload(self._core.config.name, stream, first, count, created_ns, block, about)
        if not is_sound_payload(frame):
            raise self._broken(f"messages from {first} of a stream are damaged")
        tail = self._core.log.tail
        if len(self._streams) < STREAMS_MAX:
            self._streams[stream] = None
        if not tail.is_over(stream):
            # All of it is loaded, however much: it was acknowledged.
            self._core.streams.take_all(frame, tail.next.get(stream, 1))
        self.bytes += len(block)

    def _load_entries(self, stored: Mapping[str, Rows]) -> list[Entry]:
        entries: list[Entry] = []
        for key, value in stored.get(self._log_table, []):
            try:
                (first,) = _INDEX.unpack(key)
                written = _entries.decode(value)
            except (msgspec.DecodeError, ValueError, StructError) as error:
                raise self._broken(str(error)) from None
            self._rows.append(first)
            while entries and entries[-1].index >= first:
                entries.pop()
            entries.extend(written)
        return entries

    def _broken(self, why: str) -> StoreError:
        name = self._core.config.name
        return StoreError(
            f"the data of group {name} in this store is damaged: {why}; the node was not started. Give it an empty "
            "store, and it joins the group again as a new replica"
        )


def journal_tables(config: GroupConfig) -> tuple[str, ...]:
    """The tables that a replica of the group needs at its start."""
    return tables(config.name) if config.is_durable else ()


def _stream_key(stream: StreamId, number: int) -> bytes:
    return _STREAM.pack(stream.source, stream.incarnation, stream.stream, number)
