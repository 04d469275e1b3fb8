"""Claims and figures of the paper on scalable stability detection using a logical hypercube, as tests.

Docstrings cite the section. Measurements (section 4.2) are not tested here; the counts that they rest on are.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.support.fifo_rounds import DELAY_US, FifoRounds
from tests.support.stability_world import World, node_id, with_protocol
from tests.unit.stability.harness import Table

from holdfast.bench.stability_rounds import (
    Figures,
    build,
    lowest,
    measure,
    paper_messages,
    run_round,
)
from holdfast.stability import PROTOCOLS, StabilityConfig
from holdfast.stability.frames import (
    CubeState,
    ResultAck,
    RoundReport,
    RoundResult,
    RoundStart,
    Row,
    StabilityFrame,
)
from holdfast.stability.hypercube import (
    compensating_edges,
    cube,
    diameter,
    dimensions,
    disjoint_paths,
    distances,
    edges,
    parent,
    tree_degree,
)
from holdfast.stability.placement import improve
from holdfast.stability.protocol import Sends
from holdfast.types import MICROSECOND, MILLISECOND, SECOND

measured = cache(measure)


def figures(protocol: str, size: int) -> Figures:
    return measured(protocol, size, 4)


# -- section 2: what is stable ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 7, 14, 16, 50])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_ends_with_the_array_minimum_at_every_node(protocol: str, size: int) -> None:
    """Section 2: ArrayMin, the element-wise minimum of the arrays of all nodes, is what is stable."""
    members = build(protocol, size, 6, StabilityConfig(protocol=protocol))
    expected = lowest(members)
    run_round(members)
    assert [tuple(member.stable.tolist()) for member in members] == [expected] * size


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_establishes_what_was_received_before_it(protocol: str) -> None:
    """Section 2: nodes attempt to establish the stability of messages received prior to the round."""
    members = build(protocol, 8, 3, StabilityConfig(protocol=protocol))
    expected = lowest(members)
    run_round(members)
    for member in members:
        member.mine += 100
    assert all(tuple(member.stable.tolist()) == expected for member in members)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_next_round_starts_delta_after_the_last(protocol: str) -> None:
    """Section 2: rounds are executed one after the other, and delta passes between them."""
    members = build(protocol, 4, 2, StabilityConfig(protocol=protocol, gap_ns=10 * MILLISECOND))
    run_round(members)
    sends: Sends = []
    members[0].mine += 5
    members[0].want(SECOND + 10 * MILLISECOND - 1, sends)
    assert not sends
    assert members[0].deadline == SECOND + 10 * MILLISECOND
    members[0].wake(SECOND + 10 * MILLISECOND, sends)
    assert sends


@pytest.mark.parametrize("size", [2, 7, 16, 20])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_message_is_stable_one_delta_and_the_time_of_rounds_after_all_have_it(
    protocol: str, size: int
) -> None:
    """Section 4.1: with rounds every delta seconds that detect stability within RTT, it takes delta + RTT at most from
    the delivery to all. The round that the message has just missed takes an RTT as well."""
    delta_ns = 4 * MILLISECOND
    net = FifoRounds(protocol, size, size, delta_ns)
    net.run(300 * MILLISECOND)
    hops = {"cube": dimensions(size) + 1, "coord": 4, "full": 3, "tree": 4 + dimensions(size)}
    rtt_ns = hops[protocol] * DELAY_US[1] * MICROSECOND
    assert min(int(member.stable[0]) for member in net.members) > 200
    assert delta_ns < net.lag_ns_max <= delta_ns + 2 * rtt_ns


# -- section 2.1, figure 1: Coord --------------------------------------------------------------------------------------


def test_coord_collects_with_start_and_ack_and_tells_with_info() -> None:
    """Figure 1: multicast START, wait for ACK(R) of all nodes, S = minimum, multicast INFO(S)."""
    table = Table("abcd", "coord")
    table.enter()
    assert [(one, other, type(frame)) for one, other, frame in table.frames] == [
        ("a", to, RoundStart) for to in "bcd"
    ]
    table.deliver(3)
    assert [(one, other, type(frame)) for one, other, frame in table.frames] == [
        (by, "a", RoundReport) for by in "bcd"
    ]
    table.deliver(2)
    assert not any(isinstance(frame, RoundResult) for _, _, frame in table.frames), (
        "one ACK is missing"
    )
    table.deliver(1)
    assert [(one, other, type(frame)) for one, other, frame in table.frames] == [
        ("a", to, RoundResult) for to in "bcd"
    ]


# -- section 2.2, figure 2: FullDist -----------------------------------------------------------------------------------


def test_fulldist_answers_the_first_nodes_info_with_the_own_row() -> None:
    """Figure 2: node 0 multicasts its row; a node that receives it multicasts its own."""
    table = Table("abc", "full")
    table.enter()
    assert [(one, other, type(frame)) for one, other, frame in table.frames] == [
        ("a", "b", Row),
        ("a", "c", Row),
    ]
    table.deliver(1)
    assert [(one, other) for one, other, _ in table.frames[1:]] == [("b", "a"), ("b", "c")]


# -- section 2.3, figure 3: S_Coord ------------------------------------------------------------------------------------


def test_scoord_sends_reports_up_the_tree_and_the_result_to_all() -> None:
    """Figure 3: leaves send ACK(R) to their parents; an inner node sends the minimum when all its children have sent;
    the root multicasts INFO(S)."""
    names = "abcdefg"
    table = Table(names, "tree")
    table.enter()
    table.deliver(kind=RoundStart)
    ups = {(one, other) for one, other, frame in table.frames if isinstance(frame, RoundReport)}
    leaves = [place for place in range(7) if place not in {parent(7, k) for k in range(1, 7)}]
    assert ups == {(names[place], names[parent(7, place)]) for place in leaves}
    table.deliver(kind=RoundReport)
    results = [(one, other) for one, other, frame in table.frames if isinstance(frame, RoundResult)]
    assert results == [("a", name) for name in "bcdefg"]


def test_the_tree_has_degree_log_n() -> None:
    """Section 4.1: the tree degree is set to log n; node 0 is the root."""
    assert [tree_degree(size) for size in (16, 100, 1024, 1900)] == [4, 7, 10, 11]
    assert parent(1024, 0) == -1


# -- section 3.1: hypercubes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 4, 6, 8])
def test_an_m_cube_joins_labels_that_differ_in_one_bit(m: int) -> None:
    """Section 3.1: 2^m vertices, an edge where labels differ in precisely one bit, degree and diameter m."""
    size = 1 << m
    assert all((low ^ high).bit_count() == 1 for low, high in edges(size))
    assert [len(near) for near in cube(size)] == [m] * size
    assert diameter(size) == m


@pytest.mark.parametrize("m", [2, 3, 4])
def test_an_m_cube_is_two_smaller_cubes_joined_by_their_leftmost_bit(m: int) -> None:
    """Section 3.1: the recursive construction."""
    size, half = 1 << m, 1 << (m - 1)
    lower = edges(half)
    upper = [(a + half, b + half) for a, b in lower]
    assert sorted(edges(size)) == sorted(lower + upper + [(a, a + half) for a in range(half)])


@pytest.mark.parametrize("m", [2, 3, 4])
def test_every_two_nodes_of_a_cube_have_log_n_disjoint_paths(m: int) -> None:
    """Sections 1 and 3.1: log n node-disjoint paths between every two nodes."""
    size = 1 << m
    assert {disjoint_paths(size, a, b) for a in range(size) for b in range(a + 1, size)} == {m}


# -- section 3.2, figure 5: CubeFullDist -------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 4, 6, 8])
def test_a_round_of_a_complete_cube_takes_n_m_m_plus_1_messages(m: int) -> None:
    """Figure 5: m iterations with one multicast to m neighbours each, and the last multicast."""
    size = 1 << m
    found = figures("cube", size)
    assert found.messages == size * m * (m + 1) == paper_messages("cube", size)
    assert found.hops == m


def test_sixteen_nodes_need_320_messages() -> None:
    assert figures("cube", 16).messages == 320


@pytest.mark.parametrize("size", [3, 5, 7, 14, 33, 100, 300])
def test_an_incomplete_cube_needs_no_more_messages_or_iterations(size: int) -> None:
    """Section 3.2 with 3.3: at most as many as the formula for m dimensions."""
    found = figures("cube", size)
    assert found.messages <= paper_messages("cube", size)
    assert found.hops <= dimensions(size)


def test_a_node_sends_once_per_iteration_and_waits_for_all_neighbours() -> None:
    """Figure 5, lines 1 to 22, for one node of a 3-cube whose neighbours answer one after the other."""
    table = Table("abcdefgh")
    table.enter()

    def iterations() -> list[int]:
        return [
            f.iteration
            for one, to, f in table.frames
            if (one, to) == ("a", "b") and isinstance(f, CubeState)
        ]

    assert iterations() == [1]
    for sender in "bc":
        table.deliver(1, sender=sender, receiver="a")
    assert iterations() == [1], "one neighbour was not heard"
    table.deliver(1, sender="e", receiver="a")
    assert iterations() == [1, 2]


def test_the_last_message_of_a_round_precedes_the_next_round() -> None:
    """Figure 5, line 8: a node multicasts the full state before it starts a new round."""
    table = Table("ab")
    table.enter()
    table.deliver(1, sender="b", receiver="a")
    states = [
        frame for one, _, frame in table.frames if one == "a" and isinstance(frame, CubeState)
    ]
    assert [(frame.round, frame.bits) for frame in states] == [(1, b"\x01"), (1, b"\x03")]
    assert table.status("a").round == 2


def test_a_message_of_an_earlier_round_is_ignored() -> None:
    """Section 3.2: a message with a lower number is redundant and is ignored."""
    table = Table("ab")
    table.enter()
    first = next(item for item in table.frames if item[0] == "b")
    table.later(50 * MILLISECOND)
    table.report_all(5, 5)
    table.later(3 * MILLISECOND)
    before = table.status("a")
    table.take(*first)
    after = table.status("a")
    assert (after.round, after.stable) == (before.round, before.stable)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 7, 16, 20])
def test_with_fifo_channels_no_node_receives_a_message_of_a_later_round(
    size: int, seed: int
) -> None:
    """Section 3.2: before a node begins a round it sends the full state of the last one. Channels are FIFO, so its
    neighbours have ended that round when they get a message of the new one."""
    net = FifoRounds("cube", size, seed, MILLISECOND)
    net.run(100 * MILLISECOND)
    assert net.ahead == []
    assert net.frames > 100
    assert min(member.round for member in net.members) > 5


@pytest.mark.parametrize("size", [7, 14, 16, 100])
def test_messages_travel_along_the_edges_of_the_cube_only(size: int) -> None:
    """Section 1: each node communicates with about log n others, its neighbours on the cube, whatever the network."""
    sent, _ = exchanged("cube", size)
    assert [tuple(sorted(peers)) for peers in sent] == list(cube(size))


@pytest.mark.parametrize("size", [16, 64, 100])
def test_every_node_has_the_same_load(size: int) -> None:
    """Section 1, regularity: no node is loaded more than others. A node handles at most 2m(m+1) messages."""
    m = dimensions(size)
    assert figures("cube", size).busiest <= 2 * m * (m + 1)


# -- section 3.3: incomplete hypercubes --------------------------------------------------------------------------------


def test_seven_nodes_get_the_edge_between_5_and_6() -> None:
    """Section 3.3: node 7 is missing with respect to H3, and a connection is added between nodes 5 and 6."""
    assert compensating_edges(7) == [(5, 6)]
    assert [len(near) for near in cube(7)] == [3, 3, 3, 2, 3, 3, 3]


def test_fourteen_nodes_get_two_edges() -> None:
    """Section 3.3, figure 6: 14 nodes of H4."""
    assert compensating_edges(14) == [(10, 12), (11, 13)]
    assert [len(near) for near in cube(14)] == [4, 4, 4, 4, 4, 4, 3, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("size", [5, 7, 11, 14, 21, 33, 50, 100])
def test_added_connections_replace_those_to_a_missing_node(size: int) -> None:
    """Section 3.3: an added connection joins two nodes at Hamming distance 2 that are both neighbours of one missing
    node. Sorted by id and without the first of an odd number, the i-th of the first half is joined with the i-th of
    the second half, so each of them gets one connection for the one that it misses."""
    m = dimensions(size)
    expected: list[tuple[int, int]] = []
    for missing in range(size, 1 << m):
        around = [node for node in range(size) if (node ^ missing).bit_count() == 1]
        if len(around) % 2:
            del around[0]
        pairs = [(around[k], around[k + len(around) // 2]) for k in range(len(around) // 2)]
        assert all((low ^ high).bit_count() == 2 for low, high in pairs)
        expected += pairs
    assert compensating_edges(size) == expected


def test_fourteen_nodes_are_three_complete_cubes() -> None:
    """Figure 6: H3 with nodes 0xxx, H2 with 10xx, H1 with 110x, joined where labels differ in the leading bit."""
    inside = {
        (low, high)
        for first, count in ((0, 8), (8, 4), (12, 2))
        for low in range(first, first + count)
        for high in range(low + 1, first + count)
        if (low ^ high).bit_count() == 1
    }
    across = {(low, high) for low, high in edges(14) if (low ^ high).bit_count() == 1} - inside
    assert across == {(k, k + 8) for k in range(6)} | {(8, 12), (9, 13)}


def test_every_degree_is_m_or_m_minus_1() -> None:
    """Section 3.3: the number of connections per node is kept near log n, from above and from below."""
    for size in [*range(3, 300), 511, 513, 1000, 1023, 1025, 1999]:
        m = dimensions(size)
        assert {len(near) for near in cube(size)} <= {m - 1, m}, size


def test_the_diameter_is_at_most_m() -> None:
    """Section 3.3: the added links do not increase the diameter of the system."""
    for size in range(2, 130):
        assert diameter(size) <= dimensions(size), size


@pytest.mark.slow
def test_the_diameter_is_at_most_m_for_under_260_nodes() -> None:
    for size in range(130, 260):
        assert diameter(size) <= dimensions(size), size


@pytest.mark.parametrize("size", [5, 7, 9, 14, 17, 23, 33])
def test_incomplete_cubes_have_about_log_n_disjoint_paths(size: int) -> None:
    """Sections 1.1 and 3.3: the degree of a node, and the number of independent paths between any pair of nodes, is
    roughly log n. It is m or m - 1."""
    m = dimensions(size)
    found = {disjoint_paths(size, a, b) for a in range(size) for b in range(a + 1, size)}
    assert found <= {m - 1, m}


def test_a_cube_of_one_node_less_has_no_node_with_a_single_neighbour() -> None:
    """Section 1.1: HyperCast leaves a node with one neighbour in a cube of 2^n + 1 nodes; this one does not."""
    for m in range(2, 10):
        size = (1 << m) + 1
        assert min(len(near) for near in cube(size)) >= dimensions(size) - 1


# -- section 3.4, figure 7: the analytical comparison ------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 16, 100, 128])
def test_iterations_of_figure_7(size: int) -> None:
    """Figure 7: O(1) iterations for Coord and FullDist, O(log n) for S_Coord and CubeFullDist."""
    assert figures("coord", size).hops == 3
    assert figures("full", size).hops == 2
    assert figures("tree", size).hops <= 3 + dimensions(size)
    assert figures("cube", size).hops <= dimensions(size)


@pytest.mark.parametrize("size", [8, 16, 100, 128])
def test_total_messages_of_figure_7(size: int) -> None:
    """Figure 7: O(n) for Coord and S_Coord, O(n^2) for FullDist, O(n log^2 n) for CubeFullDist. Section 3.5 adds one
    confirmation per node to Coord and S_Coord."""
    confirmations = size - 1
    assert figures("coord", size).messages == 3 * (size - 1) + confirmations
    assert figures("tree", size).messages == 3 * (size - 1) + confirmations
    assert figures("full", size).messages == size * (size - 1)
    assert figures("cube", size).messages <= size * dimensions(size) * (dimensions(size) + 1)


def exchanged(protocol: str, size: int) -> tuple[list[set[int]], list[int]]:
    """The nodes that each node sends to in one round, and how many messages it receives. Confirmations of results,
    which section 3.5 adds, are left out."""
    members = build(protocol, size, 2, StabilityConfig(protocol=protocol))
    sent: list[set[int]] = [set() for _ in members]
    received = [0] * size
    sends: Sends = []
    queue: list[tuple[int, int, StabilityFrame]] = []

    def post(place: int) -> None:
        for places, frame in sends:
            queue.extend((place, to, frame) for to in places)
            if not isinstance(frame, ResultAck):
                sent[place].update(places)
        sends.clear()

    for member in members:
        if member.initiates:
            member.want(SECOND, sends)
            post(member.seat.place)
    for sender, to, frame in queue:
        received[to] += not isinstance(frame, ResultAck)
        members[to].take(sender, frame, SECOND, sends)
        post(to)
    return sent, received


@pytest.mark.parametrize("size", [16, 100, 128])
def test_messages_per_node_of_figure_7(size: int) -> None:
    """Figure 7 and section 3.4: in a round Coord's coordinator receives the messages of all nodes and the others O(1);
    every node of FullDist receives n - 1, a node of S_Coord at most as many as it has children, with START and INFO,
    and a node of CubeFullDist O(log^2 n)."""
    m = dimensions(size)
    received = {protocol: exchanged(protocol, size)[1] for protocol in PROTOCOLS}
    assert received["coord"] == [size - 1] + [2] * (size - 1)
    assert received["full"] == [size - 1] * size
    assert max(received["tree"]) <= tree_degree(size) + 2
    assert max(received["cube"]) <= m * (m + 1)


@pytest.mark.parametrize("size", [128, 300])
def test_the_coordinator_is_the_bottleneck_that_the_cube_does_not_have(size: int) -> None:
    """Section 3.4: Coord's coordinator receives messages of all nodes; a node of the cube receives O(log n) of them in
    each iteration. From 128 nodes on the cube's busiest node has less to do."""
    assert figures("coord", size).busiest == 4 * (size - 1)
    assert figures("cube", size).busiest < figures("coord", size).busiest / 4


