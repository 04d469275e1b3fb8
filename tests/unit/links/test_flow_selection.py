"""Which flow carries which traffic, by what health says each flow is worth to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.links.flows import PEER, ciphers, flow_of

from holdfast.links.config import LAN
from holdfast.links.datagrams import BOUNDS
from holdfast.links.flow import FlowState
from holdfast.links.ports import (
    AVOIDED,
    BARRED,
    DATAGRAMS,
    FIT,
    HELD,
    UNFIT,
    Fitness,
    FlowVerdict,
    PortRefused,
    SendRaw,
    Transmit,
)
from holdfast.links.sender import LinkSender
from holdfast.machine import Outbox
from holdfast.types import BULK, DATA, MILLISECOND, SECOND, SYNC, FlowId
from holdfast.wire.codec import encode, part_size
from holdfast.wire.frames import AckRequest, ChunkAck

T = 1000 * SECOND
CHANNELS = (SYNC, DATA, BULK, 16, 20)
PORTS = (16, 20)
TRAFFIC = (*CHANNELS, *(DATAGRAMS + port for port in PORTS))


class Bench:
    """A sender with a few flows, used by a few channels and ports."""

    def __init__(self, *transports: str) -> None:
        self.flows = [flow_of(transport, n) for n, transport in enumerate(transports, 1)]
        for n, flow in enumerate(self.flows):
            flow.adapter = flow.remote_adapter = f"a{n // 2}"
        self.moved: list[tuple[int, str, str]] = []
        self.sender = LinkSender(
            PEER,
            {flow.flow: flow for flow in self.flows},
            ciphers(False)[0],
            LAN,
            lambda _now, choice, flow, _before, _out: self.moved.append(
                (choice.traffic, flow.path, choice.reason)
            ),
        )
        self.now = T
        self.effects: list[Any] = []
        for flow in self.flows:
            self.verdict(flow)

    def verdict(
        self, flow: FlowState, *fitness: Fitness, size: int = 0, alive: bool = True
    ) -> None:
        defaults = [Fitness(t, FIT) for t in (SYNC, DATA, BULK, DATAGRAMS)]
        mentioned = [fit.traffic for fit in fitness]
        known = (*fitness, *(d for d in defaults if d.traffic not in mentioned))
        out = Outbox()
        verdict = FlowVerdict(flow.flow, alive, size, bool(size), 0, known)
        self.sender.judge(self.now, [(flow, verdict)], out)
        self.sender.flush(self.now, out)
        self.effects += [effect for effect, _ in out.effects]

    def send(self, size: int = 100) -> None:
        out = Outbox()
        for number in CHANNELS:
            self.sender.channel(number).write([bytes(size)])
        for port in PORTS:
            self.sender.raw(SendRaw(port, [bytes(size)]), out)
        self.sender.flush(self.now, out)
        self.effects += [effect for effect, _ in out.effects]

    def acknowledge(self) -> None:
        for channel in self.sender.channels.values():
            assert channel.ack(self.now, ChunkAck(channel.channel, channel._sent, 1 << 30), {})

    def flow(self, traffic: int) -> FlowState | None:
        choice: Any = self.sender.channels.get(traffic) or self.sender.datagrams.queues[traffic]
        return self.sender.selection.flow_of(choice)

    def paths(self) -> dict[int, str]:
        return {traffic: self.sender.placement(traffic)[0] for traffic in TRAFFIC}


def test_channels_prefer_streams_and_datagrams_prefer_datagrams() -> None:
    bench = Bench("tcp", "udp")
    bench.send()
    assert {bench.flow(c) for c in CHANNELS} == {bench.flows[0]}
    assert {bench.flow(DATAGRAMS + p) for p in PORTS} == {bench.flows[1]}


def test_only_the_traffic_that_a_flow_does_not_suit_leaves_it() -> None:
    """H11: a soft error for one is none for another; small traffic stays."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    reason = "packets over 1000 bytes do not pass, 1200 are needed"
    bench.verdict(bench.flows[0], Fitness(20, UNFIT, reason))
    bench.verdict(bench.flows[1], Fitness(DATAGRAMS + 20, UNFIT, reason))
    assert bench.flow(20) is bench.flows[2]
    assert bench.flow(DATAGRAMS + 20) is bench.flows[3]
    assert bench.flow(16) is bench.flow(SYNC) is bench.flows[0]
    assert bench.flow(DATAGRAMS + 16) is bench.flows[1]
    assert bench.sender.placement(20) == ("a1/a1/tcp", f"a0/a0/tcp: {reason}")
    assert bench.moved == [
        (20, "a1/a1/tcp", f"a0/a0/tcp: {reason}"),
        (DATAGRAMS + 20, "a1/a1/udp", f"a0/a0/udp: {reason}"),
    ]


