"""What crosses the border of the objects unit: requests of applications, disk work, outcomes.

Every request has an `op`; its one `Finished` repeats it. Disk work has a `token`; its one `DiskDone` repeats it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.objects.values import FILE, STRICT, Content, Value

UNIT: Final = "objects"
TABLE: Final = "objects"
"""Records of the replicas of this node, by object id."""


# -- requests of applications ------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all requests. Those that open an object take its id, from an earlier access, instead of a path."""

    op: int
    object: bytes = b""


class Create(Request, frozen=True, kw_only=True):
    path: str
    size: int = -1
    """Bytes of the content, -1 if not known before it ends."""
    replicas: int = 0
    """0: as configured."""
    mode: int = STRICT
    kind: int = FILE
    write: bytes = b""
    """Resumes the stages of an earlier attempt."""
    nodes: tuple[bytes, ...] = ()
    """Exactly these nodes get the replicas; empty: by health and realm."""


class Write(Request, frozen=True, kw_only=True):
    path: str
    size: int = -1
    edition: int = 0
    """Only if this is the current edition; 0: whatever is current when the write starts."""
    write: bytes = b""


class Patch(Request, frozen=True, kw_only=True):
    """Change a part of the content."""

    path: str
    edits: tuple[tuple[int, bytes], ...]
    size: int = -1
    """The new size; -1: as it is, or more if an edit ends later."""
    base: bytes = b""
    """Only if the content has this digest; empty: whatever is current."""


class Read(Request, frozen=True, kw_only=True):
    path: str
    fresh: bool = True
    """Ask a majority for the current version; else the version of the nearest replica, which may be old."""
    first: int = 0
    """The first chunk that is wanted: a read can be resumed."""
    digest: bytes = b""
    """Resume only if the content is still this one."""


class Stat(Request, frozen=True, kw_only=True):
    path: str = ""


class Delete(Request, frozen=True, kw_only=True):
    path: str
    edition: int = 0


class Move(Request, frozen=True, kw_only=True):
    source: str
    target: str


class ListNames(Request, frozen=True, kw_only=True):
    path: str


class Repair(Request, frozen=True, kw_only=True):
    """Verify every replica of an object now, and repair what is late or damaged."""

    path: str


class WatchChanges(Request, frozen=True, kw_only=True):
    """Report newer versions with `Change` until it is cancelled."""

    path: str


class Drain(Request, frozen=True, kw_only=True):
    """Move every replica off a node."""

    node: bytes
    dry_run: bool = False
    undo: bool = False
    """The node takes replicas again."""
    mark: bool = False
    """Only mark the node: it takes no new replicas."""
    by_policy: bool = False
    """A mark of the policy is ended by the policy; one of an operator is not."""
    skip_blocked: bool = False
    """Move what can be moved; otherwise nothing is moved while a step is blocked."""


class MoveReplica(Request, frozen=True, kw_only=True):
    """Move one replica of an object to another node."""

    path: str
    source: bytes
    target: bytes = b""
    """Empty: the best node."""
    dry_run: bool = False


class AskNode(Request, frozen=True, kw_only=True):
    """Ask the administration of another node, or of this one; finished with the body of the answer."""

    node: bytes
    verb: str
    body: bytes = b""


class AdminDone(msgspec.Struct, frozen=True):
    """The answer to `AdminWork`. `reason` is empty, or why it was refused."""

    peer: bytes
    call: int
    reason: str = ""
    body: bytes = b""


class Cancel(msgspec.Struct, frozen=True):
    """No task waits for this request any more. What has taken effect stays."""

    op: int


class SourceChunk(msgspec.Struct, frozen=True):
    """The answer to `ReadSource`. A chunk that is shorter than `CHUNK` is the last one."""

    token: int
    data: bytes | memoryview
    reason: str = ""


class Taken(msgspec.Struct, frozen=True):
    """The application has taken this many chunks of a read."""

    op: int
    count: int


class Located(msgspec.Struct, frozen=True):
    """The answer to `Locate`."""

    token: int
    nodes: tuple[bytes, ...]


class Resolved(msgspec.Struct, frozen=True):
    """The answer to `ResolveConflict`: new content, deletion, or neither when the handler failed."""

    token: int
    data: bytes | None = None
    deleted: bool = False
    reason: str = ""


class Conditions(msgspec.Struct, frozen=True):
    """What the edge knows of the disk and of the paths of members."""

    free_bytes: int = 1 << 62
    penalties: tuple[tuple[bytes, int], ...] = ()
    """Nodes whose paths have soft errors or are likely to; a higher number is worse."""


# -- effects for applications --------------------------------------------------------------------------------------


class ReadSource(msgspec.Struct, frozen=True):
    """The next chunk of the content that an operation writes; answered with `SourceChunk`."""

    token: int
    op: int
    index: int


class Deliver(msgspec.Struct, frozen=True):
    """A verified chunk of a read, in order."""

    op: int
    index: int
    data: bytes | memoryview


class Begun(msgspec.Struct, frozen=True):
    """An operation knows its object: what is read, or the write id with which it can be resumed."""

    op: int
    value: Value | None = None
    write: bytes = b""


