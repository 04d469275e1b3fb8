"""The seal of datagrams: AES-256-GCM with a key exchanged over TLS and the packet number as the nonce.

A key serves one direction of one session, and numbers only increase, so a nonce is never reused. A restarted node has
no session and therefore no old key.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY: Final = 32
TAG: Final = 16
NUMBER_MAX: Final = 1 << 48
"""A session ends long before its packet numbers run out."""

Buffer = bytes | memoryview


class Seal:
    """One key. `close` and `open` encrypt; `tag` and `check` only authenticate and leave the bytes readable."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY
        self._aead = AESGCM(key)

    def close(self, number: int, body: Buffer, head: Buffer) -> bytes:
        return self._aead.encrypt(number.to_bytes(12, "big"), body, head)

    def open(self, number: int, sealed: Buffer, head: Buffer) -> bytes | None:
        try:
            return self._aead.decrypt(number.to_bytes(12, "big"), sealed, head)
        except InvalidTag:
            return None

    def tag(self, number: int, parts: tuple[Buffer, ...]) -> bytes:
        return self._aead.encrypt(number.to_bytes(12, "big"), b"", b"".join(parts))

    def check(self, number: int, tag: Buffer, parts: tuple[Buffer, ...]) -> bool:
        try:
            self._aead.decrypt(number.to_bytes(12, "big"), tag, b"".join(parts))
        except InvalidTag:
            return False
        return True