def silent_after_a_failure(protocol: str, dead: int, size: int = 40) -> list[int]:
    """Which members each member has not heard of when one has failed and all others did what they can."""
    members = build(protocol, size, 2, StabilityConfig(protocol=protocol))
    living = [member for member in members if member.seat.place != dead]
    queue: list[tuple[int, int, object]] = []
    sends: Sends = []

    def post(sender: int) -> None:
        queue.extend((sender, to, frame) for places, frame in sends for to in places)
        sends.clear()

    for member in living:
        if member.initiates:
            member.want(SECOND, sends)
            post(member.seat.place)
    for member in living:
        member.suspect(1 << dead, SECOND, sends)
        post(member.seat.place)
    for sender, to, frame in queue:
        if to != dead:
            members[to].take(sender, frame, SECOND, sends)  # type: ignore[arg-type]
            post(to)
    assert all(member.rounds == 0 for member in living), "only a view excuses a member"
    return [member.silent() for member in living]


def test_one_failed_node_stops_the_tree_but_not_the_spreading_in_the_cube() -> None:
    """Section 3.4: if one node of the tree fails, its branch is disconnected. In CubeFullDist and FullDist the reports
    of all others still reach all others."""
    dead = 1  # An inner node of the tree.
    assert silent_after_a_failure("cube", dead) == [1 << dead] * 39
    assert set(silent_after_a_failure("full", dead)) == {1 << dead}
    assert silent_after_a_failure("tree", dead)[0].bit_count() > 1


