"""Rollback, for groups whose replicas may apply uncommitted entries (`fast`, `availability`).

Applied entries stay only if they are committed. A replica that has applied something else reports it and applies
nothing more before it has restored a snapshot; and it yields only to a later term.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.replicated_log import Kind
from holdfast.group.ports import Apply
from holdfast.sim.checkers.sight import Sight, Violation

LOOKED_AT: Final = 4
"""This many of the last entries are compared after a turn; all of them if the term has changed."""
AWAITS_A_STATE: Final = ("suspended", "restoring")
GIVEN_MAX: Final = 2_000
"""Above this, what the log has freed is removed here too."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """A delivery to an application."""

    term: int
    stream: StreamId
    first: int
    last: int
    position: int

    def is_in(self, entry: Entry) -> bool:
        return (
            entry.kind == Kind.ORDER
            and (entry.term, entry.stream) == (self.term, self.stream)
            and (entry.first, entry.last, entry.position) == (self.first, self.last, self.position)
        )


class Undone:
    """For one group: what each process received since its state began."""

    def __init__(self) -> None:
        self._sights: dict[tuple[str, int], Sight] = {}
        self._given: dict[tuple[str, int], dict[int, Given]] = {}
        self._terms: dict[tuple[str, int], int] = {}
        self.reported = 0
        """How often a replica reported a rollback."""

    def delivers(self, life: tuple[str, int], effect: Apply) -> None:
        """The application receives only what the log of the replica contains."""
        sight, batch = self._sights[life], effect.batch
        last = batch.first + len(batch.messages) - 1
        entry = _entry(sight, effect.index)
        given = Given(
            entry.term if entry is not None else 0, batch.stream, batch.first, last, batch.position
        )
        if entry is None or not given.is_in(entry):
            raise Violation(
                "deliveries match the log",
                f"{effect.unit} on {life[0]} delivers {batch.first} to {last} at position {batch.position} "
                f"for entry {effect.index}, which its log does not have",
            )
        held = self._given.setdefault(life, {})
        held[effect.index] = given
        if len(held) > GIVEN_MAX:
            ground = sight.log.ground.index
            self._given[life] = {index: one for index, one in held.items() if index > ground}

    def restored(self, life: tuple[str, int]) -> None:
        self._given.pop(life, None)

    def see(self, sight: Sight, gave_up: bool) -> None:
        """After a turn; `gave_up`: the replica reported a rollback in it."""
        life = sight.life
        self._sights[life] = sight
        given = self._given.get(life, {})
        wrong = self._wrong(sight, given)
        if gave_up:
            self.reported += 1
            self._given.pop(life, None)
            if wrong and max(one.term for one in wrong) >= sight.term:
                raise Violation(
                    "the later term wins",
                    f"{sight.group}: {sight.host} rolls back entries of term {max(one.term for one in wrong)}, in "
                    f"term {sight.term}",
                )
        elif wrong and sight.state not in AWAITS_A_STATE:
            raise Violation(
                "applied messages that are not in the order are rolled back",
                f"{sight.group}: {sight.host} continues as {sight.state} with messages at position "
                f"{wrong[0].position} that its log does not have there",
            )

    def _wrong(self, sight: Sight, given: dict[int, Given]) -> list[Given]:
        """Applied messages that are not, or no longer, in the log. Entries freed from the log were committed."""
        if self._terms.get(sight.life) == sight.term:
            indexes = list(given)[-LOOKED_AT:]
        else:
            self._terms[sight.life] = sight.term
            indexes = list(given)
        ground = sight.log.ground.index
        wrong = []
        for index in indexes:
            entry = _entry(sight, index)
            if index > ground and (entry is None or not given[index].is_in(entry)):
                wrong.append(given[index])
        return wrong


def _entry(sight: Sight, index: int) -> Entry | None:
    log = sight.log
    return log.entry(index) if log.ground.index < index <= log.last else None