def test_traffic_stays_where_it_is_while_that_suits_it_though_there_is_better() -> None:
    """H11: on a path that satisfies, not necessarily the best one."""
    bench = Bench("tcp", "tcp")
    bench.send()
    out = Outbox()
    verdict = FlowVerdict(bench.flows[0].flow, True, 0, False, 900)
    bench.sender.judge(bench.now, [(bench.flows[0], verdict)], out)
    assert bench.flow(16) is bench.flows[0]
    assert bench.moved == []


def test_traffic_without_a_need_of_its_own_is_judged_by_its_kind() -> None:
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"), Fitness(20, FIT))
    bench.verdict(bench.flows[1], Fitness(DATAGRAMS, UNFIT, "lossy"))
    assert bench.flow(16) is bench.flow(DATA) is bench.flows[2]
    assert bench.flow(20) is bench.flow(SYNC) is bench.flows[0]
    assert bench.flow(DATAGRAMS + 16) is bench.flow(DATAGRAMS + 20) is bench.flows[3]


def test_synchronisation_moves_first_and_is_sent_again_in_the_same_turn() -> None:
    """H12: and the others after it in the same turn, by class: what applications send before bulk."""
    bench = Bench("tcp", "tcp")
    bench.send()
    for flow in bench.flows:
        flow.parts.clear()
    bench.verdict(bench.flows[0], alive=False)
    datagrams = [DATAGRAMS + port for port in PORTS]
    assert [traffic for traffic, _, _ in bench.moved] == [SYNC, DATA, 16, 20, *datagrams, BULK]
    sent = [bytes(part[0])[2] for part in bench.flows[1].parts if isinstance(part, tuple)]
    assert sent == [SYNC, DATA, 16, 20, BULK]


def test_traffic_comes_back_when_health_gives_a_better_flow_back_and_not_before() -> None:
    """H11: it moves back by policy; what is on its way is left to arrive."""
    bench = Bench("tcp", "udp")
    bench.send()
    home, away = bench.flows
    bench.verdict(home, Fitness(DATA, UNFIT, "lossy"))
    assert bench.flow(16) is away
    bench.verdict(home, Fitness(DATA, HELD, "it failed before"))
    assert bench.flow(16) is away
    in_flight = bench.sender.channels[16].in_flight(away.flow)
    bench.verdict(home, Fitness(DATA, FIT))
    assert bench.flow(16) is home
    assert bench.sender.placement(16)[1] == "a0/a0/tcp is available to it again"
    assert bench.sender.channels[16].in_flight(away.flow) == in_flight > 0


def test_a_flow_that_is_not_trusted_yet_is_better_than_one_that_does_not_suit() -> None:
    bench = Bench("tcp", "udp")
    bench.send()
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"))
    bench.verdict(bench.flows[0], Fitness(DATA, HELD, "it failed before"))
    bench.verdict(bench.flows[1], Fitness(DATA, UNFIT, "lossy"))
    assert bench.flow(16) is bench.flows[0]


def test_an_avoided_flow_is_left_for_one_that_suits_and_taken_back_when_advice_ends() -> None:
    """P9: advice ranks flows that satisfy now; it moves traffic before the path fails."""
    bench = Bench("tcp", "tcp", "tcp")
    bench.send()
    home, _, away = bench.flows
    bench.verdict(bench.flows[1], Fitness(DATA, UNFIT, "lossy"))
    bench.verdict(home, Fitness(DATA, AVOIDED, "advised to avoid it"))
    assert bench.flow(16) is away
    assert bench.sender.placement(16)[1] == "a0/a0/tcp: advised to avoid it"
    bench.verdict(home, Fitness(DATA, FIT))
    assert bench.flow(16) is home


