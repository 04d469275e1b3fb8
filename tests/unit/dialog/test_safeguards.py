"""Safeguards of the dialog unit that few schedules reach: each with the schedule that needs it."""

from __future__ import annotations

import msgspec
from tests.support.dialogs import Pair, World, apply, block, bodies, frames, transact, unblock

from holdfast.dialog.endings import DETAILS_MAX, FORGOTTEN, Endings
from holdfast.dialog.frames import (
    Ack,
    Confirm,
    Decline,
    Invite,
    Messages,
    NeverConfirmed,
    Offer,
    Resume,
)
from holdfast.dialog.ids import NodeId, StoreId, dialog_id
from holdfast.dialog.ports import HandedOver, MoveOut, Prepare, Prepared, Terminate
from holdfast.dialog.records import ENDED, ENDING, EndingRow
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, SECOND

TX = b"t" * 16
OTHER = b"u" * 16
DAY = 86_400 * SECOND


# -- pairing -----------------------------------------------------------------------------------------------------


def test_an_offer_below_the_minimum_of_the_creator_is_refused() -> None:
    world = World(1)
    world.filter = lambda _unit, _node, frame: type(frame) is not Offer
    pair = Pair(world, wait=False)
    world.run(100 * MILLISECOND)
    offer = frames(pair.far, Offer)[0]
    weak = msgspec.structs.replace(offer.terms, assurances=6)
    forged = msgspec.structs.replace(offer, terms=weak)
    pair.near.turn([Received(pair.b.node, [forged], world.now)])
    world.run(SECOND)
    assert pair.here().partner is None
    assert "below what this end needs" in pair.here().detail


def test_an_instance_that_said_never_declines_a_late_invitation() -> None:
    """Rule 16. It lost its offer; the creator goes elsewhere. Two partners would follow if it offered again."""
    world = World(2)
    block(world, Confirm)
    pair = Pair(world, wait=False)
    world.run(100 * MILLISECOND)
    assert pair.here().state == "confirming"
    pair.far.tables.clear()
    world.crash(pair.b)
    world.run(100 * MILLISECOND)
    pair.far.tables.pop("dialog", None)
    offers = len(frames(pair.far, Offer))
    unblock(world)
    world.run(10 * SECOND)
    assert frames(pair.far, NeverConfirmed)
    invite = frames(pair.near, Invite)[0]
    for _ in range(2):
        pair.far.turn([Received(pair.a.node, [invite], world.now)])
        world.run(SECOND)
        world.crash(pair.b)  # It is recorded.
        world.run(SECOND)
    assert len(frames(pair.far, Offer)) == offers
    assert {frame.code for frame in frames(pair.far, Decline)} == {"ended"}


def test_ended_ids_remain_when_their_details_are_forgotten() -> None:
    """Rule 17, after many dialogs and a restart."""
    node, store = NodeId(b"n" * 16), StoreId(b"s" * 8)
    endings = Endings()
    tables: dict[str, dict[bytes, bytes]] = {}
    row = EndingRow("completed", [], "", 0)
    for n in range(DETAILS_MAX + 2):
        writes = endings.add(dialog_id(node, store, n), row)
        if n < 2 or n >= DETAILS_MAX:
            apply(tables, writes)
    again = Endings()
    again.restore(sorted(tables[ENDED].items()), sorted(tables[ENDING].items()))
    assert again.of(dialog_id(node, store, 0)) == FORGOTTEN
    assert again.of(dialog_id(node, store, DETAILS_MAX + 1)) == row
    assert again.of(dialog_id(node, store, DETAILS_MAX + 2)) is None


# -- acknowledgement and resuming --------------------------------------------------------------------------------


def test_an_acknowledgement_lists_ranges_behind_gaps() -> None:
    world = World(3)
    pair = Pair(world)
    world.filter = lambda _unit, _node, frame: (
        not (type(frame) is Messages and frame.first in (1, 3))
    )
    for n in range(5):
        world.finish(pair.send(b"%d" % n))
        world.run(20 * MILLISECOND)
    assert frames(pair.far, Ack)[-1].ranges == [0, 1, 2, 3, 4, 5]
    assert pair.here().acked == [(0, 1), (2, 3), (4, 5)]


