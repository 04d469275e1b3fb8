"""How two ends of a path come to agree on what passes: the exchange of the diagnostic-heartbeating document, 4.2,
message by message."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.health.wires import Packet, Wires, over, pattern

from holdfast.health.config import Tune
from holdfast.health.frames import Confirm, Heartbeat, Notice, Settled, Signature, SignatureAck
from holdfast.health.probing.attributes import NEUTRAL
from holdfast.health.probing.probe_receiver import limit_became_hole
from holdfast.health.probing.probe_sender import ProbeSender
from holdfast.health.probing.signature import STABLE, LaneSender
from holdfast.health.probing.values import LaneValues
from holdfast.health.verdict import LOSSY_PPM
from holdfast.types import MILLISECOND, SECOND, Nanos
from holdfast.wire.frames import Frame


def probe_sender(wires: Wires, sender: str, listener: str) -> ProbeSender:
    return wires.units[sender].machine._paths[wires.units[listener].id, "red", "red"].probe_sender


def lane(wires: Wires, sender: str, listener: str, name: str = "udp") -> LaneSender:
    return probe_sender(wires, sender, listener).lanes[name]


def values(wires: Wires, sender: str, listener: str, codes: bytes) -> list[tuple[int, int]]:
    """Size and fill of each combination of the datagram lane."""
    plan = probe_sender(wires, sender, listener).plan
    found = [plan.codes[code] for code in codes]
    return [
        (lane.sizes[index // lane.fills], index % lane.fills)
        for lane, index in found
        if lane.name == "udp"
    ]


def times(wires: Wires, kind: type, sender: str, listener: str) -> list[Nanos]:
    assert wires.log is not None
    return [t for t, a, b, f in wires.log if isinstance(f, kind) and (a, b) == (sender, listener)]


def frames(wires: Wires, kind: type, sender: str, listener: str) -> list[Any]:
    return [f for a, b, f in wires.said(kind) if (a, b) == (sender, listener)]


# -- 4.2.A ---------------------------------------------------------------------------------------------------------


def test_initialisation_sends_all_values_is_acknowledged_and_becomes_stable() -> None:
    """The diagnostic-heartbeating document, 4.2.A; H4."""
    wires = Wires(2, connect=False)
    wires.log = []
    wires.join("n1", "n2")
    wires.run(0.5)
    (first, *_) = frames(wires, Signature, "n1", "n2")
    assert dict(first.lanes)["udp"] == (576, 1000, 1280, 1500)
    settled = frames(wires, Settled, "n2", "n1")
    assert (settled[-1].size, settled[-1].done) == (1500, True)
    assert frames(wires, Confirm, "n1", "n2")[-1].n == settled[-1].n
    assert frames(wires, SignatureAck, "n2", "n1")
    assert lane(wires, "n1", "n2").state == STABLE
    assert wires.row("n1", "n2").size == 1500


def test_initialisation_on_a_path_with_a_limit_settles_below_it() -> None:
    wires = Wires(2, connect=False)
    wires.faults = [over("n1", "n2", 1300)]
    wires.join("n1", "n2")
    wires.run(2)
    assert lane(wires, "n1", "n2").state == STABLE
    assert wires.row("n1", "n2").size == 1280
    assert wires.row("n2", "n1").size == 1500


# -- 4.2.D ---------------------------------------------------------------------------------------------------------


def test_the_example_of_the_seed_with_two_listeners() -> None:
    """The diagnostic-heartbeating document, 4.2.D, steps 1 to 13: Ai steps down by one value, Aj by two; all steps are
    tried side by side, and it ends in the same state."""
    wires = Wires(3).run(5)
    wires.log = []
    begin = wires.now
    # 1. A (n1) sends with a stable signature; 2. Ai (n2) and Aj (n3) do not receive the best value any more.
    wires.faults = [over("n1", "n2", 1400), over("n1", "n3", 1100)]
    wires.run(3)
    for listener, best, failed in (("n2", 1280, [1500]), ("n3", 1000, [1280, 1500])):
        # 3. Each tells A of the value that it misses.
        notice = frames(wires, Notice, listener, "n1")[0]
        assert (1500 in [size for size, _ in values(wires, "n1", listener, notice.codes)]) or (
            1280 in [size for size, _ in values(wires, "n1", listener, notice.codes)]
        )
        # 4, 5, 10. A sends lower values, and the failed ones are in `diag_retry`.
        last = frames(wires, Signature, "n1", listener)[-1]
        active = values(wires, "n1", listener, last.active)
        assert max(size for size, _ in active) == best
        assert values(wires, "n1", listener, last.retry) == [(size, NEUTRAL) for size in failed]
        # 6, 9, 11. The listener acknowledges the value that it receives now; 7, 12. A replies.
        ack = frames(wires, Settled, listener, "n1")[-1]
        assert (ack.size, ack.done) == (best, True)
        assert ack.n in [confirm.n for confirm in frames(wires, Confirm, "n1", listener)]
        # 8, 13. Only then it publishes the new value.
        confirmed = times(wires, Confirm, "n1", listener)[0]
        told = [f for f in wires.units[listener].facts if f.event == "change" and f.now_ns > begin]
        assert [(fact.size, fact.size_max) for fact in told] == [(best, 1500)]
        assert told[0].now_ns > confirmed > times(wires, Notice, listener, "n1")[0]
        assert lane(wires, "n1", listener).size == best
        for member in wires.units:
            assert wires.row("n1", listener, at=member).size == best
    # The list of one listener says nothing of another.
    assert wires.row("n2", "n3").size == 1500


def test_a_value_that_passes_again_is_found_by_retry_and_agreed_on_in_the_same_way() -> None:
    """The diagnostic-heartbeating document, 4.2.C.2."""
    wires = Wires(2).run(5)
    wires.faults = [over("n1", "n2", 1100)]
    wires.run(3)
    wires.log = []
    wires.faults = []
    begin = wires.now
    wires.run(3)
    heard = frames(wires, Notice, "n2", "n1")[0]
    assert {size for size, _ in values(wires, "n1", "n2", heard.codes)} <= {1280, 1500}
    assert times(wires, Notice, "n2", "n1")[0] - begin <= 1.2 * SECOND, "the retry period"
    assert frames(wires, Settled, "n2", "n1")[-1].size == 1500
    assert frames(wires, Signature, "n1", "n2")[-1].retry == b""


def test_while_sizes_come_back_one_by_one_no_limit_is_published_that_never_was() -> None:
    wires = Wires(2).run(5)
    wires.faults = [over("n1", "n2", 400)]
    wires.run(3)
    healed = wires.now
    wires.faults = []
    wires.run(4)
    assert {fact.size for fact in wires.changes(since=healed)} == {1500}


def test_a_limit_of_streams_that_ends_is_not_called_a_hole() -> None:
    """The connection that measures one size got stuck, and is replaced later than that of a larger one."""
    before = LaneValues(1000, 1500, (), (), True)
    after = LaneValues(1000, 1500, (1280,), (), True)
    assert limit_became_hole(after, before)
    assert not limit_became_hole(after, LaneValues(1500, 1500, (), (), True)), "this is one"


def test_one_packet_that_passes_is_not_enough_to_be_believed() -> None:
    wires = Wires(2).run(5)
    limit = over("n1", "n2", 1100)
    wires.faults = [limit]
    wires.run(3)
    passed: list[int] = []

    def one_of_ten(packet: Any) -> bool:
        if not limit(packet):
            return False
        passed.append(0)
        return len(passed) % 10 != 0

    wires.faults = [one_of_ten]
    wires.run(60)
    assert wires.row("n1", "n2").size == 1000
    assert len(passed) > 60


def test_a_doubt_that_was_only_chance_is_cleared_by_a_short_burst_and_nothing_is_published() -> (
    None
):
    wires = Wires(2).run(5)
    wires.log = []
    begin = wires.now
    lost: list[int] = []

    def once(packet: Any) -> bool:
        if packet[0] == "n1" and packet[4] == 1500 and not lost:
            lost.append(1)
            return True
        return False

    wires.faults = [once]
    wires.bytes.clear()
    wires.run(2)
    assert len(frames(wires, Notice, "n2", "n1")) == 1
    assert frames(wires, Settled, "n2", "n1")[-1].done
    assert lane(wires, "n1", "n2").state == STABLE
    assert wires.changes(begin) == []
    assert wires.bytes["n1", "n2", "red"] < 2 * 64_000 + 60_000


# -- what may get lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Signature, SignatureAck, Notice, Settled, Confirm])
def test_a_message_that_was_lost_with_a_session_only_costs_time(kind: type) -> None:
    """Channels lose nothing, but a session may end: whatever is missing is said again."""
    wires = Wires(2, connect=False)
    lost: list[Frame] = []

    def first_three(_a: str, _b: str, frame: Frame) -> bool:
        if isinstance(frame, kind) and len(lost) < 3:
            lost.append(frame)
            return True
        return False

    wires.channel_faults = [first_three]
    wires.join("n1", "n2")
    wires.run(3)
    wires.faults = [over("n1", "n2", 1300), pattern("n2", "n1", b"\x55" * 8)]
    wires.run_until(lambda: wires.row("n1", "n2").size == 1280, 5)
    wires.run_until(lambda: wires.row("n2", "n1").bad_patterns == ("55",), 5)
    wires.run_until(lambda: lane(wires, "n1", "n2").size == 1280, 5)
    assert lost


# -- tunables, while it runs ---------------------------------------------------------------------------------------


def periods(wires: Wires, seconds: float) -> set[int]:
    """The promises in basics of n1 on the datagram flow."""
    seen: list[Heartbeat] = []

    def look(packet: Any) -> bool:
        if packet[0] == "n1" and packet[2].transport == "udp" and isinstance(packet[3], Heartbeat):
            seen.append(packet[3])
        return False

    wires.faults = [look]
    wires.run(seconds)
    wires.faults = []
    return {basic.next_ns for basic in seen}


def test_a_shorter_period_is_used_at_once_and_a_longer_one_when_it_is_confirmed() -> None:
    """H3, H13."""
    wires = Wires(2).run(5)
    begin = wires.now
    wires.give("n1", Tune("red", "basic_active", period_ns=50 * MILLISECOND))
    assert periods(wires, 1) <= {50 * MILLISECOND, 100 * MILLISECOND}
    assert periods(wires, 1) == {50 * MILLISECOND}
    wires.channel_faults = [lambda a, b, f: isinstance(f, SignatureAck)]
    wires.give("n1", Tune("", "basic_active", period_ns=SECOND))
    assert periods(wires, 3) == {50 * MILLISECOND}, "nobody has confirmed it"
    wires.channel_faults = []
    wires.give("n1", Tune("", "basic_active", period_ns=2 * SECOND))
    wires.run(1)
    assert periods(wires, 10) == {2 * SECOND}
    wires.run(30)
    assert wires.changes(begin) == [], "and nobody took it for a fault"


def test_a_listener_that_never_got_a_long_promise_goes_by_what_was_announced() -> None:
    wires = Wires(2).run(5)
    begin = wires.now
    wires.give("n1", Tune("red", "basic_active", period_ns=2 * SECOND))
    wires.run(0.3)
    wires.faults = [lambda p: p[0] == "n1"]
    wires.run(5)  # three of the new period are lost, fifty of the old one would be
    wires.faults = []
    wires.run(3)
    assert wires.changes(begin) == []


def test_one_missing_heartbeat_is_followed_by_more_for_a_moment_with_the_promise_unchanged() -> (
    None
):
    wires = Wires(2).run(3)
    begin = wires.now
    sent: list[tuple[Nanos, Nanos]] = []

    def takes(packet: Packet) -> bool:
        name, _, ready, frame, _ = packet
        if (
            name != "n1"
            or not isinstance(frame, Heartbeat)
            or (ready.transport, ready.use) != ("udp", "")
        ):
            return False
        sent.append((wires.now - begin, frame.next_ns))
        return len(sent) == 1

    wires.faults = [takes]
    wires.run(4)
    assert sum(at < 2 * SECOND for at, _ in sent) > 40
    assert sum(at >= 2 * SECOND for at, _ in sent) <= 21
    assert {promise for _, promise in sent} == {100 * MILLISECOND}
    assert wires.row("n1", "n2").loss_ppm < LOSSY_PPM


def test_tunables_of_one_subnet_leave_the_others_alone() -> None:
    wires = Wires(2, ("red", "blue")).run(3)
    wires.give("n1", Tune("red", "diag_retry", period_ns=5 * SECOND, grace=2))
    wires.run(0.1)
    paths = wires.units["n1"].machine._paths.values()
    found = {path.ready.subnet: path.probe_sender.signatures.diag_retry for path in paths}
    assert (found["red"].period_ns, found["red"].grace) == (5 * SECOND, 2)
    assert found["blue"].period_ns == SECOND
    wires.close(wires.flow_number("n1", "n2"))
    wires.flow("n1", "n2", "red", "udp")
    wires.run(1)
    assert probe_sender(wires, "n1", "n2").signatures.diag_retry.period_ns == 5 * SECOND
