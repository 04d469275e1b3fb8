"""Values of objects: replica sets, versions, content, directory entries.

A `Value` is the complete state of an object at one version: where its replicas are, what its content is, and where it
is in the tree. Its replicas decide on one value per version.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

ID: Final = 16
"""Bytes of an object id, a write id and a digest."""
CHUNK: Final = 1 << 20
"""Bytes of a chunk; the last chunk of a content may be shorter."""
LINEAGE: Final = 16
"""Writes that a value remembers, so that a write in doubt can be resolved by reading."""
NOTHING: Final = b""

FILE: Final = 0
DIRECTORY: Final = 1

STRICT: Final = 0
"""A write needs a majority of the replicas."""
LOOSE: Final = 1
"""A write needs one replica; concurrent writes are merged by a conflict handler."""


class Ballot(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """Orders the attempts to decide one version. No two attempts use the same ballot, not even on one node."""

    round: int = 0
    proposer: bytes = b""


ZERO: Final = Ballot()


class ReplicaRef(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A replica: a node, and the disk it has. An emptied disk has a new id, so it is a new replica."""

    node: bytes
    disk: bytes = b""
    """Empty in the first version of the root directory alone: any disk of the node."""


class Content(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The bytes of an object: identified by the digest of its chunk list."""

    digest: bytes = b""
    size: int = 0

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK)


class Value(msgspec.Struct, frozen=True, array_like=True):
    """An object at one version."""

    object: bytes
    version: int
    write: bytes
    """The id of the write that made this version."""
    replicas: tuple[ReplicaRef, ...]
    wanted: int
    """The number of replicas that the object is meant to have."""
    content: Content = Content()
    parent: bytes = b""
    name: str = ""
    kind: int = FILE
    mode: int = STRICT
    deleted: bool = False
    left: tuple[bytes, str, int] = (b"", "", 0)
    """Where the object was before its last move, and the version that moved it: the old entry is to be cleared until
    this is empty."""
    token: int = 0
    """The highest lock token of a directory move that changed this object."""
    edition: int = 1
    """Changes that users see: content, place, deletion. A change of the replica set alone does not count."""
    lineage: tuple[bytes, ...] = ()
    """The last writes, newest first; the first one is `write`."""
    owner: bytes = b""
    """The proposer that made this version, if it may propose the next one at ballot 0, without asking for promises. It
    does so once: no other proposer has this name, and ballot 0 is accepted from no other one."""

    @property
    def nodes(self) -> tuple[bytes, ...]:
        return tuple(replica.node for replica in self.replicas)

    def has(self, node: bytes, disk: bytes) -> bool:
        """Whether the replica set names this node with this disk."""
        return any(r.node == node and r.disk in (b"", disk) for r in self.replicas)


class Sibling(msgspec.Struct, frozen=True, array_like=True):
    """One version of a loose object. Concurrent ones exist side by side until they are merged."""

    vector: tuple[tuple[bytes, int], ...]
    """Writes per node, sorted by node."""
    write: bytes
    content: Content = Content()
    deleted: bool = False


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name in a directory."""

    object: bytes
    nodes: tuple[bytes, ...] = ()
    """Where its replicas were when the entry was made: a hint."""
    pending: bool = False
    """Reserved for an object that is being created or moved here. The object's register says whether it is here."""
    expects: int = 0
    """The version of the object that the entry is based on. Of a pending entry: the one that the move replaces. Else:
    one at which the object was here; 0 if it was created here. A change that is based on an older version leaves the
    entry as it is: the object may have come back since."""
    kind: int = FILE


class MoveIntent(msgspec.Struct, frozen=True, array_like=True):
    """A directory is being moved. Recorded in the root directory: one at a time."""

    object: bytes
    write: bytes
    parent: bytes
    name: str
    expects: int
    nodes: tuple[bytes, ...] = ()


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """The content of a directory."""

    entries: dict[str, Entry] = {}
    intent: MoveIntent | None = None
    """Only in the root directory."""


_encode = msgspec.msgpack.Encoder(order="sorted").encode
_listing: Final = msgspec.msgpack.Decoder(Listing)


def encode_listing(listing: Listing) -> bytes:
    return _encode(listing)


def decode_listing(data: bytes | memoryview) -> Listing:
    """Raises `msgspec.DecodeError` for content that is not a directory."""
    return _listing.decode(data) if len(data) else Listing()


# -- digests -------------------------------------------------------------------------------------------------------


def chunk_digest(data: bytes | bytearray | memoryview) -> bytes:
    return sha256(data).digest()[:ID]


def content_digest(size: int, chunk_list: bytes) -> bytes:
    """The digest of a content from its size and the digests of its chunks, joined."""
    return sha256(size.to_bytes(8, "big") + chunk_list).digest()[:ID]


def content_of(data: bytes | bytearray | memoryview) -> tuple[Content, bytes]:
    """The content that these bytes make, and its chunk list."""
    view = memoryview(data)
    chunks = b"".join(chunk_digest(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))
    return Content(content_digest(len(view), chunks), len(view)), chunks


EMPTY: Final = content_of(b"")[0]


def root_id(domain: str) -> bytes:
    """The object id of the root directory of a domain."""
    return sha256(b"holdfast/objects/root/" + domain.encode()).digest()[:ID]


def successor(value: Value, write: bytes, **changes: Any) -> Value:
    """The next version of a value, with these changes."""
    lineage = (write, *value.lineage)[:LINEAGE]
    changed: dict[str, Any] = {
        "version": value.version + 1, "write": write, "lineage": lineage, "owner": b"", **changes,
    }  # fmt: skip
    return msgspec.structs.replace(value, **changed)
