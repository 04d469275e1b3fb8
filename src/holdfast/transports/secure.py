"""TLS on one stream, without IO: encrypted and decrypted bytes go in and out.

The TLS of asyncio drops the alert that explains a failed handshake, and buffers in two places. Here the opener gets the
reason, and outgoing data waits in one bounded buffer.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, cast

CABLE_BYTES: Final = 64 * 1024
"""How much is read from the network at once."""


class Pipe:
    """One end of a TLS stream. Methods raise `ssl.SSLError`; then send `outgoing()`, the alert, and close."""

    __slots__ = ("_incoming", "_outgoing", "_room", "_tls", "ready")

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._room = memoryview(bytearray(0))
        self.ready = False
        """The handshake is complete. For the opener, that does not mean that the acceptor accepted its certificate."""

    def room(self) -> memoryview:
        """The buffer for the next bytes from the network."""
        if not len(self._room):
            self._room = memoryview(bytearray(CABLE_BYTES))
        return self._room

    def feed(self, count: int) -> None:
        """`count` bytes arrived from the network."""
        self._incoming.write(self._room[:count])

    def handshake(self) -> bool:
        """Continue the handshake as far as possible. Returns True when it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Decrypt at most one record; 0 if more bytes are needed."""
        try:
            count = cast(int, self._tls.read(len(room), cast(bytearray, room)))
        except ssl.SSLWantReadError:
            return 0
        if not count:
            raise ssl.SSLZeroReturnError(
                ssl.SSL_ERROR_ZERO_RETURN, "the peer closed the TLS session"
            )
        return count

    def seal(self, data: bytes | memoryview) -> bytes:
        """Encrypt, and include pending TLS messages."""
        self._tls.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Pending TLS messages: handshake, alert, new keys."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def farewell(self) -> bytes:
        """Announce the end of the stream, so that the peer knows that nothing is missing."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the peer has not done so yet, or the stream is broken; both are fine here
        return self._outgoing.read()

    def peer_certificate(self) -> dict[str, Any]:
        """The verified certificate of the peer."""
        return cast("dict[str, Any]", self._tls.getpeercert() or {})
