"""Soft errors in the simulator, with the flows that real nodes open: each class, each direction, found and healed."""

from __future__ import annotations

import pytest

from holdfast.faults.text import Words, parse_fault
from holdfast.health.frames import PathRow
from holdfast.health.subsystem import HealthService
from holdfast.health.verdict import LOSSY_PPM
from holdfast.links.subsystem import LinkService
from holdfast.node.core import NodeCore
from holdfast.sim.cluster import Cluster
from holdfast.sim.facts import FactBook
from holdfast.telemetry.facts import PathFact
from holdfast.types import SECOND


class Domain:
    """A small domain without load, and its table."""

    def __init__(
        self, nodes: int = 2, seed: int = 1, secure: bool = False, mtu: int = 1500
    ) -> None:
        self.cluster = Cluster(seed, nodes, groups=(), secure=secure, mtu=mtu)
        self.world = self.cluster.world
        self.cluster.start()
        self.run(5)

    def run(self, seconds: float) -> None:
        self.world.run_for(round(seconds * SECOND))

    def break_(self, text: str) -> int:
        return self.world.network.add(parse_fault(Words(text)))

    def core(self, name: str) -> NodeCore:
        core = self.world.hosts[name].core
        assert isinstance(core, NodeCore)
        return core

    def row(self, sender: str, listener: str, kind: str = "udp", subnet: str = "red") -> PathRow:
        """What the sender's table says."""
        ids = [self.core(name).me.node for name in (sender, listener)]
        return (
            self.core(sender)
            .service(HealthService)
            .health.table.rows[ids[0], subnet, ids[1], subnet, kind]
        )

    def sound(self, sender: str, listener: str, kind: str = "udp", subnet: str = "red") -> bool:
        row = self.row(sender, listener, kind, subnet)
        bad = row.holes or row.bad_patterns or row.flows_bad
        return row.alive and row.size == row.size_max and not bad

    def all_sound(self, *but: tuple[str, str, str, str]) -> bool:
        names = list(self.world.hosts)
        return all(
            self.sound(a, b, kind, subnet)
            for a in names
            for b in names
            for kind in ("udp", "tcp", "frag")
            for subnet in ("red", "blue")
            if a != b and (a, b, kind, subnet) not in but
        )


def row_of(
    domain: Domain, sender: str, listener: str, kind: str
) -> tuple[bool, int, tuple[str, ...]]:
    row = domain.row(sender, listener, kind)
    return row.alive, row.size, row.bad_patterns