@pytest.mark.parametrize("protocol", ["coord", "tree"])
def test_without_the_coordinator_nothing_happens(protocol: str) -> None:
    """Section 3.4: Coord and S_Coord are not fault tolerant. Without the coordinator, or the root, no round begins."""
    members = build(protocol, 40, 2, StabilityConfig(protocol=protocol))
    assert [member.seat.place for member in members if member.initiates] == [0]
    assert set(silent_after_a_failure(protocol, 0)) == {0}
    assert silent_after_a_failure("cube", 0) == [1] * 39


@pytest.mark.parametrize("size", [8, 14, 16, 100])
def test_the_cube_is_partitioned_only_when_all_neighbours_of_a_node_fail(size: int) -> None:
    """Section 3.4: the system is logically partitioned only if the log n neighbours of a node fail. With all but one
    gone, the node still reaches every other."""
    for place, near in enumerate(cube(size)):
        for left in near:
            gone = [other for other in near if other != left]
            reached = distances(size, place, without=gone)
            assert all(hops >= 0 for other, hops in enumerate(reached) if other not in gone)
        assert all(
            hops < 0
            for other, hops in enumerate(distances(size, place, without=near))
            if other != place
        )


def test_sizes_at_which_fewer_failures_can_cut_a_node_off() -> None:
    """Section 3.4 claims too much for incomplete cubes of 2^k + 1 nodes: the last node shares all its neighbours with
    node 0, so the failure of the others cuts both off together. With 7 nodes node 3 has two neighbours only, which
    are neighbours of node 0."""
    found = []
    for size in range(3, 70):
        for place, near in enumerate(cube(size)):
            for left in near:
                gone = [other for other in near if other != left]
                reached = distances(size, place, without=gone)
                if any(hops < 0 for other, hops in enumerate(reached) if other not in gone):
                    found.append(size)
    assert sorted(set(found)) == [5, 7, 9, 17, 33, 65]


