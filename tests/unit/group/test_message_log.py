"""The message log: what nobody holds in memory any more is recovered from disk."""

from __future__ import annotations

from typing import Any

from tests.unit.group.harness import GROUP, World, node_id, ready
from tests.unit.group.losing import (
    ALL,
    FAST,
    answer,
    brought,
    delivered,
    losing,
    numbers,
    only_from_source,
    send,
)

from holdfast.group.config import GroupConfig, log_unit
from holdfast.group.frames import Nack, Payload, StreamId
from holdfast.group.loss.actions import DROP, RECOVER
from holdfast.group.streams.message_log import TABLES, MessageLog, log_table
from holdfast.links.ports import Received
from holdfast.machine import Erase, Outbox, Put
from holdfast.stores.memory import MemoryStore
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.blocks import pack_block

S = StreamId(node_id("s1"), 1, 0)
ME = node_id("n1")


def logging_world(**settings: Any) -> World:
    config = {"message_log_bytes": 1 << 20, "payload_bytes": 1000} | FAST | settings
    world = World(voters=3, sources=1, **config)
    world.start()
    ready(world)
    return world


def test_a_leader_recovers_from_a_log_what_no_buffer_has() -> None:
    """n3 had message 2, restarted, and has it on disk only. The source is gone."""
    world = logging_world(gone_ns=60 * SECOND)
    answer(world, RECOVER)
    losing(world, range(2, 3), "n1", "n2")
    send(world, 3)
    world.run(MILLISECOND)
    world.kill("s1")
    world.restart("n3")
    world.drop = None
    answer(world, RECOVER)
    delivered(world, [1, 2, 3], 10 * SECOND)
    places = [(place.kind, place.name) for place in world.hosts["n1"].asked[-1].recovery.places]
    assert places == [("log", "n3")]
    assert brought(world, "n1")["log"] == 1


def test_a_leader_reads_its_own_log() -> None:
    """What was received and let go for lack of room is still on disk."""
    world = logging_world()
    answer(world, RECOVER)
    losing(world, range(2, 3), *ALL)
    only_from_source(world)
    frame = Payload(GROUP, S, 2, 1, 0, memoryview(pack_block([b"2" + b"." * 600])))
    log = world.hosts["n1"].turns.machine(log_unit(GROUP))
    assert isinstance(log, MessageLog)
    out = Outbox()
    log.up(world.now, [Received(S.source, [frame], world.now)], out)
    MemoryStore(world.disks["n1"]).commit(out.writes)
    send(world, 3)
    world.run(MILLISECOND)
    world.kill("s1")
    delivered(world, [1, 2, 3], 10 * SECOND)


def test_a_backup_recovers_from_a_log_too() -> None:
    """No buffer brings it: neither the source's nor another replica's."""
    world = logging_world()
    logs_asked: list[str] = []

    def lost(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, Nack) and sender == "n3" and frame.from_log:
            logs_asked.append(target)
        second = isinstance(frame, Payload) and frame.stream == S and frame.first == 2
        return second and target == "n3" and sender not in logs_asked

    world.drop = lost
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert brought(world, "n3") == {"source": 0, "replica": 0, "log": 1}
    assert not world.events("restored")


def test_without_a_log_there_is_no_such_place() -> None:
    world = World(voters=3, sources=1, payload_bytes=1000, **FAST)
    world.start()
    ready(world)
    answer(world, DROP)
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    kinds = {place.kind for place in world.hosts["n1"].asked[0].recovery.places}
    assert kinds == {"source"}
    assert numbers(world) == [1, 3]


# -- the machine alone -------------------------------------------------------------------------------------------


class Bench:
    def __init__(
        self, limit: int, rows: dict[str, list[tuple[bytes, bytes]]] | None = None
    ) -> None:
        config = GroupConfig("g", ("n1",), "n1", message_log_bytes=limit)
        self.log = MessageLog(config, ME, rows or {})
        self.rows: dict[str, dict[bytes, bytes]] = {t: dict(r) for t, r in (rows or {}).items()}

    def payload(self, first: int, size: int = 100) -> None:
        frame = Payload("g", S, first, 1, 0, memoryview(pack_block([b"x" * size])))
        out = Outbox()
        self.log.up(0, [Received(S.source, [frame], 0)], out)
        for write in out.writes:
            table = self.rows.setdefault(write.table, {})
            if isinstance(write, Put):
                table[write.key] = write.value
            else:
                assert isinstance(write, Erase)
                for key in [key for key in table if write.first <= key < write.stop]:
                    del table[key]

    @property
    def size(self) -> int:
        return sum(len(value) for table in self.rows.values() for value in table.values())

    def holds(self, number: int) -> bool:
        out = Outbox()
        self.log.up(0, [Received(ME, [Nack("g", S, ((number, number),), True)], 0)], out)
        self.log._pending.clear()
        return bool(out.effects)


def test_the_log_is_bounded_and_forgets_the_oldest() -> None:
    bench = Bench(TABLES * 2000)
    for number in range(1, 1001):
        bench.payload(number)
    assert bench.size <= TABLES * 2100
    assert not bench.holds(1)
    assert all(bench.holds(number) for number in range(900, 1001))


def test_a_log_that_is_opened_again_knows_what_it_holds_and_goes_on_at_the_newest() -> None:
    bench = Bench(TABLES * 2000)
    for number in range(1, 501):
        bench.payload(number)
    known = [number for number in range(1, 501) if bench.holds(number)]
    again = Bench(
        TABLES * 2000, {table: sorted(rows.items()) for table, rows in bench.rows.items()}
    )
    assert [number for number in range(1, 501) if again.holds(number)] == known
    again.payload(501)
    assert again.holds(501)
    assert again.holds(500)


def test_a_log_that_is_recreated_while_its_node_runs_leaves_nothing_of_the_old_one() -> None:
    """It does not know what is on disk. What was left there would come back with the next start, as the newest."""
    bench = Bench(TABLES * 2000)
    for number in range(1, 501):
        bench.payload(number)
    anew = Bench(TABLES * 2000)
    anew.rows = bench.rows
    for number in range(501, 511):
        anew.payload(number)
    assert anew.size < 11 * 500
    rows = {table: sorted(rows.items()) for table, rows in anew.rows.items()}
    again = Bench(TABLES * 2000, rows)
    assert [number for number in range(1, 511) if again.holds(number)] == list(range(501, 511))
    again.payload(511)
    assert again.holds(511)


def test_what_is_logged_already_is_not_written_again() -> None:
    bench = Bench(1 << 20)
    bench.payload(1)
    size = bench.size
    bench.payload(1)
    assert bench.size == size
    assert [table for table, rows in bench.rows.items() if rows] == [log_table("g", 0)]