RED = [(kind, "red") for kind in ("udp", "tcp", "frag")]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize(("sender", "listener"), [("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize(
    ("fault", "kind", "found", "within_s"),
    [
        ("over 1400", "udp", (True, 1280, ()), 1),
        ("over 300", "udp", (True, 128, ()), 1),
        ("pattern 5555555555555555", "udp", (True, 1500, ("55",)), 1),
        ("pattern ffffffffffffffff", "udp", (True, 1500, ("ff",)), 1),
        ("filter udp", "udp", (False, 1500, ()), 1.2),
        ("filter frag", "frag", (False, 0, ()), 6),
        ("blackout", "udp", (False, 1500, ()), 1.2),
        ("filter tcp", "tcp", (False, 1500, ()), 2),
        ("blackout", "tcp", (False, 1500, ()), 1.3),
        ("over 1400 only tcp", "tcp", (True, 1280, ()), 2),
        ("over 1000 only tcp", "tcp", (True, 1000, ()), 2),
        ("pattern 5555555555555555 only tcp", "tcp", (True, 1500, ("55",)), 2.6),
    ],
)
def test_each_soft_error_is_found_in_its_direction_and_nowhere_else(
    fault: str,
    kind: str,
    found: tuple[bool, int, tuple[str, ...]],
    within_s: float,
    sender: str,
    listener: str,
    secure: bool,
) -> None:
    """H5, H7, H15; nobody dies of it."""
    domain = Domain(secure=secure)
    assert domain.all_sound()
    number = domain.break_(f"red {sender}->{listener} {fault}")
    ok = domain.world.run_until(
        lambda: row_of(domain, sender, listener, kind) == found, round(within_s * SECOND)
    )
    assert ok, domain.row(sender, listener, kind)
    domain.run(2)
    hurt = [(sender, listener, *where) for where in RED]
    # A stream cannot speak in one direction without acknowledgements from the other.
    if fault in ("blackout", "filter tcp"):
        hurt.append((listener, sender, "tcp", "red"))
    assert domain.all_sound(*hurt)
    assert all(domain.core(name).service(LinkService).directory.members for name in ("n1", "n2"))
    domain.world.network.remove(number)
    assert domain.world.run_until(domain.all_sound, 15 * SECOND)


def test_a_limit_of_streams_is_found_also_when_a_large_message_has_stopped_the_data() -> None:
    """The connection that carries data is silent then; those that measure small segments are not."""
    domain = Domain()
    domain.break_("red n1->n2 over 1000 only tcp")
    core, host = domain.core("n1"), domain.world.hosts["n1"]
    link = core.service(LinkService).link(domain.core("n2").me.node)
    assert link is not None
    (stream,) = [f for f in link.flows.values() if f.path == "red/red/tcp"]
    host.flows[stream.flow].send([bytes(1400)])
    ok = domain.world.run_until(
        lambda: row_of(domain, "n1", "n2", "tcp") == (True, 1000, ()), 4 * SECOND
    )
    assert ok, domain.row("n1", "n2", "tcp")


def test_limits_on_a_jumbo_path_are_found_soon_in_streams_one_after_the_other() -> None:
    """Large packets need large bursts: with the bucket of a small MTU, the second fault waits for the budget."""
    domain = Domain(mtu=9000)
    domain.run(2)
    for fault, passes in (("over 8000", 4000), ("over 3000", 1500)):
        number = domain.break_(f"red n1->n2 {fault}")
        found = (True, passes, ())
        ok = domain.world.run_until(
            lambda found=found: row_of(domain, "n1", "n2", "tcp") == found,  # type: ignore[misc]
            5 * SECOND // 2,
        )
        assert ok, (fault, domain.row("n1", "n2", "tcp"))
        assert domain.sound("n2", "n1", "tcp")
        domain.world.network.remove(number)
        domain.run(4)


def test_loss_is_said_as_a_rate_and_as_nothing_else() -> None:
    domain = Domain()
    domain.break_("red n1<->n2 loss 20% only udp")
    domain.run(10)
    before = len(changes(domain))
    domain.run(20)
    assert len(changes(domain)) == before
    assert 100_000 < domain.row("n1", "n2").loss_ppm < 350_000
    assert domain.row("n1", "n2").size == 1500


@pytest.mark.parametrize("seed", [1, 3, 6, 11, 13, 15])
def test_loss_is_settled_soon_by_more_heartbeats(seed: int) -> None:
    """One that is missing makes the listener ask for more of them: ten a second take too long."""
    domain = Domain(seed=seed)
    domain.run(seed % 7 * 0.13)
    domain.break_("red n1->n2 loss 20%")
    ok = domain.world.run_until(lambda: domain.row("n1", "n2").loss_ppm >= LOSSY_PPM, 4 * SECOND)
    assert ok, domain.row("n1", "n2")


def changes(domain: Domain) -> list[PathRow]:
    """Rows that are not sound."""
    return [
        row
        for row in domain.core("n1").service(HealthService).health.table.rows.values()
        if not row.alive or 0 < row.size < row.size_max or row.bad_patterns
    ]


def test_a_path_that_flaps_is_alive_and_dead_in_turn_and_its_node_is_neither() -> None:
    domain = Domain(3)
    domain.break_("red n1->n2 over 1000 flap 2s/3s")
    seen: set[int] = set()
    for _ in range(60):
        domain.run(0.25)
        seen.add(domain.row("n1", "n2").size)
    assert seen == {1000, 1500}
    assert domain.row("n1", "n2").alive
    assert domain.row("n1", "n2", subnet="blue").alive


def test_a_fault_of_some_flows_is_said_to_be_that() -> None:
    """The path lives, and one of its ports does not; where both are hit it is dead, where none is it is sound."""
    domain = Domain(4)
    domain.break_("red *->* blackout only udp share 50%")
    domain.run(6)
    names = list(domain.world.hosts)
    rows = [domain.row(a, b) for a in names for b in names if a != b]
    states = {(row.alive, row.flows_bad) for row in rows}
    assert states <= {(True, 0), (True, 1), (False, 0)}
    assert (True, 1) in states
    for row in rows:
        if row.flows_bad:
            sender = next(n for n in names if domain.core(n).me.node == row.sender)
            link = domain.core(sender).service(LinkService).link(row.listener)
            assert link is not None
            flows = [
                f for f in link.flows.values() if f.path.startswith("red/red/udp") and f.carries
            ]
            assert [f.alive for f in flows].count(False) == 1, "and the link knows which one"


def test_measuring_costs_no_more_than_its_budget_on_the_wire() -> None:
    """H13, by the bytes that the network counts."""
    domain = Domain(5)
    paths = domain.world.network.paths()
    before = [sum(path.wire_bytes.values()) for path in paths]
    domain.run(20)
    after = [sum(path.wire_bytes.values()) for path in paths]
    assert max(b - a for a, b in zip(before, after, strict=True)) / 20 <= 64_000


def test_a_leader_whose_small_packets_pass_while_large_ones_do_not_is_alive_everywhere() -> None:
    domain = Domain(3)
    for listener in ("n2", "n3"):
        for subnet in ("red", "blue"):
            domain.break_(f"{subnet} n1->{listener} over 400 only udp")
    domain.run(10)
    for listener in ("n2", "n3"):
        for subnet in ("red", "blue"):
            row = domain.row("n1", listener, subnet=subnet)
            assert (row.alive, row.size) == (True, 128)
        link = domain.core("n1").service(LinkService).link(domain.core(listener).me.node)
        assert link is not None
        assert link.up_since is not None


def test_facts_carry_what_was_measured() -> None:
    book = FactBook()
    cluster = Cluster(1, 2, groups=(), facts=book)
    cluster.start()
    cluster.world.run_for(5 * SECOND)
    cluster.world.network.add(parse_fault(Words("red n1->n2 pattern 55555555")))
    cluster.world.run_for(3 * SECOND)
    facts = [fact for fact in book.of(PathFact) if fact.event == "change" and fact.bad_patterns]
    assert {(fact.subnet, fact.bad_patterns, fact.patterns) for fact in facts} == {
        ("red", "55", "00,ff,55,aa")
    }
