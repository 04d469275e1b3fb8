"""Details of the rules that only one schedule each reaches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.dialogs import (
    SERVICE,
    Pair,
    Unit,
    World,
    block,
    bodies,
    frames,
    settings,
    transact,
    unblock,
)

from holdfast.dialog.frames import Ack, Confirmed, Messages, Moved, Resume
from holdfast.dialog.outgoing import Outgoing
from holdfast.dialog.ports import (
    Deactivate,
    Event,
    Exported,
    MoveIn,
    MoveOut,
    Open,
    Outcome,
    Prepare,
    Prepared,
    Send,
    Settle,
    Take,
    Terminate,
)
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, SECOND

TX = b"t" * 16


# -- 11, 14: transactions and attempts ---------------------------------------------------------------------------


def test_rule_11_bytes_that_cannot_fit_beside_the_transactions_own_are_refused_at_once() -> None:
    world = World(1)
    limits = {"quota_bytes": 1000, "message_bytes_max": 900}
    pair = Pair(world, near=limits)
    world.finish(pair.send(bytes(600), tx=TX))
    call = pair.send(bytes(600), tx=TX, deadline=world.now + 30 * SECOND)
    world.run(SECOND)
    assert call.refused == "quota"


def test_rule_9_a_committed_transaction_leaves_no_rows_behind_once_it_is_folded() -> None:
    """They would be folded again at the next start: sent twice."""
    world = World(2)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX), pair.send(b"reply", unit=pair.far, tx=TX))
    assert transact(pair.far, TX)
    world.run(SECOND)
    for table in ("taken", "staged", "tx"):
        assert not pair.far.tables.get(table), table
    world.crash(pair.b)
    world.run(5 * SECOND)
    assert pair.drain(pair.near) == [b"reply"]


def test_rule_14_a_message_that_is_tried_again_has_all_its_attempts() -> None:
    world = World(3)
    pair = Pair(world, far={"poison_after": 2})
    world.finish(pair.send(b"bad"))
    world.run(SECOND)

    def abort(tx: bytes) -> None:
        assert bodies(world.finish(pair.take(tx=tx))[0]) == [b"bad"]
        transact(pair.far, tx, commit=False)

    abort(b"1" * 16)
    abort(b"2" * 16)
    assert pair.there().poison == [0]
    world.finish(pair.far.call(Settle(token=0, dialog=pair.dialog, number=0, action="retry")))
    abort(b"3" * 16)
    assert pair.there().poison == []
    abort(b"4" * 16)
    assert pair.there().poison == [0]


def test_rule_14_without_order_a_message_that_was_set_aside_can_be_tried_again() -> None:
    world = World(13)
    pair = Pair(world, 6, far={"poison_after": 1})
    world.finish(pair.send(b"bad"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX))
    pair.far.give(Outcome(TX, False, True))
    world.run(SECOND)
    assert pair.there().poison == [0]
    assert pair.drain() == []
    world.finish(pair.far.call(Settle(token=0, dialog=pair.dialog, number=0, action="retry")))
    assert pair.drain() == [b"bad"]
    assert pair.there().poison == []


def test_rule_14_nothing_is_kept_of_attempts_that_succeeded_in_the_end() -> None:
    """'Delivery and message processing succeeds on the next attempt.'"""
    world = World(4)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX))
    transact(pair.far, TX, commit=False)
    assert pair.far.tables["attempt"]
    again = b"u" * 16
    world.finish(pair.take(tx=again))
    assert transact(pair.far, again)
    world.run(SECOND)
    assert not pair.far.tables["attempt"]


# -- 17: identity ------------------------------------------------------------------------------------------------


def test_rule_17_an_id_is_never_used_again_after_a_crash() -> None:
    """The dialog that it named would be replaced by another."""
    world = World(5)
    pair = Pair(world)
    world.crash(pair.a)
    world.run(SECOND)
    call = pair.near.call(Open(token=0, uri=SERVICE, settings=settings()))
    assert world.finish(call)[0].dialog != pair.dialog
    assert pair.here().state == "open"


def test_rule_17_the_final_ranges_tell_what_was_acknowledged_in_vain() -> None:
    """The acknowledgement was lost. Without the ranges, the sender would report a message that was received."""
    world = World(6)
    pair = Pair(world)
    block(world, Ack)
    world.finish(pair.send(b"one"))
    world.run(100 * MILLISECOND)
    assert pair.drain() == [b"one"]
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"two"))
    world.finish(pair.far.call(Terminate(token=0, dialog=pair.dialog)))
    unblock(world)
    world.connect(pair.a, pair.b)
    world.run(5 * SECOND)
    assert [event.count for event in pair.near.kinds("terminated")] == [1]


# -- 18: moving --------------------------------------------------------------------------------------------------


def exported(world: World, pair: Pair, target: Unit) -> bytes:
    call = MoveOut(token=0, dialog=pair.dialog, node=target.host.node, store=target.store)
    [state] = world.finish(pair.far.call(call))
    assert isinstance(state, Exported)
    return state.state


def test_rule_18_frames_of_the_end_before_the_move_are_refused() -> None:
    """The end moves between two stores of one node, so the sender's node does not tell them apart."""
    world = World(7)
    pair = Pair(world)
    c = world.add("c", stores=("one", "two"))
    world.connect(pair.a, c)
    one, two = c.units["one"], c.units["two"]
    world.finish(one.call(MoveIn(token=0, state=exported(world, pair, one))))
    world.run(5 * SECOND)
    out = MoveOut(token=0, dialog=pair.dialog, node=c.node, store=two.store)
    [state] = world.finish(one.call(out))
    world.finish(two.call(MoveIn(token=0, state=state.state)))
    world.run(5 * SECOND)
    block(world, Messages)
    world.finish(pair.send(b"one"))
    world.run(100 * MILLISECOND)
    late = Ack(pair.near.store, pair.dialog, 1, [0, 1], 100)
    pair.near.turn([Received(c.node, [late], world.now)])
    assert pair.near.manager.status()["counts"]["stale_epoch"] > 0
    assert pair.here().in_flight == 1
    unblock(world)
    world.run(30 * SECOND)
    assert pair.drain(two) == [b"one"]


