"""What applications pass to the API of dialogs, checked before it reaches the unit of a store.

A value of the wrong type would make the unit raise. All dialogs of the store would stop until it is read again, and
twice for longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.errors import MisuseError
from holdfast.types import NEVER, SECOND

SECONDS_MAX: Final = 1e9
"""About thirty years."""
TIME_OF_DAY_MAX: Final = 9e9
"""In seconds since 1970: the year 2255."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[type[Any], msgspec.msgpack.Decoder[Any]]] = {}


def check_request(request: Any) -> None:
    """Raises `MisuseError` when a field of a request has the wrong type, or a number that cannot be stored. Messages
    are checked by `bytes_of`, which is faster."""
    kind = type(request)
    if kind is ports.Send:
        return
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        decoder.decode(_encode(request))
    except (TypeError, ValueError, OverflowError) as error:
        raise MisuseError(f"{kind.__name__.lower()}: {error}; nothing was done") from error


def bytes_of(bodies: Sequence[Any]) -> list[bytes]:
    """Messages to send: `bytes`, or a copy of what has the buffer of bytes."""
    if isinstance(bodies, (bytes, bytearray, memoryview, str)):
        raise MisuseError(
            "`send_many` takes a list of messages; nothing was sent; use `send` for one"
        )
    return [body if type(body) is bytes else _bytes_of(body) for body in bodies]


def _bytes_of(body: Any) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MisuseError(
        f"a message must be bytes, not {type(body).__name__}; nothing was sent; encode it first"
    )


def nanoseconds(what: str, seconds: Any, most: float = SECONDS_MAX) -> int:
    """A time that an application gives in seconds. Raises `MisuseError` unless it is a number from 0 to `most`."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= most:
        raise MisuseError(
            f"{what} must be a number of seconds from 0 to {most:.0e}, not {seconds!r}; nothing was done"
        )
    return int(seconds * SECOND)


def deadline(timeout_s: Any, now: int) -> int:
    """When a call that began now gives up. None or a very long time: never; 0 or less: it does not wait."""
    if timeout_s is None:
        return NEVER
    if not isinstance(timeout_s, (int, float)) or math.isnan(timeout_s):
        raise MisuseError(
            f"timeout_s must be a number of seconds or None, not {timeout_s!r}; nothing was done"
        )
    if timeout_s <= 0:
        return 0
    return now + int(timeout_s * SECOND) if timeout_s <= SECONDS_MAX else NEVER
