"""P7: a transaction records how it ended and what it comprised; every range of it names it."""

from __future__ import annotations

from tests.support.dialogs import Pair, Unit, World, bodies, transact

from holdfast.dialog.facts import DialogRangeFact, DialogTransactionFact
from holdfast.types import SECOND

FIRST, SECOND_TX = b"1" * 16, b"2" * 16


def ends(unit: Unit) -> list[tuple[str, str, int, int]]:
    found = [fact for fact in unit.facts if isinstance(fact, DialogTransactionFact)]
    return [(fact.event, fact.transaction, fact.taken, fact.sent) for fact in found]


def ranges(unit: Unit, event: str) -> list[tuple[int, int, str]]:
    found = [fact for fact in unit.facts if isinstance(fact, DialogRangeFact)]
    return [(fact.first, fact.last, fact.transaction) for fact in found if fact.event == event]


def test_a_committed_transaction_names_what_it_took_and_sent() -> None:
    world = World(81)
    pair = Pair(world)
    world.finish(pair.send(b"a", b"b", b"c"))
    world.run(SECOND)
    [taken] = world.finish(pair.take(2, pair.far, tx=FIRST))
    assert bodies(taken) == [b"a", b"b"]
    world.finish(pair.send(b"answer", unit=pair.far, tx=FIRST))
    assert transact(pair.far, FIRST)
    world.run(SECOND)
    assert ends(pair.far) == [("committed", FIRST.hex(), 2, 1)]
    assert ranges(pair.far, "taken") == [(0, 1, FIRST.hex())]
    assert ranges(pair.far, "captured") == [(0, 0, FIRST.hex())]
    assert ranges(pair.near, "captured") == [(0, 2, "")], "sent without a transaction"


def test_an_aborted_transaction_leaves_no_range_and_the_next_one_has_its_own() -> None:
    world = World(82)
    pair = Pair(world)
    world.finish(pair.send(b"a", b"b"))
    world.run(SECOND)
    world.finish(pair.take(1, pair.far, tx=FIRST))
    transact(pair.far, FIRST, commit=False)
    world.run(SECOND)
    assert [end[:2] for end in ends(pair.far)] == [("aborted", FIRST.hex())]
    assert ranges(pair.far, "taken") == []
    world.finish(pair.take(2, pair.far, tx=SECOND_TX))
    assert transact(pair.far, SECOND_TX)
    world.run(SECOND)
    assert ends(pair.far)[1] == ("committed", SECOND_TX.hex(), 2, 0)
    assert ranges(pair.far, "taken") == [(0, 1, SECOND_TX.hex())]


def test_adjacent_ranges_of_two_transactions_stay_apart() -> None:
    world = World(83)
    pair = Pair(world)
    world.finish(pair.send(b"a", b"b"))
    world.run(SECOND)
    for tx in (FIRST, SECOND_TX):
        world.finish(pair.take(1, pair.far, tx=tx))
        assert transact(pair.far, tx)
    world.run(SECOND)
    assert ranges(pair.far, "taken") == [(0, 0, FIRST.hex()), (1, 1, SECOND_TX.hex())]