@pytest.mark.parametrize("protocol", ["full", "cube"])
def test_code_regularity(protocol: str) -> None:
    """Figure 7: in FullDist and CubeFullDist every node runs the same code and sends the same kinds of message."""
    members = build(protocol, 16, 2, StabilityConfig(protocol=protocol))
    kinds: list[set[type]] = [set() for _ in members]
    sends: Sends = []
    queue: list[tuple[int, int, object]] = []
    for member in members:
        if member.initiates:
            member.want(SECOND, sends)
            kinds[member.seat.place] |= {type(frame) for _, frame in sends}
            queue += [(member.seat.place, to, frame) for places, frame in sends for to in places]
            sends.clear()
    for sender, to, frame in queue:
        members[to].take(sender, frame, SECOND, sends)  # type: ignore[arg-type]
        kinds[to] |= {type(answer) for _, answer in sends}
        queue += [(to, there, answer) for places, answer in sends for there in places]
        sends.clear()
    assert all(kind == kinds[0] for kind in kinds)


# -- section 3.5: weaker networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_reliable_channels_are_needed(protocol: str) -> None:
    """Section 3.5: messages are repeated until they are answered. 40 % loss."""
    world = World(12, with_protocol(protocol), 4, loss=0.4)
    world.order(10)
    assert world.run(10 * SECOND, world.is_settled)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_fifo_channels_are_needed(protocol: str) -> None:
    """Section 3.5: what is older than the sender's last message is ignored. Delays vary by a factor of 400."""
    world = World(12, with_protocol(protocol), 4, duplicate=0.5, delay_us=(10, 4000))
    world.order(10)
    assert world.run(10 * SECOND, world.is_settled)


