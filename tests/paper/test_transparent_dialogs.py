"""Each claim of the paper on transparent availability and scalability in messaging, as a test.

The docstrings cite the paper by the words of the paragraph that makes the claim. Those about stores, partners, faults
and the life of a dialog are in `test_transparent_dialogs_life.py`. Claims about what surrounds a dialog are tested on
real nodes:

| claim | test |
| --- | --- |
| the transport changes under a living dialog | tests/unit/runtime/dialogs/test_transports.py |
| an application sends and exits; a daemon delivers | tests/unit/runtime/dialogs/test_daemon.py, tests/examples |
| farms, partitions, intermediaries | tests/unit/runtime/dialogs/test_farms.py |
| a third party repairs a fault | tests/unit/runtime/dialogs/test_credentials.py |
| stores decide which failures are survived | tests/conformance/test_dialog_stores.py, test_killed.py |
| transactions with tables of the application | tests/unit/stores, tests/unit/runtime/dialogs/test_dialogs.py |
"""

from __future__ import annotations

import pytest
from tests.support.dialog_steps import another, lose, sent_frames
from tests.support.dialogs import (
    Pair,
    Trouble,
    World,
    bodies,
    serve,
    settings,
    transact,
)

from holdfast.dialog.config import assurances_of, merged, read_profile
from holdfast.dialog.frames import Ack, Messages
from holdfast.dialog.ports import (
    ExtendMessages,
    ExtendSession,
    Open,
    Outcome,
    Prepare,
    Send,
    Sent,
    Take,
)
from holdfast.dialog.ports import Terminate as TerminateRequest
from holdfast.types import MILLISECOND, SECOND

TX = b"t" * 16


# -- sessions and numbers ----------------------------------------------------------------------------------------


def test_messages_are_numbered_in_the_order_sent_within_a_session() -> None:
    """'Each message is numbered sequentially in the order sent by the application.'"""
    world = World(1)
    pair = Pair(world)
    answers = world.finish(pair.send(b"a", b"b"), pair.send(b"c"))
    assert answers == [Sent(0, 2), Sent(2, 1)]


def test_several_sessions_between_two_applications_have_their_own_assurances() -> None:
    """'There may be multiple sessions ... each session established may have the same or different delivery
    assurances.'"""
    world = World(2)
    pair = Pair(world, 0)
    ids = {code: another(world, pair, code) for code in (2, 5, 7)}
    for code, dialog in ids.items():
        end = pair.far.manager.inspect(dialog)
        assert end is not None
        assert end.assurances == code


def test_a_lost_message_is_transmitted_again_until_it_is_acknowledged() -> None:
    """'If message was dropped ... continues ... to periodically transmit message.'"""
    world = World(3)
    pair = Pair(world)
    lost = lose(world, Messages, 3)
    world.finish(pair.send(b"one"))
    world.run(60 * SECOND)
    assert len(lost) == 3
    assert pair.drain() == [b"one"]


def test_a_lost_acknowledgement_triggers_another_one() -> None:
    """'Retransmission of message will continue thereby triggering ... another copy of acknowledgement.'"""
    world = World(4)
    pair = Pair(world)
    lost = lose(world, Ack, 2)
    world.finish(pair.send(b"one"))
    world.run(60 * SECOND)
    assert len(lost) == 2
    assert pair.here().acked == [(0, 1)]
    assert pair.drain() == [b"one"], "the copies were discarded"


def test_an_acknowledgement_frees_the_send_buffer_and_stops_transmission() -> None:
    """'Upon receipt of acknowledgment ... deletes from its Session State send buffer the copy of message and stops
    doing additional transmissions of it.'"""
    world = World(5)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert pair.here().queued == pair.here().in_flight == 0
    count = len(sent_frames(pair.near, Messages))
    world.run(600 * SECOND)
    assert len(sent_frames(pair.near, Messages)) == count == 1


