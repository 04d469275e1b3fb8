"""The facts that objects record."""

from __future__ import annotations

from typing import ClassVar

from holdfast.telemetry.facts import Fact


class ObjectFact(Fact, frozen=True, gc=False):
    """An event of a replica or an object on this node."""

    kind: ClassVar[str] = "object"
    event: str
    """`decided`, `repaired`, `damaged`, `replaced`, `removed`, `deleted`, `purged`, `conflict`, `merged` or `moved`."""
    object: str
    """The id in hexadecimal."""
    version: int = 0
    """The version of the object."""
    detail: str = ""
    """In plain words."""
    size: int = 0
    """Bytes of content that it concerns."""
    write: str = ""
    """Of `decided`: the id of the write that made this version."""
    digest: str = ""
    """Of `decided`: the digest of the content; empty for an object that is loose or deleted."""


class ObjectOpFact(Fact, frozen=True, gc=False):
    """An operation of an application on a strict object: `create`, `write`, `patch`, `move`, `delete`, or a `read` that
    asked a majority. It took effect between `started_ns` and `now_ns`. Operations that failed are not recorded."""

    kind: ClassVar[str] = "object_op"
    event: str
    """One of those above."""
    object: str
    """The id in hexadecimal."""
    version: int
    """The version that was read or written, or a later one that followed before the outcome was known."""
    write: str
    """The id of the write that made `version`."""
    digest: str
    """The digest of the content of `version`."""
    is_own: bool
    """Whether this operation wrote `version`; false for a read."""
    started_ns: int
    """When it began, by the node's own clock."""
    peers: str = ""
    """The other replicas that this node can reach directly, 32 hexadecimal digits each, with commas."""