def test_with_nothing_else_that_suits_an_avoided_flow_is_used() -> None:
    bench = Bench("tcp", "tcp")
    bench.send()
    bench.verdict(bench.flows[1], Fitness(DATA, UNFIT, "lossy"))
    bench.verdict(bench.flows[0], Fitness(DATA, AVOIDED, "advised to avoid it"))
    assert bench.flow(16) is bench.flows[0]
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"))
    bench.verdict(bench.flows[1], Fitness(DATA, AVOIDED, "advised to avoid it"))
    assert bench.flow(16) is bench.flows[1], "an avoided flow is better than an unfit one"


def test_among_flows_that_are_equally_bad_traffic_stays_and_says_so() -> None:
    bench = Bench("tcp", "tcp")
    bench.send()
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"))
    for _ in range(10):
        bench.verdict(bench.flows[1], Fitness(DATA, UNFIT, "slow"))
        bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"))
    assert bench.flow(16) is bench.flows[1]
    assert bench.sender.channels[16].moves == 1
    assert bench.sender.placement(16)[1].endswith("slow; there is nothing better")


def test_a_stream_that_larger_segments_do_not_pass_is_worse_than_the_datagrams_of_its_path() -> (
    None
):
    """H12: if every path is degraded, pieces are cut below the size that passes."""
    bench = Bench("tcp", "udp")
    bench.send()
    bench.verdict(bench.flows[1], Fitness(DATA, UNFIT, "small"), size=600)
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "segments"), size=600)
    assert bench.flow(16) is bench.flows[1]
    assert bench.flows[1].piece_max < 600 - 28


def test_pieces_that_are_larger_than_what_passes_now_go_again_at_once_cut_smaller() -> None:
    bench = Bench("udp")
    bench.verdict(bench.flows[0], size=1500)
    bench.send(5000)
    flow = bench.flows[0]
    flow.parts.clear()
    bench.verdict(flow, size=600)
    pieces = [part for part in flow.parts if isinstance(part, tuple)]
    assert sum(len(piece[1]) for piece in pieces) >= 5 * 5000
    assert max(len(piece[1]) for piece in pieces) <= flow.piece_max


def test_a_stream_that_passes_only_small_segments_gets_one_small_write_at_a_time() -> None:
    """The kernel joins what waits into larger segments: nothing else may wait."""
    bench = Bench("tcp")
    bench.verdict(bench.flows[0], size=600)
    flow = bench.flows[0]
    bench.send(5000)
    for _ in range(200):
        pieces = [part for part in flow.parts if part != encode(AckRequest())]
        assert sum(map(part_size, flow.parts)) <= 600 - 78
        # The next one waits for it, so the peer must not take its time.
        assert (encode(AckRequest()) in flow.parts) == bool(pieces)
        flow.parts.clear()
        if not any(channel.unacked for channel in bench.sender.channels.values()):
            break
        bench.acknowledge()
        bench.sender.flush(bench.now, Outbox())
    assert not any(channel.wants() for channel in bench.sender.channels.values())


def test_what_is_barred_everywhere_waits_and_goes_when_there_is_a_way() -> None:
    bench = Bench("tcp", "udp")
    bench.send()
    for flow in bench.flows:
        bench.verdict(
            flow,
            Fitness(20, BARRED, "not by adapter red"),
            Fitness(DATAGRAMS + 20, BARRED, "not by adapter red"),
        )
    assert bench.flow(20) is None
    assert bench.sender.placement(20) == ("", "waits: a0/a0/udp: not by adapter red")
    for flow in bench.flows:
        flow.parts.clear()
    bench.send()
    refused = [effect for effect in bench.effects if isinstance(effect, PortRefused)]
    assert refused == [PortRefused(PEER, 20, 1, "there is no path that this traffic may use")]
    bench.verdict(bench.flows[0], Fitness(20, FIT))
    assert bench.flow(20) is bench.flows[0]
    assert bench.sender.channels[20].in_flight(bench.flows[0].flow) >= 200


# -- datagrams -----------------------------------------------------------------------------------------------------


def test_each_class_of_datagrams_has_its_own_bound() -> None:
    """Back-pressure: bounded queues per class, with a reserve for synchronisation."""
    bench = Bench("udp")
    bench.flows[0].credit = False
    out = Outbox()
    for _ in range(2000):
        bench.sender.raw(SendRaw(16, [bytes(1000)]), out)
    waiting = bench.sender.datagrams.waiting
    assert BOUNDS[DATA] - 1004 < waiting[DATA] <= BOUNDS[DATA]
    refused = sum(e.count for e, _ in out.effects if isinstance(e, PortRefused))
    assert refused == 2000 - waiting[DATA] // 1004 == bench.sender.datagrams.dropped
    bench.sender.datagrams.frame(SYNC, bytes(1000))
    bench.flows[0].credit = True
    bench.sender.flush(bench.now, out)
    assert bench.flows[0].parts[0] == bytes(1000), "and synchronisation goes first"
    assert not any(waiting.values())


