"""Quota, time-outs, time to live, priority, schedules, receive across dialogs, completion, activation."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.dialogs import (
    SERVICE,
    Call,
    Pair,
    Trouble,
    Unit,
    World,
    accept,
    bodies,
    serve,
    settings,
)

from holdfast.dialog.frames import Ack, Decline, Done, Messages, TtlAnswer
from holdfast.dialog.ports import (
    Agreed,
    Cancel,
    Complete,
    Deactivate,
    ExtendMessages,
    ExtendSession,
    Open,
    Reactivate,
    Refused,
    Reject,
    Repair,
    Send,
    Sent,
    Take,
    Taken,
    Terminate,
    Unlisten,
)
from holdfast.dialog.priority import Scheduler
from holdfast.types import MILLISECOND, NEVER, SECOND


def open_another(world: World, near: Unit, code: int = 7, **more: Any) -> bytes:
    answer = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings(code, **more))))[0]
    world.run(SECOND)
    return bytes(answer.dialog)


def send(unit: Unit, dialog: bytes, *messages: bytes, **more: Any) -> Call:
    return unit.call(Send(token=0, dialog=dialog, bodies=list(messages), **more))


# -- quota and time-outs -----------------------------------------------------------------------------------------


def test_a_send_waits_for_room_and_completes_when_there_is_some() -> None:
    world = World(1)
    pair = Pair(world, near={"quota_messages": 2}, far={"quota_messages": 2})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1", b"2"))
    waiting = pair.send(b"3", deadline=world.now + 60 * SECOND)
    world.run(SECOND)
    assert not waiting.done
    world.connect(pair.a, pair.b)
    world.run(5 * SECOND)
    assert isinstance(waiting.value, Sent)


def test_a_send_that_waits_too_long_is_refused_and_nothing_is_half_sent() -> None:
    world = World(2)
    pair = Pair(world, near={"quota_messages": 2})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    refused = pair.send(b"2", b"3", deadline=world.now + 2 * SECOND)
    world.run(5 * SECOND)
    assert refused.refused == "send-timeout"
    assert "nothing was sent" in refused.value.text
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"1"]


def test_a_send_with_no_time_to_wait_answers_at_once() -> None:
    world = World(3)
    pair = Pair(world, near={"quota_messages": 1})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    assert world.finish(pair.send(b"2", deadline=0))[0].code == "send-timeout"


def test_waiting_sends_keep_their_order() -> None:
    world = World(4)
    pair = Pair(world, near={"quota_messages": 2}, far={"quota_messages": 2})
    world.disconnect(pair.a, pair.b)
    for n in range(8):
        pair.send(b"%d" % n)
    world.connect(pair.a, pair.b)
    got: list[bytes] = []
    for _ in range(100):
        got += pair.drain()
        world.run(50 * MILLISECOND)
    assert got == [b"%d" % n for n in range(8)]


def test_a_send_that_would_fit_waits_behind_one_that_does_not() -> None:
    world = World(99)
    pair = Pair(world, near={"quota_bytes": 1000, "message_bytes_max": 900})
    world.disconnect(pair.a, pair.b)
    sent = [b"a" * 600, b"b" * 600, b"c"]
    calls = [pair.send(body) for body in sent]
    world.run(SECOND)
    assert [call.done for call in calls] == [True, False, False]
    world.connect(pair.a, pair.b)
    world.finish(*calls)
    world.run(SECOND)
    assert pair.drain() == sent


def test_a_message_above_the_limit_is_refused() -> None:
    world = World(5)
    pair = Pair(world, near={"message_bytes_max": 100})
    call = pair.send(b"x" * 101)
    assert world.finish(call)[0].code == "too-large"


def test_the_smaller_limit_of_both_ends_holds() -> None:
    world = World(6)
    pair = Pair(world, near={"message_bytes_max": 1000}, far={"message_bytes_max": 100})
    call = pair.send(b"x" * 101)
    world.finish(call)
    assert call.refused == "too-large"


def test_a_cancelled_send_is_not_sent() -> None:
    world = World(7)
    pair = Pair(world, near={"quota_messages": 1})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    pair.send(b"2", deadline=NEVER)
    world.run(MILLISECOND)
    token = next(iter(pair.near.calls))
    pair.near.give(Cancel(token, pair.dialog))
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"1"]
    assert pair.here().waiting_sends == 0


def test_a_dialog_whose_reserved_minimum_does_not_fit_is_refused() -> None:
    world = World(8)
    pair = Pair(world)
    pair.near.manager.core.budget.bytes_max = pair.near.manager.core.budget.used
    call = pair.near.call(Open(token=0, uri=SERVICE, settings=settings()))
    answer = world.finish(call)[0]
    assert isinstance(answer, Refused)
    assert answer.code == "budget"
    world.finish(pair.near.call(Terminate(token=0, dialog=pair.dialog)))
    again = world.finish(pair.near.call(Open(token=0, uri=SERVICE, settings=settings())))[0]
    assert not isinstance(again, Refused)


# -- time to live ------------------------------------------------------------------------------------------------


def test_an_extended_message_gets_its_notice_later() -> None:
    world = World(9)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    world.run(6 * SECOND)
    assert len(pair.near.kinds("expired")) == 1
    world.finish(pair.near.call(ExtendMessages(token=0, dialog=pair.dialog, ttl_ns=10 * SECOND)))
    world.run(8 * SECOND)
    assert len(pair.near.kinds("expired")) == 1
    world.run(4 * SECOND)
    assert len(pair.near.kinds("expired")) == 2


def test_an_extension_survives_a_restart() -> None:
    world = World(10)
    pair = Pair(world, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    world.finish(pair.near.call(ExtendMessages(token=0, dialog=pair.dialog, ttl_ns=500 * SECOND)))
    world.crash(pair.a)
    world.run(100 * SECOND)
    assert pair.near.kinds("expired") == []
    world.run(500 * SECOND)
    assert len(pair.near.kinds("expired")) == 1


def test_without_at_least_once_an_expired_message_is_dropped_and_reported() -> None:
    world = World(11)
    pair = Pair(world, 2, near={"message_ttl_ns": 5 * SECOND})
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"1"))
    world.run(6 * SECOND)
    assert [event.number for event in pair.near.kinds("dropped")] == [0]
    world.connect(pair.a, pair.b)
    world.finish(pair.send(b"2"))
    world.run(SECOND)
    assert pair.drain() == [b"2"]


@pytest.mark.parametrize("proposer", ["near", "far"])
def test_either_end_renegotiates_the_session(proposer: str) -> None:
    world = World(12)
    pair = Pair(world, near={"session_ttl_ns": 10 * SECOND})
    unit: Unit = getattr(pair, proposer)
    world.run(5 * SECOND)
    answer = world.finish(
        unit.call(ExtendSession(token=0, dialog=pair.dialog, ttl_ns=60 * SECOND))
    )[0]
    assert answer == Agreed(60 * SECOND)
    world.run(30 * SECOND)
    assert pair.here().state == pair.there().state == "open"
    world.run(60 * SECOND)
    assert pair.here().fault == pair.there().fault == "session-ttl"


def test_a_session_that_expired_goes_on_after_renegotiation() -> None:
    world = World(13)
    pair = Pair(world, near={"session_ttl_ns": 5 * SECOND})
    world.run(10 * SECOND)
    world.finish(pair.send(b"captured"))
    assert pair.here().state == "faulted"
    world.finish(pair.near.call(ExtendSession(token=0, dialog=pair.dialog, ttl_ns=3600 * SECOND)))
    world.run(10 * SECOND)
    assert pair.here().state == pair.there().state == "open"
    assert pair.drain() == [b"captured"]


def test_a_proposal_above_the_partners_limit_is_declined() -> None:
    world = World(14)
    pair = Pair(
        world, near={"session_ttl_ns": 60 * SECOND}, far={"session_ttl_ns_max": 100 * SECOND}
    )
    call = pair.near.call(ExtendSession(token=0, dialog=pair.dialog, ttl_ns=101 * SECOND))
    world.finish(call)
    assert call.refused == "declined"


def test_a_proposal_is_repeated_until_it_is_answered() -> None:
    world = World(15)
    pair = Pair(world, near={"session_ttl_ns": 60 * SECOND})
    lost = []

    def lose_one(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is TtlAnswer and not lost:
            lost.append(frame)
            return False
        return True

    world.filter = lose_one
    call = pair.near.call(ExtendSession(token=0, dialog=pair.dialog, ttl_ns=600 * SECOND))
    assert world.finish(call)[0] == Agreed(600 * SECOND)
    assert lost


# -- priority and schedules --------------------------------------------------------------------------------------


def payload_order(unit: Unit, start: int) -> list[bytes]:
    return [f.session for _, f in unit.frames[start:] if type(f) is Messages]


def test_of_two_that_start_together_the_higher_priority_goes_first() -> None:
    scheduler = Scheduler()
    scheduler.add(b"low", 0)
    scheduler.add(b"high", 9)
    assert [scheduler.next(), scheduler.next(), scheduler.next()] == [b"high", b"low", None]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_higher_priority_is_transmitted_first(size: int) -> None:
    world = World(16)
    pair = Pair(world, near={"priority": 0})
    urgent = open_another(world, pair.near, priority=9)
    # The network takes nothing for a while: everything is queued.
    peer = pair.near.manager.core.peers[pair.b.node]
    peer.in_flight = peer.window
    for n in range(20):
        pair.send(b"slow %d" % n + bytes(size))
        send(pair.near, urgent, b"urgent %d" % n + bytes(size))
        world.run(10 * MILLISECOND)
    start = len(pair.near.frames)
    peer.in_flight = 0
    send(pair.near, urgent, b"last")
    world.run(SECOND)
    order = payload_order(pair.near, start)
    assert len(order) == 41
    assert order[:20].count(urgent) >= 15


def test_a_low_priority_does_not_starve() -> None:
    """Shares are weighted, not strict: what waits becomes due."""
    from holdfast.dialog.priority import Scheduler

    scheduler = Scheduler()
    served = {b"low": 0, b"high": 0}
    scheduler.add(b"low", 0)
    scheduler.add(b"high", 4)
    for _ in range(2000):
        key = scheduler.next()
        assert key is not None
        served[key] += 1
        scheduler.served(key, 1000, 0 if key == b"low" else 4)
        scheduler.add(key, 0 if key == b"low" else 4)
    assert served[b"low"] >= 2000 // 20
    assert served[b"high"] > 10 * served[b"low"]


def test_messages_are_received_across_dialogs_by_priority() -> None:
    world = World(17)
    pair = Pair(world, far={"priority": 0})
    serve(pair.far, settings(7, priority=9), "service:urgent")
    world.routes["service:urgent"] = [pair.b.node]
    opened = pair.near.call(Open(token=0, uri="service:urgent", settings=settings(7)))
    urgent = world.finish(opened)[0].dialog
    world.run(SECOND)
    world.finish(pair.send(*[b"slow"] * 5), send(pair.near, urgent, *[b"urgent"] * 5))
    world.run(SECOND)
    got = []
    for _ in range(10):
        taken = world.finish(pair.far.call(Take(token=0, dialog=b"")))[0]
        got += bodies(taken)
    assert sorted(got) == [b"slow"] * 5 + [b"urgent"] * 5
    assert got[:6].count(b"urgent") >= 4


def test_a_receive_from_any_dialog_waits() -> None:
    world = World(18)
    pair = Pair(world)
    call = pair.far.call(Take(token=0, dialog=b""))
    world.run(SECOND)
    assert not call.done
    pair.send(b"one")
    taken = world.finish(call)[0]
    assert taken.dialog == pair.dialog
    assert bodies(taken) == [b"one"]


def test_a_receive_from_any_dialog_times_out() -> None:
    world = World(19)
    pair = Pair(world)
    call = pair.far.call(Take(token=0, dialog=b"", deadline=world.now + SECOND))
    world.run(5 * SECOND)
    assert call.value == Taken(b"", [])


def test_a_message_is_not_transmitted_before_its_time() -> None:
    world = World(20)
    pair = Pair(world)
    start = world.now + world.wall_offset
    world.finish(pair.send(b"later", after_wall=start + 60 * SECOND))
    world.run(50 * SECOND)
    assert pair.drain() == []
    world.run(20 * SECOND)
    assert pair.drain() == [b"later"]


def test_a_rate_spreads_a_peak() -> None:
    world = World(21)
    pair = Pair(world, near={"rate_per_s": 10})
    for n in range(30):
        pair.send(b"%d" % n)
        world.run(MILLISECOND)
    world.run(SECOND)
    early = len(pair.drain())
    assert 5 <= early <= 15
    world.run(5 * SECOND)
    assert len(pair.drain()) == 30 - early


def test_hours_hold_transmission_back() -> None:
    world = World(22)
    day = 86_400 * SECOND
    wall = world.now + world.wall_offset
    minute = (wall % day) // (60 * SECOND)
    begin = (minute + 10) % 1430
    pair = Pair(world, near={"hours": ((begin, begin + 10),)})
    world.finish(pair.send(b"off-peak"))
    world.run(60 * SECOND)
    assert pair.drain() == []
    world.run(day)
    assert pair.drain() == [b"off-peak"]


# -- the life of a dialog ----------------------------------------------------------------------------------------


def test_a_dialog_completes_when_both_ends_have_everything() -> None:
    world = World(23)
    pair = Pair(world)
    world.finish(pair.send(b"one"), pair.send(b"two", unit=pair.far))
    world.finish(*pair.complete())
    world.run(SECOND)
    assert pair.near.kinds("completed") == [], "not before everything is taken"
    assert pair.drain() == [b"one"]
    assert pair.drain(pair.near) == [b"two"]
    world.run(SECOND)
    assert len(pair.near.kinds("completed")) == len(pair.far.kinds("completed")) == 1
    assert pair.here() is pair.there() is None
    for unit in (pair.near, pair.far):
        assert unit.manager.status()["blocks"] == 0
        assert unit.tables["dialog"] == unit.tables["position"] == unit.tables["block"] == {}


def test_a_dialog_does_not_complete_before_a_message_that_is_late_was_taken() -> None:
    """The announcement of the end overtakes the message; nothing is in the buffers meanwhile."""
    world = World(26)
    pair = Pair(world)
    world.filter = lambda _unit, _node, frame: type(frame) is not Messages
    world.finish(pair.send(b"late"))
    world.finish(*pair.complete())
    world.run(SECOND)
    world.filter = lambda *_: True
    world.run(30 * SECOND)
    assert pair.there().available == 1
    assert pair.near.kinds("completed") == []
    assert pair.drain() == [b"late"]
    world.run(SECOND)
    assert len(pair.near.kinds("completed")) == len(pair.far.kinds("completed")) == 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("code", range(8))
def test_completion_survives_a_bad_network_and_restarts(seed: int, code: int) -> None:
    world = World(seed, Trouble(loss=0.3, duplication=0.2, reordering=0.3))
    pair = Pair(world, code)
    world.finish(pair.send(b"one"))
    world.finish(*pair.complete())
    for _ in range(30):
        if pair.there() is not None and pair.there().available:
            pair.drain()
        if world.random.random() < 0.1:
            world.crash(world.random.choice((pair.a, pair.b)))
        world.run(2 * SECOND)
    world.run(120 * SECOND)
    assert pair.here() is pair.there() is None
    assert len(pair.near.kinds("completed")) >= 1


def test_completion_is_confirmed_when_the_last_word_is_lost() -> None:
    world = World(24)
    pair = Pair(world)
    seen = []

    def lose_second_done(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is Done:
            seen.append(frame)
            return len(seen) != 2
        return True

    world.filter = lose_second_done
    world.finish(*pair.complete())
    world.run(60 * SECOND)
    assert pair.here() is pair.there() is None
    assert len(pair.near.kinds("completed")) == len(pair.far.kinds("completed")) == 1


def test_no_send_after_completion() -> None:
    world = World(25)
    pair = Pair(world)
    world.finish(pair.near.call(Complete(token=0, dialog=pair.dialog)))
    assert world.finish(pair.send(b"late"))[0].code == "ended"


def test_termination_tells_the_partner_and_what_it_has_can_be_read() -> None:
    world = World(26)
    pair = Pair(world)
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    world.finish(pair.near.call(Terminate(token=0, dialog=pair.dialog, reason="enough")))
    world.run(SECOND)
    assert [event.detail for event in pair.far.kinds("terminated")] == ["enough"]
    assert pair.drain() == [b"one"]
    world.run(SECOND)
    assert pair.there() is None
    refused = pair.take()
    world.run(SECOND)
    assert refused.refused == "ended"


def test_the_notice_of_termination_is_best_effort_and_resuming_makes_up_for_it() -> None:
    world = World(27)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.near.call(Terminate(token=0, dialog=pair.dialog)))
    world.run(SECOND)
    assert pair.there().state == "open"
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.there() is None
    assert len(pair.far.kinds("terminated")) == 1


def test_an_application_accepts_and_rejects() -> None:
    world = World(28)
    a, b = world.add("a"), world.add("b")
    near, far = a.units["default"], b.units["default"]
    world.routes[SERVICE] = [b.node]
    serve(far, settings(), automatic=False)
    world.connect(a, b)
    one = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.run(SECOND)
    assert [event.dialog for event in far.kinds("requested")] == [one]
    world.finish(accept(far, one, settings()))
    world.run(SECOND)
    assert near.manager.inspect(one).state == "open"  # type: ignore[union-attr]
    two = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.run(SECOND)
    world.finish(far.call(Reject(token=0, dialog=two, reason="closed")))
    world.run(SECOND)
    end = near.manager.inspect(two)
    assert end is not None
    assert end.fault == "no-partner"
    assert "closed" in end.detail


def test_an_unknown_service_is_a_fault_that_a_new_route_repairs() -> None:
    world = World(29)
    a, b = world.add("a"), world.add("b")
    near, far = a.units["default"], b.units["default"]
    world.connect(a, b)
    dialog = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings())))[0].dialog
    world.finish(send(near, dialog, b"captured"))
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.fault == "unknown-service"
    assert [wanted.code for wanted in near.repairs] == ["unknown-service"]
    serve(far, settings())
    world.routes[SERVICE] = [b.node]
    world.finish(near.call(Repair(token=0, dialog=dialog, action="reroute")))
    world.run(5 * SECOND)
    taken = world.finish(far.call(Take(token=0, dialog=dialog)))[0]
    assert bodies(taken) == [b"captured"]


def test_a_node_without_the_service_declines_and_the_next_instance_is_asked() -> None:
    world = World(30)
    hosts = [world.add(name) for name in "abc"]
    near, far = hosts[0].units["default"], hosts[2].units["default"]
    serve(far, settings())
    for host in hosts[1:]:
        world.connect(hosts[0], host)
    world.routes[SERVICE] = [host.node for host in hosts[1:]]
    dialog = open_another(world, near)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.partner is not None
    assert end.partner.node == hosts[2].node
    assert any(type(f) is Decline for _, f in hosts[1].units["default"].frames)


def test_an_intermediary_sends_an_invitation_elsewhere_or_refuses_it() -> None:
    world = World(31)
    hosts = [world.add(name) for name in "abc"]
    near, far = hosts[0].units["default"], hosts[2].units["default"]
    serve(far, settings())
    for host in hosts[1:]:
        world.connect(hosts[0], host)
    hosts[1].units["default"].manager.core.policies[SERVICE] = (hosts[2].node,)
    world.routes[SERVICE] = [hosts[1].node]
    dialog = open_another(world, near)
    end = near.manager.inspect(dialog)
    assert end is not None
    assert end.partner is not None
    assert end.partner.node == hosts[2].node
    hosts[1].units["default"].manager.core.policies[SERVICE] = ()
    refused = near.manager.inspect(open_another(world, near))
    assert refused is not None
    assert "policy" in refused.detail


def test_a_service_that_stops_listening_keeps_its_dialogs() -> None:
    world = World(32)
    pair = Pair(world)
    world.finish(pair.far.call(Unlisten(token=0, service=SERVICE)))
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert pair.drain() == [b"one"]
    late = pair.near.manager.inspect(open_another(world, pair.near))
    assert late is not None
    assert late.fault == "no-partner"


@pytest.mark.parametrize("mine", range(8))
@pytest.mark.parametrize("theirs", [0, 3, 5, 7])
def test_both_ends_minimums_hold(mine: int, theirs: int) -> None:
    world = World(33)
    a, b = world.add("a"), world.add("b")
    serve(b.units["default"], settings(theirs))
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    dialog = open_another(world, a.units["default"], mine)
    for unit in (a.units["default"], b.units["default"]):
        end = unit.manager.inspect(dialog)
        assert end is not None
        assert end.assurances == mine | theirs


def test_an_idle_dialog_is_deactivated_and_comes_back_when_a_message_arrives() -> None:
    world = World(34)
    pair = Pair(world, near={"idle_ns": 10 * SECOND}, far={"idle_ns": 10 * SECOND})
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    pair.drain()
    world.run(30 * SECOND)
    assert pair.here() is pair.there() is None
    assert pair.near.manager.status()["dialogs"] == 0
    world.finish(pair.send(b"two"))
    world.run(5 * SECOND)
    assert pair.drain() == [b"two"]
    assert pair.far.manager.status()["counts"]["reactivated"] == 1


def test_deactivation_by_hand_and_reactivation_by_id() -> None:
    world = World(35)
    pair = Pair(world)
    both = [unit.call(Deactivate(token=0, dialog=pair.dialog)) for unit in (pair.near, pair.far)]
    assert world.finish(*both) == [None, None]
    assert pair.here() is None
    assert pair.near.tables["inactive"]
    world.crash(pair.a)
    world.run(SECOND)
    assert pair.here() is None, "only on disk"
    world.finish(pair.near.call(Reactivate(token=0, dialog=pair.dialog)))
    assert pair.here().state == "open"
    world.run(5 * SECOND)
    world.finish(pair.send(b"one"))
    world.run(5 * SECOND)
    assert pair.drain() == [b"one"]


def test_a_dialog_with_work_is_not_deactivated() -> None:
    world = World(36)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(pair.send(b"one"))
    call = pair.near.call(Deactivate(token=0, dialog=pair.dialog))
    assert world.finish(call)[0].code == "busy"


def test_an_idle_dialog_has_no_timer() -> None:
    world = World(37)
    pair = Pair(world, near={"idle_ns": 0}, far={"idle_ns": 0})
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    pair.drain()
    world.run(SECOND)
    sent = len(pair.near.frames) + len(pair.far.frames)
    assert pair.near.manager.deadline == pair.far.manager.deadline == NEVER
    world.run(3600 * SECOND)
    assert len(pair.near.frames) + len(pair.far.frames) == sent


def test_available_is_told_once_until_the_application_comes() -> None:
    world = World(38)
    pair = Pair(world)
    for n in range(5):
        world.finish(pair.send(b"%d" % n))
        world.run(100 * MILLISECOND)
    assert len(pair.far.kinds("available")) == 1
    pair.drain()
    world.finish(pair.send(b"more"))
    world.run(SECOND)
    assert len(pair.far.kinds("available")) == 2


def test_delete_removes_without_handing_over() -> None:
    world = World(39)
    pair = Pair(world)
    world.finish(pair.send(b"one", b"two"))
    world.run(SECOND)
    [deleted] = world.finish(pair.take(1, discard=True))
    assert bodies(deleted) == [b""]
    assert pair.drain() == [b"two"]


def test_simplex_ends_do_only_their_part() -> None:
    world = World(40)
    pair = Pair(world, near={"simplex": "send"}, far={"simplex": "receive"})
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    assert pair.drain() == [b"one"]
    back = pair.send(b"no", unit=pair.far)
    take = pair.take(unit=pair.near)
    world.run(SECOND)
    assert back.refused == take.refused == "misuse"


def test_a_dialog_between_two_applications_of_one_store() -> None:
    from holdfast.dialog.ids import twin

    world = World(41)
    host = world.add("a")
    unit = host.units["default"]
    serve(unit, settings())
    world.routes[SERVICE] = [host.node]
    dialog = open_another(world, unit)
    far = twin(dialog)
    world.finish(send(unit, dialog, b"there"), send(unit, far, b"back"))
    world.run(SECOND)
    assert bodies(world.finish(unit.call(Take(token=0, dialog=far)))[0]) == [b"there"]
    assert bodies(world.finish(unit.call(Take(token=0, dialog=dialog)))[0]) == [b"back"]
    world.crash(host)
    world.run(SECOND)
    world.finish(send(unit, dialog, b"again"))
    world.run(5 * SECOND)
    assert bodies(world.finish(unit.call(Take(token=0, dialog=far)))[0]) == [b"again"]


def test_blocks_that_a_few_old_messages_keep_are_copied_forward() -> None:
    world = World(42)
    pair = Pair(world, far={"quota_messages": 100_000, "quota_bytes": 1 << 33})
    other = open_another(world, pair.near)
    # One turn stores messages of both dialogs: the old one is never taken, the others are.
    world.finish(pair.send(b"keep"), send(pair.near, other, *[b"go"] * 50))
    for n in range(400):
        world.finish(send(pair.near, other, b"%d" % n))
        world.run(3 * MILLISECOND)
        while bodies(
            world.finish(pair.far.call(Take(token=0, dialog=other, count=100, deadline=0)))[0]
        ):
            pass
    assert pair.far.manager.status()["blocks"] <= 3
    world.crash(pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"keep"]


def test_a_request_for_no_dialog_is_refused() -> None:
    world = World(43)
    pair = Pair(world)
    for request in (
        Send(token=0, dialog=b"", bodies=[b"x"]),
        Terminate(token=0, dialog=b""),
        Complete(token=0, dialog=b"nonsense"),
    ):
        call = pair.near.call(request)
        world.run(SECOND)
        assert call.refused == "unknown"


def test_rule_20_no_more_is_in_flight_to_a_node_than_its_window() -> None:
    """What a long queue holds cannot be overtaken by a dialog of higher priority."""
    world = World(98)
    pair = Pair(world)
    world.filter = lambda _unit, _node, frame: type(frame) is not Ack
    world.finish(pair.send(*[bytes(60_000)] * 100))
    world.run(500 * MILLISECOND)
    end = pair.near.manager.core.dialogs[pair.dialog]
    window = pair.near.manager.core.peer(pair.b.node).window
    assert window <= end.out.flight_bytes <= window + (64 << 10)
    assert pair.here().queued > 20
    world.filter = lambda *_: True
    world.run(60 * SECOND)
    got: list[bytes] = []
    while some := pair.drain():
        got += some
    assert got == [bytes(60_000)] * 100


def test_an_acknowledgement_makes_room_for_the_next_transmission_at_once() -> None:
    """One acknowledgement frees all that is in flight. What is queued must go in that turn: no other may follow."""
    world = World(44)
    pair = Pair(world, near={"quota_messages": 2000}, far={"quota_messages": 2000})
    top = 0

    def only_of_everything(unit: Unit, _node: bytes, frame: Any) -> bool:
        nonlocal top
        if type(frame) is Messages:
            top = max(top, frame.first + frame.count)
        return type(frame) is not Ack or frame.ranges[-1:] == [top]

    world.filter = only_of_everything
    for _ in range(10):
        pair.send(*[bytes(1000)] * 100)
    pair.near.manager.core.peers[pair.b.node].window = 1
    world.run(500 * MILLISECOND)
    assert pair.there().available == 1000
    assert pair.here().resent == 0
