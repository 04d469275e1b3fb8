"""Each claim of the paper on transparent availability and scalability in messaging, as a test.

The docstrings cite the paper by the words of the paragraph that makes the claim. Claims about what surrounds a dialog
are tested on real nodes:

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

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.dialogs import (
    SERVICE,
    Pair,
    Trouble,
    Unit,
    World,
    bodies,
    serve,
    settings,
    transact,
)

from holdfast.dialog.config import assurances_of, merged, read_profile
from holdfast.dialog.frames import Ack, Confirmed, Messages, Terminate
from holdfast.dialog.ports import (
    Complete,
    Deactivate,
    ExtendSession,
    MoveIn,
    MoveOut,
    Open,
    Outcome,
    Prepare,
    Reactivate,
    Repair,
    Send,
    Sent,
    Take,
)
from holdfast.dialog.ports import Terminate as TerminateRequest
from holdfast.links.ports import PeerRefused
from holdfast.types import MILLISECOND, SECOND

TX = b"t" * 16


def sent_frames(unit: Unit, kind: type[Any]) -> list[Any]:
    return [frame for _, frame in unit.frames if type(frame) is kind]


def lose(world: World, kind: type[Any], times: int = 1) -> list[Any]:
    """The network loses the next frames of a kind; gives the list of those that it lost."""
    lost: list[Any] = []

    def passes(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is kind and len(lost) < times:
            lost.append(frame)
            return False
        return True

    world.filter = passes
    return lost


def another(world: World, pair: Pair, code: int = 7, **more: Any) -> bytes:
    call = pair.near.call(Open(token=0, uri=SERVICE, settings=settings(code, **more)))
    dialog: bytes = world.finish(call)[0].dialog
    world.run(SECOND)
    return dialog


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
    lost = lose(world, Messages)
    for n in range(4):
        world.finish(pair.send(b"%d" % n))
        world.run(10 * MILLISECOND)
    assert lost[0].first == 0
    assert sent_frames(pair.far, Ack)[-1].ranges == [1, 4]
    world.run(30 * SECOND)
    assert sent_frames(pair.far, Ack)[-1].ranges == [0, 4]


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


def test_a_message_that_is_not_received_in_time_raises_an_error_and_can_be_extended() -> None:
    """'When the TTL expires notification is provided to the sending Application ... the choice of
    terminating the dialog or extending the message s TTL.'"""
    world = World(21)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"one"))
    world.run(6 * SECOND)
    assert pair.near.kinds("expired")
    assert pair.here().state == "open", "the choice is the application's"


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


# -- profiles ----------------------------------------------------------------------------------------------------


def test_profiles_raise_minimums_and_direct_settings_win() -> None:
    """'A minimum level of desirable delivery assurance that can be increased through configuration ... Profile values
    established directly take precedence.'"""
    profile = read_profile("p", {"in_order": True, "priority": 8, "quota_messages": 50})
    chosen = merged({"priority": 2}, profile, assurances_of(4))
    assert chosen.assurances.code == 5
    assert chosen.priority == 2
    assert chosen.quota_messages == 50


# -- stores ------------------------------------------------------------------------------------------------------


def test_send_completes_and_acknowledgements_leave_only_after_the_store_has_the_message() -> None:
    """'Acknowledgments are sent only after the message has been recorded in the Store ... either the sender or receiver
    always has a copy ... the Send would complete only after the message has been recorded.'"""
    world = World(29)
    pair = Pair(world)
    world.trouble = Trouble(commit_ns=2 * SECOND, commit_jitter_ns=0)
    call = pair.send(b"one")
    world.run(SECOND)
    assert not call.done
    world.run(2 * SECOND)
    assert call.done
    assert sent_frames(pair.far, Ack) == []
    world.run(5 * SECOND)
    assert sent_frames(pair.far, Ack)[-1].ranges == [0, 1]


def test_the_store_decides_what_survives() -> None:
    """'The selection of the store defines the durability of the session state.'"""
    survived = {}
    for durable in (True, False):
        world = World(30)
        pair = Pair(world, durable=durable)
        world.finish(pair.send(b"one"))
        world.run(SECOND)
        world.crash(pair.b)
        world.run(5 * SECOND)
        survived[durable] = pair.there() is not None
        assert (pair.here().fault == "partner-lost") == (not durable)
    assert survived == {True: True, False: False}