def test_coord_repeats_start_to_the_nodes_that_did_not_answer() -> None:
    """Section 3.5: line 1 is repeated until all have acknowledged."""
    table = Table("abcd", "coord")
    table.enter()
    table.drop(receiver="c")
    table.deliver()
    table.later(5 * MILLISECOND, deliver=False)
    assert [(other, type(frame)) for _, other, frame in table.frames] == [("c", RoundStart)]
    table.deliver()
    assert table.status("a").rounds == 1


def test_coord_repeats_info_to_the_nodes_that_did_not_confirm() -> None:
    """Section 3.5: line 4 is repeated until ACKINFO came from all."""
    table = Table("abcd", "coord")
    table.enter()
    table.deliver(6)
    table.drop(receiver="d", kind=RoundResult)
    table.deliver()
    table.later(5 * MILLISECOND, deliver=False)
    assert [(other, type(frame)) for _, other, frame in table.frames] == [("d", RoundResult)]
    table.deliver()
    table.later(SECOND, deliver=False)
    assert not table.frames


def test_fulldist_treats_a_higher_round_as_its_own() -> None:
    """Section 3.5: an INFO of round r' > r is processed as if its number were r; a lower one is stale."""
    table = Table("ab", "full")
    table.enter()
    values = np.array([0, 0], np.int64).tobytes()
    table.frames.clear()
    table.take("b", "a", Row("g", 7, 1, 1, 1, 7, values))
    assert table.status("a").rounds == 1
    assert table.status("a").round == 7
    table.take("b", "a", Row("g", 7, 1, 1, 1, 3, values))
    assert table.status("a").refused == {"late": 1}