@pytest.mark.parametrize("size", [572, 1000, 1400, 5000])
def test_a_datagram_that_no_path_carries_is_reported_to_its_sender(size: int) -> None:
    """H12: never silently lost."""
    bench = Bench("tcp", "udp")
    bench.verdict(bench.flows[1], size=600)
    bench.verdict(bench.flows[0], Fitness(DATAGRAMS, UNFIT, "segments"), size=600)
    out = Outbox()
    bench.sender.raw(SendRaw(16, [bytes(100), bytes(size), bytes(50)]), out)
    bench.sender.flush(bench.now, out)
    (refused,) = [effect for effect, _ in out.effects if isinstance(effect, PortRefused)]
    assert (refused.port, refused.count) == (16, 1)
    assert refused.reason == f"{size} bytes do not pass on any path now; up to 506 do"
    status = bench.sender.datagram_status()[0]
    assert (status["sent"], status["refused"], status["refusal"]) == (2, 1, refused.reason)


def test_a_datagram_that_its_flow_does_not_hold_goes_where_it_fits() -> None:
    bench = Bench("tcp", "udp", "udp")
    bench.verdict(bench.flows[0], size=600)
    bench.verdict(bench.flows[1], size=600)
    bench.verdict(bench.flows[2], Fitness(DATAGRAMS, UNFIT, "slow"), size=1500)
    out = Outbox()
    bench.sender.raw(SendRaw(16, [bytes(100), bytes(1200)]), out)
    bench.sender.flush(bench.now, out)
    assert [len(flow.parts) for flow in bench.flows] == [0, 1, 1]
    assert not [effect for effect, _ in out.effects if isinstance(effect, PortRefused)]


def test_what_waits_when_the_session_ends_is_reported() -> None:
    bench = Bench("udp")
    bench.flows[0].credit = False
    out = Outbox()
    bench.sender.raw(SendRaw(16, [b"x"] * 3), out)
    bench.sender.raw(SendRaw(16, []), out)
    bench.sender.clear(out)
    refused = [effect for effect, _ in out.effects]
    assert refused == [PortRefused(PEER, 16, 3, "the session ended")]
    assert not any(bench.sender.datagrams.waiting.values())


def test_what_waited_is_packed_for_the_flow_that_takes_it() -> None:
    """A flow whose packets got smaller while messages waited for credit must not drop them."""
    bench = Bench("udp")
    flow = bench.flows[0]
    bench.verdict(flow, size=1500)
    flow.credit = False
    out = Outbox()
    bench.sender.raw(SendRaw(16, [bytes(200)] * 20), out)
    bench.sender.flush(bench.now, out)
    bench.verdict(flow, size=600)
    flow.credit = True
    bench.sender.flush(bench.now, out)
    # Beside them the sender asks whether datagrams arrive.
    assert len([part for part in flow.parts if len(part) > 200]) == 10
    assert max(map(len, flow.parts)) <= flow.body_max
    assert bench.sender.datagrams.dropped == 0


def test_messages_with_a_size_limit_go_into_no_larger_packet_and_not_together_with_others() -> None:
    """Else small messages are lost with the large ones beside them, before anybody knows of a limit."""
    bench = Bench("udp")
    flow = bench.flows[0]
    bench.verdict(flow, Fitness(DATAGRAMS + 20, FIT, "", 0, 300), size=1500)
    out = Outbox()
    bench.sender.raw(SendRaw(16, [bytes(100)] * 12), out)
    bench.sender.raw(SendRaw(20, [bytes(100)] * 12), out)
    bench.sender.flush(bench.now, out)
    bench.sender.transmit(flow, out)
    sizes = [len(p) + 28 for e, _ in out.effects if isinstance(e, Transmit) for p in e.packets]
    assert len([size for size in sizes if size <= 300]) == 6, "two messages in each"
    assert [size for size in sizes if size > 300] == [max(sizes)], "all others in one"


# -- whatever health says ------------------------------------------------------------------------------------------