@pytest.mark.parametrize("side", ["received", "sent"])
def test_rule_18_an_end_moves_whose_messages_share_a_block_with_those_of_another(side: str) -> None:
    """What the end holds is freed once, or the store miscounts what the other dialog still needs."""
    world = World(9)
    pair = Pair(world)
    near, far = pair.near, pair.far
    call = near.call(Open(token=0, uri=SERVICE, settings=settings()))
    other = world.finish(call)[0].dialog
    world.run(SECOND)
    both = (pair.dialog, other)
    block(world, Ack, Messages)
    sender = far if side == "sent" else near
    sender.turn([Send(token=0, dialog=dialog, bodies=[b"one"]) for dialog in both])
    world.run(100 * MILLISECOND)
    if side == "received":
        far.turn([Received(pair.a.node, frames(near, Messages)[-2:], world.now)])
        world.run(100 * MILLISECOND)
    assert far.manager.status()["blocks"] == 1, "one block for the messages of one turn"
    c = world.add("c")
    world.connect(pair.a, c)
    target = c.units["default"]
    world.finish(target.call(MoveIn(token=0, state=exported(world, pair, target))))
    assert far.manager.status()["blocks"] == 1, "the other dialog needs it"
    unblock(world)
    world.run(90 * SECOND)
    for dialog, unit in zip(
        both, (target, far) if side == "received" else (near, near), strict=True
    ):
        assert bodies(world.finish(unit.call(Take(token=0, dialog=dialog)))[0]) == [b"one"]
    world.run(SECOND)
    assert far.manager.status()["blocks"] == target.manager.status()["blocks"] == 0


def test_rule_18_the_source_says_where_the_end_is() -> None:
    """The partner has no link to the target, and learns of it from the source only."""
    world = World(11)
    pair = Pair(world)
    c = world.add("c")
    target = c.units["default"]
    world.finish(target.call(MoveIn(token=0, state=exported(world, pair, target))))
    world.run(5 * SECOND)
    assert pair.here().partner.node == pair.b.node, "there was nothing to say to it"
    world.crash(pair.a)
    world.run(5 * SECOND)
    assert pair.here().partner.node == c.node
    world.finish(pair.send(b"one"))
    assert (pair.a.node, c.node) in world.wanted_links
    world.connect(pair.a, c)
    world.run(5 * SECOND)
    assert pair.drain(target) == [b"one"]


