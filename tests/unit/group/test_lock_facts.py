"""P7: what committed entries did to locks, as the audit of fencing tokens sees it."""

from __future__ import annotations

from holdfast.group.services.lock_facts import lock_facts, touched
from holdfast.group.services.tables import ServiceTables
from holdfast.group.services.values import Op, Served, ServiceOp
from holdfast.types import SECOND

ANN, BEN = b"a" * 16, b"b" * 16


class Entries:
    """Applies operations as the leader does, one entry each."""

    def __init__(self) -> None:
        self.tables = ServiceTables()
        self.index = 0

    def apply(self, node: bytes, op: ServiceOp, incarnation: int = 1) -> list[tuple[str, str, int]]:
        """The facts of one entry: event, holder, token."""
        self.index += 1
        served = Served(node, incarnation, 0, op)
        before = touched(self.tables, served)
        self.tables.apply(self.index, self.index, served)
        facts = lock_facts(0, "book", 7, (3, self.index), op.op, before, self.tables.locks)
        found = list(facts)
        assert {(fact.term, fact.index, fact.epoch) for fact in found} <= {(3, self.index, 7)}
        return [(fact.event, bytes.fromhex(fact.holder)[:1].decode(), fact.token) for fact in found]


def acquire(number: int, name: str = "till") -> ServiceOp:
    return ServiceOp(Op.ACQUIRE, number, name, SECOND)


def test_a_grant_and_its_release_are_recorded_with_the_token() -> None:
    log = Entries()
    assert log.apply(ANN, acquire(1)) == [("granted", "a", 1)]
    assert log.apply(ANN, acquire(1)) == [], "a copy of a request changes nothing"
    assert log.apply(ANN, ServiceOp(Op.RENEW, 0)) == []
    assert log.apply(ANN, ServiceOp(Op.RELEASE, 1)) == [("released", "a", 1)]


def test_a_lock_that_passes_on_ends_one_grant_and_begins_another() -> None:
    log = Entries()
    log.apply(ANN, acquire(1))
    assert log.apply(BEN, acquire(1)) == [], "it waits"
    assert log.apply(ANN, ServiceOp(Op.EXPIRE, 1)) == [("expired", "a", 1), ("granted", "b", 3)]


def test_a_later_incarnation_ends_what_the_earlier_one_held() -> None:
    log = Entries()
    log.apply(ANN, acquire(1))
    log.apply(ANN, acquire(2, "door"))
    found = log.apply(ANN, ServiceOp(Op.RENEW, 0), incarnation=2)
    assert sorted(found) == [("ended", "a", 1), ("ended", "a", 2)]


def test_a_request_that_is_withdrawn_changes_no_grant() -> None:
    log = Entries()
    log.apply(ANN, acquire(1))
    log.apply(BEN, acquire(1))
    assert log.apply(BEN, ServiceOp(Op.RELEASE, 1)) == []


def test_barriers_are_not_locks() -> None:
    log = Entries()
    arrive = ServiceOp(Op.ARRIVE, 1, "gate", SECOND, parties=2)
    assert log.apply(ANN, arrive) == []
    assert log.apply(ANN, ServiceOp(Op.EXPIRE, 1)) == []