STATES = st.sampled_from([FIT, FIT, HELD, AVOIDED, UNFIT, BARRED])
VERDICTS = st.tuples(
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0, 0, 576, 1500]),
    st.dictionaries(st.sampled_from(TRAFFIC), STATES, max_size=5),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(VERDICTS, min_size=1, max_size=40))
def test_with_a_suitable_flow_traffic_is_never_on_an_unsuitable_one_after_the_turn(
    verdicts: list[tuple[int, bool, int, dict[int, int]]],
) -> None:
    """Placement: traffic is moved first, measuring goes on after."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    for index, alive, size, states in verdicts:
        fitness = [Fitness(traffic, state, "so") for traffic, state in states.items()]
        bench.verdict(bench.flows[index], *fitness, size=size, alive=alive)
        bench.now += SECOND
        bench.send(10)
        for traffic in TRAFFIC:
            flow = bench.flow(traffic)
            suitable = [f for f in bench.flows if f.suits(traffic, bench.now)]
            if suitable:
                assert flow in suitable, f"{traffic} is on {flow and flow.path}"
            if flow is not None:
                assert flow.fitness_for(traffic).state != BARRED
        bench.acknowledge()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([HELD, UNFIT])), max_size=200))
def test_without_a_flow_that_is_given_back_traffic_moves_no_more_often_than_there_are_faults(
    verdicts: list[tuple[int, int]],
) -> None:
    """No flapping: what is only held back never draws traffic that has a suitable place."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    faults = 0
    for index, state in verdicts:
        flow = bench.flows[index]
        here = bench.flow(16) is flow
        faults += here and state == UNFIT
        bench.verdict(flow, Fitness(16, state, "so"))
        bench.send(10)
    assert bench.sender.channels[16].moves <= faults + 1


def test_another_port_carries_data_only_when_health_has_said_that_it_is_better() -> None:
    """A fault that hits some 5-tuples: the path is kept, by another port."""
    bench = Bench("udp", "udp")
    alt = bench.flows[1]
    alt.use, alt.judged = "alt", False
    bench.send()
    assert bench.flow(16) is bench.flows[0]
    bench.verdict(bench.flows[0], Fitness(DATA, UNFIT, "lossy"))
    assert bench.flow(16) is bench.flows[0], "nothing is known of the other port"
    bench.verdict(alt)
    assert bench.flow(16) is alt


def test_a_lost_flow_is_named_as_the_reason() -> None:
    bench = Bench("tcp", "udp")
    bench.send()
    lost = bench.flows[0]
    del bench.sender._flows[FlowId(1)]
    bench.sender.lost(lost)
    bench.send()
    assert bench.sender.placement(16) == ("a0/a0/udp", "a0/a0/tcp was lost")


def test_a_connection_that_takes_the_place_of_another_on_the_same_path_is_no_move() -> None:
    """Two nodes that start together connect to each other at once, and one of the two connections goes."""
    bench = Bench("tcp")
    bench.send()
    bench.acknowledge()
    old = bench.flows[0]
    del bench.sender._flows[FlowId(1)]
    bench.sender.lost(old)
    twin = flow_of("tcp", 9)
    twin.adapter = twin.remote_adapter = old.adapter
    bench.sender._flows[FlowId(9)] = twin
    bench.verdict(twin)
    bench.send()
    assert bench.flow(16) is twin
    assert bench.moved == []


def test_of_two_connections_of_a_path_one_ends_without_a_move() -> None:
    """At a clean start, `channel 0 moved to blue (red was lost)` was logged, and shown in the status."""
    bench = Bench("tcp", "udp", "tcp")
    bench.send()
    bench.acknowledge()
    bench.send()
    old = bench.flow(16)
    assert old is not None
    twin = flow_of("tcp", 9)
    twin.adapter = twin.remote_adapter = old.adapter
    bench.sender._flows[FlowId(9)] = twin
    reason = bench.sender.placement(16)[1]
    del bench.sender._flows[old.flow]
    bench.sender.lost(old)
    bench.sender.flush(bench.now, Outbox())
    assert bench.sender.placement(16) == (old.path, reason)
    assert bench.flow(16) is twin
    assert bench.moved == []


