"""A state from one replica to another, in chunks. The receiver pulls, so that nothing has to be remembered for it.

A request names the transfer and the first part that is lacking; it is answered with a few parts from there on. So a
request is also the acknowledgement, repeating it is harmless, and a lost part is asked for again by the receiver's
timer alone. The number on the wire is `transfer * PARTS_MAX + part`.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.core import Core
from holdfast.group.entries import View
from holdfast.group.log import NUMBER_MAX, Cursor, is_sound_stream
from holdfast.group.peers import Peer, post
from holdfast.group.ports import Output, SnapshotTaken, TakeSnapshot
from holdfast.group.rulings import Rulings, RulingsImage
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import NEVER, Nanos
from holdfast.wire.frames import StateChunk, StateRequest, StreamId

CHUNK: Final = 48_000
PARTS_MAX: Final = 1 << 20
WINDOW: Final = 16
"""Parts that may be on the way."""
TRIES_MAX: Final = 5
"""Requests without any answer, before somebody else is asked."""
IMAGE_VERSION: Final = 1


class Image(msgspec.Struct, frozen=True, array_like=True):
    """What a replica needs to take its place in the order: the application's state after entry `index`, and what the
    order had come to there."""

    version: int
    history: int
    index: int
    term: int
    position: int
    log_ns: int
    digest: int
    streams: tuple[tuple[StreamId, int], ...]
    """The number that each stream goes on with."""
    over: tuple[tuple[bytes, int, int], ...]
    """Of sources that lived often: (source, stream, last incarnation that is forgotten)."""
    view: View | None
    state: bytes
    rulings: RulingsImage = RulingsImage()
    """What is ignored, which requests were delivered, which outputs have arrived."""
    outputs: tuple[Output, ...] = ()
    """What the application has said so far that is not known to have arrived."""

    def cursor(self) -> Cursor:
        over = {(source, stream): incarnation for source, stream, incarnation in self.over}
        return Cursor(
            self.index, self.term, self.position, self.log_ns, dict(self.streams), over, self.view,
            Rulings.of(self.rulings),
        )  # fmt: skip

    def is_sound(self) -> bool:
        return (
            self.version == IMAGE_VERSION
            and self.view is not None
            and self.view.is_sound()
            and 0 <= self.index < NUMBER_MAX
            and 0 <= self.term < NUMBER_MAX
            and 1 <= self.position < NUMBER_MAX
            and 0 <= self.digest < 1 << 32
            and self.rulings.is_sound()
            and all(
                is_sound_stream(stream) and 1 <= number < NUMBER_MAX
                for stream, number in self.streams
            )
        )


def make_image(
    history: int, at: Cursor, digest: int, state: bytes, outputs: tuple[Output, ...]
) -> Image:
    over = tuple((source, stream, life) for (source, stream), life in at.over.items())
    streams = tuple(at.next.items())
    return Image(
        IMAGE_VERSION, history, at.index, at.term, at.position, at.log_ns, digest, streams, over, at.view, state,
        at.rulings.image(), outputs,
    )  # fmt: skip


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


class _Giving(msgspec.Struct):
    """A transfer to one replica."""

    transfer: int
    peer: Peer
    index: int = 0
    image: memoryview | None = None
    acked: int = 0
    """Parts that the receiver has, all up to here."""
    sent: int = 0

    @property
    def parts(self) -> int:
        return -(-len(self.image) // CHUNK) if self.image is not None else 0


class StateOut:
    """Gives states to other replicas: asks the application for a snapshot, sends it as it is asked for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._log = core.log
        self._delivery = core.delivery
        self._giving: dict[str, _Giving] = {}
        self._request = 0
        self._taking: tuple[Cursor, int] | None = None
        """Where the order was when the application was asked for its state, and the digest there."""
        self._for_store = False
        self._unsure: tuple[Cursor, int, bytes] | None = None
        """A state that was taken at a place that is not decided yet."""

    def asked(self, peer: Peer, frame: StateRequest, out: Outbox) -> None:
        transfer, part = divmod(frame.request, PARTS_MAX)
        giving = self._giving.get(peer.name)
        if giving is None or giving.transfer != transfer or giving.peer != peer:
            if part:
                return
            self._giving[peer.name] = _Giving(transfer, peer)
            if self._taking is None and self._unsure is None:
                self._take(out)
            return
        if giving.image is None or not giving.acked <= part <= giving.parts:
            return
        if part == giving.acked:
            giving.sent = part
        giving.acked = part
        if part == giving.parts:
            del self._giving[peer.name]
            return
        self._send(giving, out)

    def _take(self, out: Outbox) -> None:
        self._request += 1
        at = self._delivery.at.copy()
        self._taking = (at, self._delivery.digest)
        effect = TakeSnapshot(replica_unit(self._config.name), self._request, at.index)
        # In its place among the batches, which do not wait for writes either: it must not be overtaken by one.
        out.effect(effect, immediate=True)

    def for_store(self, out: Outbox) -> None:
        """This replica wants a state for its own store: the next one that is taken is kept."""
        self._for_store = True
        if self._taking is None and self._unsure is None:
            self._take(out)

    def taken(self, item: SnapshotTaken, now: Nanos, out: Outbox) -> None:
        """The application's state is here: everybody who waits gets it, once it is decided."""
        if self._taking is None or item.request != self._request:
            return
        at, digest = self._taking
        self._taking = None
        if not self._delivery.suspended:
            self._unsure = (at, digest, item.data)
            self.settle(now, out)

    def settle(self, now: Nanos, out: Outbox) -> None:
        """In `fast` groups a state may be ahead of what is decided: nobody is given it before."""
        if self._unsure is None or self._unsure[0].index > self._log.commit:
            return
        (at, digest, data), self._unsure = self._unsure, None
        waiting = [giving for giving in self._giving.values() if giving.image is None]
        if not (waiting or self._for_store):
            return
        outputs = self._delivery.kept.before(at.position)
        image = encode_image(make_image(self._core.history, at, digest, data, outputs))
        if self._for_store and self._core.journal is not None:
            self._for_store = False
            self._core.journal.keep_state(at, image)
        if waiting and at.index < self._log.ground.index:
            # Entries after the snapshot are gone meanwhile; a newer one is needed.
            self._take(out)
            return
        for giving in waiting:
            giving.image = image
            giving.index = at.index
            detail = f"{len(image)} bytes to {giving.peer.name}"
            out.fact(GroupFact(now, self._config.name, "state_sent", at.term, at.index, detail))
            self._send(giving, out)

    def _send(self, giving: _Giving, out: Outbox) -> None:
        image, parts = giving.image, giving.parts
        assert image is not None
        stop = min(parts, giving.acked + WINDOW)
        for part in range(max(giving.sent, giving.acked), stop):
            data = image[part * CHUNK : (part + 1) * CHUNK]
            number = giving.transfer * PARTS_MAX
            chunk = StateChunk(self._config.name, number, giving.index, part, parts, data)
            post(out, [giving.peer.node], chunk)
        giving.sent = stop

    def peer_down(self, peer: Peer) -> None:
        self._giving.pop(peer.name, None)

    def stop(self) -> None:
        """The state here is of no use to anybody (any more)."""
        self._giving.clear()
        self._taking = self._unsure = None
        self._for_store = False


