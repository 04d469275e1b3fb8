"""What a replica keeps in the node's store."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.objects.values import Ballot, Sibling, Value


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One object on this node."""

    decided: Value | None = None
    promised: Ballot = Ballot()
    """For the version after the decided one."""
    accepted_at: Ballot = Ballot()
    accepted: Value | None = None
    held: tuple[bytes, ...] = ()
    """Digests of the contents that are on the disk: written after the content was."""
    siblings: tuple[Sibling, ...] = ()


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """A record with the disk that its content is on."""

    disk: bytes
    record: Record


class ContentRow(msgspec.Struct, frozen=True, array_like=True):
    """A small content, with the disk of the record that it belongs to."""

    disk: bytes
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(RecordRow)
_content_decoder: Final = msgspec.msgpack.Decoder(ContentRow)


def encode_row(disk: bytes, record: Record) -> bytes:
    return _encode(RecordRow(disk, record))


def decode_row(row: bytes) -> RecordRow | None:
    """None for a row that cannot be read: its replica is as lost as one on an emptied disk."""
    try:
        return _decoder.decode(row)
    except (msgspec.DecodeError, ValueError):
        return None


def encode_content(disk: bytes, data: bytes) -> bytes:
    return _encode(ContentRow(disk, data))


def decode_content(row: bytes) -> ContentRow | None:
    """None for a row that cannot be read."""
    try:
        return _content_decoder.decode(row)
    except (msgspec.DecodeError, ValueError):
        return None