def test_an_error_of_a_whole_path_moves_no_traffic_between_its_flows() -> None:
    """All verdicts of a turn are believed before anybody moves: a channel that went to the next flow just before that
    was judged too would be left with datagrams, where a lost piece costs much more than on a stream."""
    bench = Bench("tcp", "udp", "udp")
    bench.send()
    before = {traffic: bench.flow(traffic) for traffic in TRAFFIC}
    reason = "more than 15 % is lost"
    fitness = tuple(Fitness(t, UNFIT, reason) for t in (SYNC, DATA, BULK, DATAGRAMS))
    verdicts = [(flow, FlowVerdict(flow.flow, True, 0, True, 0, fitness)) for flow in bench.flows]
    bench.sender.judge(bench.now, verdicts, Outbox())
    assert {traffic: bench.flow(traffic) for traffic in TRAFFIC} == before
    assert bench.moved == []
    # One by one, as of different paths, each moves those that it does not suit.
    healthy = [(flow, FlowVerdict(flow.flow, True, 0, False)) for flow in bench.flows]
    bench.sender.judge(bench.now, healthy, Outbox())
    bench.sender.judge(bench.now, verdicts[:1], Outbox())
    assert bench.flow(SYNC) is bench.flows[1]


def test_acknowledgements_leave_datagrams_as_soon_as_there_is_a_stream() -> None:
    """Where they are lost, the peer takes the stream that it sent on for stalled."""
    bench = Bench("udp")
    bench.sender.acknowledge(bench.now, [ChunkAck(DATA, 1, 1 << 20)], shout=False)
    (udp,) = bench.flows
    assert len(udp.parts) == 1
    stream = flow_of("tcp", 9)
    bench.sender._flows[stream.flow] = stream
    bench.sender.acknowledge(bench.now, [ChunkAck(DATA, 2, 1 << 20)], shout=False)
    assert len(udp.parts) == 1
    assert len(stream.parts) == 1


def test_acknowledgements_are_repeated_on_every_path_while_the_peer_misses_them() -> None:
    """Otherwise the peer blames the healthy path of its data for acknowledgements that a broken path has lost."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    ack = ChunkAck(16, 100, 1 << 20)
    bench.sender.acknowledge(bench.now, [ack], shout=False)
    assert sum(encode(ack) in flow.parts for flow in bench.flows) == 1
    for flow in bench.flows:
        flow.parts.clear()
    bench.sender.shout_until = bench.now + SECOND
    bench.sender.acknowledge(bench.now, [ack], shout=False)
    streams = [flow for flow in bench.flows if flow.stream]
    assert all(encode(ack) in flow.parts for flow in streams)
    # In a packet of its own, which passes where larger ones do not.
    assert all(encode(ack) in flow.apart for flow in bench.flows if not flow.stream)


def test_a_few_small_copies_are_sent_on_every_path_as_soon_as_a_flow_is_in_doubt() -> None:
    """H12. The same fault may affect all paths: waiting for the first copies doubled the delay."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    bench.now += 160 * MILLISECOND
    bench.sender.check(bench.now, Outbox())
    assert bench.sender.channels[DATA].doubt is not None
    small = [flow for flow in bench.flows if not flow.stream and len(flow.apart) > 1]
    assert len(small) == 2, "one for each path"


def test_small_copies_are_sent_on_every_path_when_copies_bring_no_acknowledgement() -> None:
    """H12. A size limit may affect all paths, and a connection stops behind its first larger segment."""
    bench = Bench("tcp", "udp", "tcp", "udp")
    bench.send()
    channel = bench.sender.channels[DATA]
    doubted = bench.flow(DATA)
    for _ in range(8):
        bench.now += 160 * MILLISECOND
        bench.sender.check(bench.now, Outbox())
    small = [flow for flow in bench.flows if not flow.stream and len(flow.apart) > 1]
    assert len(small) == 2, "one for each path"
    assert channel.small_copies.size(bench.now) < 576, "smaller each time"
    assert doubted is not None


def test_a_channel_leaves_a_flow_whose_buffer_does_not_drain() -> None:
    """The data of others fills it: nothing of this channel is in flight whose acknowledgement could be missed."""
    bench = Bench("tcp", "tcp")
    bench.send()
    bench.acknowledge()
    full = bench.flow(DATA)
    assert full is not None
    full.credit = False
    bench.send()
    bench.sender.check(bench.now, Outbox())
    assert bench.flow(DATA) is full
    bench.now += 151 * MILLISECOND
    bench.sender.check(bench.now, Outbox())
    assert bench.flow(DATA) is not full