class StateIn:
    """Takes a state from another replica."""

    def __init__(self, config: GroupConfig, rng: Random) -> None:
        self._config = config
        self._parts_max = min(PARTS_MAX - 1, config.state_bytes // CHUNK + 1)
        # A replica that is built again in the same incarnation must not be given the rest of an earlier transfer.
        self._transfer = rng.getrandbits(31)
        self.peer: Peer | None = None
        self._index = 0
        self._parts = 0
        self._whole: list[bytes] = []
        self._early: dict[int, bytes] = {}
        self._tries = 0
        self._due_ns = NEVER

    @property
    def active(self) -> bool:
        return self.peer is not None

    def begin(self, peer: Peer, now: Nanos, out: Outbox) -> None:
        self.stop()
        self._transfer += 1
        self.peer = peer
        self._ask(now, out)

    def stop(self) -> None:
        self.peer = None
        self._parts = self._tries = 0
        self._whole = []
        self._early = {}
        self._due_ns = NEVER

    def _ask(self, now: Nanos, out: Outbox) -> None:
        assert self.peer is not None
        number = self._transfer * PARTS_MAX + len(self._whole)
        post(out, [self.peer.node], StateRequest(self._config.name, number))
        self._due_ns = now + self._config.transfer_retry_ns

    def wake(self, now: Nanos, out: Outbox) -> None:
        """Ask again for what did not come; after some tries the transfer is off."""
        if self._due_ns > now:
            return
        self._tries += 1
        if self._tries > TRIES_MAX:
            self.stop()
        else:
            self._ask(now, out)

    def chunk(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> Image | None:
        """A part has come; the image when it was the last one that lacked."""
        if peer != self.peer or frame.request != self._transfer * PARTS_MAX:
            return None
        if not self._parts and 1 <= frame.parts <= self._parts_max:
            self._parts, self._index = frame.parts, frame.index
        if frame.parts != self._parts or frame.index != self._index or len(frame.data) > CHUNK:
            return None
        next_part = len(self._whole)
        if not next_part <= frame.part < min(self._parts, next_part + 2 * WINDOW):
            return None
        self._early[frame.part] = bytes(frame.data)
        while (data := self._early.pop(len(self._whole), None)) is not None:
            self._whole.append(data)
        if len(self._whole) == next_part:
            return None
        self._tries = 0
        self._due_ns = now + self._config.transfer_retry_ns
        if len(self._whole) == self._parts:
            self._ask(now, out)
            return self._finish()
        if len(self._whole) // (WINDOW // 2) > next_part // (WINDOW // 2):
            self._ask(now, out)
        return None

    def _finish(self) -> Image | None:
        data = b"".join(self._whole)
        self.stop()
        return decode_image(data)

    def deadline(self) -> Nanos:
        return self._due_ns
