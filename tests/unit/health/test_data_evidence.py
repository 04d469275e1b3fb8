"""Application data that does not arrive although probes do has a class of its own (H15)."""

from __future__ import annotations

from holdfast.health.probing.data_evidence import HOLD_NS, SETTLE_NS, DataEvidence
from holdfast.types import FlowId

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


def test_probes_that_are_missing_are_settled_first() -> None:
    evidence = DataEvidence()
    evidence.take(0, FLOW, True)
    heard = {FLOW: 2 * SETTLE_NS}
    assert not evidence.look(2 * SETTLE_NS, heard, suspected=True)
    evidence.explained()
    assert not evidence.look(2 * SETTLE_NS, heard, suspected=False), "a size limit has been found"


def test_data_that_arrives_again_ends_it_and_so_does_time() -> None:
    evidence = DataEvidence()
    for flow, now, missing in ((FLOW, SETTLE_NS, False), (FlowId(2), HOLD_NS, True)):
        evidence.take(0, flow, True)
        assert evidence.look(SETTLE_NS, {flow: SETTLE_NS}, suspected=False)
        evidence.take(now, flow, missing)
        assert evidence.look(now, {flow: now}, suspected=False)
        assert not evidence.lost