def test_retransmission_backs_off() -> None:
    world = World(4)
    pair = Pair(world)
    block(world, Messages)
    world.finish(pair.send(b"x"))
    world.run(100 * SECOND)
    # After 3 s, 6 s more, 12 s more, 24 s more, 48 s more.
    assert len(frames(pair.near, Messages)) == 6


def test_a_resume_of_an_earlier_run_of_the_partner_is_refused() -> None:
    world = World(5)
    pair = Pair(world)
    world.crash(pair.b)
    world.run(5 * SECOND)
    last = frames(pair.far, Resume)[-1]
    assert last.owner_epoch == 2
    before = len(frames(pair.near, Resume))
    late = msgspec.structs.replace(last, owner_epoch=1, ask=last.ask + 1)
    pair.near.turn([Received(pair.b.node, [late], world.now)])
    world.run(100 * MILLISECOND)
    assert pair.near.manager.status()["counts"]["stale_owner"] == 1
    assert len(frames(pair.near, Resume)) == before, "it is not answered"


# -- transactions ------------------------------------------------------------------------------------------------


def test_an_in_order_dialog_serves_one_transaction_at_a_time() -> None:
    """If the first were aborted, its message would come after that of the second."""
    world = World(6)
    pair = Pair(world)
    world.finish(pair.send(b"1"), pair.send(b"2"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take(tx=TX))[0]) == [b"1"]
    second = pair.take(tx=OTHER)
    world.run(SECOND)
    assert not second.done
    transact(pair.far, TX, commit=False)
    assert bodies(world.finish(second)[0]) == [b"1"]


def test_a_dialog_is_not_terminated_or_moved_under_a_transaction_that_commits() -> None:
    world = World(7)
    pair = Pair(world)
    world.finish(pair.send(b"1"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX))
    c = world.add("c")
    move = MoveOut(token=0, dialog=pair.dialog, node=c.node, store=c.units["default"].store)
    moving = pair.far.call(move)
    world.finish(moving)
    assert moving.refused == "state"
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert isinstance(prepared, Prepared)
    ending = pair.far.call(Terminate(token=0, dialog=pair.dialog))
    world.finish(ending)
    assert ending.refused == "busy"


def test_messages_that_were_not_handed_over_are_available_again() -> None:
    world = World(8)
    world.hold_handover = True
    pair = Pair(world, 5)
    world.finish(pair.send(b"1"), pair.send(b"2"))
    world.run(SECOND)
    taken = world.finish(pair.take())[0]
    pair.far.give(HandedOver(pair.dialog, taken.lease, taken=False))
    world.run(SECOND)
    assert pair.drain() == [b"1", b"2"]


def test_an_outcome_that_no_application_asks_for_is_forgotten_after_a_week() -> None:
    world = World(9)
    pair = Pair(world)
    world.finish(pair.send(b"x", tx=TX))
    prepared = world.finish(pair.near.call(Prepare(token=0, tx=TX, keep=True)))[0]
    assert pair.near.commit_transaction(prepared)
    world.crash(pair.a)
    world.run(6 * DAY)
    world.crash(pair.a)
    world.run(SECOND)
    assert list(pair.near.tables["kept"]) == [TX]
    world.run(2 * DAY)
    world.crash(pair.a)
    world.run(SECOND)
    assert not pair.near.tables["kept"]


# -- transmission ------------------------------------------------------------------------------------------------


def test_a_quiet_time_does_not_shrink_the_window_of_a_peer() -> None:
    """Small requests say nothing about what the path carries. With a small window, a burst that follows would wait for
    one round trip, and one commit, for every few hundred kilobytes."""
    world = World(10)
    pair = Pair(world, near={"quota_bytes": 1 << 24}, far={"quota_bytes": 1 << 24})
    peer = pair.near.manager.core.peers[pair.b.node]
    before = peer.window
    for _ in range(20):
        world.finish(pair.send(b"small"))
        world.run(SECOND)
        pair.drain()
    assert peer.window == before
    # A path that carries little makes it small, once something waits for it.
    world.filter = lambda _unit, _node, frame: type(frame) is not Ack
    for _ in range(100):
        world.finish(pair.send(bytes(60_000)))
    world.run(100 * MILLISECOND)
    assert peer.limited
    assert before <= peer.in_flight < before + 70_000