def test_rule_18_a_move_without_proof_is_refused() -> None:
    """It comes from the partner's node, which may be a copy that woke up, or be told what to say."""
    world = World(12)
    pair = Pair(world)
    thief = world.add("c").units["default"]
    forged = Moved(pair.near.store, pair.dialog, 5, thief.host.node, thief.store, b"x" * 32)
    world.carry(pair.far, pair.a.node, forged)
    world.run(SECOND)
    assert pair.near.manager.status()["counts"]["forged"] == 1
    assert pair.here().partner.node == pair.b.node


def test_rule_18_a_proof_is_for_one_place_only() -> None:
    """A node that has seen where a dialog moved to claims to be there."""
    world = World(8)
    pair = Pair(world)
    target, thief = world.add("c").units["default"], world.add("d").units["default"]
    world.connect(pair.a, thief.host)
    exported(world, pair, target)
    block(world, Moved)
    world.finish(pair.send(b"one"))
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    # Every node that asks the source is told, and the partner has not heard of it yet.
    proof = frames(pair.far, Moved)[-1].proof
    forged = Resume(pair.near.store, pair.dialog, 1, thief.store, 1, 0, [], 99, 0, 1, 0, proof)
    world.carry(thief, pair.a.node, forged)
    world.run(SECOND)
    assert pair.near.manager.status()["counts"]["forged"] == 1
    assert pair.here().partner.node == pair.b.node
    unblock(world)
    world.run(30 * SECOND)
    assert pair.here().partner.node == target.host.node


# -- 19: time ----------------------------------------------------------------------------------------------------


def test_rule_19_after_lag_arrivals_come_before_what_expires() -> None:
    """The process was stopped for ten seconds. The acknowledgement waits in its socket."""
    world = World(10)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    block(world, Ack)
    world.finish(pair.send(b"one"))
    world.run(100 * MILLISECOND)
    late = frames(pair.far, Ack)[-1]
    assert late.ranges == [0, 1]
    arrival = Received(pair.b.node, [late], world.now)
    result = pair.near.turns.run(world.now + 10 * SECOND, [(pair.near.unit, arrival)])
    assert pair.here().acked == [(0, 1)]
    assert [e for e in result.effects if isinstance(e, Event) and e.kind == "expired"] == []


def test_rule_19_a_session_that_completed_does_not_expire_after_a_restart() -> None:
    """The last word was lost with the process. The partner is asked before anything expires."""
    world = World(11)
    pair = Pair(world, near={"session_ttl_ns": 5 * SECOND})
    world.filter = lambda unit, _node, frame: unit is not pair.far or type(frame) is not Ack
    world.finish(*pair.complete())
    world.run(100 * MILLISECOND)
    assert pair.there() is None
    assert pair.here().state == "open"
    world.crash(pair.a, down_ns=20 * SECOND)
    unblock(world)
    world.run(40 * SECOND)
    assert pair.near.kinds("faulted") == []
    assert pair.near.kinds("completed")


# -- 20: retransmission ------------------------------------------------------------------------------------------


def test_rule_20_the_round_trip_is_not_measured_on_a_message_that_was_sent_twice() -> None:
    """The acknowledgement may be of the first copy: a round trip of a millisecond would follow."""
    out = Outgoing(True)
    out.limit = 10
    out.capture([b"x"])
    out.transmit(0)
    assert out.overdue(3 * SECOND)
    out.transmit(3 * SECOND)
    assert out.acknowledge([0, 1], 3 * SECOND + MILLISECOND)
    assert out.mean_ns == 0


# -- resuming ----------------------------------------------------------------------------------------------------


def edited(world: World, pair: Pair, **fields: Any) -> None:
    """The partner's next answer to a resume says something else; then a new link session."""

    def edit(unit: Unit, node: bytes, frame: Any) -> bool:
        if unit is not pair.far or type(frame) is not Resume or not frame.echo:
            return True
        unblock(world)
        world.carry(unit, node, msgspec.structs.replace(frame, **fields))
        return False

    world.filter = edit
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"next": 1}, "the partner assigns number 1 next, but number 1 arrived here"),
        ({"ranges": [0, 9]}, "the partner has number 8, but the next number here is 3"),
        ({"ranges": [0, 1]}, "the partner acknowledged number 1 and does not have it"),
        ({"lowest": 5}, "the partner freed number 2, which is not here"),
    ],
)
def test_rule_4_each_disagreement_faults_both_ends(fields: dict[str, Any], says: str) -> None:
    """Three messages went one way, two the other. The partner's store is not what it was."""
    world = World(12)
    pair = Pair(world)
    world.finish(pair.send(b"1", b"2", b"3"), pair.send(b"4", b"5", unit=pair.far))
    world.run(SECOND)
    edited(world, pair, **fields)
    world.run(SECOND)
    assert pair.here().fault == "position"
    assert pair.here().detail.startswith(says)
    assert pair.there().fault == "partner:position", "it is told at once"


