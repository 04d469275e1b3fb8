"""Frames: the messages between nodes.

A frame is a frozen struct, sent as a msgpack array whose first element is its tag. Fields are only ever added at the
end, with a default: an older node ignores them, and a newer one uses the default. A tag is never reused. `Hello` and
`Refuse` are the same in every version, because they negotiate the version.

This package contains the frames of links, which carry all others. Every other subsystem has its own module `frames`,
and its declaration (`holdfast.subsystem`) states which units receive each frame.

| tags | subsystem |
| --- | --- |
| 1 to 19 | links |
| 20 to 39 | health |
| 40 to 63, 112 to 127 | group |
| 64 to 95 | overlay |
| 96 to 111 | stability |
| 128 to 159 | dialog |
| 160 to 191 | objects |
| 192 to 199 | collect |
| 200 and above | applications and tests |
"""

from __future__ import annotations

from holdfast.wire.frames.base import VERSION_HIGH, VERSION_LOW, FilledFrame, Frame
from holdfast.wire.frames.links import (
    LINK_FRAMES,
    AckRequest,
    AdapterInfo,
    Bye,
    Chunk,
    ChunkAck,
    DeliveryQuery,
    DeliveryReport,
    Hello,
    Key,
    MemberInfo,
    Members,
    RawBatch,
    Refuse,
)

__all__ = [
    "LINK_FRAMES",
    "VERSION_HIGH",
    "VERSION_LOW",
    "AckRequest",
    "AdapterInfo",
    "Bye",
    "Chunk",
    "ChunkAck",
    "DeliveryQuery",
    "DeliveryReport",
    "FilledFrame",
    "Frame",
    "Hello",
    "Key",
    "MemberInfo",
    "Members",
    "RawBatch",
    "Refuse",
]