def test_duplicates_are_discarded_whether_or_not_they_were_delivered() -> None:
    """'Any duplicate messages received ... can be discarded independent of whether or not the messages have already
    been delivered to the application.'"""
    world = World(6)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    copy = sent_frames(pair.near, Messages)[0]
    world.carry(pair.near, pair.b.node, copy)
    world.run(SECOND)
    assert pair.drain() == [b"one"]
    world.carry(pair.near, pair.b.node, copy)
    world.run(SECOND)
    assert pair.drain() == []


# -- assurances --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", range(8))
def test_assurances_are_used_individually_or_in_any_combination(code: int) -> None:
    """'Dialogs allow these message delivery assurances to be used either individually or in any combination.'"""
    world = World(7, Trouble(loss=0.2, duplication=0.3, reordering=0.3))
    pair = Pair(world, code)
    got: list[int] = []
    for n in range(60):
        world.finish(pair.send(b"%d" % n))
        world.run(20 * MILLISECOND)
        got += map(int, pair.drain())
    world.run(120 * SECOND)
    got += map(int, pair.drain())
    wanted = assurances_of(code)
    if wanted.at_least_once:
        assert set(got) == set(range(60))
    if wanted.at_most_once:
        assert len(set(got)) == len(got)
    if wanted.in_order:
        assert got == sorted(got)


def test_the_programming_model_does_not_change_with_the_assurances() -> None:
    """'These assurances can be customized without changing the programming model that the application uses.'"""
    for code in range(8):
        world = World(8)
        pair = Pair(world, code)
        world.finish(pair.send(b"same calls"))
        world.run(SECOND)
        assert pair.drain() == [b"same calls"]


def test_the_session_must_complete_within_its_time_to_live() -> None:
    """'If the session TTL expires before the dialog session has been completed the dialog channels are placed in a
    faulted state and notification of the fault is provided ... The applications can extend the session TTL.'"""
    world = World(9)
    pair = Pair(world, near={"session_ttl_ns": 10 * SECOND})
    world.run(11 * SECOND)
    assert pair.here().state == pair.there().state == "faulted"
    assert pair.near.kinds("faulted")
    assert pair.far.kinds("faulted")
    world.finish(pair.far.call(ExtendSession(token=0, dialog=pair.dialog, ttl_ns=60 * SECOND)))
    world.run(5 * SECOND)
    assert pair.here().state == pair.there().state == "open"


def test_a_completed_session_does_not_expire() -> None:
    """'... requires that the dialog session ... be completed before the session TTL expires.'"""
    world = World(10)
    pair = Pair(world, near={"session_ttl_ns": 10 * SECOND})
    world.finish(*pair.complete())
    world.run(20 * SECOND)
    assert pair.near.kinds("completed")
    assert pair.near.kinds("faulted") == []


# -- acknowledgements and the receive rules ----------------------------------------------------------------------


def test_an_acknowledgement_lists_everything_received_so_far() -> None:
    """'This acknowledgement must include the sequence numbers of all messages that have been received thus far in the
    session ... a set of sequence ranges can be used.'"""
    world = World(11)
    pair = Pair(world)
    for n in range(5):
        if n in (0, 3):
            lost = lose(world, Messages)
        world.finish(pair.send(b"%d" % n))
        world.run(10 * MILLISECOND)
        assert lost[0].first == 3 * (n >= 3)
    assert sent_frames(pair.far, Ack)[-1].ranges == [1, 3, 4, 5]
    world.run(30 * SECOND)
    assert sent_frames(pair.far, Ack)[-1].ranges == [0, 5]


def test_only_at_least_once_acknowledges() -> None:
    """'If the assurances include ALO then the Protocol sends an ... acknowledgment.'"""
    world = World(12)
    pair = Pair(world, 2)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert all(frame.ranges == [] for frame in sent_frames(pair.far, Ack))
    assert pair.here().queued == pair.here().in_flight == 0, "freed by transmission"