def test_rule_4_an_answer_to_an_earlier_question_is_not_compared() -> None:
    """It was delayed, and is from before the last messages."""
    world = World(13)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    early = [frame for frame in frames(pair.far, Resume) if frame.echo][-1]
    world.finish(pair.send(b"1"), pair.send(b"2", unit=pair.far))
    world.run(SECOND)
    block(world, Resume)
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(50 * MILLISECOND)
    pair.near.turn([Received(pair.b.node, [early], world.now)])
    assert (pair.here().state, pair.here().resumed) == ("open", False)
    unblock(world)
    world.run(30 * SECOND)
    assert pair.here().resumed


def test_rule_4_what_arrives_between_question_and_answer_is_not_compared_with_the_answer() -> None:
    """The answer was under way when the partner's next message was numbered, captured and delivered."""
    world = World(14)
    pair = Pair(world)
    held: list[Any] = []

    def hold(unit: Unit, _node: bytes, frame: Any) -> bool:
        if unit is pair.far and type(frame) is Resume and frame.echo and not held:
            held.append(frame)
            return False
        return True

    world.filter = hold
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(100 * MILLISECOND)
    assert held
    dialog = pair.near.manager.core.dialogs[pair.dialog]
    assert not dialog.resumed
    dialog.inc.received.add(0, 1)
    pair.near.turn([Received(pair.b.node, held, world.now)])
    assert pair.here().fault == ""


# -- 6: the rows of a transaction --------------------------------------------------------------------------------


def test_rule_6_the_id_is_the_last_row_of_every_transaction() -> None:
    """Whatever is there before the id can still be undone by whoever inserts it as aborted."""
    world = World(15)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX), pair.send(b"1", unit=pair.far, tx=TX))
    world.finish(pair.send(b"2", unit=pair.far, tx=TX))
    [prepared] = world.finish(pair.far.call(Prepare(token=0, tx=TX, keep=True)))
    assert isinstance(prepared, Prepared)
    tables = [row.table for row in prepared.inserts]
    assert tables == ["taken", "staged", "staged", "kept", "tx"]
    pair.far.give(Outcome(TX, False, False))
    world.run(SECOND)
    assert pair.drain() == [b"job"]


# -- 16: confirming ----------------------------------------------------------------------------------------------


def test_rule_16_an_instance_that_never_confirms_is_not_forgotten_by_a_crash() -> None:
    """`NeverConfirmed` leaves when it is recorded: the instance would confirm after a restart, and be the second."""
    world = World(16)
    block(world, Confirmed)
    pair = Pair(world, wait=False)
    world.run(SECOND)
    assert pair.there().state == "open"
    world.crash(pair.a)
    world.run(SECOND)
    assert pair.here().partner.node == pair.b.node
    unblock(world)
    world.run(60 * SECOND)
    assert pair.here().state == pair.there().state == "open"


def test_a_dialog_that_comes_back_from_the_store_resumes_at_once() -> None:
    """The link is up: nothing announces a new session, and the first repetition is half a second away."""
    world = World(17)
    pair = Pair(world)
    for unit in (pair.near, pair.far):
        world.finish(unit.call(Deactivate(token=0, dialog=pair.dialog)))
    world.finish(pair.send(b"one"))
    world.run(100 * MILLISECOND)
    assert pair.drain() == [b"one"]


def test_retransmission_follows_the_measured_round_trip() -> None:
    """Over a slow path, nothing is sent again before its acknowledgement can be here."""
    waits = {}
    for round_trip in (MILLISECOND, 5 * SECOND):
        out = Outgoing(True)
        out.limit = 100
        for number in range(10):
            out.capture([b"x"])
            out.transmit(number * 10 * SECOND)
            assert out.acknowledge([0, number + 1], number * 10 * SECOND + round_trip)
        waits[round_trip] = out.wait_ns()
    assert waits[MILLISECOND] == SECOND, "the least: an acknowledgement waits for a disk"
    assert 5 * SECOND < waits[5 * SECOND] < 15 * SECOND
