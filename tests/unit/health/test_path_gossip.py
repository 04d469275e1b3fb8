"""What the table means: classes of errors, alarms, history, queries, clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.health.hamlet import Hamlet, Villager

from holdfast.health.classify import CLASSES, SoftError, size_band, text_of
from holdfast.health.config import Signatures
from holdfast.health.frames import PathRow
from holdfast.health.ports import Fresh, ResetHistory, WallClock
from holdfast.health.table import queries
from holdfast.health.table.alarms import FLAP_WINDOW_NS
from holdfast.health.table.path_history import PATH_HISTORY, PathHistory
from holdfast.health.table.report import raw_report
from holdfast.health.table.subscriptions import WINDOW
from holdfast.health.table.values import (
    Filter,
    HealthNews,
    RowChange,
    Subscribe,
    TableSnapshot,
    Taken,
    Unsubscribe,
)
from holdfast.health.verdict import find_errors, vector_of
from holdfast.machine import Outbox, Put
from holdfast.telemetry.facts import NodeFact
from holdfast.types import SECOND

A, B = b"a" * 16, b"b" * 16
PATH = (A, "red", B, "red")


def row(kind: str = "udp", **values: Any) -> PathRow:
    fields: dict[str, Any] = {"alive": True, "size": 1500, "size_max": 1500}
    fields |= {"loss_ppm": 0, "rtt_us": 100, "n": 1} | values
    return PathRow(A, "red", B, "red", kind, 1, **fields)


def rows(*given: PathRow) -> dict[str, PathRow]:
    return {one.transport: one for one in given}


def errors_of(there: dict[str, PathRow], back: dict[str, PathRow]) -> tuple[SoftError, ...]:
    return find_errors(map(vector_of, there.values()), map(vector_of, back.values()))


SOUND = rows(row(), row("tcp"))


# -- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "back", "expected"),
    [
        (SOUND, SOUND, []),
        ({}, SOUND, []),
        (rows(row(size=1000)), SOUND, [("size", "udp", True)]),
        (rows(row(size=1000)), rows(row(size=1280)), [("size", "udp", False)]),
        (rows(row(size=1000)), {}, [("size", "udp", None)]),
        (rows(row(size=1000)), rows(row(alive=False)), [("size", "udp", None)]),
        (rows(row(holes=(1280,))), SOUND, [("size", "udp", True)]),
        (rows(row(bad_patterns=("55",))), SOUND, [("pattern", "udp", True)]),
        (rows(row(flows=4, flows_bad=1)), SOUND, [("flows", "udp", True)]),
        (rows(row(loss_ppm=200_000)), SOUND, [("loss", "udp", True)]),
        # The other listener may need longer to distinguish its loss from chance.
        (rows(row(loss_ppm=200_000)), rows(row(loss_ppm=15_000)), [("loss", "udp", None)]),
        (rows(row(alive=False), row("tcp")), SOUND, [("protocol", "udp", True)]),
        (rows(row(), row("multicast", alive=False)), SOUND, [("multicast", "multicast", True)]),
        (rows(row(alive=False), row("tcp", alive=False)), SOUND, [("dead", "", True)]),
        (
            rows(row(size=1000, loss_ppm=50_000), row("tcp", alive=False)),
            SOUND,
            [("size", "udp", True), ("protocol", "tcp", False), ("loss", "udp", True)],
        ),
        # A connection needs both directions: the one that is filtered cannot be told.
        (rows(row(), row("tcp", alive=False)), SOUND, [("protocol", "tcp", False)]),
    ],
)
def test_an_error_has_a_class_and_a_direction_only_if_the_way_back_is_heard(
    there: dict[str, PathRow], back: dict[str, PathRow], expected: list[tuple[str, str, Any]]
) -> None:
    """H15. Direction is claimed only if the reverse path passes basics."""
    found = [(error.error_class, error.kind, error.one_way) for error in errors_of(there, back)]
    assert found == expected


@pytest.mark.parametrize(
    ("size", "band"),
    [
        (576, "below 1500"),
        (1499, "below 1500"),
        (1500, "at 1500"),
        (4000, "above 1500"),
        (9000, "at 9000"),
        (9001, "above 9000"),
    ],
)
def test_a_size_limit_lies_below_at_or_above_what_networks_are_built_for(
    size: int, band: str
) -> None:
    assert size_band(size) == band


@pytest.mark.parametrize("error_class", CLASSES)
@pytest.mark.parametrize("one_way", [True, False, None])
def test_every_class_says_where_and_why_in_one_sentence(error_class: str, one_way: Any) -> None:
    error = SoftError(error_class, "udp", 1000, ("4",), one_way)
    text = text_of(error, "a/eth0", "b/eth0")
    assert "a/eth0" in text
    assert "b/eth0" in text
    assert ("one way only" in text) is (one_way is True)
    assert ": " in text
    assert "\n" not in text


def test_the_text_of_a_size_limit_names_the_payload_and_the_mtu() -> None:
    (error,) = errors_of(rows(row(size=1400)), SOUND)
    text = text_of(error, "a/eth0", "b/eth0")
    assert text.startswith(
        "UDP packets over 1400 bytes (1372 of payload) vanish from a/eth0 to b/eth0, one way only: "
    )
    assert "smaller MTU" in text


# -- alarms ----------------------------------------------------------------------------------------------------------


class Watch:
    """One villager and its neighbour, watched closely."""

    def __init__(self) -> None:
        self.hamlet = Hamlet(2, meet=False)
        self.me, self.peer = self.hamlet.villagers
        self.facts: list[NodeFact] = []
        self.news: list[HealthNews] = []
        self.writes: list[Any] = []

    def give(self, *items: Any) -> None:
        out = Outbox()
        self.me.path_gossip.up(self.hamlet.now, list(items), out)
        if self.me.path_gossip.deadline <= self.hamlet.now:
            self.me.path_gossip.wake(self.hamlet.now, out)
        self.facts += out.facts
        self.news += [effect for effect, _ in out.effects]
        self.writes += out.writes

    def hear(self, **values: Any) -> None:
        self.hamlet.measure(self.me, self.peer, **values)
        self.give(Fresh())

    def later(self, seconds: float) -> None:
        end = self.hamlet.now + round(seconds * SECOND)
        while self.me.path_gossip.deadline <= end:
            self.hamlet.now = max(self.hamlet.now, self.me.path_gossip.deadline)
            self.give()
        self.hamlet.now = end

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(fact.event, fact.detail.split(" ")[0]) for fact in self.facts]

    @property
    def path(self) -> tuple[bytes, str, bytes, str]:
        return self.peer.id, "red", self.me.id, "red"

    def shown(self) -> list[queries.Incident]:
        return queries.incidents(self.me.path_gossip, self.hamlet.now)

    def incidents(self) -> list[str]:
        return [incident.error_class for incident in self.shown()]


def test_an_alarm_comes_once_and_goes_once() -> None:
    """Alarms name peer, path, direction, class; repeats collapse."""
    watch = Watch()
    watch.hear()
    for _ in range(5):
        watch.hear(size=1000)
        watch.later(1)
    watch.hear(size=576)
    assert watch.told == [("alarm", "UDP")]
    (incident,) = queries.incidents(watch.me.path_gossip, watch.hamlet.now)
    assert incident.count == 2
    assert incident.direction == "unknown"
    assert incident.band == "below 1500"
    assert incident.since_s == 5.0
    watch.hear()
    assert watch.told == [("alarm", "UDP"), ("alarm_over", "UDP")]
    assert watch.incidents() == []


def test_an_incident_states_the_loss_of_now_and_not_of_when_it_was_found() -> None:
    watch = Watch()
    watch.hear(loss_ppm=42_000)
    watch.later(5)
    watch.hear(loss_ppm=201_000)
    (incident,) = queries.incidents(watch.me.path_gossip, watch.hamlet.now)
    assert incident.text.startswith("20.1 % of UDP packets are lost")
    assert watch.told == [("alarm", "4.2")], "it is the same alarm"


def test_different_faults_one_after_the_other_are_not_flapping() -> None:
    """Limits of several sizes, and a filter, within less than a minute."""
    watch = Watch()
    watch.hear()
    for fault in ({"size": 1000}, {"size": 576}, {"size": 1280}, {"loss_ppm": 200_000}):
        watch.hear(**fault)
        watch.later(3)
        watch.hear()
        watch.later(3)
    assert "the" not in [word for _, word in watch.told]
    assert watch.incidents() == []


def test_a_path_that_flaps_is_reported_once_until_it_has_been_calm() -> None:
    watch = Watch()
    watch.hear()
    for _ in range(20):
        watch.hear(size=1000)
        watch.later(1)
        watch.hear()
        watch.later(1)
    flapping = [event for event, word in watch.told if word == "the"]
    assert flapping == ["alarm"]
    assert len(watch.told) < 8, "three times to and fro, and then only that it flaps"
    assert watch.incidents() == ["flapping"]
    watch.later(FLAP_WINDOW_NS / SECOND + 15)
    assert watch.incidents() == []
    assert watch.told[-1] == ("alarm_over", "the")


def test_a_path_that_dies_is_not_taken_for_filtered_because_one_kind_fell_silent_first() -> None:
    watch = Watch()
    watch.hear()
    base = watch.me.table.rows[(*watch.path, "udp")]
    values = {name: getattr(base, name) for name in base.__struct_fields__}

    def tcp(alive: bool) -> None:
        watch.me.version += 1
        watch.me.table.put(
            PathRow(**{**values, "transport": "tcp", "n": watch.me.version, "alive": alive}),
            watch.hamlet.now,
        )
        watch.give(Fresh())

    tcp(alive=True)
    watch.hear(alive=False)
    watch.later(0.3)
    tcp(alive=False)
    watch.later(5)
    assert [word for _, word in watch.told] == ["nothing"]
    assert watch.me.path_gossip.history.last_error_ns(watch.path, "protocol") is None
    tcp(alive=True)
    watch.later(5)
    assert watch.incidents() == ["protocol"], "one kind that stays silent is"


def test_a_connection_that_is_replaced_at_once_is_no_filter_of_tcp() -> None:
    """A size limit of TCP in both directions: the connection with data gets stuck, and is closed after a while."""
    watch = Watch()
    watch.hear()
    watch.hear(transport="tcp")
    watch.later(5)
    watch.hear(transport="tcp", alive=False)
    watch.later(0.1)
    watch.hear(transport="tcp")
    watch.later(1)
    assert watch.told == []
    watch.hear(transport="tcp", alive=False)
    watch.later(5)
    assert watch.incidents() == ["protocol"]


def test_a_limit_of_all_datagrams_that_ends_is_not_called_one_of_multicast() -> None:
    """`holdfast sim health --seeds 3001..3001 --family flows`. Multicast is tried again less often than datagrams."""
    watch = Watch()
    watch.hear()
    watch.hear(transport="multicast")
    watch.later(5)
    watch.hear(size=576)
    watch.hear(size=576, transport="multicast")
    watch.later(3)
    assert [(e.error_class, e.transport) for e in watch.shown()] == [("size", "udp")]
    watch.hear()
    watch.later(2)
    assert watch.incidents() == []
    watch.hear(transport="multicast")
    watch.later(5)
    watch.hear(size=576, transport="multicast")
    watch.later(1)
    assert [(e.error_class, e.transport) for e in watch.shown()] == [("size", "multicast")]


# -- history ---------------------------------------------------------------------------------------------------------


def test_history_keeps_the_time_of_the_last_error_across_a_restart() -> None:
    """H11, H16: 'no size error in the past 30 days'."""
    watch = Watch()
    watch.give(WallClock(1_000_000 * SECOND))
    watch.hear()
    watch.later(10)
    watch.hear(size=1000)
    watch.later(10)
    wall = watch.hamlet.now + 1_000_000 * SECOND
    path_gossip = watch.me.path_gossip
    assert path_gossip.history.last_error_ns(watch.path, "size", wall) == wall, "it has it now"
    watch.hear()
    watch.later(100)
    stored: dict[bytes, bytes] = {}
    for write in watch.writes:
        assert isinstance(write, Put)
        assert write.table == PATH_HISTORY
        stored[write.key] = write.value
    again = PathHistory(sorted(stored.items()))
    assert again.last_error_ns(watch.path, "size", wall + 500 * SECOND) == wall
    assert again.last_error_ns(watch.path, "pattern") is None
    assert [change.row and change.row.size for change in again.changes()] == [1500, 1000, 1500]
    assert [change.errors for change in again.changes(error_class="size")] == [("size",)]
    assert len(again.changes(since_ns=wall)) == 1
    assert again.changes(path=(A, "x", B, "y")) == []


def test_a_reset_clears_the_history_and_records_who_ordered_it() -> None:
    watch = Watch()
    watch.hear()
    watch.hear(size=1000)
    watch.hear()
    watch.give(ResetHistory(watch.path, "ann", "new cable"))
    history = watch.me.path_gossip.history
    assert history.last_error_ns(watch.path, "size") is None
    (only,) = history.changes()
    assert (only.by, only.note, only.row) == ("ann", "new cable", None)
    stored: dict[bytes, bytes] = {}
    for write in watch.writes:
        if isinstance(write, Put):
            stored[write.key] = write.value
        else:
            for key in [key for key in stored if write.first <= key < write.stop]:
                del stored[key]
    assert PathHistory(sorted(stored.items())).changes() == [only]
    watch.hear(size=576)
    assert history.last_error_ns(watch.path, "size") is not None


def test_history_is_bounded_and_does_not_lose_the_last_error() -> None:
    kept, out = PathHistory(per_path=5, changes_max=8), Outbox()
    kept.mark(7, PATH, ("size",), out)
    kept.mark(8, PATH, (), out)
    for number in range(30):
        other = (A, f"a{number % 4}", B, "red")
        kept.note(number, PATH if number % 2 else other, row(), (), out)
    assert len(kept.changes()) == 8
    assert len(kept.changes(PATH)) <= 5
    assert kept.last_error_ns(PATH, "size") == 8
    assert sum(not isinstance(write, Put) for write in out.writes) == 22


def test_what_cannot_be_read_in_the_store_is_passed_over() -> None:
    assert PathHistory([(b"c12345678", b"\xff"), (b"e", b"\x01"), (b"", b"")]).changes() == []


# -- queries ---------------------------------------------------------------------------------------------------------


def trio(**broken: Any) -> Villager:
    """Three that hear each other on udp; the path from 1 to 2 is as `broken` says. Returns 0."""
    hamlet = Hamlet(3)
    everybody = hamlet.villagers
    for listener in everybody:
        for sender in everybody:
            if listener is not sender:
                values = broken if (sender.number, listener.number) == (1, 2) else {}
                given: dict[str, Any] = {"patterns": ("00", "55"), **values}
                hamlet.measure(listener, sender, **given)
        hamlet.give(listener, Fresh())
    hamlet.run(3)
    return everybody[0]


def test_find_asks_both_directions() -> None:
    """3.A: adapters that are able to exchange packets of minimum size x."""
    path_gossip = trio(size=1000).path_gossip
    assert len(queries.find(path_gossip, size=1000).pairs) == 3
    assert queries.find(path_gossip, size=1000).everyone
    found = queries.find(path_gossip, size=1001)
    assert len(found.pairs) == 2
    assert len(found.adapters) == 3
    assert not found.everyone
    assert queries.find(path_gossip, protocol="tcp").pairs == ()
    assert queries.find(path_gossip, subnet="blue").pairs == ()
    assert len(queries.find(path_gossip, subnet="red", protocol="udp").pairs) == 3


def test_find_takes_only_what_is_known_to_pass() -> None:
    path_gossip = trio(bad_patterns=("55",), holes=(1280,)).path_gossip
    assert len(queries.find(path_gossip, pattern="55").pairs) == 2
    assert len(queries.find(path_gossip, pattern="00").pairs) == 3
    assert queries.find(path_gossip, pattern="ff").pairs == (), "nobody probes it"
    assert len(queries.find(path_gossip, size=1000).pairs) == 2, "there is a hole above"
    assert len(queries.find(path_gossip, size=1500).pairs) == 3


def test_values_say_what_holds_everywhere_in_a_subnet() -> None:
    """3.B"""
    answer = queries.values(trio(size=1000, bad_patterns=("55",), loss_ppm=7).path_gossip, "red")
    assert len(answer.adapters) == 3
    (udp,) = answer.kinds
    assert (udp.paths, udp.alive, udp.size_all, udp.size_best, udp.size_max) == (
        6,
        6,
        1000,
        1500,
        1500,
    )
    assert (udp.patterns, udp.bad_patterns, udp.loss_ppm_worst) == (("00",), ("55",), 7)


def test_no_size_passes_everywhere_in_a_subnet_with_a_dead_path() -> None:
    (udp,) = queries.values(trio(alive=False).path_gossip, "red").kinds
    assert (udp.paths, udp.alive, udp.size_all, udp.size_best) == (6, 5, 0, 1500)


def test_the_raw_report_has_the_form_of_the_seed() -> None:
    """4.3"""
    villager = trio(size=1000, bad_patterns=("55",))
    hamlet_ids = sorted(villager.table.listeners)
    sender = next(
        n
        for n in hamlet_ids
        if any(k[0] == n and r.size == 1000 for k, r in villager.table.rows.items())
    )
    text = raw_report(villager.path_gossip, sender, "red", Signatures())
    lines = [line.split(":")[0] for line in text.splitlines()]
    assert lines[:6] == [
        "adapter",
        "listeners",
        "diagnostics monitored",
        "collated diagnostics",
        "diagnostics range",
        "values by listeners",
    ]
    assert "packet_size, UDP, bitpattern_test" in text
    sizes = next(line for line in text.splitlines() if line.startswith("packet_size (UDP)"))
    assert sorted(sizes.split()[2:]) == ["1000", "max"]
    assert "0 (55)" in text
    assert "basic:                      100        300           200" in text


def test_rows_of_a_listener_that_is_not_heard_count_for_nothing() -> None:
    hamlet = Hamlet(3)
    one, two, three = hamlet.villagers
    for listener, sender in ((one, two), (two, one), (three, two)):
        hamlet.listen(listener, sender)
    hamlet.run(3)
    states = {(s.listener, s.stale) for s in queries.states(one.path_gossip, hamlet.now)}
    assert states == {(one.name_of(v.id), v is three) for v in hamlet.villagers}
    assert len(queries.find(one.path_gossip).pairs) == 1


def test_a_path_to_a_listener_that_is_not_heard_is_stale_and_not_fine() -> None:
    """Its last report says `ok`, which it can no longer change."""
    hamlet = Hamlet(3)
    one, two, three = hamlet.villagers
    for listener, sender in ((one, two), (two, one), (three, two)):
        hamlet.listen(listener, sender)
    hamlet.run(3)
    to_three = (two.id, "red", three.id, "red")
    verdict = one.path_gossip.verdict(hamlet.now, to_three)
    assert (verdict.state, verdict.fine) == ("stale", False)


def test_a_status_of_a_large_domain_holds_what_matters_to_this_node() -> None:
    """Its own paths first, then those with an error; and how many were left out."""
    hamlet = Hamlet(4)
    one, two, three, four = hamlet.villagers
    for listener, sender in ((two, one), (three, two), (four, three), (three, four)):
        hamlet.listen(listener, sender, size=1000 if sender is four else 1500)
    hamlet.run(3)
    whole, left_out = queries.main_states(one.path_gossip, hamlet.now, 4)
    assert (len(whole), left_out) == (4, 0)
    names = {v: one.name_of(v.id) for v in hamlet.villagers}
    some, left_out = queries.main_states(one.path_gossip, hamlet.now, 2)
    expected = {(names[one], names[two]), (names[four], names[three])}
    assert {(state.sender, state.listener) for state in some} == expected
    assert left_out == 2


def test_explain_says_what_is_known_and_what_was() -> None:
    watch = Watch()
    watch.hear(size=1000, patterns=("00", "55"), bad_patterns=("55",), flows=3, flows_bad=1)
    watch.later(2)  # two flows of a path find out one after the other what passes
    told = queries.explain(watch.me.path_gossip, watch.path, watch.hamlet.now)
    assert told.state == "soft error"
    assert len(told.findings) == 3
    assert {error_class for error_class, _ in told.last_errors} == {"size", "pattern", "flows"}
    assert "packets up to 1000 of 1500 bytes pass" in told.kinds[0]
    unknown = queries.explain(watch.me.path_gossip, PATH, watch.hamlet.now)
    assert unknown.state == "unknown"


# -- clients ---------------------------------------------------------------------------------------------------------


def replay(news: list[HealthNews]) -> dict[Any, PathRow]:
    """The table as a client puts it together."""
    table: dict[Any, PathRow] = {}
    for item in news:
        if isinstance(item.news, TableSnapshot):
            table = {r.sender_adapter + r.transport: r for r in item.news.rows}
            continue
        gone = item.news.after is None
        changed = item.news.before if gone else item.news.after
        assert changed is not None
        key = changed.sender_adapter + changed.transport
        if gone:
            del table[key]
        else:
            assert (key in table) is (item.news.before is not None)
            table[key] = changed
    return table


def test_a_client_gets_a_snapshot_and_then_every_change_once_in_order() -> None:
    """H10"""
    watch = Watch()
    watch.hear()
    watch.give(Subscribe(1, history=10))
    for size in (1000, 576, 1500):
        watch.hear(size=size)
    first, *changes = [item.news for item in watch.news]
    assert isinstance(first, TableSnapshot)
    assert [r.size for r in first.rows] == [1500]
    assert len(first.history) == 1
    assert [c.after.size for c in changes if isinstance(c, RowChange) and c.after] == [
        1000,
        576,
        1500,
    ]
    watch.give(Unsubscribe(1))
    watch.hear(size=1000)
    assert len(watch.news) == 4


def test_a_slow_client_is_told_that_it_lags_and_gets_a_fresh_snapshot() -> None:
    watch = Watch()
    watch.give(Subscribe(1))
    for number in range(WINDOW + 500):
        watch.hear(rtt_us=1000 + number)
    assert len(watch.news) == WINDOW
    assert watch.me.path_gossip.subscriptions.lagging() == 1
    watch.give(Taken(1, WINDOW - 1))
    assert len(watch.news) == WINDOW, "it has not taken all of it"
    watch.give(Taken(1, 1))
    last = watch.news[-1].news
    assert isinstance(last, TableSnapshot)
    assert last.lagged
    assert last.rows[0].rtt_us == 1000 + WINDOW + 499
    watch.hear(rtt_us=5)
    assert isinstance(watch.news[-1].news, RowChange)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(size_below=1500), ["in", "change", "out"]),
        (Filter(size_min=1000), ["change", "out", "in", "change"]),
        (Filter(attributes=("alive",)), []),
        (Filter(attributes=("size",)), ["change", "change", "change"]),
        (Filter(kinds=("tcp",)), []),
        (Filter(subnets=("blue",)), []),
        (Filter(subnets=("red",), kinds=("udp",)), ["change", "change", "change", "change"]),
        (Filter(members=(A,)), []),
        (Filter(loss_ppm_min=50), ["in"]),
    ],
)
def test_a_filter_lets_pass_what_was_asked_for_and_says_when_it_ends(
    wanted: Filter, expected: list[str]
) -> None:
    """H10: filters on member, subnet, attribute, threshold."""
    watch = Watch()
    watch.hear()
    watch.give(Subscribe(1, wanted))
    watch.hear(size=1000)
    watch.hear(size=576)
    watch.hear(size=1500)
    watch.hear(loss_ppm=60)
    kinds = {(False, True): "in", (True, False): "out", (True, True): "change"}
    changes = [item.news for item in watch.news if isinstance(item.news, RowChange)]
    assert [kinds[(c.before is not None, c.after is not None)] for c in changes] == expected


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("change"), st.sampled_from([576, 1000, 1500])),
            st.tuples(st.just("take"), st.integers(1, 10)),
            st.tuples(st.just("withdraw"), st.just(0)),
        ),
        max_size=40,
    ),
    size_min=st.sampled_from([0, 1000]),
)
def test_what_a_client_puts_together_is_what_the_table_holds(
    steps: list[tuple[str, int]], size_min: int
) -> None:
    """None lost, none doubled, whether it is slow or not."""
    from holdfast.health.table import subscriptions

    before, subscriptions.WINDOW = subscriptions.WINDOW, 5  # type: ignore[misc]
    try:
        watch = Watch()
        watch.give(Subscribe(1, Filter(size_min=size_min)))
        for deed, value in steps:
            if deed == "change":
                watch.hear(size=value)
            elif deed == "take":
                watch.give(Taken(1, value))
            else:
                watch.me.table.withdraw(watch.peer.id, watch.hamlet.now)
                watch.give(Fresh())
        watch.give(Taken(1, 1000))
        held = {
            r.sender_adapter + r.transport: r
            for r in watch.me.table.rows.values()
            if r.size >= size_min
        }
        assert replay(watch.news) == held
    finally:
        subscriptions.WINDOW = before  # type: ignore[misc]
