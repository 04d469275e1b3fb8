"""The packet model with compiled members: the control flow of `cube`, `tree` and `coord` for one cold round.

It omits everything that does not affect which messages are sent when: the arrays M and S and their holders, timers,
loss, and checks of hostile frames. The bitmaps G are kept, because the cube's rounds end by them. Links, routes and
packets are those of the packet model. Where both can run, every index is exactly equal; a test verifies this.
"""

from __future__ import annotations

from time import process_time_ns
from typing import Any, Final, NamedTuple

import numpy as np

from holdfast.experiments import wires
from holdfast.experiments.compiling import compiled
from holdfast.experiments.network import NetworkOverrun
from holdfast.experiments.points import (
    HEADER_BYTES,
    NUMBER_BYTES,
    Outcome,
    Point,
    transmission_ns,
)
from holdfast.experiments.rounds import RoundFailed, failed_nodes, outcome_of
from holdfast.experiments.routes import trace_paths
from holdfast.experiments.topology import Topology, draw_topology
from holdfast.stability.config import COORD, CUBE, TREE
from holdfast.stability.hypercube import cube, dimensions, tree_degree

START: Final = -1
ACK: Final = -2
INFO: Final = -3
"""Tags of messages of `coord` and `tree`. A message of the cube has the number of its frame."""
ROWS_MAX: Final = 1 << 26

ITERATION: Final = 0
LACKING: Final = 1
IS_FAILED: Final = 2
DONE_AT: Final = 3
GOT: Final = 4
CHILDREN: Final = 5
HAS_TOLD: Final = 6
FIRST: Final = 7
"""Columns of `Model.members`. LACKING neighbours were not heard in this ITERATION. A member GOT reports of this many of
its CHILDREN, and HAS_TOLD its parent. Its pairs begin at FIRST."""

THERE: Final = 0
PATH: Final = 1
BACK: Final = 2
HEARD: Final = 3
HERE: Final = 4
"""Columns of `Model.pairs`: senders and receivers. A pair leads from member HERE to THERE, over links that begin at
PATH. BACK is the pair in the other direction, HEARD the latest iteration in which THERE was heard by HERE."""

AT_ITERATION: Final = 0
USERS: Final = 1
"""Columns of `Model.frame_facts`. A frame without USERS, packets that carry it, is used again."""

PACED_FROM: Final = 0
TRANSMIT_NS: Final = 1
START_NS: Final = 2
IS_CUBE: Final = 3
"""Places in `Model.settings`."""


class Model(NamedTuple):
    """The state of all members. The pairs of a member are in one row after the other."""

    members: Any
    pairs: Any
    path: Any
    """The links of all routes, one after the other."""
    bits: Any
    """G of each member, in words of 64 members."""
    full: Any
    frames: Any
    """The bitmaps of frames in flight."""
    frame_facts: Any
    unused: Any
    """A stack of unused frames; place 0 has its free end."""
    position: Any
    """For each packet, where it is on its route."""
    settings: Any


# -- sending ---------------------------------------------------------------------------------------------------------


@compiled
def _send(w: Any, m: Any, pair: int, tag: int, transmit_ns: int, now: int) -> None:
    row = wires.take_row(w)
    w.packets[row, wires.SOURCE] = pair
    w.packets[row, wires.TARGET] = m.pairs[pair, THERE]
    w.packets[row, wires.TAG] = tag
    w.packets[row, wires.TRANSMIT] = transmit_ns
    m.position[row] = m.pairs[pair, PATH]
    w.numbers[wires.SENT] += 1
    w.numbers[wires.IN_NETWORK] += 1
    wires.enqueue(w, row, m.path[m.position[row]], now)


@compiled
def _send_all(w: Any, m: Any, v: int, tag: int, transmit_ns: int, now: int) -> None:
    for pair in range(m.members[v, FIRST], m.members[v + 1, FIRST]):
        _send(w, m, pair, tag, transmit_ns, now)


# -- the cube --------------------------------------------------------------------------------------------------------


