"""Numbers of other nodes that no object can have. They would overflow when they are counted on and sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from holdfast.objects import frames as f
from holdfast.objects.config import OBJECT_BYTES_MAX, REPLICAS_MAX
from holdfast.objects.values import ID, LINEAGE, Ballot, Sibling, Value

NUMBER_MAX: Final = 1 << 48
"""Rounds, versions, editions and writes of one node to a loose object."""
SET_MAX: Final = 2 * REPLICAS_MAX
SIBLINGS_SENT_MAX: Final = 64
VECTOR_MAX: Final = 4096


def is_plausible(frame: Any) -> bool:
    """Whether a frame can be used."""
    check = _CHECKS.get(type(frame))
    return check is None or check(frame)


def _value(value: Value | None) -> bool:
    if value is None:
        return True
    return (
        len(value.object) == ID
        and 1 <= value.version <= NUMBER_MAX
        and 0 <= value.edition <= NUMBER_MAX
        and 0 <= value.token <= NUMBER_MAX
        and 0 < len(value.replicas) <= SET_MAX
        and len(value.lineage) <= LINEAGE
        and 0 <= value.content.size <= OBJECT_BYTES_MAX
    )


def _ballot(ballot: Ballot) -> bool:
    return 0 <= ballot.round <= NUMBER_MAX


def _siblings(siblings: tuple[Sibling, ...]) -> bool:
    return len(siblings) <= SIBLINGS_SENT_MAX and all(
        len(sibling.vector) <= VECTOR_MAX
        and 0 <= sibling.content.size <= OBJECT_BYTES_MAX
        and all(0 <= count <= NUMBER_MAX for _, count in sibling.vector)
        for sibling in siblings
    )


def _all(values: Iterable[Value | None]) -> bool:
    return all(_value(value) for value in values)


_CHECKS: Final[dict[type, Callable[[Any], bool]]] = {
    f.Prepare: lambda frame: _ballot(frame.ballot),
    f.Accept: lambda frame: _ballot(frame.ballot) and _value(frame.value),
    f.Decide: lambda frame: _value(frame.value),
    f.RegisterState: lambda frame: (
        _all((frame.decided, frame.accepted))
        and _ballot(frame.ballot)
        and _siblings(frame.siblings)
    ),
    f.Promise: lambda frame: (
        _all((frame.decided, frame.accepted))
        and _ballot(frame.ballot)
        and _ballot(frame.accepted_at)
    ),
    f.Accepted: lambda frame: _value(frame.decided) and _ballot(frame.ballot),
    f.Held: lambda frame: _all(frame.objects),
    f.Merge: lambda frame: _siblings(frame.siblings),
    f.Merged: lambda frame: _siblings(frame.siblings),
}
