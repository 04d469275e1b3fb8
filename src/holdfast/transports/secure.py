"""TLS on one stream, without IO: bytes of the cable go in and come out, bytes of the application too.

asyncio's own TLS drops the alert that says why a handshake failed, and buffers in two places. Here the opener is
told, and what waits to be sent waits in one place that is bounded.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, cast

CABLE_BYTES: Final = 64 * 1024
"""How much is read from the cable at once."""


class Pipe:
    """One end of a TLS stream. Methods raise `ssl.SSLError`; then send `outgoing()`, the alert, and close."""

    __slots__ = ("_incoming", "_outgoing", "_room", "_tls", "ready")

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._room = memoryview(bytearray(0))
        self.ready = False
        """The handshake is over. On the opener's side that does not mean that the acceptor likes its certificate."""

    def room(self) -> memoryview:
        """Where the next bytes of the cable go."""
        if not len(self._room):
            self._room = memoryview(bytearray(CABLE_BYTES))
        return self._room

    def feed(self, count: int) -> None:
        """`count` bytes came from the cable."""
        self._incoming.write(self._room[:count])

    def handshake(self) -> bool:
        """Go on with the handshake as far as what has come allows; True when it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Decrypt at most one record; 0 when more is needed from the cable."""
        try:
            count = cast(int, self._tls.read(len(room), cast(bytearray, room)))
        except ssl.SSLWantReadError:
            return 0
        if not count:
            raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "the peer said farewell")
        return count

    def seal(self, data: bytes | memoryview) -> bytes:
        """Encrypt; also takes along what TLS itself has to say."""
        self._tls.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """What TLS itself has to say: handshake, alert, new keys."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def farewell(self) -> bytes:
        """Say that nothing more comes, so that the peer knows that nothing was cut off."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the peer has not said it yet, or the stream is broken already: both are fine here
        return self._outgoing.read()

    def peer_certificate(self) -> dict[str, Any]:
        """The verified certificate of the peer."""
        return cast("dict[str, Any]", self._tls.getpeercert() or {})