def test_without_order_a_message_is_available_at_once() -> None:
    """'If the specified assurances do not include IO then the message is immediately made available.'"""
    world = World(13)
    pair = Pair(world, 6)
    lose(world, Messages)
    world.finish(pair.send(b"lost first"))
    world.finish(pair.send(b"second"))
    world.run(100 * MILLISECOND)
    assert pair.drain() == [b"second"]


def test_in_order_a_gap_holds_back_what_is_above_it() -> None:
    """'When all such missing lower numbered messages have arrived then the continuous range of messages is made
    available.'"""
    world = World(14)
    pair = Pair(world, 7)
    lose(world, Messages)
    for n in range(3):
        world.finish(pair.send(b"%d" % n))
    world.run(100 * MILLISECOND)
    assert pair.drain() == []
    world.run(30 * SECOND)
    assert pair.drain() == [b"0", b"1", b"2"]


def test_in_order_without_at_least_once_skips_ahead() -> None:
    """'If the ALO assurance is not specified then the message is immediately made available ... and the next expected
    sequence number is set to one more.'"""
    world = World(15)
    pair = Pair(world, 1)
    lost = lose(world, Messages)
    for n in range(3):
        world.finish(pair.send(b"%d" % n))
        world.run(10 * MILLISECOND)
    assert pair.drain() == [b"1", b"2"]
    world.carry(pair.near, pair.b.node, lost[0])
    world.run(SECOND)
    assert pair.drain() == [], "less than the next expected number: discarded"


def test_notifications_are_delivered_serially() -> None:
    """'Until that call to the application code returns no other calls ... will be made even if other messages are
    available.'"""
    world = World(16)
    pair = Pair(world)
    for n in range(3):
        world.finish(pair.send(b"%d" % n))
        world.run(SECOND)
    assert len(pair.far.kinds("available")) == 1
    pair.drain()


# -- local features: buffers -------------------------------------------------------------------------------------


def test_both_buffers_are_limited_by_the_quota() -> None:
    """'A configurable buffer quota which defines the maximum number of messages ... limits the local resources that can
    be consumed by the other endpoint.'"""
    world = World(17)
    pair = Pair(world, near={"quota_messages": 4}, far={"quota_messages": 3})
    calls = [pair.send(b"%d" % n) for n in range(20)]
    world.run(10 * SECOND)
    assert pair.there().available == 3
    assert pair.here().queued + pair.here().in_flight == 4
    assert sum(call.done for call in calls) == 7


def test_send_blocks_until_there_is_room() -> None:
    """'The call to Send is blocked until either the send timeout expires or space becomes available ... If space
    becomes available ... the Send calls complete normally.'"""
    world = World(18)
    pair = Pair(world, near={"quota_messages": 1}, far={"quota_messages": 1})
    calls = [pair.send(b"%d" % n, deadline=world.now + 100 * SECOND) for n in range(3)]
    world.run(SECOND)
    assert not calls[2].done
    pair.drain()
    world.run(5 * SECOND)
    assert isinstance(calls[2].value, Sent)


def test_send_times_out_and_says_that_nothing_was_captured() -> None:
    """'If the send timeout expires ... an exception is raised providing notification ... that the message could not be
    successfully buffered captured.'"""
    world = World(19)
    pair = Pair(world, near={"quota_messages": 1})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"0"))
    call = pair.send(b"1", deadline=world.now + 3 * SECOND)
    world.run(5 * SECOND)
    assert call.refused == "send-timeout"


def test_either_side_works_on_its_buffer_while_the_other_is_away() -> None:
    """'Allowing either side to send or receive messages to or from their local buffers even if the other party is not
    running or is unreachable.'"""
    world = World(20)
    pair = Pair(world)
    world.finish(pair.send(b"early"))
    world.run(SECOND)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"later"))
    assert pair.drain() == [b"early"]
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"later"]


