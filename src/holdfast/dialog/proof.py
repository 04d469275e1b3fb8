"""Proof that an end of a dialog is where it says: by the secret that `Confirm` carried."""

from __future__ import annotations

import hmac
from hashlib import sha256

from holdfast.dialog.ids import End, is_twin, twin


def prove(secret: bytes, session: bytes, epoch: int, end: End) -> bytes:
    """Ties the end, its epoch and the dialog together; 32 bytes."""
    # The two ends of a dialog in one store differ in the top bit of the counter.
    base = twin(session) if is_twin(session) else session
    # rule: D-18e
    text = b"".join((b"holdfast dialog move", base, epoch.to_bytes(8, "big"), end.node, end.store))
    return hmac.new(secret, text, sha256).digest()


def proven(proof: bytes, secret: bytes, session: bytes, epoch: int, end: End) -> bool:
    return bool(secret) and hmac.compare_digest(proof, prove(secret, session, epoch, end))