@compiled
def _tell(w: Any, m: Any, v: int, now: int) -> None:
    m.unused[0] -= 1
    frame = m.unused[m.unused[0]]
    for k in range(m.bits.shape[1]):
        m.frames[frame, k] = m.bits[v, k]
    m.frame_facts[frame, AT_ITERATION] = m.members[v, ITERATION]
    m.frame_facts[frame, USERS] = m.members[v + 1, FIRST] - m.members[v, FIRST]
    _send_all(w, m, v, frame, m.settings[TRANSMIT_NS], now)


@compiled
def _count_lacking(m: Any, v: int) -> None:
    lacking = 0
    for pair in range(m.members[v, FIRST], m.members[v + 1, FIRST]):
        is_failed = m.members[m.pairs[pair, THERE], IS_FAILED]
        if m.pairs[pair, HEARD] < m.members[v, ITERATION] and not is_failed:
            lacking += 1
    m.members[v, LACKING] = lacking


@compiled
def _next_iteration(w: Any, m: Any, v: int, now: int) -> None:
    reached = -1
    for pair in range(m.members[v, FIRST], m.members[v + 1, FIRST]):
        heard = m.pairs[pair, HEARD]
        if not m.members[m.pairs[pair, THERE], IS_FAILED] and (reached < 0 or heard < reached):
            reached = heard
    iteration = m.members[v, ITERATION]
    if reached < 0:
        reached = iteration
    m.members[v, ITERATION] = max(iteration, min(reached, m.settings[PACED_FROM] - 1)) + 1
    _count_lacking(m, v)
    _tell(w, m, v, now)


@compiled
def _merge(m: Any, v: int, frame: int) -> bool:
    """Merge a bitmap; True if all members are in it."""
    lacking = np.uint64(0)
    for k in range(m.bits.shape[1]):
        word = m.bits[v, k] | m.frames[frame, k]
        m.bits[v, k] = word
        lacking |= word ^ m.full[k]
    return bool(lacking == 0)


@compiled
def _cube_hears(w: Any, m: Any, v: int, back: int, frame: int, now: int) -> None:
    """A frame has arrived at member v from the other end of its pair `back`."""
    complete = _merge(m, v, frame)
    iteration, heard = m.frame_facts[frame, AT_ITERATION], m.pairs[back, HEARD]
    if iteration > heard:
        if heard < m.members[v, ITERATION] <= iteration:
            m.members[v, LACKING] -= 1
        m.pairs[back, HEARD] = iteration
    if complete:
        m.members[v, ITERATION] += 1
        m.members[v, DONE_AT] = now
        _tell(w, m, v, now)
    elif m.members[v, LACKING] == 0 and m.members[v, ITERATION] < m.settings[PACED_FROM]:
        _next_iteration(w, m, v, now)


@compiled
def _cube_frame(w: Any, m: Any, pair: int, frame: int, now: int) -> None:
    v = m.pairs[pair, THERE]
    m.frame_facts[frame, USERS] -= 1
    if not m.members[v, IS_FAILED] and m.members[v, DONE_AT] < 0:
        _cube_hears(w, m, v, m.pairs[pair, BACK], frame, now)
    if m.frame_facts[frame, USERS] == 0:
        m.unused[m.unused[0]] = frame
        m.unused[0] += 1


# -- coordinator and tree --------------------------------------------------------------------------------------------


@compiled
def _report(w: Any, m: Any, v: int, now: int) -> None:
    """The only pair of each member but the first leads to its parent, or to the coordinator."""
    _send(w, m, m.members[v, FIRST], ACK, m.settings[TRANSMIT_NS], now)


