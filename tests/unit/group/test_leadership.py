"""The way of a fixed leader into its term: whom it must hear before it may say that it knows what was decided."""

from __future__ import annotations

import pytest

from holdfast.group.admission import Admission, Standing
from holdfast.group.config import GroupConfig
from holdfast.group.leadership import Accession, Claim, Phase

NOTHING = Claim(0, 0, 0)


def way(voters: int = 3, incarnation: int = 1) -> Accession:
    names = tuple("abcde"[:voters])
    return Accession(GroupConfig("g", names, "a"), "a", incarnation)


def test_a_group_is_founded_when_nobody_has_anything() -> None:
    accession = way()
    accession.claimed("b", NOTHING)
    accession.decide()
    assert accession.phase is Phase.GATHER, "c may know of a group that a and c founded"
    accession.claimed("c", NOTHING)
    accession.decide()
    assert (accession.phase, accession.term) == (Phase.PROMISE, 1)


@pytest.mark.parametrize(("heard", "phase"), [("bcd", Phase.GATHER), ("bcde", Phase.PROMISE)])
def test_a_group_is_founded_by_all_its_voters(heard: str, phase: Phase) -> None:
    """In a larger group, too: whoever was not heard may be the only one whose memory was not lost."""
    accession = way(5)
    for name in heard:
        accession.claimed(name, NOTHING)
    accession.decide()
    assert accession.phase is phase


def test_the_longest_log_is_fetched() -> None:
    accession = way()
    accession.claimed("b", Claim(4, 3, 90))
    accession.claimed("c", Claim(4, 4, 20))
    accession.decide()
    assert (accession.phase, accession.giver, accession.upto, accession.term) == (
        Phase.FETCH,
        "c",
        20,
        5,
    )


def test_a_memory_that_is_not_whole_is_no_witness() -> None:
    accession = way()
    accession.claimed("b", Claim(4, 4, 90))
    accession.claimed("c", NOTHING)
    accession.decide()
    assert accession.phase is Phase.GATHER
    assert "memory of a majority is lost" in accession.stuck


def test_a_large_group_does_not_need_everybody() -> None:
    accession = way(5)
    for name in "bcd":
        accession.claimed(name, Claim(1, 1, 7))
    accession.decide()
    assert accession.phase is Phase.FETCH


def test_learners_are_no_witnesses() -> None:
    accession = way()
    accession.claimed("b", Claim(1, 1, 7))
    accession.claimed("x", Claim(1, 1, 9))
    accession.decide()
    assert accession.phase is Phase.GATHER


def test_the_term_is_never_below_the_incarnation() -> None:
    """Founded again after everything was lost: the terms of the earlier life are not used again."""
    accession = way(incarnation=6)
    accession.claimed("b", NOTHING)
    accession.claimed("c", NOTHING)
    accession.decide()
    assert accession.term == 6


def test_nothing_begins_before_enough_voters_have_promised() -> None:
    accession = way()
    accession.claimed("b", NOTHING)
    accession.claimed("c", NOTHING)
    accession.decide()
    accession.promised("b", 1)
    assert not accession.may_lead()
    accession.promised("b", 1)
    assert not accession.may_lead(), "the same voter twice"
    accession.promised("c", 1)
    assert accession.may_lead()


def test_a_voter_that_knows_a_later_term_makes_it_ask_again() -> None:
    accession = way()
    accession.claimed("b", NOTHING)
    accession.claimed("c", NOTHING)
    accession.decide()
    accession.promised("b", 1)
    accession.promised("c", 8)
    assert (accession.term, accession.may_lead()) == (9, False)
    accession.promised("c", 9)
    assert not accession.may_lead()
    accession.promised("b", 9)
    assert accession.may_lead()


def test_what_a_voter_said_is_forgotten_with_its_session() -> None:
    accession = way()
    accession.claimed("b", NOTHING)
    accession.peer_down("b")
    accession.claimed("c", NOTHING)
    accession.decide()
    assert accession.phase is Phase.GATHER


def test_a_giver_that_goes_away_is_replaced() -> None:
    accession = way(4)
    accession.claimed("b", Claim(1, 1, 9))
    accession.claimed("c", Claim(1, 1, 7))
    accession.decide()
    assert accession.giver == "b"
    accession.peer_down("b")
    assert accession.phase is Phase.GATHER
    accession.claimed("c", Claim(1, 1, 7))
    accession.claimed("d", Claim(1, 1, 8))
    accession.decide()
    assert (accession.phase, accession.giver) == (Phase.FETCH, "d")


@pytest.mark.parametrize(
    ("restored", "last", "phase"),
    [(False, 9, Phase.FETCH), (True, 8, Phase.FETCH), (True, 9, Phase.PROMISE)],
)
def test_fetching_ends_with_the_last_entry_of_the_state_that_was_put_in(
    restored: bool, last: int, phase: Phase
) -> None:
    accession = way()
    accession.claimed("b", Claim(1, 1, 9))
    accession.claimed("c", Claim(1, 1, 7))
    accession.decide()
    accession.restored = restored
    accession.fetched(last)
    assert accession.phase is phase


def test_a_restored_memory_is_whole_only_where_the_leader_was() -> None:
    admission = Admission()
    admission.leader_at(50)
    admission.leader_at(70)
    admission.restored()
    assert not admission.settle(49)
    assert admission.settle(50), "the first answer counts, or the goal would run away"
    assert admission.is_whole


def test_a_new_leader_has_to_be_asked_again() -> None:
    admission = Admission()
    admission.leader_at(50)
    admission.restored()
    admission.new_leader()
    assert not admission.settle(60)
    assert admission.standing is Standing.LEARNING
    admission.leader_at(20)
    assert admission.settle(20)
