"""A flow in doubt: blame needs evidence about the flow that it falls on (H11)."""

from __future__ import annotations

from holdfast.links.doubt import (
    CALM_NS,
    DELIVERED,
    LATE,
    LINGER_NS,
    Doubt,
    Patience,
    answered,
)
from holdfast.links.flow import FlowState
from holdfast.links.ports import FlowOpened
from holdfast.types import MILLISECOND, FlowId

DELAY = 20 * MILLISECOND
MOST = 150 * MILLISECOND


def flow(number: int, transport: str) -> FlowState:
    info = FlowOpened(FlowId(number), "red", transport, "127.0.0.1", 7000, inbound=False)
    return FlowState(info, 1)


def doubted(transport: str, sent: int) -> tuple[Doubt, FlowState]:
    here = flow(1, transport)
    here.chunk_sent = sent
    return Doubt(0, here, flow(2, transport), 1), here


def test_a_flow_that_delivered_everything_is_not_to_blame() -> None:
    """Its acknowledgements travelled on a broken path."""
    doubt, here = doubted("tcp", 1000)
    assert answered(doubt, here, 1000) == DELIVERED


def test_a_flow_that_delivers_after_the_question_is_late() -> None:
    """The question overtook the data: both flows are used until health knows why."""
    doubt, here = doubted("tcp", 1000)
    assert not answered(doubt, here, 400)
    assert answered(doubt, here, 1000) == LATE
    doubt.linger(5)
    assert doubt.until == 5 + LINGER_NS
    doubt.renew(7, here)
    assert (doubt.until, doubt.since, doubt.received) == (0, 7, None)


def test_a_flow_on_which_nothing_arrives_stays_in_doubt() -> None:
    doubt, here = doubted("tcp", 1000)
    assert not answered(doubt, here, 400)
    assert not answered(doubt, here, 400)
    assert doubt.received == 400


def test_a_stream_that_delivers_slowly_is_not_to_blame() -> None:
    """What waits in deep buffers is on its way."""
    doubt, here = doubted("tcp", 1_000_000)
    assert not answered(doubt, here, 400)
    assert answered(doubt, here, 50_000) == DELIVERED


def test_datagrams_that_arrive_in_part_are_loss_and_no_reason_to_leave() -> None:
    doubt, here = doubted("udp", 1000)
    assert not answered(doubt, here, 400)
    here.chunk_sent = 1500
    doubt.ask(1, 2, here)
    assert answered(doubt, here, 900) == LATE
    assert here.chunk_deficit == 600, "what was lost is not held against it next time"


def test_the_patience_of_a_channel_follows_the_measured_time() -> None:
    patience = Patience()
    assert patience.wait_ns(0, 0, DELAY, MOST) == MOST, "nothing is measured yet"
    assert patience.wait_ns(0, MILLISECOND, DELAY, MOST) < 35 * MILLISECOND
    slow = patience.wait_ns(0, 200 * MILLISECOND, DELAY, MOST)
    assert slow > 300 * MILLISECOND, "a long path is not doubted for being long"


def test_unfounded_doubts_make_a_channel_more_patient_for_a_while() -> None:
    patience = Patience()
    before = patience.wait_ns(0, MILLISECOND, DELAY, MOST)
    patience.unfounded(0)
    assert patience.wait_ns(1, MILLISECOND, DELAY, MOST) == before, "acknowledgements were lost"
    patience.unfounded(0)
    assert patience.wait_ns(1, MILLISECOND, DELAY, MOST) == 2 * before
    assert patience.wait_ns(CALM_NS, MILLISECOND, DELAY, MOST) == before
