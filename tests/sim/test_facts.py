"""Facts of simulated hosts, written as the nodes themselves write them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from tests.sim.toys import STEADY, Puppet, puppet

from holdfast.sim.facts import FactBook
from holdfast.sim.host import EPOCH_NS, Host
from holdfast.sim.world import World
from holdfast.telemetry.facts import LinkFact, NodeFact
from holdfast.types import SECOND


def recording(book: FactBook) -> tuple[World, Host]:
    world = World(1, facts=book)
    host = world.add_host("n1", Puppet, STEADY)
    host.start()
    return world, host


def say(host: Host, *events: str) -> None:
    puppet(host).facts += [NodeFact(host.now, event) for event in events]
    host.give("unit", 1)
    host.world.run_for(SECOND)


def test_facts_are_found_by_kind_and_host() -> None:
    book = FactBook()
    _, host = recording(book)
    say(host, "start", "refused")
    assert [fact.event for fact in book.of(NodeFact)] == ["start", "refused"]
    assert list(book.of(NodeFact, "n2")) == []
    assert list(book.of(LinkFact)) == []


def test_facts_are_written_as_segments_one_life_at_a_time(tmp_path: Path) -> None:
    book = FactBook()
    _, host = recording(book)
    say(host, "start", "refused")
    host.crash()
    host.start()
    say(host, "start")
    paths = book.write(tmp_path)
    rows = sorted(
        (row["incarnation"], row["n"], row["event"], row["name"])
        for path in paths
        for row in pq.read_table(path).to_pylist()
    )
    assert rows == [(1, 0, "start", "n1"), (1, 1, "refused", "n1"), (2, 0, "start", "n1")]


def test_times_of_day_come_from_the_hosts_clock(tmp_path: Path) -> None:
    book = FactBook()
    _, host = recording(book)
    host.world.run_for(SECOND)
    say(host, "start")
    (path,) = book.write(tmp_path)
    (at,) = pq.read_table(path).column("at").cast("int64").to_pylist()
    assert at * 1000 == EPOCH_NS + SECOND


def test_facts_that_do_not_fit_are_counted() -> None:
    book = FactBook(facts_max=3)
    _, host = recording(book)
    say(host, "a", "b")
    say(host, "c", "d", "e")
    assert [fact.event for fact in book.of(NodeFact)] == ["a", "b", "c"]
    assert (book.count, book.lost) == (3, 2)
