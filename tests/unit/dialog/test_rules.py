"""The rules of the dialog design, each with the schedule that breaks a system without it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.support.dialogs import (
    SERVICE,
    Pair,
    Trouble,
    Unit,
    World,
    block,
    bodies,
    damage_arrivals,
    frames,
    serve,
    settings,
    transact,
    unblock,
)

from holdfast.dialog.frames import (
    Ack,
    Confirm,
    Confirmed,
    Decline,
    Ended,
    Invite,
    Messages,
    NeverConfirmed,
    Offer,
    Resume,
    Unknown,
    WindowProbe,
)
from holdfast.dialog.ports import (
    Exported,
    MoveIn,
    MoveOut,
    Open,
    Outcome,
    Prepare,
    Prepared,
    Refused,
    Repair,
    Send,
    Settle,
    Take,
    Terminate,
)
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, NEVER, SECOND

TX = b"t" * 16


def stall(world: World, duration: int = 3600 * SECOND) -> None:
    """From now on no disk finishes a commit."""
    world.trouble = Trouble(commit_ns=duration, commit_jitter_ns=0)


# -- 1, 2, 3: writes before sends --------------------------------------------------------------------------------


def test_rule_1_a_payload_leaves_only_when_its_number_and_body_are_durable() -> None:
    """7 sent, crash, 7 used again for another body: it would be discarded as a duplicate, and acknowledged."""
    world = World(1)
    pair = Pair(world)
    stall(world)
    call = pair.send(b"first body")
    world.run(SECOND)
    assert not call.done
    assert frames(pair.near, Messages) == []
    pair.near.pending.clear()
    world.trouble = Trouble()
    world.crash(pair.a)
    world.run(SECOND)
    world.finish(pair.send(b"second body"))
    world.run(SECOND)
    assert pair.drain() == [b"second body"]


def test_rule_2_an_acknowledgement_waits_for_the_receivers_store() -> None:
    world = World(2)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    block(world, Messages)
    stall(world)
    unblock(world)
    before = len(frames(pair.far, Ack))
    world.run(500 * MILLISECOND)
    assert pair.there().received == [(0, 1)]
    assert len(frames(pair.far, Ack)) == before
    assert pair.here().in_flight == 1


def test_rule_2_only_the_acknowledgement_of_the_store_frees_a_message() -> None:
    world = World(3)
    pair = Pair(world)
    block(world, Ack)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert pair.drain() == [b"one"]
    assert pair.here().in_flight == 1
    unblock(world)
    world.run(30 * SECOND)
    assert pair.here().acked == [(0, 1)]


def test_rule_3_a_store_that_hangs_holds_up_its_own_dialogs_only() -> None:
    world = World(4)
    a = world.add("a", stores=("quick", "slow"))
    b = world.add("b")
    far = b.units["default"]
    serve(far, settings())
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    quick, slow = a.units["quick"], a.units["slow"]
    one, two = world.finish(
        quick.call(Open(token=0, uri=SERVICE, settings=settings())),
        slow.call(Open(token=0, uri=SERVICE, settings=settings())),
    )
    world.run(SECOND)
    slow.commit = lambda: None  # type: ignore[method-assign]  # the disk of this store hangs
    late = slow.call(Send(token=0, dialog=two.dialog, bodies=[b"late"], deadline=NEVER))
    world.finish(quick.call(Send(token=0, dialog=one.dialog, bodies=[b"soon"], deadline=NEVER)))
    taken = world.finish(far.call(Take(token=0, dialog=one.dialog)))[0]
    assert bodies(taken) == [b"soon"]
    assert not late.done


# -- 4: resuming -------------------------------------------------------------------------------------------------


def restore(world: World, pair: Pair, unit: Unit, backup: Any) -> None:
    """The store of a host is put back to an earlier time."""
    host = unit.host
    world.crash(host)
    world.at(1, lambda: setattr(unit, "tables", copy.deepcopy(backup)))


def test_rule_4_a_receiver_restored_from_a_backup_faults_both_ends() -> None:
    """The sender has freed what was acknowledged: the receiver would wait for it without end."""
    world = World(5)
    pair = Pair(world)
    world.run(SECOND)
    backup = copy.deepcopy(pair.far.tables)
    world.finish(pair.send(b"one", b"two"))
    world.run(SECOND)
    assert pair.here().acked == [(0, 2)]
    restore(world, pair, pair.far, backup)
    world.run(5 * SECOND)
    assert {pair.here().fault, pair.there().fault} <= {"position", "partner:position"}
    assert pair.here().state == pair.there().state == "faulted"


def test_rule_4_a_sender_restored_from_a_backup_faults_both_ends() -> None:
    """It would use numbers a second time, and the receiver would discard them as duplicates."""
    world = World(6)
    pair = Pair(world)
    world.run(SECOND)
    backup = copy.deepcopy(pair.near.tables)
    world.finish(pair.send(b"one", b"two"))
    world.run(SECOND)
    restore(world, pair, pair.near, backup)
    world.run(5 * SECOND)
    assert pair.here().state == pair.there().state == "faulted"
    assert "lost commits" in pair.here().detail
    assert pair.near.repairs or pair.far.repairs


def test_rule_4_messages_before_the_resume_are_not_taken() -> None:
    world = World(7)
    pair = Pair(world)
    block(world, Resume, Messages)
    world.finish(pair.send(b"one"))
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(200 * MILLISECOND)
    late = frames(pair.near, Messages)[0]
    pair.far.turn([Received(pair.a.node, [late], world.now)])
    assert pair.there().received == []
    assert pair.far.manager.status()["counts"]["messages_before_resume"] == 1
    unblock(world)
    world.run(30 * SECOND)
    assert pair.drain() == [b"one"]


# -- 7, 9, 11: transactions --------------------------------------------------------------------------------------


def test_rule_7_an_owner_that_was_replaced_commits_nothing() -> None:
    """A frozen process wakes up after another has taken over: both would process the message."""
    world = World(8)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    taken = world.finish(pair.take(tx=TX))[0]
    assert bodies(taken) == [b"job"]
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    pair.far.crash()
    pair.far.start()
    assert not pair.far.commit_transaction(prepared)
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"job"]


def test_rule_9_transactions_may_commit_in_another_order_than_they_staged() -> None:
    """Rows are found by existing, never by an id above the last one: a late commit has a lower id."""
    world = World(9)
    pair = Pair(world)
    first, second = b"1" * 16, b"2" * 16
    world.finish(pair.send(b"first", tx=first), pair.send(b"second", tx=second))
    assert transact(pair.near, second)
    assert transact(pair.near, first)
    world.run(SECOND)
    assert pair.drain() == [b"second", b"first"]


def test_rule_9_a_death_between_commit_and_notice_loses_nothing() -> None:
    world = World(10)
    pair = Pair(world)
    world.finish(pair.send(b"reply", tx=TX))
    prepared = world.finish(pair.near.call(Prepare(token=0, tx=TX)))[0]
    assert pair.near.commit_transaction(prepared)
    world.crash(pair.a)
    world.run(5 * SECOND)
    assert pair.drain() == [b"reply"]
    assert pair.near.tables["staged"] == {}


def test_rule_11_a_terminated_dialog_aborts_the_whole_transaction_and_is_named() -> None:
    world = World(11)
    pair = Pair(world)
    other = world.finish(pair.near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.run(SECOND)
    world.finish(pair.send(b"one", tx=TX))
    world.finish(pair.near.call(Send(token=0, dialog=other, bodies=[b"two"], tx=TX)))
    world.finish(pair.near.call(Terminate(token=0, dialog=other)))
    answer = world.finish(pair.near.call(Prepare(token=0, tx=TX)))[0]
    assert isinstance(answer, Refused)
    assert "-1 has ended" in answer.text
    pair.near.give(Outcome(TX, False, False))
    world.run(SECOND)
    assert pair.drain() == []


def test_rule_11_a_dialog_that_the_partner_terminated_aborts_a_transaction_that_sends_on_it() -> (
    None
):
    """The dialog is still here, because there is something to read. What is sent on it would vanish."""
    world = World(45)
    pair = Pair(world)
    world.finish(pair.send(b"unread"))
    world.run(SECOND)
    world.finish(pair.send(b"reply", unit=pair.far, tx=TX))
    world.finish(pair.near.call(Terminate(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    assert pair.there().state == "terminated"
    answer = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert isinstance(answer, Refused)
    assert "has ended" in answer.text


def test_rule_11_a_faulted_dialog_captures() -> None:
    world = World(12)
    pair = Pair(world, near={"session_ttl_ns": 5 * SECOND}, far={"session_ttl_ns": 5 * SECOND})
    world.run(10 * SECOND)
    assert pair.here().state == "faulted"
    world.finish(pair.send(b"one", tx=TX))
    assert transact(pair.near, TX)
    assert pair.here().queued == 1


def test_rule_11_sends_that_cannot_fit_beside_the_transactions_own_are_refused_at_once() -> None:
    """Only the commit makes room, and it would wait for the send: a deadlock until the time-out."""
    world = World(13)
    pair = Pair(world, near={"quota_messages": 3})
    world.finish(pair.send(b"1", b"2", tx=TX))
    call = pair.send(b"3", b"4", tx=TX, deadline=NEVER)
    world.run(SECOND)
    assert call.refused == "quota"
    assert "beside" in call.value.text


# -- 13: the window ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [4, 5, 6, 7])
def test_rule_13_there_is_always_room_for_a_hole(code: int) -> None:
    """The quota holds 2 to 5; 1 is sent again, and must fit."""
    world = World(14)
    pair = Pair(world, code, far={"quota_messages": 4})
    lost = []

    def lose_the_first(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is Messages and frame.first == 0 and not lost:
            lost.append(frame)
            return False
        return True

    world.filter = lose_the_first
    calls = []
    for n in range(10):
        calls.append(pair.send(b"%d" % n))
        world.run(10 * MILLISECOND)
    world.run(SECOND)
    assert lost
    assert pair.there().held + pair.there().available <= 4
    got: list[bytes] = []
    for _ in range(200):
        got += pair.drain()
        world.run(100 * MILLISECOND)
    assert sorted(got) == [b"%d" % n for n in range(10)]


def test_rule_13_a_hole_is_reserved_at_maximum_size() -> None:
    """The first message is the largest, and lost. Small ones that follow must leave room for it."""
    world = World(46)
    limits = {"quota_messages": 100, "quota_bytes": 400, "message_bytes_max": 100}
    pair = Pair(world, near=limits | {"quota_bytes": 4000}, far=limits)
    block(world, Messages)
    world.finish(pair.send(b"x" * 100))
    world.run(100 * MILLISECOND)
    unblock(world)
    for n in range(8):
        world.finish(pair.send(b"%d" % n * 90))
        world.run(10 * MILLISECOND)
    inc = pair.far.manager.core.dialogs[pair.dialog].inc
    assert (pair.there().held, inc.buffered_bytes) == (3, 270)
    world.run(30 * SECOND)
    assert inc.buffered_bytes <= 400
    got: list[bytes] = []
    for _ in range(40):
        got += pair.drain()
        world.run(SECOND)
    assert got == [b"x" * 100, *(b"%d" % n * 90 for n in range(8))]


def test_rule_13_a_window_that_is_shut_is_probed() -> None:
    """The one frame that says that it is open again is lost."""
    world = World(15)
    pair = Pair(world, far={"quota_messages": 2})
    for n in range(4):
        pair.send(b"%d" % n)
    world.run(SECOND)
    assert pair.here().queued == 2
    block(world, Ack)
    assert len(pair.drain()) == 2
    world.run(SECOND)
    unblock(world)
    world.run(30 * SECOND)
    assert frames(pair.near, WindowProbe)
    assert pair.drain() == [b"2", b"3"]


def test_a_peer_that_ignores_the_window_is_refused() -> None:
    world = World(16)
    pair = Pair(world, far={"quota_messages": 2})
    pair.near.manager.core.dialogs[pair.dialog].out.limit = 1000
    world.finish(pair.send(*[b"%d" % n for n in range(10)]))
    world.run(SECOND)
    assert pair.there().available == 2
    assert pair.far.manager.status()["counts"]["outside_window"] > 0


# -- 14, 15: delivery --------------------------------------------------------------------------------------------


def abort(world: World, pair: Pair, tx: bytes, count: int = 1, counts: bool = True) -> list[bytes]:
    """Take in a transaction and abort it; gives what was taken."""
    call = pair.take(count, tx=tx, deadline=world.now + SECOND)
    taken = bodies(world.finish(call)[0])
    transact(pair.far, tx, commit=False, counts=counts)
    return taken


def test_rule_14_poison_stops_an_in_order_dialog_while_others_flow() -> None:
    world = World(17)
    pair = Pair(world, far={"poison_after": 3})
    other = world.finish(pair.near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.finish(pair.send(b"bad", b"good"))
    world.run(SECOND)
    for n in range(3):
        assert abort(world, pair, b"%016d" % n) == [b"bad"]
    assert [event.number for event in pair.far.kinds("poison")] == [0]
    assert pair.far.manager.poison(pair.dialog, 0) == b"bad"
    assert pair.drain() == []
    pair.send(b"later")
    world.run(SECOND)
    assert pair.there().received == [(0, 3)], "arrivals are still stored"
    world.finish(pair.near.call(Send(token=0, dialog=other, bodies=[b"flows"])))
    assert bodies(world.finish(pair.far.call(Take(token=0, dialog=other)))[0]) == [b"flows"]
    world.finish(pair.far.call(Settle(token=0, dialog=pair.dialog, number=0, action="discard")))
    assert pair.drain() == [b"good", b"later"]


def test_rule_14_a_poison_message_can_be_tried_again_in_its_place() -> None:
    world = World(18)
    pair = Pair(world, far={"poison_after": 1})
    world.finish(pair.send(b"bad", b"good"))
    world.run(SECOND)
    abort(world, pair, TX)
    world.finish(pair.far.call(Settle(token=0, dialog=pair.dialog, number=0, action="retry")))
    assert bodies(world.finish(pair.take(5, tx=b"u" * 16))[0]) == [b"bad"], "alone"
    assert transact(pair.far, b"u" * 16)
    assert pair.drain() == [b"good"]


def test_rule_14_without_order_one_message_is_set_aside_and_the_others_flow() -> None:
    world = World(19)
    pair = Pair(world, 6, far={"poison_after": 1})
    world.finish(pair.send(b"bad", b"good"))
    world.run(SECOND)
    abort(world, pair, TX)
    assert pair.drain() == [b"good"]
    assert pair.there().poison == [0]


def test_rule_14_after_an_aborted_batch_messages_are_delivered_singly() -> None:
    """A batch counts against none: the innocent ones must not become poison with the guilty one."""
    world = World(20)
    pair = Pair(world, far={"poison_after": 1})
    world.finish(pair.send(b"innocent", b"guilty", b"other"))
    world.run(SECOND)
    assert abort(world, pair, TX, 3) == [b"innocent", b"guilty", b"other"]
    assert pair.far.kinds("poison") == []
    tx = b"u" * 16
    assert bodies(world.finish(pair.take(3, tx=tx))[0]) == [b"innocent"]
    assert transact(pair.far, tx)
    assert abort(world, pair, b"v" * 16, 3) == [b"guilty"]
    assert [event.number for event in pair.far.kinds("poison")] == [1]


def test_rule_14_aborts_of_the_infrastructure_do_not_count() -> None:
    world = World(21)
    pair = Pair(world, far={"poison_after": 2})
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    for n in range(5):
        assert abort(world, pair, b"%016d" % n, counts=False) == [b"job"]
    assert pair.far.kinds("poison") == []


def test_rule_14_a_message_that_kills_the_process_becomes_poison() -> None:
    """The attempt is recorded before the message is handed over."""
    world = World(22)
    pair = Pair(world, far={"poison_after": 2})
    world.finish(pair.send(b"deadly"))
    world.run(SECOND)
    for n in range(2):
        assert bodies(world.finish(pair.take(tx=b"%016d" % n))[0]) == [b"deadly"]
        world.crash(pair.b)
        world.run(5 * SECOND)
    assert pair.there().poison == [0]
    assert pair.drain() == []


def test_rule_15_with_at_most_once_a_message_is_removed_before_it_is_handed_over() -> None:
    world = World(23)
    pair = Pair(world, 7)
    world.finish(pair.send(b"one", b"two"))
    world.run(SECOND)
    stall(world)
    call = pair.take()
    world.run(SECOND)
    assert not call.done, "handed over only when the removal is durable"
    assert pair.there().taken == [(0, 1)], "only what was asked for"


def test_rule_15_without_at_most_once_a_message_is_removed_after_it_is_handed_over() -> None:
    world = World(24)
    world.hold_handover = True
    pair = Pair(world, 5)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take())[0]) == [b"one"]
    assert pair.there().taken == []
    world.crash(pair.b)
    world.run(5 * SECOND)
    assert bodies(world.finish(pair.take())[0]) == [b"one"], "delivered again"


# -- 16, 17: identity --------------------------------------------------------------------------------------------


def farm(world: World, count: int = 2) -> tuple[Unit, list[Unit]]:
    a = world.add("a")
    instances = []
    for n in range(count):
        host = world.add(f"i{n}")
        serve(host.units["default"], settings())
        world.connect(a, host)
        instances.append(host.units["default"])
    world.routes[SERVICE] = [unit.host.node for unit in instances]
    return a.units["default"], instances


def open_dialog(world: World, near: Unit, **more: Any) -> bytes:
    answer = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings(7, **more))))[0]
    return bytes(answer.dialog)


def test_rule_16_the_creator_records_its_partner_before_it_confirms() -> None:
    """It confirms one, forgets it in a crash, and confirms a second: two partners."""
    world = World(25)
    near, _ = farm(world)
    dialog = open_dialog(world, near)

    def freeze(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is Offer:
            stall(world)
        return True

    world.filter = freeze
    world.run(SECOND)
    assert frames(near, Confirm) == []
    assert near.manager.inspect(dialog).state == "confirming"  # type: ignore[union-attr]


def test_rule_16_two_offers_at_once_make_one_partner() -> None:
    world = World(26)
    near, instances = farm(world, 3)
    block(world, Offer)
    dialog = open_dialog(world, near)
    world.run(3 * SECOND)
    unblock(world)
    world.run(10 * SECOND)
    confirmed = [u for u in instances if (end := u.manager.inspect(dialog)) and end.state == "open"]
    assert len(confirmed) == 1
    others = [u for u in instances if u not in confirmed and u.manager.inspect(dialog) is not None]
    assert others == [], "the other offers were released"


def test_rule_16_a_silent_partner_is_a_fault_and_no_other_instance_is_taken() -> None:
    """It may have confirmed and delivered."""
    world = World(27)
    near, _ = farm(world)
    block(world, Confirmed)
    dialog = open_dialog(world, near, partner_silent_ns=20 * SECOND)
    near.call(Send(token=0, dialog=dialog, bodies=[b"one"]))
    world.run(60 * SECOND)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.fault == "partner-silent"
    refused = near.call(Repair(token=0, dialog=dialog, action="reroute"))
    world.run(SECOND)
    assert refused.refused == "state"
    unblock(world)
    world.finish(near.call(Repair(token=0, dialog=dialog, action="resume")))
    world.run(10 * SECOND)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.state == "open"


def test_rule_16_only_a_recorded_never_releases_the_creator() -> None:
    world = World(28)
    near, instances = farm(world)
    block(world, Confirm)
    dialog = open_dialog(world, near)
    # The offer is withdrawn for good before the confirmation arrives.
    world.run(200 * SECOND)
    unblock(world)
    world.run(60 * SECOND)
    assert any(frames(unit, NeverConfirmed) for unit in instances)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.state == "open"
    first = instances[0].manager.core.endings.of(dialog)
    assert first is not None
    assert first.how == "never"


def test_rule_17_unknown_frees_nothing() -> None:
    """The partner's state is lost, or its store is not there at the moment."""
    world = World(29)
    pair = Pair(world, durable=True)
    block(world, Messages)
    world.finish(pair.send(b"one"))
    tables = pair.far.tables
    world.crash(pair.b)
    world.at(1, lambda: setattr(pair.far, "tables", {}))
    unblock(world)
    world.run(5 * SECOND)
    assert frames(pair.far, Unknown)
    assert pair.here().fault == "partner-lost"
    assert pair.here().queued == 1
    world.crash(pair.b)
    world.at(1, lambda: setattr(pair.far, "tables", tables))
    world.run(5 * SECOND)
    world.finish(pair.near.call(Repair(token=0, dialog=pair.dialog, action="resume")))
    world.run(5 * SECOND)
    assert pair.drain() == [b"one"]


