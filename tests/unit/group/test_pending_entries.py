"""How entries come into a follower's log: docs/design/groups.md, rule 1, and log matching as in Raft (5.3)."""

from __future__ import annotations

import pytest
from tests.unit.group.harness import node_id

from holdfast.group.config import GroupConfig
from holdfast.group.consensus.follower import Follower
from holdfast.group.core import Core
from holdfast.group.frames import Append, AppendResponse, Entry, Payload, StreamId
from holdfast.group.log.entries import Opened, Skipped, encode_data
from holdfast.group.log.pending_entries import PENDING_MAX, PendingEntries
from holdfast.group.log.replicated_log import Kind, Log
from holdfast.group.streams.stream_buffer import Streams
from holdfast.machine import Outbox
from holdfast.wire.blocks import pack_block
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import MemberInfo

S = StreamId(b"s" * 16, 1, 0)


def payload(first: int, last: int) -> Payload:
    block = pack_block([b"x"] * (last - first + 1))
    return Payload("g", S, first, last - first + 1, 0, memoryview(block))


def term_entry(term: int, index: int, position: int = 1) -> Entry:
    return Entry(term, index, position, 0, Kind.TERM)


def order(term: int, index: int, first: int, last: int) -> Entry:
    return Entry(term, index, first, 0, Kind.ORDER, S, first, last)


def append(term: int, prev: int, prev_term: int, *entries: Entry, commit: int = 0) -> Append:
    return Append("g", term, prev, prev_term, commit, entries)


class Taker:
    def __init__(self) -> None:
        self.log = Log()
        self.streams = Streams(1 << 20, 8)
        self.pending = PendingEntries(self.log, self.streams)

    def take(self, frame: Append) -> bool:
        taken = self.pending.take(frame)
        self.pending.settle()
        return taken

    def hold(self, first: int, last: int) -> None:
        self.streams.take(payload(first, last), 1)
        self.pending.settle()


def test_an_entry_whose_messages_are_not_here_is_not_acknowledged() -> None:
    """Rule 1: append, so acknowledge, only when every message is held."""
    follower = Taker()
    assert follower.take(append(1, 0, 0, order(1, 1, 1, 4), commit=1))
    follower.hold(1, 3)
    assert (follower.pending.match, follower.log.commit) == (0, 0)
    follower.hold(4, 4)
    assert (follower.pending.match, follower.log.commit) == (1, 1)


def test_later_entries_wait_behind_one_that_lacks_messages() -> None:
    follower = Taker()
    follower.hold(3, 4)
    follower.take(append(1, 0, 0, order(1, 1, 1, 2), order(1, 2, 3, 4)))
    assert follower.pending.match == 0
    follower.hold(1, 2)
    assert follower.pending.match == 2


def test_entries_sent_before_earlier_ones_are_answered_are_taken() -> None:
    follower = Taker()
    assert follower.take(append(1, 0, 0, order(1, 1, 1, 2)))
    assert follower.take(append(1, 1, 1, order(1, 2, 3, 4)))
    assert follower.take(append(1, 2, 1))
    assert len(follower.pending.entries) == 2


def test_a_new_term_discards_what_waits() -> None:
    follower = Taker()
    follower.take(append(1, 0, 0, order(1, 1, 1, 4)))
    follower.pending.new_term()
    follower.hold(1, 4)
    assert follower.log.last == 0


def test_a_hole_is_answered_with_where_to_go_on() -> None:
    follower = Taker()
    follower.take(append(1, 0, 0, term_entry(1, 1)))
    assert not follower.take(append(1, 3, 1, term_entry(1, 4)))
    assert follower.pending.hint == 1


def test_a_conflicting_suffix_is_cut_off_and_replaced() -> None:
    """Raft 5.3: the leader's entries win over what is not committed."""
    follower = Taker()
    follower.hold(1, 9)
    follower.take(append(1, 0, 0, term_entry(1, 1), order(1, 2, 1, 4), order(1, 3, 5, 9), commit=1))
    assert follower.log.last == 3
    follower.pending.new_term()
    assert follower.take(append(2, 1, 1, term_entry(2, 2), order(2, 3, 1, 7)))
    assert [follower.log.term_at(index) for index in (1, 2, 3)] == [1, 2, 2]
    assert follower.log.tail.next == {S: 8}
    assert follower.pending.match == 3


def test_entries_of_an_earlier_leader_are_not_acknowledged_before_they_are_verified() -> None:
    follower = Taker()
    follower.take(append(1, 0, 0, term_entry(1, 1), term_entry(1, 2), term_entry(1, 3), commit=1))
    follower.pending.new_term()
    assert follower.pending.match == 1
    assert follower.take(append(2, 2, 1))
    assert follower.pending.match == 2


def test_a_different_previous_term_is_refused_down_to_what_is_committed() -> None:
    follower = Taker()
    follower.take(append(1, 0, 0, term_entry(1, 1), term_entry(1, 2), commit=1))
    follower.pending.new_term()
    assert not follower.take(append(3, 2, 2, term_entry(3, 3)))
    assert follower.pending.hint == 1


def test_what_is_committed_is_not_replaced_whatever_is_sent() -> None:
    follower = Taker()
    follower.take(append(1, 0, 0, term_entry(1, 1), term_entry(1, 2), commit=2))
    follower.take(append(5, 0, 0, term_entry(5, 1), term_entry(5, 2)))
    assert [follower.log.term_at(index) for index in (1, 2)] == [1, 1]
    assert follower.pending.broken == 1


def test_the_same_frame_twice_changes_nothing() -> None:
    follower = Taker()
    frame = append(1, 0, 0, term_entry(1, 1), term_entry(1, 2), commit=1)
    assert follower.take(frame)
    assert follower.take(frame)
    assert (follower.log.last, follower.pending.match, follower.log.commit) == (2, 2, 1)


