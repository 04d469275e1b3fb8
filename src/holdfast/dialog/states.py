"""The states of one end of a dialog, and which follows which. The table below is the whole story."""

from __future__ import annotations

from typing import Final

RESOLVING: Final = "resolving"
"""The creator looks for instances of the service."""
INVITING: Final = "inviting"
"""Instances were asked."""
CONFIRMING: Final = "confirming"
"""One instance is recorded as the partner and was sent `Confirm`."""
OFFERED: Final = "offered"
"""This instance accepted, and waits for `Confirm`."""
OPEN: Final = "open"
FAULTED: Final = "faulted"
"""The assurances cannot be met at the moment. Nothing is transmitted or delivered; sends are still captured."""
MOVED: Final = "moved"
"""The state went to another node; this end only says so."""
TERMINATED: Final = "terminated"
"""Over. What the partner had sent can still be read."""
COMPLETED: Final = "completed"
"""Over: both ends have everything."""

TRANSITIONS: Final[dict[str, tuple[str, ...]]] = {
    RESOLVING: (INVITING, FAULTED, TERMINATED),
    INVITING: (CONFIRMING, RESOLVING, FAULTED, TERMINATED),
    CONFIRMING: (OPEN, RESOLVING, FAULTED, TERMINATED),
    OFFERED: (OPEN, FAULTED, TERMINATED),
    OPEN: (FAULTED, MOVED, TERMINATED, COMPLETED),
    FAULTED: (OPEN, RESOLVING, CONFIRMING, MOVED, TERMINATED),
    MOVED: (),
    TERMINATED: (),
    COMPLETED: (),
}

PAIRING: Final = (RESOLVING, INVITING, CONFIRMING)
ENDED: Final = (MOVED, TERMINATED, COMPLETED)


def may_follow(state: str, following: str) -> bool:
    return following in TRANSITIONS[state]
