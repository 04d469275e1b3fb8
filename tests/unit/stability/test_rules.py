"""The rules of the design about stability, each with the schedule that it repairs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.support.stability_world import EPOCH, FAST, World, with_protocol
from tests.unit.stability.harness import Table, member, node_id, view_of

from holdfast.stability import PROTOCOLS, Detector, View
from holdfast.stability.carrying import carry_over
from holdfast.stability.cube import Cube
from holdfast.stability.frames import CubeState, RoundReport, RoundResult, RoundStart, Row
from holdfast.stability.ports import Seat
from holdfast.stability.vectors import as_holders, pack
from holdfast.types import MILLISECOND, NEVER, SECOND


def settled(protocol: str, names: str = "abcd", *values: int) -> Table:
    """A view in which everything that was reported is stable."""
    table = Table(names, protocol)
    table.enter()
    table.report_all(*(values or (10, 10)))
    table.later(200 * MILLISECOND)
    assert all(table.stable(name) == (values or (10, 10)) for name in names)
    return table


# -- rule 2: a report never shrinks within a life ------------------------------------------------------------------


def test_a_report_that_shrinks_is_the_owners_mistake_and_is_not_sent() -> None:
    """An owner that rolled back would have promised what it does not have any more."""
    table = settled("cube")
    with pytest.raises(AssertionError, match="never shrinks"):
        table.report("a", 9, 10)
    assert table.status("a").report == (10, 10)


def test_a_report_of_an_earlier_time_is_still_true() -> None:
    """A frame that was delayed for a whole round frees nothing that its sender lacks, and nothing too much."""
    table = settled("coord")
    table.report_all(20, 20)
    table.later(20 * MILLISECOND, deliver=False)
    delayed = [item for item in table.frames if isinstance(item[2], RoundReport)]
    table.deliver()
    table.later(200 * MILLISECOND)
    for item in delayed:
        table.take(*item)
    assert table.stable("a") == (20, 20)


# -- rule 3: slots of streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_a_slot_that_is_new_nothing_is_stable_until_all_report_it(protocol: str) -> None:
    """Slots 1 and 2 become 2 and 3. Numbers follow the name of the slot, not its position."""
    table = Table("abcd", protocol)
    table.enter(view=view_of("abcd", 1, (1, 2)))
    table.report_all(10, 70)
    table.later(200 * MILLISECOND)
    assert table.stable("a") == (10, 70)
    table.enter(view=view_of("abcd", 2, (2, 3)))
    assert table.stable("a") == (70, 0)
    for name in "abc":
        table.report(name, 71, 5)
    table.later(200 * MILLISECOND)
    assert table.stable("a") == (70, 0), "d has not reported the new slot"
    table.report("d", 71, 4)
    table.later(200 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(71, 4)] * 4


# -- rule 4: only the log excuses a member -------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_all_others_suspect_still_holds_the_round(protocol: str) -> None:
    """d cannot be reached but is alive: what it lacks it will ask for."""
    table = settled(protocol)
    for name in "abc":
        table.suspect(name, "d")
    for name in "abc":
        table.report(name, 20, 20)
    table.report("d", 20, 20)
    table.cut_off = "d"
    table.later(200 * MILLISECOND)
    assert all(table.stable(name) == (10, 10) for name in "abc")
    table.enter("abc", view_of("abc", 2))
    table.later(200 * MILLISECOND)
    assert all(table.stable(name) == (20, 20) for name in "abc")


def test_suspicion_shortens_the_wait_of_an_iteration() -> None:
    """a has the neighbours b and c. While b is silent, a begins the next iteration only if it suspects b."""
    for suspicion in (False, True):
        table = Table("abcd")
        table.enter()
        table.drop(sender="b")
        if suspicion:
            table.suspect("a", "b")
        table.deliver(sender="c", receiver="a")
        sent = [
            frame for one, _, frame in table.frames if one == "a" and isinstance(frame, CubeState)
        ]
        assert max(frame.iteration for frame in sent) == (2 if suspicion else 1)


def test_a_member_that_is_reached_again_is_told_at_once() -> None:
    table = Table("abcd")
    table.enter()
    table.suspect("a", "b")
    table.frames.clear()
    table.suspect("a")
    assert [(one, other) for one, other, _ in table.frames] == [("a", "b")]


def test_frames_are_for_one_view_in_one_epoch() -> None:
    """The same members, but another view or another epoch: G would be full over the wrong lives."""
    table = Table("ab")
    table.enter()
    table.report_all(10, 10)
    table.later(20 * MILLISECOND, deliver=False)
    frame = next(frame for one, _, frame in table.frames if one == "a")
    for change in ({"view": 2}, {"view": 0}, {"epoch": 8}):
        table.take("a", "b", msgspec.structs.replace(frame, **change))
    assert table.status("b").refused == {"view": 3}
    assert table.stable("b") == (0, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_report_of_an_earlier_life_does_not_count_for_the_new_one(protocol: str) -> None:
    """d has reported 20, loses its memory and is admitted again at 15. Its frame of the earlier life comes late."""
    table = settled(protocol)
    table.report("d", 20, 20)
    table.later(100 * MILLISECOND, deliver=False)
    table.frames.clear()
    old = table.detectors["d"]
    view = view_of("abcd", 2, d=2)
    table.add("d", life=2)
    table.enter(view=view)
    table.report("d", 15, 15)
    for name in "abc":
        table.report(name, 20, 20)
    late = Row("g", 7, 2, 1, 1, 9, b"\x14" + bytes(7) + b"\x14" + bytes(7))
    table.take("d", "a", late)
    assert table.status("a").refused["life"] == 1
    assert old is not table.detectors["d"]
    table.later(300 * MILLISECOND)
    assert all(table.stable(name) == (15, 15) for name in "abcd")


def test_a_member_that_the_view_does_not_have_takes_no_part() -> None:
    table = Table("abc")
    table.enter(view=view_of("ab"))
    table.report("a", 10, 10)
    table.report("b", 10, 10)
    table.later(100 * MILLISECOND)
    assert table.stable("a") == (10, 10)
    assert table.status("c").protocol == ""
    frame = CubeState("g", 7, 1, 1, 1, 1, 1, b"\x07", bytes(16), bytes(4))
    table.take("c", "a", frame)
    table.take("a", "c", frame)
    assert table.status("a").refused["stranger"] == table.status("c").refused["stranger"] == 1


def test_a_member_that_leaves_the_view_has_nothing_to_wake_up_for() -> None:
    """A round was due when the view without it came."""
    table = settled("cube")
    table.report("d", 20, 20)
    assert table["d"].deadline < NEVER
    table.enter("d", view_of("abc", 2))
    assert table["d"].deadline == NEVER
    table.report("d", 30, 30)
    assert table["d"].deadline == NEVER


def test_an_older_view_does_not_replace_a_newer_one() -> None:
    table = Table("ab")
    table.enter(view=view_of("ab", 5))
    table.enter(view=view_of("a", 4))
    assert table.status("a").view == (7, 5)


def test_another_epoch_begins_from_nothing() -> None:
    table = settled("cube")
    table.enter(view=View(8, 1, tuple(member(name) for name in "abcd")))
    assert table.stable("a") == (0, 0)
    table.report_all(3, 3)
    table.later(100 * MILLISECOND)
    assert table.stable("a") == (3, 3)


# -- rule 6: a view change restarts the round but keeps what is known of surviving lives -----------------------------


@pytest.mark.parametrize("protocol", ["cube", "tree"])
def test_bits_of_surviving_lives_are_kept(protocol: str) -> None:
    """The view changes again and again, and in each view the frames of one member only get through. Without the rule no
    round would ever end."""
    table = Table("abcd", protocol)
    table.enter()
    table.report_all(10, 10)
    table.frames.clear()
    for index, heard in enumerate("abcd" * 6, 2):
        table.enter(view=view_of("abcd", index))
        table.later(MILLISECOND, deliver=False)
        table.deliver(kind=RoundStart)
        while table.deliver(sender=heard):
            table.drop(kind=RoundStart)
        table.frames.clear()
    assert max(table.stable(name) for name in "abcd") == (10, 10)


def test_a_life_that_ended_loses_its_bit() -> None:
    """b's report of 30 is in the minimum of a when b loses its memory. Its next life has a state at 15 and is silent.
    Keeping the bit would free what that life asks for."""
    table = settled("cube")
    table.report_all(30, 30)
    table.later(6 * MILLISECOND, deliver=False)
    table.deliver(1, sender="b", receiver="a")
    table.frames.clear()
    table.add("b", life=2)
    table.cut_off = "b"
    table.enter(view=view_of("abcd", 2, b=2))
    table.report("b", 15, 15)
    table.later(100 * MILLISECOND)
    assert [table.stable(name) for name in "acd"] == [(10, 10)] * 3
    table.cut_off = ""
    table.later(200 * MILLISECOND)
    assert table.stable("a") == (15, 15)


@pytest.mark.parametrize("protocol", ["cube", "tree"])
def test_a_round_that_survived_many_views_is_given_up(protocol: str) -> None:
    """Every frame is lost while the view changes. The reports of the first view would hold the minimum down."""
    table = Table("abcd", protocol)
    table.enter()
    table.report_all(10, 10)
    table.later(10 * MILLISECOND, deliver=False)
    table.report_all(30, 30)
    for index in range(2, 20):
        table.frames.clear()
        table.enter(view=view_of("abcd", index))
        table.later(10 * MILLISECOND, deliver=False)
    table.deliver()
    assert table.stable("a") == (30, 30)
    assert table.status("a").rounds == 1


@pytest.mark.parametrize("protocol", ["coord", "full"])
def test_rows_of_surviving_lives_are_kept(protocol: str) -> None:
    table = settled(protocol, "abc")
    table.add("d")
    table.enter(view=view_of("abcd", 2))
    table.frames.clear()
    assert table.status("a").rounds == 0
    table.report("d", 10, 10)
    table.later(200 * MILLISECOND)
    assert table.stable("d") == (10, 10)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_missed_the_last_result_gets_it_in_the_next_view(protocol: str) -> None:
    """The result to d is lost, and then the view changes. No member has anything new to report."""
    table = settled(protocol)
    for name in "abcd":
        table.report(name, 20, 20)
    for _ in range(6):
        table.later(2 * MILLISECOND, deliver=False)
        table.drop(receiver="d", kind=RoundResult)
        table.deliver()
    table.frames.clear()
    table.enter(view=view_of("dcba", 2))
    table.later(300 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(20, 20)] * 4


def test_the_holder_of_a_minimum_keeps_its_name_when_places_change() -> None:
    table = Table("abcd")
    table.enter()
    for name in "abd":
        table.report(name, 20, 20)
    table.report("c", 5, 5)
    table.later(100 * MILLISECOND)
    table.enter(view=view_of("dcba", 2))
    table.later(100 * MILLISECOND)
    assert {blocker.name for blocker in table.status("a").blockers} == {"c"}


def test_a_carried_minimum_names_its_holder_by_the_new_place() -> None:
    names = "abcd"
    seat = Seat(FAST, "g", EPOCH, 1, 1, 1, 0, len(names), 2)
    cube = Cube(seat, np.array([20, 20], np.int64))
    low = pack(np.array([5, 30], np.int64))
    holders = pack(as_holders(np.array([2, 2]), len(names)))
    cube.take(2, CubeState("g", EPOCH, 1, 1, 1, 1, 1, bytes([0b100]), low, holders), 0, [])
    carry = carry_over(cube, view_of(names), view_of("dcba", 2))
    assert (carry.bits, carry.values.tolist()) == (0b1010, [5, 20])
    assert carry.holders.tolist() == ["dcba".index("c"), "dcba".index("a")]
    gone = carry_over(cube, view_of(names), view_of("abd", 2))
    assert gone.holders.tolist() == [65535, 0], "c is not a member any more"


# -- rule 8: order of frames, and what is refused --------------------------------------------------------------------


def test_a_frame_that_was_overtaken_is_ignored() -> None:
    table = Table("ab")
    table.enter()
    table.report_all(10, 10)
    (frame,) = [frame for one, _, frame in table.frames if one == "a"]
    assert isinstance(frame, CubeState)
    later = msgspec.structs.replace(frame, iteration=3)
    table.take("a", "b", later)
    table.take("a", "b", frame)
    assert table.status("b").refused == {"late": 1}


def test_a_restarted_member_is_heard_although_its_rounds_begin_again() -> None:
    """Same life (durable), next incarnation, round 1 while the others are in round 50."""
    table = settled("cube", "ab")
    for number in range(11, 60):
        table.report_all(number, number)
        table.later(30 * MILLISECOND)
    assert table.status("a").round > 20
    table.add("b", life=1, incarnation=2)
    table.enter("b")
    table.report("b", 59, 59)
    table.report("a", 60, 60)
    table.report("b", 60, 60)
    table.later(100 * MILLISECOND)
    assert table.stable("a") == table.stable("b") == (60, 60)
    assert abs(table.status("a").round - table.status("b").round) <= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_restarted_member_that_begins_rounds_is_heard(protocol: str) -> None:
    table = settled(protocol)
    for number in range(11, 30):
        table.report_all(number, number)
        table.later(30 * MILLISECOND)
    table.add("a", life=1, incarnation=2)
    table.enter("a")
    table.report_all(31, 31)
    table.later(300 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(31, 31)] * 4


def test_a_later_round_is_merged_and_adopted_afterwards() -> None:
    table = Table("ab")
    table.enter()
    table.report_all(10, 10)
    (frame,) = [frame for one, _, frame in table.frames if one == "b"]
    assert isinstance(frame, CubeState)
    table.frames.clear()
    table.take("b", "a", msgspec.structs.replace(frame, round=9))
    assert table.status("a").rounds == 1
    assert table.status("a").round == 9


def test_a_frame_of_the_next_round_counts_there_too() -> None:
    """b is a round ahead and has sent its frame. a needs no repetition of it when it comes to that round."""
    table = Table("ab", gap_ns=0)
    table.enter()
    table.report_all(10, 10)
    (frame,) = [frame for one, _, frame in table.frames if one == "b"]
    table.frames.clear()
    table.take("b", "a", msgspec.structs.replace(frame, round=2))
    table.later(MILLISECOND, deliver=False)
    assert (table.status("a").rounds, table.status("a").round) == (2, 3)


def test_one_round_lower_is_answered_with_the_result() -> None:
    """The last frame of the round to b is lost. b repeats its own, a is a round ahead and gives the result."""
    table = Table("ab")
    table.enter()
    table.report_all(10, 10)
    table.later(7 * MILLISECOND)
    table.report_all(12, 12)
    table.later(6 * MILLISECOND, deliver=False)
    table.deliver(sender="b", receiver="a")
    assert table.stable("a") == (12, 12)
    table.drop(sender="a")
    round_of_a = table.status("a").round
    assert table.status("b").round == round_of_a - 1
    answers: list[type] = []
    for _ in range(3):
        table.later(4 * MILLISECOND, deliver=False)
        table.deliver(sender="b")
        answers += [type(frame) for one, _, frame in table.frames if one == "a"]
    assert RoundResult in answers
    table.deliver()
    assert table.stable("b") == (12, 12)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_above_the_own_report_is_freed(protocol: str) -> None:
    """A member that lies about all others can at most make another one free what that one itself has."""
    table = Table("ab", protocol)
    table.enter()
    table.report("a", 7, 5)
    high = b"\xff" * 7 + b"\x7f"
    for round_ in range(1, 4):
        for frame in (
            CubeState("g", 7, 1, 1, 1, round_, round_, b"\x03", high * 2, bytes(4)),
            RoundResult("g", 7, 1, 1, 1, round_, high * 2, bytes(4)),
        ):
            table.take("b", "a", frame)
    assert all(stable <= own for stable, own in zip(table.stable("a"), (7, 5), strict=True))


# -- rule 9: names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_member_that_is_behind_is_named_by_all_others(protocol: str) -> None:
    table = Table("abcd", protocol)
    table.enter()
    for name in "abd":
        table.report(name, 20, 20)
    table.report("c", 20, 3)
    table.later(300 * MILLISECOND)
    for name in "abd":
        (blocker,) = table.status(name).blockers
        assert (blocker.name, blocker.why, blocker.slot, blocker.value) == ("c", "behind", 1, 3)
        assert blocker.since_ns > 200 * MILLISECOND


@pytest.mark.parametrize("protocol", ["cube", "coord"])
def test_a_member_is_named_after_two_rounds_that_could_have_freed(protocol: str) -> None:
    """A report of one round may just have missed what was applied since."""
    table = settled(protocol)
    for name in "abd":
        table.report(name, 20, 20)
    begun = table.status("a").rounds
    named: dict[int, bool] = {}
    while len(named) < 4:
        named[table.status("a").rounds - begun] = bool(table.status("a").blockers)
        table.later(MILLISECOND)
    assert named == {0: False, 1: False, 2: True, 3: True}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_member_that_is_silent_is_named(protocol: str) -> None:
    table = settled(protocol)
    table.report_all(20, 20)
    table.cut_off = "d"
    table.later(100 * MILLISECOND)
    silent = [blocker for blocker in table.status("a").blockers if blocker.why == "silent"]
    assert [blocker.name for blocker in silent] == ["d"]
    assert silent[0].since_ns > 20 * MILLISECOND


@pytest.mark.parametrize("protocol", ["coord", "tree"])
def test_members_that_wait_for_a_result_name_those_that_they_cannot_reach(protocol: str) -> None:
    """Only the member that collects reports sees that one is missing."""
    table = settled(protocol)
    table.report_all(20, 20)
    table.cut_off = "d"
    table.later(5 * MILLISECOND)
    for name in "abc":
        table.suspect(name, "d")
    assert table.status("c").blockers == (), "the result is not late yet"
    table.later(100 * MILLISECOND)
    (blocker,) = table.status("c").blockers
    assert (blocker.name, blocker.why) == ("d", "unreachable")
    assert blocker.since_ns == 100 * MILLISECOND
    assert "unreachable" not in [one.why for one in table.status("a").blockers]
    table.cut_off = ""
    table.later(100 * MILLISECOND)
    assert table.status("c").blockers == (), "everything is stable"


def test_a_member_with_another_protocol_is_named() -> None:
    """The settings of one member differ. Its frames are refused, so nothing becomes stable."""
    table = Table("abc", "cube")
    table.detectors["b"] = Detector(with_protocol("coord"), "g", node_id("b"), 1, 1)
    table.enter()
    table.report_all(10, 10)
    table.later(300 * MILLISECOND)
    named = {name: [(one.name, one.why) for one in table.status(name).blockers] for name in "abc"}
    other = "on another protocol"
    assert named["a"] == [("b", other)]
    assert named["c"] == [("b", "silent")], "it gets no frame of b"
    assert named["b"] == [("a", other), ("c", other)]
    assert all(table.stable(name) == (0, 0) for name in "abc")


def test_no_member_is_named_while_rounds_end_in_time() -> None:
    table = settled("cube")
    table.report_all(11, 11)
    assert table.status("a").blockers == () or all(
        blocker.why == "behind" for blocker in table.status("a").blockers
    )
    table.later(100 * MILLISECOND)
    assert table.status("a").blockers == ()


# -- rule 10: the default --------------------------------------------------------------------------------------------


def test_a_view_that_grows_past_the_limit_changes_its_protocol() -> None:
    world = World(6, with_protocol("auto", cube_from=7), seed=1)
    world.order(5)
    assert world.run(SECOND, world.is_settled)
    assert world.status("m0").protocol == "coord"
    host = world.add_host("m6")
    world.commit_view([f"m{k}" for k in range(7)])
    world.join(host)
    world.order(5)
    assert world.run(SECOND, world.is_settled)
    assert {world.status(f"m{k}").protocol for k in range(7)} == {"cube"}


def test_the_coordinator_asks_only_members_that_it_has_not_heard() -> None:
    """Acknowledgements that flow anyway are reports: then a round is one result to each member, without START."""
    table = settled("coord")
    table.report_all(20, 20)
    out: list = []
    for name in "bcd":
        table["a"].learn(node_id(name), (20, 20), table.now, out)
    table.later(6 * MILLISECOND, deliver=False)
    kinds = [type(frame) for one, _, frame in table.frames if one == "a"]
    assert kinds == [RoundResult] * 3
    table.deliver()
    assert [table.stable(name) for name in "abcd"] == [(20, 20)] * 4
    table.report_all(30, 30)
    table["a"].learn(node_id("b"), (30, 30), table.now, out)
    table.later(6 * MILLISECOND, deliver=False)
    asked = [other for one, other, frame in table.frames if isinstance(frame, RoundStart)]
    assert sorted(asked) == ["c", "d"]


def test_an_acknowledgement_that_was_overtaken_lowers_no_report() -> None:
    table = settled("coord")
    table.report_all(20, 20)
    out: list = []
    for values in ((20, 20), (12, 12)):
        table["a"].learn(node_id("b"), values, table.now, out)
    for name in "cd":
        table["a"].learn(node_id(name), (20, 20), table.now, out)
    table.later(6 * MILLISECOND, deliver=False)
    assert table.stable("a") == (20, 20)


def test_a_new_coordinator_begins_a_round_although_all_it_has_is_stable() -> None:
    """The last one may have died before it told all members the result."""
    table = settled("coord")
    out: list = []
    for name in "abcd":
        table[name].coordinate(node_id("c"), table.now, out)
    asked = [len(nodes) for nodes, frame in out if isinstance(frame, RoundStart)]
    assert asked == [3]


def test_any_member_can_coordinate() -> None:
    """A new leader takes over in the middle of a round. The old one may still send; both tell the truth."""
    table = settled("coord")
    table.report_all(20, 20)
    table.later(8 * MILLISECOND, deliver=False)
    out: list = []
    for name in "abcd":
        table[name].coordinate(node_id("c"), table.now, out)
    table._collect("c", out)
    table.later(100 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(20, 20)] * 4
    table.report_all(30, 30)
    table.later(7 * MILLISECOND, deliver=False)
    assert {one for one, _, frame in table.frames if isinstance(frame, RoundStart)} == {"c"}
