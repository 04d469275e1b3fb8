"""A state with its place in the order, as it goes to another replica or to the store.

In `fast` groups a state may be *ahead*: after entries that are in the giver's log and not decided yet. Such an image
also says up to where it is decided (`ground`). A log may begin there; the entries from there to the state's place come
from the leader, with their messages, as all entries do.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.entries import View
from holdfast.group.log import NUMBER_MAX, Cursor, is_sound_stream
from holdfast.group.ports import Output
from holdfast.group.rulings import Rulings, RulingsImage
from holdfast.wire.frames import StreamId

VERSION: Final = 2


class Place(msgspec.Struct, frozen=True, array_like=True):
    """What the order has come to after entry `index`: a cursor that travels."""

    index: int
    term: int
    position: int
    log_ns: int
    streams: tuple[tuple[StreamId, int], ...]
    """The number that each stream goes on with."""
    over: tuple[tuple[bytes, int, int], ...]
    """Of sources that lived often: (source, stream, last incarnation that is forgotten)."""
    view: View | None
    rulings: RulingsImage = RulingsImage()
    """What is ignored, which requests were delivered, which outputs have arrived."""

    @classmethod
    def of(cls, at: Cursor) -> Place:
        over = tuple((source, stream, life) for (source, stream), life in at.over.items())
        streams = tuple(at.next.items())
        return cls(
            at.index, at.term, at.position, at.log_ns, streams, over, at.view, at.rulings.image()
        )

    def cursor(self) -> Cursor:
        over = {(source, stream): incarnation for source, stream, incarnation in self.over}
        return Cursor(
            self.index, self.term, self.position, self.log_ns, dict(self.streams), over, self.view,
            Rulings.of(self.rulings),
        )  # fmt: skip

    def is_sound(self) -> bool:
        return (
            self.view is not None
            and self.view.is_sound()
            and 0 <= self.index < NUMBER_MAX
            and 0 <= self.term < NUMBER_MAX
            and 1 <= self.position < NUMBER_MAX
            and self.rulings.is_sound()
            and all(
                is_sound_stream(stream) and 1 <= number < NUMBER_MAX
                for stream, number in self.streams
            )
        )


class Image(msgspec.Struct, frozen=True, array_like=True):
    """What a replica needs to take its place in the order: the application's state, and what the order had come to."""

    version: int
    history: int
    at: Place
    digest: int
    state: bytes
    outputs: tuple[Output, ...] = ()
    """What the application has said so far that is not known to have arrived."""
    ground: Place | None = None
    """Of a state that is ahead: up to where it is decided."""

    @property
    def index(self) -> int:
        return self.at.index

    @property
    def begin(self) -> Place:
        """From where on a log can go on with this state."""
        return self.ground if self.ground is not None else self.at

    def is_sound(self) -> bool:
        ahead = self.ground is None or (
            self.ground.is_sound() and self.ground.index < self.at.index
        )
        return (
            self.version == VERSION and self.at.is_sound() and ahead and 0 <= self.digest < 1 << 32
        )


def make_image(
    history: int,
    at: Cursor,
    digest: int,
    state: bytes,
    outputs: tuple[Output, ...],
    ground: Cursor | None = None,
) -> Image:
    decided = Place.of(ground) if ground is not None else None
    return Image(VERSION, history, Place.of(at), digest, state, outputs, decided)


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Image)


def encode_image(image: Image) -> memoryview:
    return memoryview(_encode(image))


def decode_image(data: bytes) -> Image | None:
    """The image, or None when it is none that makes sense."""
    try:
        image = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return image if image.is_sound() else None
