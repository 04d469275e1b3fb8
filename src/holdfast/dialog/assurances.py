"""The receive rules of the eight combinations of assurances, as one table.

A number that arrives is one of four things:

- `NEXT`: the number that is expected next (one more than the highest in-order number so far);
- `AHEAD`: above that, and not seen before: something lower is missing or was skipped;
- `BEHIND`: below it, and not seen before: the receiver has moved past it;
- `SEEN`: it arrived before.

The table says what to do with it. Dialogs without in-order delivery have no expected number: `NEXT`, `AHEAD` and
`BEHIND` have the same answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.dialog.config import Assurances

NEXT: Final = 0
AHEAD: Final = 1
BEHIND: Final = 2
SEEN: Final = 3
ARRIVALS: Final = ("next", "ahead", "behind", "seen")

DELIVER: Final = 0
"""Available to the application at once. In order: the next expected number is one more."""
HOLD: Final = 1
"""Kept until everything below it has arrived."""
DISCARD: Final = 2
AGAIN: Final = 3
"""Available to the application at once, although it arrived before: no assurance forbids it."""
ACTIONS: Final = ("deliver", "hold", "discard", "deliver again")

TABLE: Final[dict[tuple[bool, bool, bool], tuple[int, int, int, int]]] = {
    # (at least once, at most once, in order):  NEXT,    AHEAD,   BEHIND,  SEEN
    (False, False, False): (DELIVER, DELIVER, DELIVER, AGAIN),
    (False, False, True): (DELIVER, DELIVER, DISCARD, DISCARD),
    (False, True, False): (DELIVER, DELIVER, DELIVER, DISCARD),
    (False, True, True): (DELIVER, DELIVER, DISCARD, DISCARD),
    (True, False, False): (DELIVER, DELIVER, DELIVER, AGAIN),
    (True, False, True): (DELIVER, HOLD, DISCARD, DISCARD),
    (True, True, False): (DELIVER, DELIVER, DELIVER, DISCARD),
    (True, True, True): (DELIVER, HOLD, DISCARD, DISCARD),
}
"""In order, a number that was seen is either below the expected one or held: discarded in both cases. With
at-least-once and in-order nothing is `BEHIND`: the expected number is the lowest one that is missing."""


class Rules(msgspec.Struct, frozen=True, gc=False):
    """One row of the table, and what follows from the assurances besides."""

    next: int
    ahead: int
    behind: int
    seen: int
    acknowledges: bool
    """Freed by acknowledgement and sent again without one."""
    in_order: bool
    removes_first: bool
    """Without a transaction, a message is removed from the store before it is handed over, not after."""

    @property
    def waits(self) -> bool:
        """Whether a gap holds up what is above it."""
        return self.ahead == HOLD


def rules_of(assurances: Assurances) -> Rules:
    key = (assurances.at_least_once, assurances.at_most_once, assurances.in_order)
    return Rules(
        *TABLE[key], assurances.at_least_once, assurances.in_order, assurances.at_most_once
    )