def test_different_dialogs_of_one_application_use_different_stores() -> None:
    """'Different dialogs within the same Application may use different stores.'"""
    world = World(31)
    a, b = world.add("a", stores=("one", "two")), world.add("b")
    far = b.units["default"]
    serve(far, settings())
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    dialogs = [
        world.finish(unit.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
        for unit in a.units.values()
    ]
    world.run(SECOND)
    for unit, dialog in zip(a.units.values(), dialogs, strict=True):
        world.finish(unit.call(Send(token=0, dialog=dialog, bodies=[unit.name.encode()])))
        taken = world.finish(far.call(Take(token=0, dialog=dialog)))[0]
        assert bodies(taken) == [unit.name.encode()]


# -- endpoint resolution -----------------------------------------------------------------------------------------


def test_no_message_is_delivered_before_both_ends_hold_a_reference() -> None:
    """'Prior to delivering the initial message in a dialog for processing that both endpoints hold a reference
    sufficient to guarantee endpoint uniqueness.'"""
    world = World(32)
    lost: list[Any] = []
    pair = Pair(world, wait=False)
    world.filter = lambda _u, _n, frame: type(frame) is not Confirmed or bool(lost.append(frame))
    pair.send(b"one")
    world.run(20 * SECOND)
    assert lost
    assert sent_frames(pair.near, Messages) == []
    world.filter = lambda *_: True
    world.run(60 * SECOND)
    assert pair.drain() == [b"one"]


def test_a_farm_gives_one_instance_and_always_that_one() -> None:
    """'Application farms e.g. scale out replicas.' 'The uniquely selected peer endpoint for the session.'"""
    world = World(33)
    a = world.add("a")
    near = a.units["default"]
    hosts = [world.add(f"i{n}") for n in range(3)]
    for host in hosts:
        serve(host.units["default"], settings())
        world.connect(a, host)
    world.routes[SERVICE] = [host.node for host in hosts]
    dialog = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.run(SECOND)
    partner = near.manager.inspect(dialog).partner  # type: ignore[union-attr]
    for n in range(5):
        world.finish(near.call(Send(token=0, dialog=dialog, bodies=[b"%d" % n])))
        world.crash(a)
        world.run(5 * SECOND)
        assert near.manager.inspect(dialog).partner == partner  # type: ignore[union-attr]
    holders = [h for h in hosts if h.units["default"].manager.inspect(dialog) is not None]
    assert len(holders) == 1


def test_partitions_route_by_key_to_a_farm_each() -> None:
    """'An application may be deployed to use data dependent routing to an application partition which is in turn
    comprised of a farm.'"""
    from holdfast.dialog.routes import resolve
    from holdfast.dialog.section import PartitionConfig, RouteConfig

    members = {name: name.encode() for name in ("a1", "a2", "b1", "b2")}
    route = RouteConfig(
        "orders",
        partition=(PartitionConfig(("a1", "a2"), "a"), PartitionConfig(("b1", "b2"), "n")),
    )
    for key, farm in ((b"anna", {b"a1", b"a2"}), (b"zoe", {b"b1", b"b2"})):
        chosen = [resolve([route], members, "orders", key, bytes((n,))) for n in range(20)]
        assert {nodes[0] for nodes in chosen} == farm, "spread over the farm"
        assert all(set(nodes) == farm for nodes in chosen)
    assert resolve([route], members, "orders?key=anna", b"", b"") != resolve(
        [route], members, "orders?key=zoe", b"", b""
    )


def test_a_service_becomes_a_farm_while_dialogs_live() -> None:
    """'Changing a deployed application to handle increased load e.g. introducing an application farm.'"""
    world = World(34)
    pair = Pair(world)
    c = world.add("c")
    serve(c.units["default"], settings())
    world.connect(pair.a, c)
    world.routes[SERVICE] = [c.node, pair.b.node]
    later = another(world, pair)
    world.finish(pair.send(b"old"))
    world.run(SECOND)
    assert pair.drain() == [b"old"], "a dialog that lives keeps its partner"
    end = pair.near.manager.inspect(later)
    assert end is not None
    assert end.partner is not None
    assert end.partner.node == c.node


# -- faults ------------------------------------------------------------------------------------------------------


def fault_of_silence(world: World, pair: Pair) -> None:
    """The partner's end does not answer any more, although the link is up."""
    world.filter = lambda unit, _n, _f: unit is not pair.far


def test_a_fault_raises_an_event_for_corrective_action_and_the_dialog_goes_on_after_repair() -> (
    None
):
    """'The dialog is placed in a faulted state and a fault event is raised allowing for out of band corrective action
    ... If the fault can be corrected repaired the dialog can be placed back into service.'"""
    world = World(35)
    pair = Pair(world, near={"partner_silent_ns": 10 * SECOND})
    fault_of_silence(world, pair)
    world.finish(pair.send(b"one"))
    world.run(60 * SECOND)
    assert pair.here().fault == "partner-silent"
    assert [wanted.code for wanted in pair.near.repairs] == ["partner-silent"]
    world.finish(pair.send(b"two"))
    world.filter = lambda *_: True
    world.finish(pair.near.call(Repair(token=0, dialog=pair.dialog, action="resume")))
    world.run(10 * SECOND)
    assert pair.near.kinds("repaired")
    assert pair.drain() == [b"one", b"two"]


def test_a_fault_that_cannot_be_repaired_ends_with_termination_and_notice() -> None:
    """'Unrecoverable failures ... can result in termination of Dialog and application notification.'"""
    world = World(36)
    pair = Pair(world, near={"session_ttl_ns": 5 * SECOND})
    world.run(6 * SECOND)
    world.finish(pair.near.call(Repair(token=0, dialog=pair.dialog, action="terminate")))
    world.run(SECOND)
    assert pair.near.kinds("terminated")
    assert pair.far.kinds("terminated")


FAILURES: dict[str, Callable[[World, Pair], None]] = {
    "process of the sender": lambda world, pair: world.crash(pair.a),
    "process of the receiver": lambda world, pair: world.crash(pair.b),
    "both": lambda world, pair: (world.crash(pair.a), world.crash(pair.b))[0],
    "network": lambda world, pair: (
        world.disconnect(pair.a, pair.b),
        world.at(10 * SECOND, lambda: world.connect(pair.a, pair.b)),
    )[0],
}


@pytest.mark.parametrize("failure", FAILURES)
def test_survivable_failures(failure: str) -> None:
    """'Survivable failures can include ... corrupt lost duplicated or delayed messages transport and network failures
    process failures ... and system failures.'"""
    world = World(37, Trouble(loss=0.1, duplication=0.1, reordering=0.2))
    pair = Pair(world)
    expected = []
    for n in range(5):
        world.finish(pair.send(b"%d" % n))
        expected.append(b"%d" % n)
        FAILURES[failure](world, pair)
        world.run(30 * SECOND)
    world.run(60 * SECOND)
    assert pair.drain() == expected


# -- the life of a dialog ----------------------------------------------------------------------------------------


def test_reactivation_by_id_and_on_arrival_of_a_message() -> None:
    """'Reactivation can occur manually ... or automatically if a new message arrives for the session.'"""
    world = World(38)
    pair = Pair(world)
    for unit in (pair.near, pair.far):
        world.finish(unit.call(Deactivate(token=0, dialog=pair.dialog)))
    world.finish(pair.near.call(Reactivate(token=0, dialog=pair.dialog)))
    assert pair.here() is not None
    assert pair.there() is None
    world.finish(pair.send(b"wake up"))
    world.run(5 * SECOND)
    assert pair.drain() == [b"wake up"]


def test_an_application_sends_and_exits_without_waiting_for_the_other() -> None:
    """'An application starts sends and receives some messages and then exits without having to wait for the other
    endpoint to respond or even be available.'"""
    world = World(39)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"left behind"))
    world.crash(pair.a, down_ns=3600 * SECOND)
    world.run(3601 * SECOND)
    world.connect(pair.a, pair.b)
    world.run(5 * SECOND)
    assert pair.drain() == [b"left behind"]


