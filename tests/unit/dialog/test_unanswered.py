"""Requests that outlive their transaction, their task or their dialog: each is answered, and none keeps a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from tests.support.dialogs import Pair, World, bodies, damage_arrivals, transact

from holdfast.dialog.outgoing import Run
from holdfast.dialog.ports import (
    Cancel,
    Deactivate,
    Outcome,
    Prepare,
    Prepared,
    Send,
    Take,
    Taken,
    Terminate,
)
from holdfast.types import MILLISECOND, SECOND

TX = b"t" * 16
OTHER = b"u" * 16


class BrokenQueue(deque[Run]):
    def append(self, run: Run) -> None:
        raise ValueError("a bug")


class Bug(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise ValueError("a bug")


def damage(pair: Pair) -> None:
    """The far end raises at the next arrival."""
    damage_arrivals(pair.far, pair.dialog)


# -- a transaction that ends while its requests wait -----------------------------------------------------------


@pytest.mark.parametrize("commit", [False, True])
def test_a_receive_does_not_lease_a_message_to_a_transaction_that_is_over(commit: bool) -> None:
    """No outcome would follow: an in-order dialog would deliver nothing any more."""
    world = World(1)
    pair = Pair(world)
    waiting = pair.take(tx=TX)
    world.run(SECOND)
    transact(pair.far, TX, commit)
    world.finish(waiting)
    assert waiting.refused in ("aborted", "misuse")
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    assert pair.drain() == [b"job"]


@pytest.mark.parametrize("commit", [False, True])
def test_a_receive_from_any_dialog_ends_with_its_transaction(commit: bool) -> None:
    world = World(2)
    pair = Pair(world)
    waiting = pair.far.call(Take(token=0, dialog=b"", tx=TX))
    world.run(SECOND)
    transact(pair.far, TX, commit)
    world.finish(waiting)
    assert waiting.refused in ("aborted", "misuse")
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    assert pair.drain() == [b"job"]


def test_nothing_is_received_between_prepare_and_commit() -> None:
    """The rows are fixed: a message that is leased now would be taken without a row, and lost with a crash."""
    world = World(3)
    pair = Pair(world)
    world.finish(pair.send(b"first"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take(tx=TX))[0]) == [b"first"]
    waiting = pair.take(tx=TX)
    world.run(MILLISECOND)
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    world.finish(waiting)
    assert waiting.refused == "misuse"
    world.finish(pair.send(b"second"))
    world.run(SECOND)
    assert pair.far.commit_transaction(prepared)
    pair.far.give(Outcome(TX, True))
    world.run(SECOND)
    assert pair.drain() == [b"second"]


@pytest.mark.parametrize("commit", [False, True])
def test_a_send_that_waits_for_room_ends_with_its_transaction(commit: bool) -> None:
    """It would reserve room that no outcome frees."""
    world = World(4)
    pair = Pair(world, near={"quota_messages": 2}, far={"quota_messages": 2})
    world.filter = lambda *_: False
    world.finish(pair.send(b"1", b"2"))
    waiting = pair.send(b"never", tx=TX)
    world.run(MILLISECOND)
    transact(pair.near, TX, commit)
    world.finish(waiting)
    assert waiting.refused in ("aborted", "misuse")
    world.filter = lambda *_: True
    assert world.run(60 * SECOND, lambda: pair.drain() == [b"1", b"2"])
    world.run(10 * SECOND)
    assert world.finish(pair.send(b"3", b"4", deadline=0))[0].count == 2, "all room is free"


def test_a_request_that_comes_after_the_outcome_is_refused() -> None:
    """It was delayed on its way to the unit. Without this it would begin the transaction again, in part."""
    world = World(5)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    transact(pair.far, TX, commit=False)
    late = pair.take(tx=TX), pair.send(b"x", unit=pair.far, tx=TX)
    world.finish(*late)
    assert [call.refused for call in late] == ["aborted", "aborted"]
    prepare = pair.far.call(Prepare(token=0, tx=TX))
    world.finish(prepare)
    assert prepare.refused == "aborted"
    assert pair.drain() == [b"job"]


def test_a_transaction_ends_while_its_dialog_is_read() -> None:
    """The dialog is deactivated: the receive waits for the store, and its task is cancelled meanwhile."""
    world = World(6)
    pair = Pair(world)
    world.finish(pair.far.call(Deactivate(token=0, dialog=pair.dialog)))
    waiting = pair.take(tx=TX)
    pair.far.give(Cancel(1, pair.dialog))
    pair.far.give(Outcome(TX, False))
    world.finish(waiting)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    assert pair.drain() == [b"job"]


# -- a dialog that raises ----------------------------------------------------------------------------------------


def test_rule_22_a_request_that_raises_is_answered() -> None:
    world = World(10)
    pair = Pair(world)
    pair.near.manager.core.dialogs[pair.dialog].out.queue = BrokenQueue()
    call = pair.send(b"x")
    world.finish(call)
    assert call.refused == "internal"
    world.run(5 * SECOND)
    world.finish(pair.send(b"y"))
    world.run(SECOND)
    assert pair.drain() == [b"y"]


def test_rule_22_every_request_of_a_turn_that_is_discarded_is_answered() -> None:
    """The first send was captured, and the second raised: the stage of both is discarded."""
    world = World(11)
    pair = Pair(world)
    first, second = pair.near.call(None), pair.near.call(None)
    pair.near.calls[801], pair.near.calls[802] = first, second
    good = Send(token=801, dialog=pair.dialog, bodies=[b"good"])
    bad = Send(token=802, dialog=pair.dialog, bodies=[None])  # type: ignore[list-item]
    pair.near.turn([good, bad])
    world.finish(first, second)
    assert (first.refused, second.refused) == ("internal", "internal")
    world.run(5 * SECOND)
    assert pair.drain() == []


def test_rule_22_termination_that_raises_is_not_reported_as_done() -> None:
    world = World(12)
    pair = Pair(world)
    received = pair.near.manager.core.dialogs[pair.dialog].inc.received
    received.starts = Bug()  # the notice to the partner lists the ranges
    call = pair.near.call(Terminate(token=0, dialog=pair.dialog))
    world.finish(call)
    assert call.refused == "internal"
    world.run(5 * SECOND)
    assert pair.here().state == "open"


def test_rule_22_a_transaction_whose_dialog_was_read_again_does_not_commit_without_its_messages() -> (
    None
):
    """The lease is gone with the memory of the dialog. A commit without it would process the message twice."""
    world = World(13)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take(tx=TX))[0]) == [b"job"]
    damage(pair)
    world.finish(pair.send(b"next"))
    world.run(5 * SECOND)
    prepare = pair.far.call(Prepare(token=0, tx=TX))
    world.finish(prepare)
    assert prepare.refused == "aborted"
    pair.far.give(Outcome(TX, False, counts=False))
    world.run(SECOND)
    assert pair.drain() == [b"job", b"next"]


@pytest.mark.parametrize("late", [False, True])
def test_rule_22_a_prepared_transaction_keeps_its_messages_when_the_dialog_is_read_again(
    late: bool,
) -> None:
    """`late`: the outcome comes while the dialog is being read; the rows were read before the commit."""
    world = World(14)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX), pair.send(b"reply", unit=pair.far, tx=TX))
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert isinstance(prepared, Prepared)
    damage(pair)
    core = pair.far.manager.core
    world.finish(pair.send(b"next"))
    if late:
        held: list[object] = []
        pair.far.read = held.append  # type: ignore[method-assign]
        assert world.run(SECOND, lambda: pair.dialog in core.parked)
        del pair.far.read
        before = {t: dict(rows) for t, rows in pair.far.tables.items()}
        assert pair.far.commit_transaction(prepared)
        pair.far.give(Outcome(TX, True))
        world.run(SECOND)
        now, pair.far.tables = pair.far.tables, before
        for effect in held:
            pair.far.read(effect)  # type: ignore[arg-type]
        world.run(0)
        pair.far.tables = now
        world.run(5 * SECOND)
    else:
        world.run(5 * SECOND)
        assert pair.drain() == [], "the message is the transaction's"
        assert pair.far.commit_transaction(prepared)
        pair.far.give(Outcome(TX, True))
        world.run(5 * SECOND)
    assert pair.drain() == [b"next"]
    assert pair.drain(pair.near) == [b"reply"]


def test_the_outcome_of_a_transaction_survives_a_new_owner_for_those_that_ask() -> None:
    """The connection was lost during COMMIT, and the unit began anew before the application could ask."""
    world = World(15)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX))
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert pair.far.commit_transaction(prepared)
    world.crash(pair.b)
    world.run(60 * SECOND)
    assert pair.far.tables["tx"] == {TX: b"c"}
    assert pair.far.tables["taken"] == {}, "it is folded all the same"
    assert pair.drain() == []
    world.run(2 * 3600 * SECOND)
    assert pair.far.tables["tx"] == {}, "and erased in the end"


# -- requests that are cancelled -------------------------------------------------------------------------------


def test_every_request_that_is_cancelled_is_answered() -> None:
    """What waits for the answer is kept until it comes."""
    world = World(20)
    pair = Pair(world, near={"quota_messages": 1})
    world.filter = lambda *_: False
    world.finish(pair.send(b"1"))
    far, near = pair.far, pair.near
    calls = [pair.take(), far.call(Take(token=0, dialog=b"")), pair.send(b"2")]
    world.run(MILLISECOND)
    for unit in (far, near):
        for token, call in list(unit.calls.items()):
            unit.give(Cancel(token, getattr(call.request, "dialog", b"")))
    values = world.finish(*calls)
    assert [value for value in values if isinstance(value, Taken)] == [
        Taken(pair.dialog, []), Taken(b"", []),
    ]  # fmt: skip
    assert calls[2].refused == "cancelled"
    assert not far.manager.core.any_takers


def test_a_cancelled_receive_from_any_dialog_leaves_no_deadline() -> None:
    world = World(21)
    pair = Pair(world)
    deadlines = pair.far.manager.core.deadlines
    before = deadlines.next()
    call = pair.far.call(Take(token=0, dialog=b"", deadline=world.now + 1000 * SECOND))
    world.run(MILLISECOND)
    (token,) = pair.far.calls
    pair.far.give(Cancel(token))
    world.finish(call)
    assert deadlines.next() == before


# -- notices of expiry -------------------------------------------------------------------------------------------


def test_a_message_that_expires_after_a_later_one_has_its_notice_too() -> None:
    world = World(30)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"slow", ttl_ns=20 * SECOND))
    world.finish(pair.send(b"urgent", ttl_ns=5 * SECOND))
    world.run(10 * SECOND)
    assert [event.number for event in pair.near.kinds("expired")] == [1]
    world.crash(pair.a)
    world.run(120 * SECOND)
    assert [event.number for event in pair.near.kinds("expired")] == [1, 0]