def test_a_neighbour_counts_once_in_an_iteration() -> None:
    """Section 3.5: `receive` is increased only by the first message of a node in the current iteration."""
    table = Table("abcd")
    table.enter()
    (frame,) = [frame for one, to, frame in table.frames if (one, to) == ("b", "a")]
    sent = table.status("a").sent
    for _ in range(5):
        table.take("b", "a", frame)
    assert table.status("a").sent == sent, "c was not heard: a is still in its first iteration"


# -- section 5: further work -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stability_messages_ride_on_messages_of_the_multicast_protocol(protocol: str) -> None:
    """Section 5: stability messages can be piggybacked on other messages. Where all nodes send to each other every
    millisecond, everything becomes stable without a single message of its own."""
    table = Table("abcdefgh", protocol, ride_ns=4 * MILLISECOND)
    table.enter()
    table.later(200 * MILLISECOND)

    def pass_messages() -> None:
        """Every node sends to every other. What rides along arrives, and causes no message of its own."""
        for one in table.detectors:
            for other in table.detectors:
                if other != one:
                    rides = table[one].ride(node_id(other), table.now)
                    table.frames += [(one, other, frame) for frame in rides]
        table.deliver(len(table.frames))
        assert not table.frames

    pass_messages()
    for count in range(1, 60):
        table.report_all(count, count)
        table.later(MILLISECOND, deliver=False)
        assert not table.frames, "no message waits longer than for the next ride"
        pass_messages()
    for name in table.detectors:
        assert min(table.status(name).stable) > 30
        assert table.status(name).rode > 0


def test_members_can_be_placed_so_that_the_cube_follows_good_paths() -> None:
    """Section 5: the cube need not be superimposed at random. With two sites of eight nodes each, placed members have
    one connection each to the other site, the least that a cube of 16 can have; at random it is about half."""
    site = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0]
    costs = np.array([[1 if a == b else 100 for b in site] for a in site], np.int64)
    np.fill_diagonal(costs, 0)
    order = improve(costs, 100)

    def between(seats: list[int]) -> int:
        return sum(site[seats[a]] != site[seats[b]] for a, b in edges(16))

    assert between(list(range(16))) > 12
    assert between(order) == 8
