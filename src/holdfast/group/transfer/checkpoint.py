"""A snapshot with its place in the order, as sent to another replica or written to the store.

In `fast` groups a snapshot may be *ahead*: after entries that are in the log of the provider and not committed yet. It
then also states up to where it is committed (`ground`). A log may start there; the entries from there to the place of
the snapshot come from the leader, with their messages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.frames import StreamId
from holdfast.group.log.entries import View
from holdfast.group.log.replicated_log import NUMBER_MAX, Cursor, is_sound_stream
from holdfast.group.log.replicated_metadata import ReplicatedMetadata
from holdfast.group.log.values import ReplicatedMetadataState
from holdfast.group.ports import Output

VERSION: Final = 2


class CursorState(msgspec.Struct, frozen=True, array_like=True):
    """The result of the order after entry `index`: a cursor in transferable form."""

    index: int
    term: int
    position: int
    log_ns: int
    streams: tuple[tuple[StreamId, int], ...]
    """The next number of each stream."""
    over: tuple[tuple[bytes, int, int], ...]
    """Of sources with many incarnations: (source, stream, last removed incarnation)."""
    view: View | None
    metadata: ReplicatedMetadataState = ReplicatedMetadataState()
    """Ignore criteria, delivered requests, and arrived outputs."""

    @classmethod
    def of(cls, at: Cursor) -> CursorState:
        over = tuple((source, stream, life) for (source, stream), life in at.over.items())
        streams = tuple(at.next.items())
        return cls(
            at.index, at.term, at.position, at.log_ns, streams, over, at.view, at.metadata.state()
        )

    def cursor(self) -> Cursor:
        over = {(source, stream): incarnation for source, stream, incarnation in self.over}
        return Cursor(
            self.index, self.term, self.position, self.log_ns, dict(self.streams), over, self.view,
            ReplicatedMetadata.of(self.metadata),
        )  # fmt: skip

    def is_sound(self) -> bool:
        return (
            self.view is not None
            and self.view.is_sound()
            and 0 <= self.index < NUMBER_MAX
            and 0 <= self.term < NUMBER_MAX
            and 1 <= self.position < NUMBER_MAX
            and self.metadata.is_sound()
            and all(
                is_sound_stream(stream) and 1 <= number < NUMBER_MAX
                for stream, number in self.streams
            )
        )


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a replica needs to continue at a position of the order: the state of the application, and the
    cursor."""

    version: int
    group_epoch: int
    at: CursorState
    digest: int
    state: bytes
    outputs: tuple[Output, ...] = ()
    """Outputs of the application that are not known to have arrived."""
    ground: CursorState | None = None
    """For a snapshot that is ahead: up to where it is committed."""

    @property
    def index(self) -> int:
        return self.at.index

    @property
    def begin(self) -> CursorState:
        """From where on a log can continue with this snapshot."""
        return self.ground if self.ground is not None else self.at

    def is_sound(self) -> bool:
        ahead = self.ground is None or (
            self.ground.is_sound() and self.ground.index < self.at.index
        )
        return (
            self.version == VERSION and self.at.is_sound() and ahead and 0 <= self.digest < 1 << 32
        )


def make_checkpoint(
    group_epoch: int,
    at: Cursor,
    digest: int,
    state: bytes,
    outputs: tuple[Output, ...],
    ground: Cursor | None = None,
) -> Checkpoint:
    decided = CursorState.of(ground) if ground is not None else None
    return Checkpoint(VERSION, group_epoch, CursorState.of(at), digest, state, outputs, decided)


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Checkpoint)


def encode_checkpoint(checkpoint: Checkpoint) -> memoryview:
    return memoryview(_encode(checkpoint))


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """The snapshot, or None if it is invalid."""
    try:
        checkpoint = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return checkpoint if checkpoint.is_sound() else None