@compiled
def _tree_hears(w: Any, m: Any, v: int, source: int, tag: int, now: int) -> None:
    if tag == INFO:
        m.members[v, DONE_AT] = now
    elif tag == START:
        if m.members[v, GOT] == m.members[v, CHILDREN]:
            _report(w, m, v, now)
    elif not m.members[source, HAS_TOLD]:
        m.members[source, HAS_TOLD] = 1
        m.members[v, GOT] += 1
        if m.members[v, GOT] == m.members[v, CHILDREN]:
            if v == 0:
                m.members[0, DONE_AT] = now
                _send_all(w, m, 0, INFO, m.settings[TRANSMIT_NS], now)
            else:
                _report(w, m, v, now)


# -- the round -------------------------------------------------------------------------------------------------------


@compiled
def _begin(w: Any, m: Any) -> None:
    if not m.settings[IS_CUBE]:
        _send_all(w, m, 0, START, m.settings[START_NS], 0)
        return
    for v in range(len(m.members) - 1):
        if not m.members[v, IS_FAILED]:
            m.members[v, ITERATION] = 1
            _count_lacking(m, v)
            _tell(w, m, v, 0)


@compiled
def _count(w: Any) -> int:
    """Packets that arrive in the current slot."""
    count = 0
    row = w.heads[w.numbers[wires.NOW] % wires.SLOTS]
    while row >= 0:
        count += 1
        row = w.packets[row, wires.BEHIND]
    return count


@compiled
def _run(w: Any, m: Any, reserve: int) -> int:
    """Run until the last packet has arrived (0), or until rows (1) or frames (2) might not suffice for a slot."""
    while wires.next_slot(w, 1 << 62):
        count = _count(w)
        if w.numbers[wires.PENDING] + reserve * count > len(w.packets):
            return 1
        if m.settings[IS_CUBE] and m.unused[0] - 1 < count:
            return 2
        for row in wires.arrivals(w):
            now = w.packets[row, wires.ARRIVE]
            wires.sample(w, now)
            node = wires.leave(w, row)
            if node != w.packets[row, wires.TARGET]:
                m.position[row] += 1
                wires.enqueue(w, row, m.path[m.position[row]], now)
                continue
            w.numbers[wires.IN_NETWORK] -= 1
            pair, tag = w.packets[row, wires.SOURCE], w.packets[row, wires.TAG]
            wires.give_back(w, row)
            if m.settings[IS_CUBE]:
                _cube_frame(w, m, pair, tag, now)
            else:
                _tree_hears(w, m, node, m.pairs[pair, HERE], tag, now)
        if w.numbers[wires.TOO_FAR]:
            return 3
    return 0