@pytest.mark.parametrize("choice", ["extend", "terminate"])
def test_a_message_that_is_not_received_in_time_raises_an_error_and_the_application_chooses(
    choice: str,
) -> None:
    """'When the TTL expires notification is provided to the sending Application ... the choice of
    terminating the dialog or extending the message s TTL.'"""
    world = World(21)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"one"))
    world.run(6 * SECOND)
    assert len(pair.near.kinds("expired")) == 1
    assert pair.here().state == "open", "the choice is the application's"
    if choice == "extend":
        request = ExtendMessages(token=0, dialog=pair.dialog, ttl_ns=60 * SECOND)
        world.finish(pair.near.call(request))
        world.run(30 * SECOND)
        assert len(pair.near.kinds("expired")) == 1
        world.connect(pair.a, pair.b)
        world.run(SECOND)
        assert pair.drain() == [b"one"]
    else:
        world.finish(pair.near.call(TerminateRequest(token=0, dialog=pair.dialog)))
        assert [event.count for event in pair.near.kinds("terminated")] == [1]


def test_a_minimum_of_messages_is_reserved_in_both_buffers() -> None:
    """'A minimum reserved number of messages that will be buffered by the messaging infrastructure which in combination
    with a maximum message size defines a minimum number of bytes.'"""
    world = World(51)
    limits = {"quota_reserved": 4, "message_bytes_max": 1000, "quota_bytes": 4000}
    pair = Pair(world, near=limits, far=limits)
    assert pair.near.manager.status()["reserved_bytes"] == 2 * 4 * 1000
    world.disconnect(pair.a, pair.b)
    world.finish(*[pair.send(bytes(990)) for _ in range(4)])
    assert pair.here().queued == 4


def test_dialogs_of_higher_priority_go_first() -> None:
    """'Dialogs with higher priority are given precedence ... in transmitting ... messages with higher priority are
    received prior to messages with lower priority.'"""
    world = World(22)
    pair = Pair(world, near={"priority": 0}, far={"priority": 0})
    serve(pair.far, settings(7, priority=9), "urgent")
    world.routes["urgent"] = [pair.b.node]
    opened = pair.near.call(Open(token=0, uri="urgent", settings=settings(7, priority=9)))
    urgent = world.finish(opened)[0].dialog
    world.run(SECOND)
    world.finish(pair.send(b"slow"))
    world.finish(pair.near.call(Send(token=0, dialog=urgent, bodies=[b"quick"] * 3)))
    world.run(SECOND)
    order = []
    for _ in range(4):
        order += bodies(world.finish(pair.far.call(Take(token=0, dialog=b"")))[0])
    assert order.index(b"slow") >= 1


# -- transacted buffering ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_a_transaction_commits_or_abandons_sends_and_receives_on_every_store(durable: bool) -> None:
    """'Dialog provides these same transaction semantics regardless of durability of the Dialog Store.'"""
    world = World(23)
    pair = Pair(world, durable=durable)
    world.finish(pair.send(b"request"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX), pair.send(b"partial", unit=pair.far, tx=TX))
    assert not transact(pair.far, TX, commit=False)
    world.run(SECOND)
    assert pair.drain(pair.near) == [], "session partners do not see partial results"
    second = b"u" * 16
    assert bodies(world.finish(pair.take(tx=second))[0]) == [b"request"], "available again"
    world.finish(pair.send(b"reply", unit=pair.far, tx=second))
    assert transact(pair.far, second)
    world.run(SECOND)
    assert pair.drain(pair.near) == [b"reply"]
    assert pair.drain() == [], "the received message is deleted for good"


def test_tentative_operations_are_not_visible_outside_the_transaction() -> None:
    """'Captured messages are not visible outside the transaction.'"""
    world = World(24)
    pair = Pair(world)
    world.finish(pair.send(b"tentative", tx=TX))
    world.run(SECOND)
    assert sent_frames(pair.near, Messages) == []
    assert pair.here().queued == 0


