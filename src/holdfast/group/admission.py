"""What a replica's memory is worth: nothing, something, or everything that it ever acknowledged.

A replica that starts has forgotten what it acknowledged in an earlier life, and the leader may have committed entries
because of that. So it is *blank*: it neither acknowledges nor says what it has. Once it has taken in a state it is
*learning*: it appends and acknowledges like everybody, but when a new leader gathers what voters have, it still
counts as one without memory. It is *whole* when its log has come to where the leader's log was at some moment after
this replica started: what it acknowledged before was in that log, so it lies no further.

A group that is founded makes its replicas whole at once: there is nothing to know.

With elections, a view entry that admits the replica again takes the place of `target`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Standing(Enum):
    """What the memory of a replica is worth."""

    BLANK = "blank"
    LEARNING = "learning"
    WHOLE = "whole"


TRANSITIONS: Final[dict[Standing, tuple[Standing, ...]]] = {
    Standing.BLANK: (Standing.LEARNING, Standing.WHOLE),
    Standing.LEARNING: (Standing.WHOLE, Standing.LEARNING),
    Standing.WHOLE: (),
}


class Admission:
    """The way of one replica from blank to whole."""

    __slots__ = ("standing", "target")

    def __init__(self) -> None:
        self.standing = Standing.BLANK
        self.target: int | None = None
        """Where the leader's log ended when it was asked; None before it has answered."""

    def _go(self, standing: Standing) -> None:
        assert standing in TRANSITIONS[self.standing], f"from {self.standing} to {standing}"
        self.standing = standing

    @property
    def is_blank(self) -> bool:
        return self.standing is Standing.BLANK

    @property
    def is_whole(self) -> bool:
        return self.standing is Standing.WHOLE

    def founded(self) -> None:
        """The group begins, or this replica leads it: there is nothing that it does not know."""
        if not self.is_whole:
            self._go(Standing.WHOLE)

    def restored(self) -> None:
        """A state was taken in."""
        if not self.is_whole:
            self._go(Standing.LEARNING)

    def leader_at(self, last_index: int) -> None:
        """The leader's log ends at `last_index`. The first answer counts: the goal must not run away."""
        if self.target is None:
            self.target = last_index

    def new_leader(self) -> None:
        """A term begins. To a replica without memory only the founding of a group can say so. One that is learning
        asks again: its goal would still do, but the new leader's log may end before it."""
        if self.is_blank:
            self.founded()
        elif not self.is_whole:
            self.target = None

    def settle(self, match: int) -> bool:
        """Everything up to `match` is here and is the leader's; True when that has just made the memory whole."""
        reached = self.target is not None and match >= self.target
        if self.standing is not Standing.LEARNING or not reached:
            return False
        self._go(Standing.WHOLE)
        return True
