"""Delivery of real traffic is evidence: datagrams leave a path on which nothing of them arrives (H11, H12)."""

from __future__ import annotations

from itertools import pairwise

from tests.unit.links.flows import PEER, ciphers, flow_of

from holdfast.links.cipher import Cipher
from holdfast.links.config import LAN
from holdfast.links.delivery import ASK_NS, DOUBT_ASK_NS, RETRY_NS, RETRY_NS_MAX, Delivery
from holdfast.links.delivery_watch import APART_NS, FRAMES_MIN, DeliveryWatch
from holdfast.links.flow import DATAGRAM_MIN, DATAGRAM_START, FlowState
from holdfast.links.flow_selection import FlowSelection
from holdfast.links.ports import COPY_PORT, FlowOpened, Transmit
from holdfast.links.sender import LinkSender
from holdfast.machine import Outbox
from holdfast.types import NEVER, SECOND, FlowId
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import DeliveryQuery, DeliveryReport, RawBatch


def flow(number: int, adapter: str, transport: str = "udp") -> FlowState:
    info = FlowOpened(FlowId(number), adapter, transport, "127.0.0.1", 7000, inbound=False)
    made = FlowState(info, number)
    made.remote_adapter, made.ready = adapter, True
    return made


def asked(sent: int, red: FlowState, blue: FlowState) -> Delivery:
    flows = {one.flow: one for one in (red, blue)}
    delivery = Delivery(
        flows, FlowSelection(flows, Cipher(sealed=False, entropy=bytes)), 10 * SECOND
    )
    red.raw_sent = sent
    delivery.ask(ASK_NS)
    return delivery


def test_the_next_question_comes_sooner_while_nothing_arrives() -> None:
    """The first one may have overtaken the datagrams."""
    red, blue = flow(1, "red"), flow(2, "blue")
    delivery = asked(FRAMES_MIN, red, blue)
    red.raw_sent += 1
    delivery.ask(ASK_NS + DOUBT_ASK_NS)
    assert len(blue.parts) == 1, "no answer yet"
    delivery.reported(ASK_NS + 1, DeliveryReport("red/red/udp", FRAMES_MIN, 0))
    delivery.ask(ASK_NS + DOUBT_ASK_NS)
    assert len(blue.parts) == 2
    delivery.reported(ASK_NS + DOUBT_ASK_NS, DeliveryReport("red/red/udp", FRAMES_MIN + 1, 1))
    red.raw_sent += 1
    delivery.ask(ASK_NS + 2 * DOUBT_ASK_NS)
    assert len(blue.parts) == 2, "something has arrived"


def test_the_question_travels_on_another_path() -> None:
    red, blue = flow(1, "red"), flow(2, "blue")
    asked(FRAMES_MIN, red, blue)
    assert not red.parts
    assert decode_frame(blue.parts[0]) == DeliveryQuery("red/red/udp", FRAMES_MIN)


def test_few_datagrams_are_not_asked_about() -> None:
    red, blue = flow(1, "red"), flow(2, "blue")
    asked(FRAMES_MIN - 1, red, blue)
    assert not blue.parts


def test_a_flow_on_which_nothing_arrives_is_avoided_and_says_why() -> None:
    """A pattern that is not probed drops all datagrams of one path, and the other path is clean."""
    red, blue = flow(1, "red"), flow(2, "blue")
    delivery = asked(8, red, blue)
    for now, sent in ((1, 8), (2, 16), (3, 24)):
        red.raw_sent = sent
        delivery.reported(now, DeliveryReport("red/red/udp", sent, 0))
    assert red.shunned_until > 3
    assert red.why_not(0, 3) == "application data does not pass on red/red/udp"
    assert blue.shunned_until == 0


