"""Traces of stability, locks, transactions and objects: sound ones, and one for every way to break a guarantee.

Each trace has nodes of its own, so that all of them can be in one landing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.pipeline.making import Fact, fact, node_id, write_segment

from holdfast.pipeline.judges import HOPS, LOCKS, OBJECTS, STABILITY, TRANSACTIONS
from holdfast.pipeline.lock_audit import ONE_HOLDER, TOKENS
from holdfast.pipeline.object_audit import FORWARD, ONE_HOP, ONE_VALUE, REAL_TIME
from holdfast.pipeline.stability_audit import FREED, STABLE
from holdfast.pipeline.transaction_audit import ALL, NOTHING, ONE_END

SECOND: Final = 1_000_000_000


class Trace:
    """Facts of some nodes, numbered per node and kind as nodes do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: dict[tuple[str, str], list[Fact]] = {}

    def node(self, letter: str) -> str:
        return f"{letter}-{self.name}"

    def add(self, kind: str, letter: str, at_s: float, **fields: Any) -> None:
        node = self.node(letter)
        known = self.facts.setdefault((kind, node), [])
        known.append(fact(kind, node, len(known), at_s, **fields))

    def write(self, landing: Path) -> None:
        for (kind, _), facts in self.facts.items():
            write_segment(landing, kind, facts)

    # -- facts -----------------------------------------------------------------------------------------------------

    def sample(
        self, letter: str, at_s: float, stable: int, held: int, freed: int = 0, view: int = 1
    ) -> None:
        self.add(
            "stability", letter, at_s, group=self.name, protocol="cube", members=2, stable=stable, held=held,
            freed=freed, view=view, epoch=7,
        )  # fmt: skip

    def lock(
        self, letter: str, at_s: float, event: str, token: int, holder: str, index: int = 0, term: int = 1
    ) -> None:  # fmt: skip
        self.add(
            "lock", letter, at_s, event=event, group=self.name, epoch=7, lock="door", token=token,
            holder=node_id(self.node(holder)), holder_incarnation=1, index=index, term=term,
        )  # fmt: skip

    def transaction(self, at_s: float, event: str, name: str, taken: int, sent: int) -> None:
        self.add(
            "dialog_transaction", "a", at_s, event=event, transaction=name, dialogs=2, taken=taken, sent=sent
        )  # fmt: skip

    def part(self, at_s: float, event: str, name: str, first: int, last: int) -> None:
        self.add(
            "dialog_range", "a", at_s, event=event, dialog=node_id(self.name) * 2, sender="creator", assurances=7,
            first=first, last=last, digest=1, transaction=name,
        )  # fmt: skip

    def decided(self, letter: str, at_s: float, version: int, write: str = "") -> None:
        self.add(
            "object", letter, at_s, event="decided", object=node_id(self.name), version=version,
            write=write or f"w{version}", digest=f"d{version}",
        )  # fmt: skip

    def operation(
        self, letter: str, start_s: float, end_s: float, event: str, version: int, peers: str = "", **fields: Any
    ) -> None:  # fmt: skip
        self.add(
            "object_op", letter, end_s, event=event, object=node_id(self.name), version=version, write=f"w{version}",
            digest=f"d{version}", is_own=event != "read", started_ns=int(start_s * SECOND),
            peers=",".join(node_id(self.node(peer)) for peer in peers),
            **fields,
        )  # fmt: skip

    def link(self, letter: str, at_s: float, event: str, peer: str) -> None:
        self.add("link", letter, at_s, event=event, peer=node_id(self.node(peer)), peer_name=peer)


def _stability(name: str) -> Trace:
    trace = Trace(name)
    for step in range(6):
        for letter in "ab":
            trace.sample(letter, 30.0 * step, 100 * step, 100 * step + 50, 100 * step)
    return trace


def _lags(name: str) -> Trace:
    trace = _stability(name)
    trace.sample("b", 300.0, 0, 499)
    return trace


