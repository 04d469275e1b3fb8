"""How an attempt to decide a version ended."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.objects.values import Ballot, Value

DECIDED: Final = "decided"
"""`value` is decided; it may be that of another writer."""
UNREACHABLE: Final = "unreachable"
"""No majority answered; nothing took effect."""
IN_DOUBT: Final = "in doubt"
"""The value may be decided or not; reading resolves it."""
UNFIT: Final = "unfit"
"""A majority cannot accept the value; `detail` says why. Nothing took effect."""
NOTHING_FOUND: Final = "nothing"
"""No replica of a majority has accepted a value."""


class Verdict(msgspec.Struct, frozen=True):
    kind: str
    value: Value | None = None
    detail: str = ""
    copies: int = 0
    contested: bool = False
    holders: tuple[bytes, ...] = ()
    """Replicas that accepted the value: they have its content."""
    lacking: tuple[bytes, ...] = ()
    """Replicas that would have accepted it if they had its content."""
    ballot: Ballot = Ballot()
    is_refused: bool = False
    """Every replica answered, and none has accepted the value."""
    at_first: bool = False
    """The first node that was asked knew the outcome: it was decided before this attempt, or as it began."""