def test_an_old_frame_does_not_take_acknowledged_entries_back() -> None:
    follower = Taker()
    first = append(1, 0, 0, term_entry(1, 1))
    follower.take(first)
    follower.take(append(1, 1, 1, term_entry(1, 2)))
    assert follower.take(first)
    assert follower.pending.match == 2


@pytest.mark.parametrize(
    "wrong",
    [
        Entry(1, 2, 7, 0, Kind.ORDER, S, 3, 4),
        Entry(1, 2, 3, 0, Kind.ORDER, S, 4, 5),
        Entry(1, 2, 3, 0, Kind.ORDER, S, 2, 3),
    ],
    ids=["another position", "a number left out", "a number twice"],
)
def test_an_entry_that_does_not_fit_the_order_never_enters_the_log(wrong: Entry) -> None:
    """Rules 3 and 4: every number is covered once, without a hole; agreement is about positions."""
    follower = Taker()
    follower.hold(1, 9)
    follower.take(append(1, 0, 0, order(1, 1, 1, 2), wrong))
    assert follower.log.last == 1
    assert follower.pending.broken == 1
    assert follower.pending.match == 1


def test_what_waits_is_bounded() -> None:
    follower = Taker()
    entries = [order(1, index, index, index) for index in range(1, PENDING_MAX + 11)]
    follower.take(append(1, 0, 0, *entries))
    assert len(follower.pending.entries) == PENDING_MAX
    assert not follower.take(append(1, PENDING_MAX + 10, 1))
    assert follower.pending.hint == PENDING_MAX


def test_of_frames_that_do_not_fit_in_one_turn_the_lowest_place_is_answered() -> None:
    """The first one finds that our tail is an earlier leader's, those behind it only that they lie ahead. If that were
    the answer, the leader would begin above the conflict again, and again."""
    core = Core(GroupConfig("g", ("n1", "n2"), "n1"), node_id("n2"), "n2", 1)
    leader = core.peers.up(node_id("n1"), MemberInfo(node_id("n1"), "n1", 1, ()))
    for index in range(1, 6):
        core.log.append(term_entry(1 if index < 3 else 2, index))
    core.log.commit_to(2)
    following, out = Follower(core), Outbox()
    following.append(leader, append(4, 5, 3, term_entry(4, 6), commit=9), 0, out)
    following.append(leader, append(4, 8, 4, term_entry(4, 9), commit=9), 0, out)
    following.settle(0, out)
    sent = [decode_frame(data) for _, item, _ in out.downs for data in item.messages]
    assert [(frame.ok, frame.hint) for frame in sent if isinstance(frame, AppendResponse)] == [
        (False, 2)
    ]


def test_a_stream_that_the_order_begins_below_what_is_held_is_looked_at() -> None:
    """As after another side of a cut has won: what was let go of here is a gap again."""
    follower = Taker()
    follower.hold(4, 6)
    follower.streams.changed.clear()
    follower.take(append(1, 0, 0, Entry(1, 1, 1, 0, Kind.OPEN, data=encode_data(Opened(S, 1)))))
    assert list(follower.streams.changed) == [S]


def test_what_was_let_go_of_is_taken_again_when_the_order_is_another() -> None:
    """A side of a cut has lost, and the winner's order begins with what was delivered and forgotten here."""
    follower = Taker()
    follower.hold(1, 6)
    follower.streams.streams[S].drop_below(5)
    assert not follower.streams.take(payload(1, 4), 1)
    follower.streams.need_all()
    assert follower.streams.take(payload(1, 4), 1)
    assert follower.streams.holds(S, 1, 6)


def test_what_an_order_that_was_cut_off_had_skipped_is_a_gap() -> None:
    """Nothing new comes of the stream, so nobody would look for what another leader's order has."""
    follower = Taker()
    follower.hold(1, 1)
    follower.hold(3, 4)
    follower.streams.changed.clear()
    assert follower.take(append(2, 0, 0, order(2, 1, 1, 1), order(2, 2, 2, 4)))
    assert (follower.log.last, list(follower.streams.changed)) == (1, [S])
    follower.streams.changed.clear()
    follower.pending.settle()
    assert not follower.streams.changed, "once is enough"
    unknown = StreamId(b"u" * 16, 1, 0)
    entry = Entry(3, 2, 2, 0, Kind.ORDER, unknown, 1, 1)
    follower.pending.new_term()
    assert follower.take(append(3, 1, 2, entry))
    assert not follower.streams.changed, "there may be no room for another stream"


def test_what_is_cut_off_has_gaps_again() -> None:
    """The order had skipped them. Another leader may hold none of it, and then nobody would look (seed 535)."""
    follower = Taker()
    follower.hold(4, 6)
    skip = Entry(1, 2, 1, 0, Kind.SKIP, S, 1, 3, encode_data(Skipped("dropped", 0, 1)))
    assert follower.take(append(1, 0, 0, term_entry(1, 1), skip))
    assert follower.log.tail.next[S] == 4
    follower.streams.changed.clear()
    assert follower.take(append(2, 1, 1, term_entry(2, 2)))
    assert (follower.log.tail.next.get(S), list(follower.streams.changed)) == (None, [S])


def test_a_log_is_cut_where_the_leader_says_that_it_has_another_entry() -> None:
    """Also by a sign of life: the leader may have no entries any more from where the two part."""
    follower = Taker()
    assert follower.take(
        append(1, 0, 0, *(term_entry(1, index) for index in range(1, 6)), commit=2)
    )
    assert not follower.take(append(2, 4, 2))
    assert (follower.log.last, follower.log.commit, follower.pending.hint) == (3, 2, 2)
