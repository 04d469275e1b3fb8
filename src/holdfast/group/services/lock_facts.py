"""What an entry did to locks, as facts for the audit: grants with their tokens, and how each grant ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.group.facts import LockFact
from holdfast.group.services.tables import ServiceTables
from holdfast.group.services.values import LockState, Op, Served
from holdfast.types import Nanos

ENDS: Final = {int(Op.RELEASE): "released", int(Op.EXPIRE): "expired"}
OVER: Final = "ended"

Locks = Mapping[str, LockState | None]


def touched(tables: ServiceTables, served: Served) -> Locks:
    """The locks that an entry may change, as they are before it."""
    op, life = served.op, tables.lives.get(served.node)
    names = [op.name] if op.op == Op.ACQUIRE else []
    if life is not None:
        is_over = life.incarnation < served.incarnation
        names += [
            pending.name
            for number, pending in life.requests
            if pending.is_lock and (is_over or number == op.number)
        ]
    return {name: tables.locks.get(name) for name in names}


def lock_facts(
    now: Nanos, group: str, epoch: int, entry: tuple[int, int], op: int, before: Locks, after: Locks
) -> Iterator[LockFact]:
    """The grants that ended and those that began with an entry, which is given as (term, index)."""
    for name, old in before.items():
        new = after.get(name)
        if (old.token if old else 0) == (new.token if new else 0):
            continue
        if old is not None:
            yield _fact(now, ENDS.get(op, OVER), group, epoch, entry, old)
        if new is not None:
            yield _fact(now, "granted", group, epoch, entry, new)


def _fact(
    now: Nanos, event: str, group: str, epoch: int, entry: tuple[int, int], lock: LockState
) -> LockFact:
    node, incarnation, _ = lock.holder
    return LockFact(
        now, event, group, epoch, lock.name, node.hex(), incarnation, lock.token, *entry
    )