class Progress(msgspec.Struct, frozen=True):
    op: int
    done: int
    total: int
    text: str = ""


class Finished(msgspec.Struct, frozen=True):
    op: int
    value: Any


class Refused(msgspec.Struct, frozen=True):
    """`code` is one of a few words, `text` is for people."""

    code: str
    text: str


class Change(msgspec.Struct, frozen=True):
    """A watched object has a newer version."""

    op: int
    version: int
    deleted: bool = False


class Locate(msgspec.Struct, frozen=True):
    """Find the replicas of an object by its role; answered with `Located`."""

    token: int
    object: bytes


class Publish(msgspec.Struct, frozen=True):
    """This node has a confirmed replica, or does not have it any more."""

    object: bytes
    on: bool


class ResolveConflict(msgspec.Struct, frozen=True):
    """Concurrent versions of a loose object, with their content; answered with `Resolved`."""

    token: int
    object: bytes
    name: str
    versions: tuple[bytes | None, ...]
    """None: this version deletes the object."""


class AdminWork(msgspec.Struct, frozen=True):
    """A node asks the administration of this one; answered with `AdminDone`."""

    peer: bytes
    call: int
    verb: str
    body: bytes


class TasksLost(msgspec.Struct, frozen=True):
    """The unit was rebuilt: operations that ran have no outcome."""


# -- effects for the disk ------------------------------------------------------------------------------------------


class DiskJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all disk work, done in order."""

    token: int = 0


class OpenStage(DiskJob, frozen=True, kw_only=True):
    """Reserve space for a write; `size` -1: not known."""

    write: bytes
    size: int


class WriteChunk(DiskJob, frozen=True, kw_only=True):
    write: bytes
    index: int
    data: bytes | memoryview


class CloseStage(DiskJob, frozen=True, kw_only=True):
    """Sync a stage and rename it to its place, atomically and durably."""

    write: bytes
    object: bytes
    content: Content
    chunks: bytes


class PatchStage(DiskJob, frozen=True, kw_only=True):
    """Make content from another one; answered with its size and chunk list (`DiskDone.data`, `size`)."""

    write: bytes
    object: bytes
    base: Content
    edits: tuple[tuple[int, bytes], ...]
    size: int


class DropStage(DiskJob, frozen=True, kw_only=True):
    write: bytes


class ReadChunk(DiskJob, frozen=True, kw_only=True):
    object: bytes
    content: Content
    index: int


class ReadList(DiskJob, frozen=True, kw_only=True):
    object: bytes
    content: Content


class DropContent(DiskJob, frozen=True, kw_only=True):
    object: bytes
    digest: bytes


class VerifyContent(DiskJob, frozen=True, kw_only=True):
    """Read everything and compare it with the digests."""

    object: bytes
    content: Content


DISK_JOBS: Final = (
    OpenStage, WriteChunk, CloseStage, PatchStage, DropStage, ReadChunk, ReadList, DropContent, VerifyContent,
)  # fmt: skip


class DiskDone(msgspec.Struct, frozen=True):
    """The outcome of disk work. `reason` is empty, or `full`, `missing`, `damaged`, `error`."""

    token: int
    reason: str = ""
    detail: str = ""
    data: bytes | memoryview = b""
    size: int = 0


# -- values in outcomes --------------------------------------------------------------------------------------------


class Written(msgspec.Struct, frozen=True):
    """A write is decided."""

    value: Value
    replicas: int
    """Replicas that have it now; the others follow."""
    write: bytes = b""
    """The id of the write; `value` is a later version if others followed before the outcome was known."""

    @property
    def is_exact(self) -> bool:
        """Whether `value` is the version that this write made."""
        return self.value.write == self.write


class ReadDone(msgspec.Struct, frozen=True):
    value: Value
    content: Content


class ReplicaState(msgspec.Struct, frozen=True):
    node: bytes
    state: str
    """`sound`, `late`, `damaged`, `unreachable` or `emptied`."""
    version: int = 0


class Description(msgspec.Struct, frozen=True):
    value: Value
    replicas: tuple[ReplicaState, ...]
    siblings: int = 0
    """Concurrent versions of a loose object, 1 if there is no conflict."""
    size: int = 0


class Names(msgspec.Struct, frozen=True):
    names: tuple[tuple[str, bytes, int], ...]
    """Name, object and kind."""


class Step(msgspec.Struct, frozen=True):
    """One step of a plan: add a replica, or remove one."""

    object: bytes
    name: str
    add: bytes
    remove: bytes
    size: int = 0
    state: str = "planned"
    """`planned`, `done`, `failed` or `blocked`."""
    reason: str = ""


class Plan(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...]


# -- the disk itself -----------------------------------------------------------------------------------------------

DISK_TABLE: Final = "objects_disk"


class DiskReady(msgspec.Struct, frozen=True):
    """The content directory is open. `marker` is the disk id found in it; empty when it is new."""

    marker: bytes


class StampDisk(msgspec.Struct, frozen=True):
    """Write the id of the disk into the content directory, and remove what is there."""

    disk: bytes