def test_rule_17_ended_carries_the_final_ranges() -> None:
    """The partner ended while the sender was away: the sender learns what arrived, and what did not."""
    world = World(30)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    block(world, Ack)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"two"))
    pair.drain()
    world.finish(pair.far.call(Terminate(token=0, dialog=pair.dialog, reason="enough")))
    unblock(world)
    world.connect(pair.a, pair.b)
    world.run(5 * SECOND)
    answer = frames(pair.far, Ended)[0]
    assert answer.ranges == [0, 1]
    notice = pair.near.kinds("terminated")[0]
    assert notice.count == 1, "one message was not received"


def test_rule_17_an_ended_dialog_never_starts_again() -> None:
    world = World(31)
    pair = Pair(world)
    invite = frames(pair.near, Invite)[0]
    world.finish(pair.near.call(Terminate(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    assert pair.there() is None
    world.carry(pair.near, pair.b.node, invite)
    world.run(SECOND)
    world.crash(pair.b)
    world.run(SECOND)
    world.carry(pair.near, pair.b.node, invite)
    world.run(SECOND)
    assert pair.there() is None
    assert len(frames(pair.far, Offer)) == 1, "only the first invitation was taken up"
    assert [frame.code for frame in frames(pair.far, Decline)] == ["ended", "ended"]


# -- 18: moving --------------------------------------------------------------------------------------------------


def moved(world: World, pair: Pair, crash: bool = False) -> Unit:
    """Move the far end to a third host; gives its unit."""
    c = world.add("c")
    world.connect(pair.a, c)
    target = c.units["default"]
    call = pair.far.call(MoveOut(token=0, dialog=pair.dialog, node=c.node, store=target.store))
    exported = world.finish(call)[0]
    assert isinstance(exported, Exported), exported
    if crash:
        world.crash(pair.b)
    world.finish(target.call(MoveIn(token=0, state=exported.state)))
    world.run(5 * SECOND)
    return target


def test_rule_18_an_end_moves_with_its_state_and_nothing_is_lost() -> None:
    world = World(32)
    pair = Pair(world)
    world.finish(pair.send(b"one", b"two", b"three"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take())[0]) == [b"one"]
    world.finish(pair.send(b"back", unit=pair.far))
    target = moved(world, pair)
    assert pair.drain(target) == [b"two", b"three"]
    world.finish(pair.send(b"four"))
    world.run(SECOND)
    assert pair.drain(target) == [b"four"]
    assert pair.drain(pair.near) == [b"back"]
    world.crash(target.host)
    world.run(5 * SECOND)
    world.finish(pair.send(b"five"))
    world.run(5 * SECOND)
    assert pair.drain(target) == [b"five"]


def test_rule_18_the_source_records_the_move_before_the_state_leaves_it() -> None:
    world = World(33)
    pair = Pair(world)
    c = world.add("c")
    stall(world)
    call = pair.far.call(
        MoveOut(token=0, dialog=pair.dialog, node=c.node, store=c.units["default"].store)
    )
    world.run(SECOND)
    assert not call.done


def test_rule_18_a_source_that_dies_after_the_state_has_left_it_only_says_where_the_dialog_went() -> (
    None
):
    world = World(47)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    target = moved(world, pair, crash=True)
    assert (pair.there().state, pair.there().epoch) == ("moved", 1)
    assert pair.drain(target) == [b"one"]


def test_rule_18_a_source_that_comes_back_is_refused() -> None:
    """It was frozen, its state was taken from a replica of its disk, and it wakes up."""
    world = World(34)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    before = copy.deepcopy(pair.far.tables)
    target = moved(world, pair)
    world.crash(pair.b)
    world.at(1, lambda: setattr(pair.far, "tables", before))
    world.run(5 * SECOND)
    world.finish(pair.send(b"two"))
    world.run(5 * SECOND)
    assert pair.drain(target) == [b"one", b"two"]
    assert pair.near.manager.status()["counts"]["stale_epoch"] > 0


def test_rule_18_a_higher_epoch_without_proof_is_refused() -> None:
    world = World(35)
    pair = Pair(world)
    c = world.add("c")
    world.connect(pair.a, c)
    thief = c.units["default"]
    forged = Resume(
        pair.near.store, pair.dialog, 5, thief.store, 1, 0, [], 99, 0, 1, 0, b"x" * 32, -1, ""
    )
    world.carry(thief, pair.a.node, forged)
    world.run(SECOND)
    assert pair.near.manager.status()["counts"]["forged"] == 1
    assert pair.here().partner.node == pair.b.node


def test_rule_18_both_ends_may_move_at_once() -> None:
    world = World(36)
    pair = Pair(world)
    c, d = world.add("c"), world.add("d")
    for one, two in ((pair.a, c), (pair.a, d), (pair.b, c), (pair.b, d), (c, d)):
        world.connect(one, two)
    exports = world.finish(
        pair.near.call(
            MoveOut(token=0, dialog=pair.dialog, node=c.node, store=c.units["default"].store)
        ),
        pair.far.call(
            MoveOut(token=0, dialog=pair.dialog, node=d.node, store=d.units["default"].store)
        ),
    )
    near, far = c.units["default"], d.units["default"]
    near.call(MoveIn(token=0, state=exports[0].state))
    far.call(MoveIn(token=0, state=exports[1].state))
    world.run(10 * SECOND)
    world.finish(pair.send(b"one", unit=near))
    world.run(5 * SECOND)
    assert pair.drain(far) == [b"one"]


# -- 19: time to live --------------------------------------------------------------------------------------------


def test_rule_19_expiry_is_a_notice_and_the_message_still_arrives() -> None:
    world = World(37)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"one"))
    world.run(10 * SECOND)
    notice = pair.near.kinds("expired")
    assert [(event.number, event.count) for event in notice] == [(0, 1)]
    assert "not acknowledged" in notice[0].detail
    world.connect(pair.a, pair.b)
    world.run(10 * SECOND)
    assert pair.drain() == [b"one"]


def test_rule_19_after_a_restart_the_partner_is_asked_before_anything_expires() -> None:
    """The acknowledgement was lost with the process: the message arrived long ago."""
    world = World(38)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    block(world, Ack)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    # The partner is slow to answer: the restarted end asks again and again, and waits.
    block(world, Ack, Resume)
    world.crash(pair.a, down_ns=20 * SECOND)
    world.run(40 * SECOND)
    unblock(world)
    world.run(40 * SECOND)
    assert pair.here().acked == [(0, 1)]
    assert pair.near.kinds("expired") == []


def test_rule_19_session_expiry_faults_both_ends_and_deletes_nothing() -> None:
    world = World(39)
    pair = Pair(world, near={"session_ttl_ns": 5 * SECOND})
    world.finish(pair.send(b"one"))
    world.run(10 * SECOND)
    assert pair.here().fault == pair.there().fault == "session-ttl"
    assert pair.there().available == 1


# -- 20, 21 ------------------------------------------------------------------------------------------------------


def test_rule_20_a_new_link_session_sends_again_without_waiting_for_a_time_out() -> None:
    world = World(40)
    pair = Pair(world)
    block(world, Messages)
    world.finish(pair.send(b"one"))
    world.run(100 * MILLISECOND)
    unblock(world)
    world.disconnect(pair.a, pair.b)
    world.connect(pair.a, pair.b)
    world.run(100 * MILLISECOND)
    assert pair.drain() == [b"one"]
    assert pair.here().resent == 0, "no time-out was needed"


def test_rule_21_at_most_once_alone_keeps_a_bounded_memory_of_what_it_saw() -> None:
    """Every lost message would leave a hole for ever: the sender says which numbers it never sends again."""
    world = World(41)
    pair = Pair(world, 2)
    dropped = []

    def every_second(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is Messages:
            dropped.append(len(dropped) % 2)
            return bool(dropped[-1])
        return True

    world.filter = every_second
    for n in range(400):
        world.finish(pair.send(b"%d" % n))
        world.run(5 * MILLISECOND)
        if n % 20 == 0:
            pair.drain()
            # Traffic in the other direction carries the acknowledgement that states the lowest number.
            world.finish(pair.send(b"x", unit=pair.far))
            world.run(5 * MILLISECOND)
            pair.drain(pair.near)
    assert len(pair.there().received) < 50


# -- 22: exceptions ----------------------------------------------------------------------------------------------


def test_rule_22_a_dialog_that_raises_is_read_again_and_the_others_do_not_notice() -> None:
    world = World(42)
    pair = Pair(world)
    other = world.finish(pair.near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    # Its memory is damaged: the next arrival raises.
    damage_arrivals(pair.far, pair.dialog)
    both = [
        pair.send(b"two"),
        pair.near.call(Send(token=0, dialog=other, bodies=[b"undisturbed"])),
    ]
    world.finish(*both)
    world.run(10 * SECOND)
    assert pair.far.manager.status()["counts"]["dialog_errors"] == 1
    assert bodies(world.finish(pair.far.call(Take(token=0, dialog=other)))[0]) == [b"undisturbed"]
    assert pair.drain() == [b"one", b"two"]


def test_rule_22_a_dialog_that_raises_twice_is_faulted_alone() -> None:
    world = World(43)
    pair = Pair(world)
    for n in range(2):
        damage_arrivals(pair.far, pair.dialog)
        world.finish(pair.send(b"%d" % n))
        world.run(5 * SECOND)
    assert pair.there().fault == "internal"
    assert pair.here().fault == "partner:internal"
    world.finish(pair.far.call(Repair(token=0, dialog=pair.dialog, action="resume")))
    world.run(10 * SECOND)
    assert pair.here().state == pair.there().state == "open"
    assert pair.drain() == [b"0", b"1"]


def test_prepared_rows_end_with_the_transactions_id() -> None:
    """Rule 6: whatever the database has of a transaction before its id is inserted can still be undone."""
    world = World(44)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX), pair.send(b"reply", unit=pair.far, tx=TX))
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert isinstance(prepared, Prepared)
    assert [row.table for row in prepared.inserts] == ["taken", "staged", "tx"]


def test_rule_1_a_message_that_is_freed_at_once_does_not_take_the_block_of_the_turn_with_it() -> (
    None
):
    """A dialog without acknowledgements captures, transmits and frees a message in one turn. Another captures one
    in the same turn, into the same block. After a crash the second must be there."""
    world = World(91)
    pair = Pair(world)
    serve(pair.far, settings(0), "service:other")
    world.routes["service:other"] = [pair.b.node]
    opened = pair.near.call(Open(token=0, uri="service:other", settings=settings(0)))
    [answer] = world.finish(opened)
    other = answer.dialog
    world.run(SECOND)
    world.filter = lambda _unit, _node, frame: not isinstance(frame, Messages)
    plain = Send(token=901, dialog=other, bodies=[b"may be lost"])
    durable = Send(token=902, dialog=pair.dialog, bodies=[b"must arrive"])
    pair.near.turn([plain, durable])
    world.run(SECOND)
    assert pair.near.tables["block"], "the store has the message"
    world.filter = lambda *_: True
    world.crash(pair.a)
    world.run(10 * SECOND)
    assert pair.drain() == [b"must arrive"]
