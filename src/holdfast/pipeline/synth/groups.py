"""Synthetic replicated groups: who leads, and what each entry of the log holds.

Every entry is a function of its number: when it was ordered, which messages of which stream it holds, the position it
is delivered at. So the facts of each life of each replica can be made by themselves. Every 97th entry is a skip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from holdfast.pipeline.synth.lives import Life, lives_of, stretches_of
from holdfast.pipeline.synth.options import SynthOptions

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

MESSAGES: Final = 10
SKIP_EVERY: Final = 97
STREAMS: Final = ("s/1", "t/1")
DIGEST_MASK: Final = np.uint64((1 << 32) - 1)
_BLOCK: Final = 1 << 20
_QUIET_ENTRIES: Final = 6
"""A planted violation keeps this far from restarts of replicas, and from the edges of what is made at once."""


class Group(msgspec.Struct, frozen=True):
    """A group and the replicas in it, by number of node. `violation` is empty for a correct one."""

    name: str
    replicas: tuple[int, ...]
    violation: str = ""


class Lead(msgspec.Struct, frozen=True):
    """A replica leads from a time on."""

    begin: float
    node: int
    term: int


def groups_of(options: SynthOptions) -> list[Group]:
    """The correct groups, then one for each planted violation."""
    names = [(f"g{number}", "") for number in range(options.groups)]
    names += [(f"planted-{kind}", kind) for kind in options.violations]
    return [
        Group(
            name,
            tuple((turn * options.replicas + i) % options.nodes for i in range(options.replicas)),
            violation,
        )
        for turn, (name, violation) in enumerate(names)
    ]


def leads_of(group: Group, options: SynthOptions) -> list[Lead]:
    """Who leads when: the leader's end of life makes the next living replica lead, with a new term."""
    lives = {node: lives_of(node, options) for node in group.replicas}
    found = [Lead(0.0, group.replicas[0], 1)]
    while True:
        now = found[-1]
        end = next(life.end for life in lives[now.node] if life.begin <= now.begin < life.end)
        if end >= options.seconds:
            return found
        living = [
            node
            for node in group.replicas
            if node != now.node and any(life.begin <= end < life.end for life in lives[node])
        ]
        if living:
            found.append(Lead(end + 1e-3, living[0], now.term + 1))
            continue
        # All are down: the first one to come back goes on.
        back = min(
            (life.begin, node)
            for node in group.replicas
            for life in lives[node]
            if life.begin > end
        )
        found.append(Lead(back[0], back[1], now.term + 1))


def entries_between(begin: float, end: float, options: SynthOptions) -> Ints:
    """The numbers of the entries ordered in a stretch of time."""
    rate = options.entries_per_s
    first, last = int(np.ceil(begin * rate)), int(np.ceil(end * rate))
    return np.arange(max(first, 0), max(last, 0), dtype=np.int64)


def is_skip(entry: Ints) -> npt.NDArray[np.bool_]:
    return np.equal(entry % SKIP_EVERY, SKIP_EVERY - 1)


def position_of(entry: Ints) -> Ints:
    """The position of an entry's first message: skipped entries take none."""
    return (entry - entry // SKIP_EVERY) * MESSAGES


def stream_of(entry: Ints) -> Ints:
    return entry % len(STREAMS)


def first_of(entry: Ints) -> Ints:
    """The number of an entry's first message in its stream."""
    return entry // len(STREAMS) * MESSAGES + 1


def term_at(at_s: npt.NDArray[np.float64], leads: list[Lead]) -> Ints:
    begins = np.array([lead.begin for lead in leads])
    terms = np.array([lead.term for lead in leads], dtype=np.int64)
    return terms[np.maximum(np.searchsorted(begins, at_s, side="right") - 1, 0)]


def digests(entry: Ints, group: str) -> Ints:
    """The cumulative digest after each of some consecutive entries, the same on every replica."""
    if not len(entry):
        return entry
    seed = np.uint64(int.from_bytes(group.encode()[:8].ljust(8, b"."), "big"))
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for begin in range(0, int(entry[0]), _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, int(entry[0])), dtype=np.int64)
            total += np.sum(_mixed(block, seed), dtype=np.uint64)
        running = total + np.cumsum(_mixed(entry, seed), dtype=np.uint64)
    return (running & DIGEST_MASK).astype(np.int64)


def _mixed(entry: Ints, seed: np.uint64) -> npt.NDArray[np.uint64]:
    """A well mixed number per entry (the finaliser of splitmix64); 0 for entries that deliver nothing."""
    with np.errstate(over="ignore"):
        mixed = entry.astype(np.uint64) + seed
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.where(is_skip(entry), np.uint64(0), mixed & DIGEST_MASK)


def violation_entry(group: Group, options: SynthOptions) -> int:
    """The entry at which a violation is planted: near the middle, while all replicas live and none is skipped."""
    lives: list[Life] = [life for node in group.replicas for life in lives_of(node, options)]
    edges = [edge for life in lives for stretch in stretches_of(life, options) for edge in stretch]
    total = int(options.seconds * options.entries_per_s)
    for entry in sorted(range(8, total - 8), key=lambda e: abs(e - total // 2)):
        at_s = entry / options.entries_per_s
        near = range(entry - 4, entry + 5)
        if any(number % SKIP_EVERY == SKIP_EVERY - 1 for number in near):
            continue
        if all(abs(edge - at_s) * options.entries_per_s > _QUIET_ENTRIES for edge in edges):
            return entry
    return total // 2