def _ahead(name: str) -> Trace:
    trace = _stability(name)
    trace.sample("a", 170.0, 700, 650)
    return trace


def _freed(name: str) -> Trace:
    trace = Trace(name)
    for letter in "ab":
        trace.sample(letter, 0.0, 100, 100)
    trace.sample("a", 30.0, 100, 200, freed=150)
    trace.sample("b", 30.0, 100, 140)
    trace.sample("b", 200.0, 100, 140)
    return trace


def _restored(name: str) -> Trace:
    """A log that begins with a state was not freed."""
    trace = _freed(name)
    trace.add("group", "a", 0.0, group=name, event="restored", index=150, epoch=7)
    return trace


def _removed(name: str) -> Trace:
    """A replica that is not in the later view may fall behind."""
    trace = _stability(name)
    for letter in "ac":
        trace.sample(letter, 300.0, 5000, 5000, view=2)
    trace.sample("b", 500.0, 500, 550, view=1)
    return trace


def _locks(name: str) -> Trace:
    trace = Trace(name)
    trace.lock("a", 1.0, "granted", 10, "x", index=10)
    trace.lock("x", 1.1, "held", 10, "x")
    trace.lock("a", 2.0, "released", 10, "x", index=14)
    trace.lock("a", 3.0, "granted", 20, "y", index=20)
    trace.lock("y", 3.1, "held", 20, "y")
    trace.lock("a", 9.0, "expired", 20, "y", index=30)
    trace.lock("a", 9.0, "granted", 30, "x", index=30)
    trace.lock("x", 9.1, "held", 30, "x")
    return trace


def _two_holders(name: str) -> Trace:
    trace = _locks(name)
    trace.lock("a", 10.0, "granted", 40, "y", index=40)
    return trace


def _back(name: str) -> Trace:
    trace = _locks(name)
    trace.lock("a", 10.0, "released", 30, "x", index=41)
    trace.lock("a", 11.0, "granted", 29, "y", index=42)
    return trace


def _held_back(name: str) -> Trace:
    trace = _locks(name)
    trace.lock("x", 12.0, "held", 10, "x")
    return trace


def _usurped(name: str) -> Trace:
    trace = _locks(name)
    trace.lock("z", 9.5, "held", 30, "z")
    return trace


def _leader_changed(name: str) -> Trace:
    """Another leader goes on; what the first one recorded last is lost with it."""
    trace = _locks(name)
    trace.lock("b", 20.0, "granted", 50, "y", index=50, term=2)
    return trace


def _transactions(name: str) -> Trace:
    trace = Trace(name)
    trace.transaction(1.0, "committed", "aa", 3, 2)
    trace.part(1.0, "taken", "aa", 0, 2)
    trace.part(1.0, "captured", "aa", 0, 1)
    trace.transaction(2.0, "aborted", "bb", 4, 0)
    trace.transaction(3.0, "committed", "cc", 1, 0)
    trace.part(3.0, "taken", "cc", 3, 3)
    return trace


def _half(name: str) -> Trace:
    trace = _transactions(name)
    trace.transaction(4.0, "committed", "dd", 1, 1)
    trace.part(4.0, "taken", "dd", 4, 4)
    trace.transaction(5.0, "committed", "ee", 1, 0)
    trace.part(5.0, "taken", "ee", 5, 5)
    return trace


def _aborted(name: str) -> Trace:
    trace = _transactions(name)
    trace.part(2.0, "taken", "bb", 9, 9)
    return trace


def _both_ends(name: str) -> Trace:
    trace = _transactions(name)
    trace.transaction(6.0, "aborted", "cc", 1, 0)
    return trace


def _cut_off(name: str) -> Trace:
    """The process was killed: the last ranges are not there."""
    trace = _transactions(name)
    trace.transaction(7.0, "committed", "ff", 2, 0)
    return trace


