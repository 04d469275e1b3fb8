"""What passes between an application and the daemon that hosts its dialogs, over a Unix socket.

Each frame is four bytes of length and a message of msgpack. Requests of the dialog unit travel as the name of their
type and their own encoding. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.errors import DialogError

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """The first frame of an application. After a lost connection it repeats its id, and gets its answers."""

    application: bytes
    version: int = VERSION


class Ask(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """A request. The daemon keeps its outcome until `Known` covers it, so repeating it has no further effect."""

    id: int
    what: str
    """The type of a request of the dialog unit, or one of `VERBS`."""
    store: str = ""
    dialog: bytes = b""
    body: bytes = b""


class Tell(msgspec.Struct, frozen=True, tag=3, array_like=True):
    what: str
    store: str
    body: bytes


class Known(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The application has every answer below `upto`."""

    upto: int


class GiveUp(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """No task waits for a request any more. It is answered, with nothing if nothing came."""

    id: int


class Bye(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """The application is finished: its dialogs are free for others at once."""


class Welcome(msgspec.Struct, frozen=True, tag=16, array_like=True):
    instance: bytes
    """Of this run of the daemon. A new one has no answers from before."""
    node: bytes
    default_store: str
    stores: list[tuple[str, str, str, bytes]]
    """Name, kind, where its database is, id."""
    profiles: dict[str, dict[str, Any]]


class Answered(msgspec.Struct, frozen=True, tag=17, array_like=True):
    id: int
    what: str
    body: bytes = b""


class Failed(msgspec.Struct, frozen=True, tag=18, array_like=True):
    """The request was refused; `kind` is the name of an exception."""

    id: int
    kind: str
    text: str


class Happened(msgspec.Struct, frozen=True, tag=19, array_like=True):
    store: str
    event: ports.Event


class Announced(msgspec.Struct, frozen=True, tag=20, array_like=True):
    """A dialog of a service that the application listens to."""

    service: str
    kind: str
    dialog: bytes
    uri: str


FromApplication = Hello | Ask | Tell | Known | GiveUp | Bye
FromDaemon = Welcome | Answered | Failed | Happened | Announced

LOOK: Final = "look"
COMMIT: Final = "commit"
ABORT: Final = "abort"
OUTCOME: Final = "outcome"
LISTEN: Final = "listen"
UNLISTEN: Final = "unlisten"
VERBS: Final = (LOOK, COMMIT, ABORT, OUTCOME, LISTEN, UNLISTEN)

_TYPES: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        ports.Open, ports.Listen, ports.Accept, ports.Reject, ports.Send, ports.Take, ports.Complete, ports.Terminate,
        ports.Deactivate, ports.Reactivate, ports.ExtendMessages, ports.ExtendSession, ports.Prepare, ports.Repair,
        ports.Settle, ports.MoveOut, ports.MoveDone, ports.MoveIn, ports.HandedOver, ports.Cancel,
        ports.Outcome, ports.Forget,
        ports.Opened, ports.Sent, ports.Taken, ports.Prepared, ports.Agreed, ports.Exported, ports.Refused,
    )
}  # fmt: skip
REQUESTS: Final = frozenset(
    name for name, kind in _TYPES.items() if issubclass(kind, ports.Request)
) - {"Listen"}
TOLD: Final = frozenset(("HandedOver", "Outcome", "Forget"))
NOTHING: Final = ""

encode: Final = msgspec.msgpack.Encoder().encode
_from_application: Final = msgspec.msgpack.Decoder(FromApplication)
_from_daemon: Final = msgspec.msgpack.Decoder(FromDaemon)
_decoders: Final = {name: msgspec.msgpack.Decoder(kind) for name, kind in _TYPES.items()}


def wrap(value: Any) -> tuple[str, bytes]:
    """A value of the dialog unit, or plain data, as its type and its encoding."""
    name = type(value).__name__
    if name in _TYPES:
        return name, encode(value)
    return NOTHING, encode(value)


def unwrap(what: str, body: bytes) -> Any:
    """Raises `msgspec.DecodeError`."""
    decoder = _decoders.get(what)
    return decoder.decode(body) if decoder is not None else msgspec.msgpack.decode(body)


def framed(frame: FromApplication | FromDaemon) -> bytes:
    body = encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise DialogError(
            f"a request or answer of {len(body)} bytes is above the limit of {FRAME_BYTES_MAX}; nothing was sent"
        )
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """One frame; None at the end of the connection. Raises `ValueError` for one that is too long."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def from_application(data: bytes) -> FromApplication:
    frame: FromApplication = _from_application.decode(data)
    return frame


def from_daemon(data: bytes) -> FromDaemon:
    frame: FromDaemon = _from_daemon.decode(data)
    return frame
