"""What entries of the order carry in `data`: one struct per kind. Decoding is total.

An entry of a range (`ORDER`, `SKIP`) names its stream and numbers itself; all others have what they are about in here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.group.criteria import Criterion
from holdfast.wire.frames import Entry, StreamId


class Data(msgspec.Struct, frozen=True, array_like=True):
    """Base of what entries carry."""


# -- messages that are lost, dropped or ignored ------------------------------------------------------------------


class Ordered(Data, frozen=True, array_like=True):
    """ORDER, where messages of the range have request ids: (number, id). Most orders carry nothing."""

    requests: tuple[tuple[int, bytes], ...] = ()


class Skipped(Data, frozen=True, array_like=True):
    """SKIP: nobody delivers this range of a stream."""

    why: str
    """`dropped`: lost, and the group goes on without. `ignored`: by a criterion. `repeat`: a request that was delivered
    before."""
    criterion: int = 0
    decision: int = 0
    """The index of the entry that records the decision; 0 where nobody had to decide."""


class Opened(Data, frozen=True, array_like=True):
    """OPEN: a stream begins, for this group with number `first`."""

    stream: StreamId
    first: int


class Closed(Data, frozen=True, array_like=True):
    """CLOSE: its source has begun a new life; nothing of the stream after `last` is ever delivered."""

    stream: StreamId
    last: int


class Ignoring(Data, frozen=True, array_like=True):
    """IGNORE: a criterion begins to hold. The entry's index is its id."""

    criterion: Criterion


class Resumed(Data, frozen=True, array_like=True):
    """RESUME: a criterion ends: `expired`, `used up`, `resync`, `replaced` or `operator`."""

    criterion: int
    why: str


class Decided(Data, frozen=True, array_like=True):
    """DECISION: what was answered to the question about lost messages. A record: what follows from it stands in
    entries of its own."""

    stream: StreamId
    lost: tuple[tuple[int, int], ...]
    """Ranges, both ends included."""
    attempt: int
    leader: str
    by: str
    """`application`, or `rule 3` of the table."""
    action: str


class Marked(Data, frozen=True, array_like=True):
    """OUTPUTS: a destination has every output up to this one."""

    destination: str
    position: int
    k: int


# -- both ways ---------------------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_KINDS: Final[dict[int, type[Data]]] = {
    1: Ordered,
    3: Skipped,
    5: Opened,
    6: Closed,
    7: Ignoring,
    8: Resumed,
    9: Marked,
    10: Decided,
}
_decoders: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(struct) for kind, struct in _KINDS.items()
}


def encode_data(data: Data) -> bytes:
    return _encode(data)


def decode_data(entry: Entry) -> Any:
    """What an entry carries; None when it is not what its kind carries."""
    decoder = _decoders.get(entry.kind)
    if decoder is None:
        return None
    try:
        return decoder.decode(entry.data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