def test_whether_an_application_uses_transactions_is_transparent_to_its_partner() -> None:
    """'Whether or not the application uses this feature is completely transparent to its session partner.'"""
    traces = []
    for transacted in (False, True):
        world = World(25)
        pair = Pair(world)
        world.finish(pair.send(b"one", tx=TX if transacted else b""))
        if transacted:
            assert transact(pair.near, TX)
        world.run(SECOND)
        traces.append([(f.first, f.count, bytes(f.body)) for f in sent_frames(pair.near, Messages)])
        assert pair.drain() == [b"one"]
    assert traces[0] == traces[1]


def test_exactly_once_processing_through_a_crash_after_the_commit() -> None:
    """'The net affect is exactly once message processing.'"""
    world = World(26)
    pair = Pair(world)
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX))
    prepared = world.finish(pair.far.call(Prepare(token=0, tx=TX)))[0]
    assert pair.far.commit_transaction(prepared)
    world.crash(pair.b)
    world.run(5 * SECOND)
    assert pair.drain() == []


def test_delete_is_transacted_like_receive() -> None:
    """'When Receive or Delete is called the message is tentatively deleted.'"""
    world = World(27)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    world.finish(pair.take(tx=TX, discard=True))
    pair.far.give(Outcome(TX, False, False))
    world.run(SECOND)
    assert pair.drain() == [b"one"]


def test_poison_halts_processing_until_the_application_acts() -> None:
    """'When a poison message is detected an error is raised to the application and further attempts at processing the
    message are halted until the application takes corrective action.'"""
    world = World(28)
    pair = Pair(world, far={"poison_after": 2})
    world.finish(pair.send(b"bad"))
    world.run(SECOND)
    for n in range(2):
        tx = b"%016d" % n
        assert bodies(world.finish(pair.take(tx=tx))[0]) == [b"bad"]
        transact(pair.far, tx, commit=False)
    assert len(pair.far.kinds("poison")) == 1
    assert pair.drain() == []


def test_an_abort_for_a_transient_reason_is_followed_by_success() -> None:
    """'Sometimes the problem that causes the transaction to abort is transient ... and delivery and message processing
    succeeds on the next attempt.'"""
    world = World(52)
    pair = Pair(world, far={"poison_after": 3})
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    for n in range(3):
        tx = b"%016d" % n
        [taken] = world.finish(pair.take(tx=tx))
        assert [message.attempt for message in taken.messages] == [n + 1]
        transact(pair.far, tx, commit=n == 2)
    assert pair.far.kinds("poison") == []
    assert pair.drain() == []


def test_a_transaction_receives_on_one_dialog_and_sends_on_several() -> None:
    """'Receive a message send some messages on one or more dialogs ... all within a single transaction.' 'It is simply
    a local notion and does not carry to the other endpoint.'"""
    world = World(53)
    pair = Pair(world)
    others = [another(world, pair), another(world, pair)]
    world.finish(pair.send(b"job"))
    world.run(SECOND)
    for tx, commit in ((b"1" * 16, False), (b"2" * 16, True)):
        assert bodies(world.finish(pair.take(tx=tx))[0]) == [b"job"]
        sends = [Send(token=0, dialog=dialog, bodies=[b"part"], tx=tx) for dialog in others]
        world.finish(*[pair.far.call(send) for send in sends])
        transact(pair.far, tx, commit=commit)
        world.run(SECOND)
        for dialog in others:
            call = pair.near.call(Take(token=0, dialog=dialog, deadline=0))
            assert bodies(world.finish(call)[0]) == ([b"part"] if commit else [])
    assert pair.drain() == []


# -- profiles ----------------------------------------------------------------------------------------------------


def test_profiles_raise_minimums_and_direct_settings_win() -> None:
    """'A minimum level of desirable delivery assurance that can be increased through configuration ... Profile values
    established directly take precedence.'"""
    profile = read_profile("p", {"in_order": True, "priority": 8, "quota_messages": 50})
    chosen = merged({"priority": 2}, profile, assurances_of(4))
    assert chosen.assurances.code == 5
    assert chosen.priority == 2
    assert chosen.quota_messages == 50