def _sides(point: Point) -> list[list[int]]:
    """The members that each member sends to."""
    n = point.nodes
    if point.protocol == CUBE:
        return [list(near) for near in cube(n)]
    degree = tree_degree(n) if point.protocol == TREE else n
    return [list(range(1, n)), *([(v - 1) // degree] for v in range(1, n))]


def _make_pairs(point: Point, topology: Topology, down: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The first pair of each member, all pairs, and the links of their routes."""
    sides = _sides(point)
    first = np.zeros(point.nodes + 1, np.int64)
    first[1:] = np.cumsum([len(near) for near in sides])
    pairs = np.zeros((first[-1], 5), np.int64)
    pairs[:, THERE] = [there for near in sides for there in near]
    pairs[:, HERE] = np.repeat(np.arange(point.nodes), np.diff(first))
    order = np.lexsort((pairs[:, HERE], pairs[:, THERE]))
    begin, path = trace_paths(topology, pairs[order, HERE], pairs[order, THERE], down)
    pairs[order, PATH] = begin[:-1]
    if point.protocol == CUBE:
        # Sorted by (there, here), the pairs are the reverses of those sorted by (here, there).
        pairs[order, BACK] = np.arange(len(order))
    return first, pairs, path


def _make_members(point: Point, first: Any, failed: tuple[int, ...]) -> Any:
    n = point.nodes
    members = np.zeros((n + 1, 8), np.int64)
    members[:, FIRST] = first
    members[:, DONE_AT] = -1
    members[list(failed), IS_FAILED] = 1
    if point.protocol != CUBE:
        degree = tree_degree(n) if point.protocol == TREE else n
        np.add.at(members[:, CHILDREN], (np.arange(1, n) - 1) // degree, 1)
    return members


def _make_bits(point: Point, failed: tuple[int, ...]) -> tuple[Any, Any]:
    """G of each member: itself and the members that are excused. And the bitmap of all."""
    n = point.nodes
    if point.protocol != CUBE:
        return np.zeros((1, 1), np.uint64), np.zeros(1, np.uint64)
    places, words = np.arange(n), (n + 63) // 64
    bits, full = np.zeros((n, words), np.uint64), np.zeros(words, np.uint64)
    own = np.left_shift(np.uint64(1), (places % 64).astype(np.uint64))
    bits[places, places // 64] = own
    np.bitwise_or.at(full, places // 64, own)
    for place in failed:
        bits[:, place // 64] |= np.uint64(1 << place % 64)
    return bits, full


def _make_model(point: Point, topology: Topology) -> Model:
    failed = failed_nodes(point) if point.protocol == CUBE else ()
    first, pairs, path = _make_pairs(point, topology, failed if point.routers_down else ())
    bits, full = _make_bits(point, failed)
    size = HEADER_BYTES + NUMBER_BYTES * point.senders
    size += (point.nodes + 7) // 8 if point.bitmap and point.protocol != COORD else 0
    settings = [2 * dimensions(point.nodes) + 2, transmission_ns(size)]
    settings += [transmission_ns(HEADER_BYTES), int(point.protocol == CUBE)]
    frames = 2 * point.nodes if point.protocol == CUBE else 1
    unused = np.arange(-1, frames + 1)
    unused[0] = frames + 1
    return Model(
        _make_members(point, first, failed), pairs, path, bits, full,
        np.zeros((frames, bits.shape[1]), np.uint64), np.zeros((frames, 2), np.int64), unused,
        np.zeros(0, np.int64), np.array(settings, np.int64),
    )  # fmt: skip


def _with_more_frames(m: Model) -> Model:
    """Double the room for frames."""
    before, kept = len(m.frames), int(m.unused[0])
    unused = np.zeros(2 * before + 2, np.int64)
    unused[:kept] = m.unused[:kept]
    unused[kept : kept + before] = np.arange(before, 2 * before)
    unused[0] = kept + before
    frames = np.concatenate([m.frames, np.zeros_like(m.frames)])
    facts = np.concatenate([m.frame_facts, np.zeros_like(m.frame_facts)])
    return m._replace(frames=frames, frame_facts=facts, unused=unused)


def run_large(point: Point) -> Outcome:
    """Measure one point with compiled members."""
    point.check()
    began = process_time_ns()
    topology = draw_topology(point.network())
    m = _make_model(point, topology)
    # An arrival makes a member of the cube send to its neighbours. In a tree only the root sends to many, once.
    reserve = 1 + int(np.diff(m.members[:, FIRST]).max()) if point.protocol == CUBE else 2
    w = wires.make_wires(topology, point.seed, 4 * len(m.pairs) + 2 * reserve)
    m = m._replace(position=np.zeros(len(w.packets), np.int64))
    _begin(w, m)
    while why := _run(w, m, reserve):
        if why == 1 and len(w.packets) < ROWS_MAX:
            w = wires.with_more_rows(w, 2 * len(w.packets))
            m = m._replace(position=np.concatenate([m.position, np.zeros_like(m.position)]))
        elif why == 2:
            m = _with_more_frames(m)
        else:
            raise NetworkOverrun(
                f"too many packets at once with {point.nodes} nodes; the round was aborted"
            )
    done_ns = m.members[:-1, DONE_AT][m.members[:-1, IS_FAILED] == 0]
    if (done_ns < 0).any():
        raise RoundFailed(f"the round ended at {(done_ns >= 0).sum()} of {len(done_ns)} members")
    cpu_ns = process_time_ns() - began
    return outcome_of(wires.traffic_of(w), done_ns.tolist(), topology, cpu_ns)