def test_delivery_is_scheduled_to_a_better_time() -> None:
    """'Shift message delivery to a more cost effective time.'"""
    world = World(40)
    pair = Pair(world)
    later = world.now + world.wall_offset + 3600 * SECOND
    world.finish(pair.send(b"off-peak", after_wall=later))
    world.run(3590 * SECOND)
    assert sent_frames(pair.near, Messages) == []
    world.run(20 * SECOND)
    assert pair.drain() == [b"off-peak"]


def test_the_notice_of_termination_has_no_reliability() -> None:
    """'There is no reliability for this message it is simply an attempt to tell the other side.'"""
    world = World(41)
    pair = Pair(world)
    lost = lose(world, Terminate)
    world.finish(pair.near.call(TerminateRequest(token=0, dialog=pair.dialog)))
    world.run(60 * SECOND)
    assert len(lost) == 1
    assert len(sent_frames(pair.near, Terminate)) == 1
    assert pair.there().state == "open"


def test_termination_means_no_further_messages() -> None:
    """'Termination implies that no further messages will be exchanged over the dialog session.'"""
    world = World(42)
    pair = Pair(world)
    world.finish(pair.near.call(TerminateRequest(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    for unit in (pair.near, pair.far):
        call = pair.send(b"late", unit=unit)
        world.run(SECOND)
        assert call.refused == "ended"


def test_teardown_when_both_are_done_and_no_messages_remain() -> None:
    """'The session completes successfully i.e. both sides are done sending and no more messages remain.'"""
    world = World(43)
    pair = Pair(world)
    world.finish(pair.near.call(Complete(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    assert pair.here().state == "open", "one side is not enough"
    world.finish(pair.far.call(Complete(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    assert pair.here() is pair.there() is None


def test_message_exchange_patterns_share_one_model() -> None:
    """'One way half duplex from a single request response to more complex patterns and the most complex full
    duplex.'"""
    world = World(44)
    pair = Pair(world)
    world.finish(pair.send(b"one way"))
    world.run(SECOND)
    assert pair.drain() == [b"one way"]
    world.finish(pair.send(b"request"))
    assert bodies(world.finish(pair.take())[0]) == [b"request"]
    world.finish(pair.send(b"response", unit=pair.far))
    assert bodies(world.finish(pair.take(unit=pair.near))[0]) == [b"response"]
    world.finish(*[pair.send(b"%d" % n) for n in range(5)])
    world.finish(*[pair.send(b"%d" % n, unit=pair.far) for n in range(5)])
    world.run(SECOND)
    assert len(pair.drain()) == len(pair.drain(pair.near)) == 5


def test_the_application_names_no_transport() -> None:
    """'Selecting a suitable message transport at runtime without the message application specifying the suitable
    transport at development time.' No call and no setting takes one. The change under a living dialog is tested with
    real sockets and a real proxy (`tests/unit/runtime/dialogs/test_transports.py`)."""
    from inspect import signature

    from holdfast.dialog.config import Settings
    from holdfast.runtime.dialogs.api import DialogApi

    names = set(Settings.__struct_fields__)
    for call in (DialogApi.open, DialogApi.listen, DialogApi.transaction):
        names |= set(signature(call).parameters)
    assert not names & {"transport", "transports", "adapter", "path", "protocol", "address"}


def test_expired_credentials_are_renewed_and_buffered_messages_follow() -> None:
    """'If a message transmitted on a secured session faults due to credential expiration Dialog can renegotiate the
    security credentials and clear the dialog fault. When dialog processing resumes the buffered messages will be
    retransmitted with the updated credentials.'"""
    world = World(45)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1", b"2"))
    pair.near.give(PeerRefused(pair.b.node, "the peer's certificate has expired"))
    world.run(SECOND)
    assert pair.here().state == "faulted"
    assert [wanted.code for wanted in pair.near.repairs] == ["credentials"]
    world.finish(pair.send(b"3"))
    world.connect(pair.a, pair.b)
    world.run(2 * SECOND)
    assert pair.here().state == "open"
    assert pair.drain() == [b"1", b"2", b"3"]
    assert pair.near.kinds("repaired")


def test_a_dialog_endpoint_relocates_with_its_state() -> None:
    """'Relocation of a dialog endpoint and associated state e.g. disaster recovery.'"""
    world = World(46)
    pair = Pair(world)
    world.finish(pair.send(b"1", b"2"))
    world.run(SECOND)
    assert bodies(world.finish(pair.take())[0]) == [b"1"]
    host = world.add("c")
    target = host.units["default"]
    world.connect(pair.a, host)
    out = MoveOut(token=0, dialog=pair.dialog, node=host.node, store=target.store)
    [exported] = world.finish(pair.far.call(out))
    world.finish(target.call(MoveIn(token=0, state=exported.state)))
    world.finish(pair.send(b"3"))
    world.run(5 * SECOND)
    assert pair.drain(target) == [b"2", b"3"]


def test_a_simplex_sender_needs_no_receive_buffer() -> None:
    """'At the sending endpoint a receive buffer is not required and at the receiving endpoint a send buffer is not
    required.'"""
    world = World(47)
    pair = Pair(world, near={"simplex": "send"}, far={"simplex": "receive"})
    world.finish(pair.send(b"one way only"))
    world.run(SECOND)
    assert pair.drain() == [b"one way only"]
    refused = world.finish(pair.send(b"back", unit=pair.far), pair.take(unit=pair.near))
    assert [answer.code for answer in refused] == ["misuse", "misuse"]


def test_a_dialog_without_a_partner_finds_one_when_there_is_one() -> None:
    """'Allows the Application to send messages and exit without waiting' although the partner does not exist yet:
    the infrastructure looks again, and the messages go."""
    world = World(48)
    a, b = world.add("a"), world.add("b")
    near, far = a.units["default"], b.units["default"]
    opened = near.call(Open(token=0, uri=SERVICE, settings=settings()))
    dialog = world.finish(opened)[0].dialog
    world.finish(
        near.call(Send(token=0, dialog=dialog, bodies=[b"early"], deadline=world.now + SECOND))
    )
    world.run(20 * SECOND)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.fault == "unknown-service"
    serve(far, settings())
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    world.run(120 * SECOND)
    [taken] = world.finish(far.call(Take(token=0, dialog=dialog, count=1)))
    assert bodies(taken) == [b"early"]
