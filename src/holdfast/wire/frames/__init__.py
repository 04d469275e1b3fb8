"""Every frame there is, in one place, because both ends must agree on all of them.

A frame is a frozen struct, sent as a msgpack array whose first element is its tag. Fields are only ever added at
the end, with a default: an older node ignores them, a newer one fills them in. Tags are never used again.
`HELLO` and `REFUSE` are the same in every version, or two versions could not find out about each other.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.frames.base import VERSION_HIGH, VERSION_LOW, Frame
from holdfast.wire.frames.groups import (
    About,
    Append,
    Appended,
    Ballot,
    Entry,
    Found,
    Freed,
    Idle,
    Lost,
    Nack,
    Outputs,
    OutputsHere,
    Payload,
    Placed,
    Seek,
    Standing,
    StateChunk,
    StateRequest,
    StreamId,
    Vote,
)
from holdfast.wire.frames.health import (
    AskRows,
    Basic,
    Confirm,
    Edition,
    Heeded,
    Notice,
    PathRow,
    PathRows,
    Probe,
    Settled,
    Signature,
    StressCell,
    StressCounts,
    StressOrder,
    StressProbe,
    StressReport,
    TableDigest,
    TunablesInfo,
)
from holdfast.wire.frames.links import (
    AdapterInfo,
    Bye,
    Chunk,
    ChunkAck,
    Hello,
    Hurry,
    Key,
    MemberInfo,
    Members,
    RawBatch,
    Refuse,
)

__all__ = [
    "IMMEDIATE",
    "VERSION_HIGH",
    "VERSION_LOW",
    "About",
    "AdapterInfo",
    "AnyFrame",
    "Append",
    "Appended",
    "AskRows",
    "Ballot",
    "Basic",
    "Bye",
    "Chunk",
    "ChunkAck",
    "Confirm",
    "Edition",
    "Entry",
    "Found",
    "Frame",
    "Freed",
    "Heeded",
    "Hello",
    "Hurry",
    "Idle",
    "Key",
    "Lost",
    "MemberInfo",
    "Members",
    "Nack",
    "Notice",
    "Outputs",
    "OutputsHere",
    "PathRow",
    "PathRows",
    "Payload",
    "Placed",
    "Probe",
    "RawBatch",
    "Refuse",
    "Seek",
    "Settled",
    "Signature",
    "Standing",
    "StateChunk",
    "StateRequest",
    "StreamId",
    "StressCell",
    "StressCounts",
    "StressOrder",
    "StressProbe",
    "StressReport",
    "TableDigest",
    "TunablesInfo",
    "Vote",
]

AnyFrame = (
    Hello
    | Refuse
    | Key
    | Chunk
    | ChunkAck
    | Hurry
    | Members
    | RawBatch
    | Bye
    | Basic
    | Probe
    | Signature
    | Heeded
    | Notice
    | Settled
    | Confirm
    | PathRows
    | TableDigest
    | AskRows
    | StressOrder
    | StressProbe
    | StressCounts
    | StressReport
    | Payload
    | Placed
    | Idle
    | Nack
    | Append
    | Appended
    | StateRequest
    | StateChunk
    | Freed
    | Ballot
    | Vote
    | Seek
    | Standing
    | Lost
    | Found
    | Outputs
    | OutputsHere
)

IMMEDIATE: Final = frozenset({Basic, Probe, StressProbe, Payload, Idle, Nack, Lost, RawBatch})
"""Frames that promise nothing, so they do not wait for writes."""