def test_a_flow_on_which_some_arrive_is_kept() -> None:
    red, blue = flow(1, "red"), flow(2, "blue")
    delivery = asked(8, red, blue)
    for now, sent in ((1, 8), (2, 16), (3, 24), (4, 32)):
        red.raw_sent = sent
        delivery.reported(now, DeliveryReport("red/red/udp", sent, sent // 8))
    assert red.shunned_until == 0


def test_what_a_peer_reports_of_more_than_was_sent_is_ignored() -> None:
    red, blue = flow(1, "red"), flow(2, "blue")
    delivery = asked(8, red, blue)
    for sent in (100, 200, 300):
        delivery.reported(1, DeliveryReport("red/red/udp", sent, 0))
    assert red.shunned_until == 0


def test_datagrams_on_their_way_are_not_missing() -> None:
    """The question takes another path and may overtake them: only what was sent before the last question counts."""
    watch = DeliveryWatch()
    assert not watch.take(ASK_NS, 8, 8)
    assert not watch.take(2 * ASK_NS, 16, 8)
    assert not watch.fails
    assert watch.take(3 * ASK_NS, 17, 8)
    assert watch.fails
    assert watch.take(4 * ASK_NS, 18, 9), "something arrives again"
    assert not watch.fails


def test_what_a_dead_path_lost_is_not_missing_when_it_is_used_again() -> None:
    """`holdfast sim health --seeds 5038..5038`: the first question after the fault overtook the first datagram."""
    watch = DeliveryWatch()
    taken = [(1, 20, 20), (2, 24, 20), (3, 30, 20)]
    assert [watch.take(n * ASK_NS, *counts) for n, *counts in taken[:2]] == [False, False]
    assert not watch.take(20 * ASK_NS, 34, 20), "the path was dead, and the datagrams elsewhere"
    assert not watch.take(21 * ASK_NS, 39, 25)
    watch = DeliveryWatch()
    assert [watch.take(n * ASK_NS, *counts) for n, *counts in taken][-1], "without a pause it is"


def test_data_that_is_sent_rarely_is_missed_as_well() -> None:
    watch = DeliveryWatch()
    apart_ns = 3 * SECOND
    taken = [watch.take(n * apart_ns, 4 * n, 0) for n in range(1, 5)]
    assert taken == [False, False, False, True]


def test_questions_that_waited_on_a_slow_path_and_come_together_count_once() -> None:
    watch = DeliveryWatch()
    came = [now for now in (0, 1, 2, APART_NS - 1, APART_NS, 3 * APART_NS) if watch.is_apart(now)]
    assert came == [0, APART_NS, 3 * APART_NS]


def test_pieces_become_smaller_where_nothing_passes_and_no_path_is_better() -> None:
    """H12: a channel whose pieces fail on all paths tries smaller ones, and later the whole size again."""
    red = flow(1, "red")
    assert red.shrink(10 * SECOND)
    assert red.size == DATAGRAM_START // 2
    while red.shrink(20 * SECOND):
        pass
    assert red.size == DATAGRAM_MIN
    red.restore()
    assert red.size == DATAGRAM_START
    assert not flow(2, "red", "tcp").shrink(SECOND), "the kernel cuts segments"


def test_a_channel_that_no_path_delivers_is_sent_in_ever_smaller_pieces() -> None:
    """H12. One datagram flow, a fault that drops whatever is large, and probes that do not show it."""
    near, _ = ciphers(False)
    red = flow_of()
    sender = LinkSender(PEER, {red.flow: red}, near, LAN, lambda *_: None)
    channel = sender.channel(16)
    channel.write([bytes(1000)])
    largest: list[int] = []
    now = 0
    for _ in range(40):
        out = Outbox()
        sender.check(now, out)
        sender.flush(now, out)
        sender.transmit(red, out)
        sizes = [len(p) for e, _ in out.effects if isinstance(e, Transmit) for p in e.packets]
        largest += [max(sizes)] if sizes else []
        now += LAN.stall_ns // 2
    assert largest[0] > 1000
    assert min(largest) <= DATAGRAM_MIN


def lossy_flow() -> tuple[Delivery, FlowState, FlowState]:
    """Datagrams were lost on red, and nothing else is sent there any more."""
    red, blue = flow(1, "red"), flow(2, "blue")
    delivery = asked(8, red, blue)
    red.raw_last = b"contents" * 100
    for now, sent in ((1, 8), (2, 16), (3, 24)):
        red.raw_sent = sent
        delivery.reported(now, DeliveryReport("red/red/udp", sent, 3))
    return delivery, red, blue


def test_copies_of_a_lost_datagram_show_when_such_data_passes_again() -> None:
    """The fault was claimed for a minute after it had ended, because nothing was sent there."""
    delivery, red, blue = lossy_flow()
    red.parts.clear()
    blue.parts.clear()
    assert delivery.retry(RETRY_NS // 2) == red.retry_at <= 3 + RETRY_NS
    assert not red.parts
    now = red.retry_at
    assert delivery.retry(now) == now + RETRY_NS
    copy = decode_frame(red.parts[0])
    assert isinstance(copy, RawBatch)
    assert copy.port == COPY_PORT
    assert b"contents" * 100 in bytes(copy.block)
    assert decode_frame(blue.parts[0]) == DeliveryQuery("red/red/udp", red.raw_sent)
    delivery.reported(now + 1, DeliveryReport("red/red/udp", red.raw_sent, 3))
    assert red.lost, "it did not arrive"
    delivery.reported(now + 2, DeliveryReport("red/red/udp", red.raw_sent, 4))
    assert not red.lost
    assert red.shunned_until <= now + 2
    assert delivery.retry(now + SECOND) == NEVER


def test_copies_become_rarer_but_never_stop_while_they_fail() -> None:
    delivery, red, _ = lossy_flow()
    now, sent = red.retry_at, []
    while now < 3600 * SECOND:
        red.parts.clear()
        due = delivery.retry(now)
        sent.append(now)
        assert red.parts
        now = due
    gaps = [later - sooner for sooner, later in pairwise(sent)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == RETRY_NS_MAX
    assert len(sent) < 150
