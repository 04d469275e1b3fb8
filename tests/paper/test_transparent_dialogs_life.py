"""Claims of the paper on transparent messaging about stores, partners, faults and the life of a dialog.

The docstrings cite the paper. The other claims are in `test_transparent_dialogs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.dialog_steps import another, lose, sent_frames
from tests.support.dialogs import (
    SERVICE,
    Pair,
    Trouble,
    Unit,
    World,
    accept,
    bodies,
    serve,
    settings,
)

from holdfast.dialog.frames import Ack, Confirmed, Messages, Terminate
from holdfast.dialog.ports import (
    Complete,
    Deactivate,
    MoveIn,
    MoveOut,
    Open,
    Reactivate,
    Reject,
    Repair,
    Send,
    Take,
)
from holdfast.dialog.ports import Terminate as TerminateRequest
from holdfast.links.ports import PeerRefused
from holdfast.types import SECOND

TX = b"t" * 16


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


def test_a_peak_load_is_spread_over_time() -> None:
    """'Dialog can spread peak message loads over some period of time.'"""
    world = World(54)
    pair = Pair(world, near={"rate_per_s": 10})
    for n in range(30):
        world.finish(pair.send(b"%d" % n))
    arrived = []
    for _ in range(3):
        world.run(SECOND)
        arrived.append(len(pair.drain()))
    assert sum(arrived) == 30
    assert max(arrived) <= 13, "ten in each second, and a little at once"


def test_messages_are_batched_for_transmission() -> None:
    """'Batching messages for more efficient transmission.' All that waits for the network goes in one packet."""
    world = World(55)
    pair = Pair(world)
    world.disconnect(pair.a, pair.b)
    world.finish(*[pair.send(b"%d" % n) for n in range(20)])
    packets: list[int] = []

    def note(unit: Unit, _node: bytes, frame: Any) -> bool:
        if unit is pair.near and type(frame) is Messages:
            packets.append(world.now)
        return True

    world.filter = note
    world.connect(pair.a, pair.b)
    world.run(SECOND)
    assert pair.drain() == [b"%d" % n for n in range(20)]
    assert len(set(packets)) == 1


@pytest.mark.parametrize("accepted", [True, False])
def test_the_application_accepts_or_rejects_a_dialog_that_another_requests(accepted: bool) -> None:
    """'The system notifies the Application that a dialog is requested. The Application can then call an Accept method
    ... or it can call a Reject method.'"""
    world = World(56)
    a, b = world.add("a"), world.add("b")
    near, far = a.units["default"], b.units["default"]
    serve(far, settings(), automatic=False)
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    [opened] = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings(reroute_ns=0))))
    world.run(SECOND)
    [requested] = far.kinds("requested")
    assert requested.dialog == opened.dialog
    if accepted:
        world.finish(accept(far, opened.dialog, settings()))
    else:
        world.finish(far.call(Reject(token=0, dialog=opened.dialog, reason="not today")))
    world.run(5 * SECOND)
    end = near.manager.inspect(opened.dialog)
    assert end is not None
    if accepted:
        assert end.state == "open"
    else:
        assert end.fault == "no-partner"
        assert "not today" in end.detail


def test_an_inactive_dialog_costs_nothing_but_its_store() -> None:
    """'This allows the infrastructure to reclaim related resources except those associated with the Dialog Store.'"""
    world = World(57)
    pair = Pair(world)
    world.finish(pair.near.call(Deactivate(token=0, dialog=pair.dialog)))
    core = pair.near.manager.core
    assert core.dialogs == {}
    assert core.deadlines.next() > world.now + 3600 * SECOND
    assert list(pair.near.tables["inactive"]) == [pair.dialog]


def test_a_dialog_moves_to_another_store_of_its_node() -> None:
    """'An application configuration can be modified to use a different store ... to accommodate changes such as
    increased load or capacity requirements.'"""
    world = World(58)
    a, b = world.add("a"), world.add("b", stores=("small", "large"))
    near, small, large = a.units["default"], b.units["small"], b.units["large"]
    serve(small, settings())
    world.routes[SERVICE] = [b.node]
    world.connect(a, b)
    [opened] = world.finish(near.call(Open(token=0, uri=SERVICE, settings=settings())))
    world.run(SECOND)
    world.finish(near.call(Send(token=0, dialog=opened.dialog, bodies=[b"1"])))
    world.run(SECOND)
    out = MoveOut(token=0, dialog=opened.dialog, node=b.node, store=large.store)
    [exported] = world.finish(small.call(out))
    world.finish(large.call(MoveIn(token=0, state=exported.state)))
    world.finish(near.call(Send(token=0, dialog=opened.dialog, bodies=[b"2"])))
    world.run(5 * SECOND)
    taken = world.finish(large.call(Take(token=0, dialog=opened.dialog, count=5)))[0]
    assert bodies(taken) == [b"1", b"2"]


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