def _object(name: str) -> Trace:
    trace = Trace(name)
    trace.operation("a", 1.0, 2.0, "create", 1)
    trace.operation("a", 3.0, 4.0, "write", 2)
    trace.operation("a", 3.5, 5.0, "read", 1)
    trace.operation("a", 6.0, 7.0, "read", 2)
    trace.operation("b", 200.0, 201.0, "read", 2)
    for letter in "abc":
        trace.decided(letter, 2.0, 1)
        trace.decided(letter, 4.0, 2)
    return trace


def _stale(name: str) -> Trace:
    trace = _object(name)
    trace.operation("a", 8.0, 9.0, "read", 1)
    return trace


def _stale_elsewhere(name: str) -> Trace:
    trace = _object(name)
    trace.operation("b", 300.0, 301.0, "read", 1)
    return trace


def _lost_write(name: str) -> Trace:
    trace = _object(name)
    trace.operation("a", 10.0, 11.0, "write", 2)
    return trace


def _two_values(name: str) -> Trace:
    trace = _object(name)
    trace.decided("b", 12.0, 3)
    trace.decided("c", 12.0, 3, write="other")
    return trace


def _replica_back(name: str) -> Trace:
    trace = _object(name)
    trace.decided("c", 12.0, 1)
    return trace


def _near(name: str) -> Trace:
    trace = Trace(name)
    trace.link("a", 0.5, "up", "b")
    trace.link("a", 0.6, "up", "c")
    trace.operation("a", 1.0, 2.0, "write", 2, peers="bc")
    return trace


def _far(name: str) -> Trace:
    trace = _near(name)
    trace.link("a", 3.0, "down", "c")
    trace.operation("a", 4.0, 5.0, "read", 2, peers="bc")
    return trace


Make = Callable[[str], Trace]
Known = tuple[str, Make, frozenset[str]]

PLANTED: Final[dict[str, Known]] = {
    "member-lacks-stable": (STABILITY, _lags, frozenset({STABLE, FREED})),
    "stable-before-held": (STABILITY, _ahead, frozenset({STABLE})),
    "freed-too-early": (STABILITY, _freed, frozenset({FREED})),
    "two-holders": (LOCKS, _two_holders, frozenset({ONE_HOLDER})),
    "token-goes-back": (LOCKS, _back, frozenset({TOKENS})),
    "holder-goes-back": (LOCKS, _held_back, frozenset({TOKENS})),
    "usurped": (LOCKS, _usurped, frozenset({ONE_HOLDER})),
    "half-a-transaction": (TRANSACTIONS, _half, frozenset({ALL})),
    "aborted-took-effect": (TRANSACTIONS, _aborted, frozenset({NOTHING})),
    "two-outcomes": (TRANSACTIONS, _both_ends, frozenset({ONE_END})),
    "stale-read": (OBJECTS, _stale, frozenset({REAL_TIME})),
    "stale-read-elsewhere": (OBJECTS, _stale_elsewhere, frozenset({REAL_TIME})),
    "lost-write": (OBJECTS, _lost_write, frozenset({REAL_TIME})),
    "two-values": (OBJECTS, _two_values, frozenset({ONE_VALUE})),
    "replica-goes-back": (OBJECTS, _replica_back, frozenset({FORWARD})),
    "no-link": (HOPS, _far, frozenset({ONE_HOP})),
}
"""Name to the guarantee, the trace, and the claims that it breaks."""

HARMLESS: Final[dict[str, tuple[str, Make, str]]] = {
    "stable": (STABILITY, _stability, "holds"),
    "restored-state": (STABILITY, _restored, "holds"),
    "removed-from-view": (STABILITY, _removed, "holds"),
    "locks-in-turn": (LOCKS, _locks, "holds"),
    "leader-changed": (LOCKS, _leader_changed, "not provable"),
    "atomic": (TRANSACTIONS, _transactions, "holds"),
    "cut-off": (TRANSACTIONS, _cut_off, "not provable"),
    "linear": (OBJECTS, _object, "holds"),
    "linked": (HOPS, _near, "holds"),
}
"""Name to the guarantee, the trace, and the verdict."""
