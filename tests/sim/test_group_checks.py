"""The books of groups: each passes a good history, and catches the very history that it is there for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.group.config import GroupConfig
from holdfast.group.frames import Entry, Payload, StreamId
from holdfast.group.log.entries import Member, View
from holdfast.group.log.replicated_log import Cursor, Kind, Log
from holdfast.group.ports import APPLY_MAX, Apply, Batch
from holdfast.group.streams.stream_buffer import Streams
from holdfast.sim.checkers.agreement import Agreement
from holdfast.sim.checkers.buffers import Buffers
from holdfast.sim.checkers.calm import ON_THE_WAY_NS, Rest, unrest
from holdfast.sim.checkers.memory import Memory
from holdfast.sim.checkers.sight import Sight, SourceSight, Violation
from holdfast.sim.checkers.undone import Undone
from holdfast.types import NEVER

CONFIG = GroupConfig("book", ("n1", "n2", "n3"))
RED, BLUE = StreamId(b"r" * 16, 1, 0), StreamId(b"b" * 16, 1, 0)
NAMES = ("n1", "n2", "n3")


def add(
    log: Log, stream: StreamId | None = RED, count: int = 1, term: int = 1, kind: Kind = Kind.ORDER
) -> Entry:
    """Append an entry that follows from what is there."""
    tail = log.tail
    if stream is None:
        entry = Entry(term, tail.index + 1, tail.position, 0, Kind.TERM)
    else:
        first = tail.next.get(stream, 1)
        last = first + count - 1
        entry = Entry(term, tail.index + 1, tail.position, 0, kind, stream, first, last)
    log._entries.append(entry)
    tail.advance(entry)
    if kind == Kind.SKIP:
        tail.position = entry.position
    return entry


def log_of(*terms: int, commit: int = 0) -> Log:
    log = Log()
    for term in terms:
        add(log, term=term)
    log.commit = commit
    return log


def view(number: int = 1, **members: dict[str, Any]) -> View:
    """Three voters in their first lives, with changes by name."""
    first = {name: Member(name, name.encode() * 8, 1, voter=True) for name in NAMES}
    changed = [msgspec.structs.replace(m, **members.get(m.name, {})) for m in first.values()]
    return View(number, tuple(changed))


def sight(host: str, log: Log, term: int = 1, **changes: Any) -> Sight:
    values: dict[str, Any] = {
        "group": "book",
        "host": host,
        "boots": 1,
        "incarnation": changes.get("boots", 1),
        "group_epoch": 7,
        "term": term,
        "leading": False,
        "memory": "whole",
        "state": "leading" if changes.get("leading") else "following",
        "why": "",
        "log": log,
        "at": Cursor(),
        "applied": log.last,
        "outstanding": 0,
        "waiting": 0,
        "leader": "n1",
        "view": view(),
        "streams": Streams(1 << 20, 16),
        "config": CONFIG,
    }
    return Sight(**(values | changes))


def caught(invariant: str) -> Any:
    return pytest.raises(Violation, match=invariant)


# -- one leader, one log (1, 2, 3, 5) ----------------------------------------------------------------------------


def test_a_leader_that_goes_on_and_replicas_that_follow_it_are_fine() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(1, 1, commit=1), leading=True))
    book.see(sight("n2", log_of(1, 1, commit=1)))
    book.see(sight("n1", log_of(1, 1, 1, commit=3), leading=True))
    book.see(sight("n3", log_of(1, 1, 1, 2, commit=3), term=2, leading=True))
    assert sorted(book.committed) == [1, 2, 3]


def test_two_leaders_in_one_term_are_caught() -> None:
    book = Agreement()
    book.see(sight("n1", Log(), term=4, leading=True))
    with caught("one leader in a term.*n2 leads term 4, and so did n1"):
        book.see(sight("n2", Log(), term=4, leading=True))


def test_a_leader_that_restarts_and_leads_the_same_term_again_is_caught() -> None:
    book = Agreement()
    book.see(sight("n1", Log(), term=4, leading=True))
    with caught("one leader in a term"):
        book.see(sight("n1", Log(), term=4, leading=True, boots=2))


def test_a_leader_that_lacks_what_was_committed_before_is_caught() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(1, 1, 1, commit=3), leading=True))
    with caught("n2 leads term 2 without entry 3; earlier terms committed up to 3"):
        book.see(sight("n2", log_of(1, 1), term=2, leading=True))


def test_a_leader_with_another_entry_in_the_place_of_a_committed_one_is_caught() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(1, 1, commit=2), leading=True))
    other = Log()
    add(other)
    add(other, BLUE)
    with caught("n2 leads term 2 without entry 2"):
        book.see(sight("n2", other, term=2, leading=True))


def test_a_late_leader_of_an_earlier_term_need_not_have_what_a_later_term_committed() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(5, 5, commit=2), term=5, leading=True))
    book.see(sight("n2", log_of(1), term=4, leading=True))


def test_other_entries_committed_at_one_index_are_caught() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(1, 1, commit=2), leading=True))
    with caught("replicas commit one log.*entry 2"):
        book.see(sight("n2", log_of(1, 2, commit=2), term=2))


def test_a_state_that_ends_elsewhere_than_the_committed_log_is_caught() -> None:
    book = Agreement()
    book.see(sight("n1", log_of(1, 1, commit=2), leading=True))
    restored = Log()
    restored.restart(Cursor(2, 1, position=9))
    with caught("replicas commit one log.*continues after entry 2 of term 1 at position 9"):
        book.see(sight("n2", restored))


def test_a_number_that_no_entry_covers_is_caught() -> None:
    log = log_of(1)
    hole = Entry(1, 2, 2, 0, Kind.ORDER, RED, 3, 3)
    log._entries.append(hole)
    log.tail.advance(hole)
    log.commit = 2
    with caught("every number is covered once.*covers 3 to 3 of a stream that continues with 2"):
        Agreement().see(sight("n1", log, leading=True))


def apply(index: int, position: int, first: int, count: int = 1, stream: StreamId = RED) -> Apply:
    batch = Batch(position, stream, first, [memoryview(b"m")] * count)
    return Apply("replica/book", index, 0, batch, count)


def skipping() -> Agreement:
    """Message 1 is ordered, 2 and 3 are skipped, 4 is ordered."""
    log, book = Log(), Agreement()
    add(log)
    add(log, count=2, kind=Kind.SKIP)
    add(log)
    log.commit = 3
    book.see(sight("n1", log, leading=True))
    return book


def test_what_the_log_orders_is_delivered_and_what_it_skips_is_counted() -> None:
    book = skipping()
    book.delivers("n1", apply(1, 1, 1))
    book.delivers("n1", apply(3, 2, 4))
    assert book.skipped() == {RED: 2}


@pytest.mark.parametrize(
    "wrong",
    [
        apply(2, 2, 2, count=2),
        apply(1, 1, 1, count=2),
        apply(1, 2, 1),
        apply(1, 1, 2),
        apply(1, 1, 1, stream=BLUE),
    ],
    ids=["skipped", "too many", "other position", "other number", "other stream"],
)
def test_a_delivery_that_the_log_does_not_order_is_caught(wrong: Apply) -> None:
    with caught("deliveries match the log"):
        skipping().delivers("n1", wrong)


def test_a_delivery_before_its_entry_is_committed_is_caught() -> None:
    with caught("nothing is delivered that is not committed.*delivers entry 4; committed is 3"):
        skipping().delivers("n1", apply(4, 3, 5))


def leaping() -> tuple[Agreement, Log]:
    """Message 1 is seen; 2 and 3 are skipped, which is decided and let go of in one turn."""
    log, book = Log(), Agreement()
    add(log)
    log.commit = 1
    book.see(sight("n1", log, leading=True))
    add(log, count=2, kind=Kind.SKIP)
    log.commit = 2
    log.trim(2)
    log.ground.position = log.tail.position
    return book, log


def test_what_is_skipped_and_let_go_of_in_one_turn_is_counted() -> None:
    book, log = leaping()
    add(log)
    log.commit = 3
    book.see(sight("n1", log, leading=True))
    assert book.skipped() == {RED: 2}


def test_what_one_alone_had_in_its_log_before_it_was_decided_is_known_when_it_is_gone() -> None:
    log, book = Log(), Agreement()
    log.tail.view = view().without("n2").without("n3")
    add(log)
    log.commit = 1
    book.see(sight("n1", log, leading=True))
    made = add(log)
    book.see(sight("n1", log, leading=True))
    log.commit = 2
    log.trim(2)
    book.see(sight("n1", log, leading=True))
    assert book.committed[2] == made
    assert book.skipped() == {RED: 0}


def test_messages_that_are_let_go_of_in_the_turn_that_decides_them_are_caught() -> None:
    book, log = leaping()
    log.ground.position += 1
    add(log)
    log.commit = 3
    with caught("replicas commit one log.*in the turn that committed them"):
        book.see(sight("n1", log, leading=True))


# -- what is applied and turns out not to be the order (rule 11) -------------------------------------------------


def applied_two() -> tuple[Undone, Log]:
    """n1 has applied two entries; the second is not decided."""
    book, log = Undone(), log_of(1, 1, commit=1)
    book.see(sight("n1", log), False)
    book.delivers(("n1", 1), apply(1, 1, 1))
    book.delivers(("n1", 1), apply(2, 2, 2))
    book.see(sight("n1", log), False)
    return book, log


def test_only_what_the_own_log_has_is_delivered() -> None:
    book, _ = applied_two()
    with caught("deliveries match the log.*entry 3, which its log does not have"):
        book.delivers(("n1", 1), apply(3, 3, 3))


@pytest.mark.parametrize("how", ["cut", "another stream", "another term"])
def test_one_that_goes_on_with_what_is_decided_otherwise_is_caught(how: str) -> None:
    book, log = applied_two()
    log.truncate(2)
    if how != "cut":
        add(log, RED if how == "another term" else BLUE, term=2 if how == "another term" else 1)
    with caught(
        "applied messages that are not in the order are rolled back.*n1 continues as following"
    ):
        book.see(sight("n1", log, term=1 if how == "another stream" else 2), False)


def test_one_that_gives_it_up_is_fine_and_counted() -> None:
    book, log = applied_two()
    log.truncate(2)
    book.see(sight("n1", log, term=2, state="suspended"), True)
    book.see(sight("n1", log, term=2), False)
    assert book.reported == 1


def test_one_that_gives_way_to_a_term_that_is_no_later_is_caught() -> None:
    book, log = applied_two()
    log.truncate(2)
    with caught("the later term wins.*n1 rolls back entries of term 1, in term 1"):
        book.see(sight("n1", log, term=1, state="suspended"), True)


def test_what_the_log_has_let_go_of_was_decided() -> None:
    book, log = applied_two()
    log.commit = 2
    log.trim(2)
    book.see(sight("n1", log, term=2), False)


# -- whether a group can remember --------------------------------------------------------------------------------


def memory(*, durable: bool = False) -> Memory:
    book = Memory(durable)
    for name in NAMES:
        book.see(sight(name, Log()))
    return book


def test_a_minority_that_ends_takes_no_memory_along() -> None:
    book = memory()
    book.ended("n1", 1)
    assert not book.lost


def test_a_majority_that_ends_is_the_end_of_a_groups_memory() -> None:
    book = memory()
    book.ended("n1", 1)
    book.ended("n2", 1)
    assert (book.lost, book.losses) == (True, 1)


def test_a_replica_that_was_admitted_again_can_have_its_state() -> None:
    book = memory()
    book.ended("n1", 1)
    book.see(sight("n1", Log(), boots=2, view=view(2, n1={"life": 2})))
    book.ended("n2", 1)
    assert not book.lost


def test_a_replica_that_was_not_admitted_yet_cannot() -> None:
    book = memory()
    book.ended("n1", 1)
    book.see(sight("n1", Log(), boots=2, group_epoch=0, view=None))
    book.ended("n2", 1)
    assert book.lost


def test_only_voters_of_the_last_view_count() -> None:
    book = memory()
    book.see(sight("n1", Log(), view=view(2, n3={"voter": False})))
    book.see(sight("n2", Log()))
    book.ended("n3", 1)
    book.ended("n2", 1)
    assert not book.lost, "one of two voters has it all"
    book.ended("n1", 1)
    assert book.lost


def test_a_group_without_a_replica_that_has_its_state_has_lost_its_memory() -> None:
    for durable in (False, True):
        book = Memory(durable)
        for name in NAMES:
            book.see(sight(name, Log(), view=view(n1={"life": 0}, n2={"life": 0}, n3={"life": 0}))
                     if durable else sight(name, Log()))  # fmt: skip
        book.gave_up("n1", 1)
        book.gave_up("n2", 1)
        book.restored("n1", 1)
        book.gave_up("n3", 1)
        assert not book.lost
        book.gave_up("n1", 1)
        assert book.lost
        assert book.is_stateless("n1", 1)


def test_a_durable_group_always_has_its_state() -> None:
    book = memory(durable=True)
    for name in NAMES:
        book.ended(name, 1)
    assert not book.lost


def test_creating_a_group_again_although_a_replica_has_its_state_is_caught() -> None:
    book = memory()
    book.ended("n1", 1)
    with caught("a group that has its state is not re-created.*n1 belongs to epoch 8"):
        book.see(sight("n1", Log(), boots=2, group_epoch=8))


def test_a_group_that_has_lost_its_memory_may_be_founded_again() -> None:
    book = memory()
    book.ended("n1", 1)
    book.ended("n2", 1)
    book.see(sight("n1", Log(), boots=2, group_epoch=8))
    assert (book.group_epoch, book.lost, book.losses) == (8, False, 1)
    book.see(sight("n3", Log()))
    assert book.group_epoch == 8, "one that is left over from the old history changes nothing"


# -- buffers (4, 9) ----------------------------------------------------------------------------------------------


def trimmed(upto: int, *terms: int) -> Log:
    log = log_of(*terms, commit=len(terms))
    log.trim(upto)
    return log


def test_entries_that_all_replicas_have_may_be_freed() -> None:
    book = Buffers()
    book.see(sight("n2", log_of(1, 1)))
    book.see(sight("n1", log_of(1, 1, 1)))
    book.see(sight("n1", trimmed(2, 1, 1, 1)))


def test_letting_go_of_what_a_member_lacks_is_caught() -> None:
    book = Buffers()
    book.see(sight("n2", log_of(1, 1)))
    book.see(sight("n1", log_of(1, 1, 1)))
    with caught("n1 has freed entries up to 3, n2 has only reached 2"):
        book.see(sight("n1", trimmed(3, 1, 1, 1)))


@pytest.mark.parametrize(
    "excuse",
    [{"memory": "blank"}, {"memory": "learning"}, {"state": "suspended"}, {"state": "restoring"}],
)
def test_one_that_will_be_given_a_state_is_not_waited_for(excuse: dict[str, str]) -> None:
    book = Buffers()
    book.see(sight("n2", log_of(1, 1), **excuse))
    book.see(sight("n1", log_of(1, 1, 1)))
    book.see(sight("n1", trimmed(3, 1, 1, 1)))


def test_one_that_was_suspended_or_has_ended_is_not_waited_for() -> None:
    for way in ("suspended", "ended"):
        book = Buffers()
        book.see(sight("n2", log_of(1)))
        book.see(sight("n1", log_of(1, 1, 1)))
        if way == "ended":
            book.ended("n2")
        decided = view(2, n2={"suspended": True}) if way == "suspended" else view()
        book.see(sight("n1", trimmed(3, 1, 1, 1), view=decided))


def test_a_state_that_takes_the_place_of_a_log_is_no_letting_go() -> None:
    book = Buffers()
    book.see(sight("n2", log_of(1)))
    book.see(sight("n1", log_of(1, 1, 1)))
    book.restored(("n1", 1), 3)
    book.see(sight("n1", trimmed(3, 1, 1, 1)))


def test_letting_go_of_more_than_a_state_brought_is_caught() -> None:
    book = Buffers()
    book.see(sight("n2", log_of(1)))
    book.see(sight("n1", log_of(1, 1, 1)))
    book.restored(("n1", 1), 2)
    with caught("n1 has freed entries up to 3, n2 has only reached 1"):
        book.see(sight("n1", trimmed(3, 1, 1, 1)))


def admitted_again() -> Buffers:
    """n2 was removed when it had one entry, and is let in again with the fourth; it still has the view of before."""
    book, out = Buffers(), view().without("n2")
    book.see(sight("n2", log_of(1)))
    book.see(sight("n1", log_of(1, 1, 1, commit=3), view=out))
    back = out.with_member(Member("n2", b"n2" * 8, 1, voter=False, promote=True))
    book.see(sight("n1", log_of(1, 1, 1, 1, commit=4), view=back))
    return book


def test_a_replica_that_is_admitted_again_may_not_ask_for_entries_committed_without_it() -> None:
    book = admitted_again()
    book.see(sight("n3", trimmed(3, 1, 1, 1)))
    book.see_source(source(freed=3))


def test_freeing_what_came_after_a_member_was_admitted_again_is_caught() -> None:
    book = admitted_again()
    with caught("n3 has freed entries up to 5, n2 has only reached 4"):
        book.see(sight("n3", trimmed(5, 1, 1, 1, 1, 1)))
    with caught("the source of n4 has freed messages up to 5, n2 has only reached 4"):
        book.see_source(source(freed=5))


def test_the_index_of_an_admission_means_nothing_once_the_group_is_recreated() -> None:
    book = admitted_again()
    for name in NAMES:
        book.see(sight(name, log_of(1, 1, commit=2), group_epoch=8))
    book.see_source(source(freed=2))
    with caught("the source of n4 has freed messages up to 3, n1 has only reached 2"):
        book.see_source(source(freed=3))


def source(**changes: Any) -> SourceSight:
    seen = SourceSight("book", "n4", RED, last=9, freed=0, held=0, window=1000)
    return msgspec.structs.replace(seen, **changes)


def test_a_source_that_lets_go_of_what_a_replica_lacks_is_caught() -> None:
    book = Buffers()
    book.see(sight("n1", log_of(1, 1, 1)))
    book.see(sight("n2", log_of(1, 1)))
    book.see_source(source(freed=2))
    with caught("the source of n4 has freed messages up to 3, n2 has only reached 2"):
        book.see_source(source(freed=3))


def held(size: int) -> Streams:
    streams = Streams(1 << 30, 1000)
    stream = streams.open(RED)
    assert stream is not None
    stream.bytes = size
    return streams


def many_streams() -> Streams:
    streams = Streams(1 << 30, CONFIG.streams + 1)
    for number in range(CONFIG.streams + 1):
        streams.open(StreamId(b"x" * 16, number, 0))
    return streams


SMALL_LOG = msgspec.structs.replace(CONFIG, log_entries=10)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"streams": held(3 * CONFIG.window_bytes)}, "bytes of a stream"),
        ({"streams": many_streams()}, "streams"),
        ({"log": log_of(*[1] * 100), "config": SMALL_LOG}, "entries in the log"),
        ({"waiting": 10_000}, "entries that wait"),
        ({"outstanding": 2 * APPLY_MAX}, "bytes at the application"),
    ],
)
def test_what_grows_beyond_its_bound_is_caught(changes: dict[str, Any], what: str) -> None:
    Buffers.bounds(sight("n1", log_of(1)))
    seen = sight("n1", log_of(1))
    with caught(f"buffers are bounded.*{what}"):
        Buffers.bounds(msgspec.structs.replace(seen, **changes))


def test_a_source_that_holds_more_than_it_may_is_caught() -> None:
    Buffers.source_bounds(source(held=2000))
    with caught("buffers are bounded.*1000000 bytes held"):
        Buffers.source_bounds(source(held=1_000_000))


# -- at rest (8) -------------------------------------------------------------------------------------------------


def quiet() -> list[Sight]:
    log = log_of(1, commit=1)
    return [sight("n1", log, leading=True), sight("n2", log), sight("n3", log)]


def test_a_group_at_rest_is_at_rest() -> None:
    assert unrest(quiet(), [source()], NAMES) == ""


def with_payload() -> Streams:
    streams = Streams(1 << 20, 16)
    streams.take(Payload("book", RED, 1, 1, 0, memoryview(b"block")), 1)
    return streams


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({"leading": True}, "n1, n2 leads"),
        (
            {"state": "suspended", "why": "the application failed"},
            "n2 is suspended: the application",
        ),
        ({"state": "starting"}, "n2 is starting"),
        ({"memory": "learning"}, "n2 has not become a member again"),
        ({"term": 2}, "n2 follows n1 in term 2; n1 leads 1"),
        ({"group_epoch": 8}, "n2 is in another epoch than n1"),
        ({"leader": "n3"}, "n2 follows n3 in term 1; n1 leads 1"),
        ({"applied": 0}, "n2 has applied 0; n1 has 1 entries"),
        ({"waiting": 1}, "n2 has applied 1"),
        ({"log": log_of()}, "n2 has applied 1; n1 has 1 entries"),
        ({"streams": with_payload()}, "n2 still holds 261 bytes"),
        ({"kept": 88}, "n2 still keeps 88 bytes of outputs"),
    ],
)
def test_everything_that_is_not_at_rest_is_named(changes: dict[str, Any], trouble: str) -> None:
    sights = quiet()
    sights[1] = msgspec.structs.replace(sights[1], **changes)
    assert trouble in unrest(sights, [source()], NAMES)


def test_a_long_log_is_named() -> None:
    log = log_of(*[1] * 100, commit=100)
    sights = [sight("n1", log, leading=True), sight("n2", log), sight("n3", log)]
    assert unrest(sights, [], NAMES) == "n1 still holds 100 entries"


def test_a_member_without_a_replica_is_named() -> None:
    assert unrest(quiet()[:2], [], NAMES) == "n3 runs no replica"


def test_a_group_without_leader_is_reported_with_the_states_of_its_replicas() -> None:
    sights = [msgspec.structs.replace(one, leading=False, state="starting") for one in quiet()]
    assert unrest(sights, [], NAMES).startswith("no replica leads; n1 is starting")


def test_a_source_that_holds_something_is_named() -> None:
    assert "n4 still holds 5 bytes" in unrest(quiet(), [source(held=5)], NAMES)


def test_an_entry_on_the_way_at_the_end_is_no_unrest() -> None:
    """Seed 99 of `holdfast sim groups --services`: at the end of the run, the followers do not know yet that the last
    renewal of a lock is committed."""
    rest = Rest()
    assert not rest.look(False, 1_000)
    assert rest.look(True, 2_000)
    assert rest.look(False, 2_000 + ON_THE_WAY_NS)
    assert rest.since_ns == 2_000
    assert not rest.look(False, 2_001 + ON_THE_WAY_NS)
    assert rest.since_ns == NEVER
