"""Application data that does not arrive although probes do has a class of its own (H15)."""

from __future__ import annotations

from holdfast.health.frames import Heartbeat
from holdfast.health.probing.data_evidence import HOLD_NS, SETTLE_NS, DataEvidence, was_silent
from holdfast.health.probing.liveness import Liveness
from holdfast.types import MILLISECOND, SECOND, FlowId

PERIOD = 100 * MILLISECOND
FLOW = FlowId(1)


def test_missing_data_is_claimed_when_heartbeats_are_heard_after_it() -> None:
    evidence = DataEvidence()
    assert evidence.take(0, FLOW, True) == SETTLE_NS
    assert not evidence.look(SETTLE_NS - 1, {FLOW: SETTLE_NS - 1}, suspected=False)
    assert evidence.look(SETTLE_NS, {FLOW: SETTLE_NS}, suspected=False)
    assert evidence.lost


def test_a_silent_path_is_not_accused_of_losing_data() -> None:
    """It is dying: nothing at all arrives."""
    evidence = DataEvidence()
    evidence.take(1000, FLOW, True)
    assert not evidence.look(1000 + SETTLE_NS, {FLOW: 900}, suspected=False)
    assert not evidence.look(2000 + SETTLE_NS, {}, suspected=False)
    assert not evidence.open


def test_data_that_was_lost_while_a_path_was_silent_is_no_fault_apart() -> None:
    live = Liveness(0, PERIOD)
    live.basic(Heartbeat(1, 0, PERIOD), 0)
    now = 20 * PERIOD
    live.basic(Heartbeat(21, now, PERIOD), now)
    assert not was_silent(now + PERIOD, live)
    assert was_silent(now + 3 * PERIOD, live)
    live.die(now + 6 * PERIOD)
    live.basic(Heartbeat(29, now + 8 * PERIOD, PERIOD), now + 8 * PERIOD)
    assert was_silent(now + 9 * PERIOD, live)


def test_probes_that_are_missing_are_settled_first() -> None:
    evidence = DataEvidence()
    evidence.take(0, FLOW, True)
    heard = {FLOW: 2 * SETTLE_NS}
    assert not evidence.look(2 * SETTLE_NS, heard, suspected=True)
    evidence.explained()
    assert not evidence.look(2 * SETTLE_NS, heard, suspected=False), "a size limit has been found"


def test_it_lasts_for_as_long_as_the_link_repeats_it() -> None:
    """It was forgotten after ten minutes, although the copies of the link still failed."""
    evidence = DataEvidence()
    evidence.take(0, FLOW, True)
    for minute in range(1, 60):
        now = minute * 60 * SECOND
        evidence.take(now, FLOW, True, still=True)
        evidence.look(now + SETTLE_NS, {FLOW: now + SETTLE_NS}, suspected=False)
        assert evidence.lost
    now += HOLD_NS
    assert evidence.look(now, {FLOW: now}, suspected=False)


def test_what_was_explained_is_not_claimed_when_the_link_repeats_it() -> None:
    """The explanation is over, and the next copy will show that the data passes again."""
    evidence = DataEvidence()
    evidence.take(0, FLOW, True)
    evidence.explained()
    evidence.take(SECOND, FLOW, True, still=True)
    now = 2 * SECOND + SETTLE_NS
    assert not evidence.look(now, {FLOW: now}, suspected=False)
    assert not evidence.open


def test_data_that_arrives_again_ends_it_and_so_does_time() -> None:
    evidence = DataEvidence()
    for flow, now, missing in ((FLOW, SETTLE_NS, False), (FlowId(2), HOLD_NS, True)):
        evidence.take(0, flow, True)
        assert evidence.look(SETTLE_NS, {flow: SETTLE_NS}, suspected=False)
        if not missing:
            evidence.take(now, flow, missing)
        assert evidence.look(now, {flow: now}, suspected=False)
        assert not evidence.lost
