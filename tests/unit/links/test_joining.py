"""How a node gets in, or says why it cannot (H8, H12): small segments, and warnings."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from holdfast.links.acceptor import CANNOT_JOIN, TELL_NS, AcceptorMachine
from holdfast.links.handshake import refusal
from holdfast.links.measuring import SEGMENTS
from holdfast.links.ports import (
    ACCEPTOR,
    Arrived,
    FlowClosed,
    FlowOpened,
    OpenFailed,
    OpenFlow,
    link_unit,
)
from holdfast.links.session_table import SessionTable
from holdfast.links.wanted_flows import WantedFlows
from holdfast.machine import Outbox
from holdfast.subsystem import LocalNode
from holdfast.telemetry.facts import NodeFact
from holdfast.types import SECOND, FlowId, NodeId
from holdfast.wire.frames import AdapterInfo, MemberInfo, Refuse

TLS_LATE = "the peer did not finish the handshake within 5 s"


def adapter(host: str) -> AdapterInfo:
    return AdapterInfo("red", "red", host, 7400, ("tcp",))


ME = LocalNode(NodeId(b"a" * 16), "ann", "d", 1, (adapter("10.0.0.1"),), True)
PEER = MemberInfo(b"b" * 16, "ben", 1, (adapter("10.0.0.2"),))


class Knocking:
    """A node that tries to join through one address, and fails."""

    def __init__(self) -> None:
        self.now = 0
        self.facts: list[NodeFact] = []
        session_table = SessionTable(Random(1), {})
        self.machine = AcceptorMachine(
            ME, (("10.0.0.9", 7400),), session_table, lambda *_: True, Random(1), 0
        )

    def attempt(self, connected: bool, reason: str = TLS_LATE) -> OpenFlow:
        """One attempt, which fails; what was asked for."""
        self.now = max(self.now, self.machine.deadline)
        out = Outbox()
        self.machine.wake(self.now, out)
        (asked,) = [effect for effect in effects_of(out) if isinstance(effect, OpenFlow)]
        self.now += 5 * SECOND
        out = Outbox()
        place = (asked.adapter, asked.transport, asked.host, asked.port)
        failed = OpenFailed(*place, ACCEPTOR, reason, connected=connected)
        self.machine.up(self.now, [failed], out)
        self.facts += [fact for fact in out.facts if isinstance(fact, NodeFact)]
        return asked

    def refused(self, number: int) -> None:
        """One attempt, which the peer answers with a refusal."""
        self.now = max(self.now, self.machine.deadline)
        out = Outbox()
        self.machine.wake(self.now, out)
        (asked,) = [effect for effect in effects_of(out) if isinstance(effect, OpenFlow)]
        flow, place = FlowId(number), (asked.adapter, asked.transport, asked.host, asked.port)
        packet = memoryview(refusal(Refuse("domain", "this is domain 'b', not 'd'")))
        opened = FlowOpened(flow, *place, inbound=False, unit=ACCEPTOR)
        for item in (opened, Arrived(flow, [packet], self.now), FlowClosed(flow, "refused")):
            self.machine.up(self.now, [item], out)
        self.facts += [fact for fact in out.facts if isinstance(fact, NodeFact)]


def effects_of(out: Outbox) -> list[object]:
    return [effect for effect, _ in out.effects]


def test_a_handshake_that_does_not_end_is_tried_with_smaller_segments() -> None:
    """A limit below a certificate's packets must not keep a node out where a basic heartbeat passes."""
    joining = Knocking()
    segments = [joining.attempt(connected=True).segment for _ in range(len(SEGMENTS) + 1)]
    assert segments == [*SEGMENTS, 0]
    assert min(SEGMENTS[1:]) + 40 <= 128, "as small as a basic heartbeat"


def test_an_address_where_nothing_answers_is_tried_with_full_segments() -> None:
    joining = Knocking()
    assert [joining.attempt(connected=False).segment for _ in range(3)] == [0, 0, 0]


def test_a_node_that_cannot_join_warns_with_address_and_reason_ever_more_rarely() -> None:
    joining = Knocking()
    for _ in range(200):
        joining.attempt(connected=False, reason="certificate verify failed")
    told = [fact.now_ns for fact in joining.facts if fact.event == CANNOT_JOIN]
    assert told[0] <= TELL_NS + 10 * SECOND
    assert 5 <= len(told) <= 12, "not with every attempt"
    gaps = [b - a for a, b in pairwise(told)]
    assert gaps == sorted(gaps)
    assert "10.0.0.9:7400" in joining.facts[-1].detail
    assert "certificate verify failed" in joining.facts[-1].detail
    (row,) = joining.machine.joining(joining.now)
    assert row["reason"] == "certificate verify failed"


def test_a_node_that_is_refused_reports_that_ever_more_rarely_too() -> None:
    """A wrong domain was logged with every attempt, every 2.3 s, besides the warning that it cannot join."""
    joining = Knocking()
    for number in range(200):
        joining.refused(number + 1)
    assert {fact.event for fact in joining.facts} == {CANNOT_JOIN}
    assert 5 <= len(joining.facts) <= 12
    assert "refused: this is domain 'b', not 'd'" in joining.facts[-1].detail


def test_a_link_reconnects_with_smaller_segments_and_later_tries_full_ones() -> None:
    wanted = WantedFlows(ME, PEER.node, link_unit(PEER.node), Random(1))
    wanted.update(PEER, 0)

    def ask(now: int) -> OpenFlow:
        (asked,) = wanted.due(now, {}, True, True)
        return asked

    now = 1
    first = ask(now)
    assert first.segment == 0
    place = (first.adapter, first.transport, first.host, first.port)
    wanted.failed(OpenFailed(*place, first.unit, TLS_LATE, connected=True), now)
    now += 10 * SECOND
    assert ask(now).segment == SEGMENTS[1]
    wanted.opened(FlowOpened(FlowId(7), *place, inbound=False, unit=first.unit))
    assert wanted.settled(FlowId(7), now) is None
    now += ME.timing.rotate_ns
    assert ask(now).segment == 0, "perhaps the limit is gone"
    wanted.failed(OpenFailed(*place, first.unit, TLS_LATE, connected=True), now)
    assert list(wanted.due(now, {}, True, True)) == [], "the connection that there is goes on"
