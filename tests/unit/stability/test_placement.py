"""Where members sit on the cube (S8, rule 7)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from holdfast.stability.hypercube import edges
from holdfast.stability.placement import (
    PathQuality,
    Placer,
    arrangement_cost,
    costs_of,
    improve,
    seat_members,
)
from holdfast.stability.ports import Member
from holdfast.types import MILLISECOND, SECOND, NodeId

GOOD = PathQuality(200_000)
BAD = PathQuality(200_000, soft_error=True)
Table = dict[tuple[NodeId, NodeId], PathQuality]


def members(count: int, life: int = 1) -> tuple[Member, ...]:
    return tuple(Member(f"m{k}", NodeId(b"%016d" % k), life) for k in range(count))


def two_sites(everyone: tuple[Member, ...], rng: Random) -> tuple[Table, list[int]]:
    """Paths are good within a site and slow between the two. Members are spread over the sites at random."""
    site = [k % 2 for k in range(len(everyone))]
    rng.shuffle(site)
    near, far = PathQuality(200_000), PathQuality(40 * MILLISECOND)
    return {
        (one.node, other.node): near if site[a] == site[b] else far
        for a, one in enumerate(everyone)
        for b, other in enumerate(everyone)
        if a < b
    }, site


# -- seats ---------------------------------------------------------------------------------------------------------


def test_members_that_stay_keep_their_places() -> None:
    before = members(6)
    joined = (*before, Member("new", NodeId(b"n" * 16), 1))
    assert seat_members(before, tuple(reversed(joined))) == joined


def test_the_last_member_takes_the_place_of_one_that_left() -> None:
    a, b, c, d, e = members(5)
    assert seat_members((a, b, c, d, e), (a, c, d, e)) == (a, e, c, d)
    assert seat_members((a, b, c, d, e), (c, d)) == (d, c)


def test_a_newcomer_takes_a_free_place_and_a_new_life_its_old_one() -> None:
    a, b, c = members(3)
    new, again = Member("new", NodeId(b"n" * 16), 1), Member(b.name, b.node, 2)
    assert seat_members((a, b, c), (new, again, c)) == (new, again, c)


@pytest.mark.parametrize("seed", range(20))
def test_each_member_has_one_seat(seed: int) -> None:
    rng = Random(seed)
    everyone = list(members(12))
    order = tuple(rng.sample(everyone, rng.randint(0, 12)))
    present = rng.sample(everyone, rng.randint(1, 12))
    seated = seat_members(order, present)
    assert sorted(seated, key=lambda member: member.node) == sorted(
        present, key=lambda member: member.node
    )


# -- costs ---------------------------------------------------------------------------------------------------------


def test_costs_are_classes_that_small_changes_do_not_leave() -> None:
    assert PathQuality(200_000).cost == PathQuality(250_000).cost
    assert (
        PathQuality(200_000).cost < PathQuality(2_000_000).cost < PathQuality(50 * MILLISECOND).cost
    )
    assert PathQuality(200_000).cost < PathQuality(200_000, loss_ppm=100_000).cost < BAD.cost
    assert BAD.cost < PathQuality(200_000, alive=False).cost


def test_the_worse_direction_counts_and_unknown_paths_lie_between_good_and_bad() -> None:
    a, b, c = (member.node for member in members(3))
    costs = costs_of([a, b, c], {(a, b): GOOD, (b, a): BAD})
    assert costs[0, 1] == costs[1, 0] == BAD.cost
    assert GOOD.cost < costs[0, 2] < BAD.cost
    assert not np.diagonal(costs).any()


# -- better arrangements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 7, 16, 30])
def test_an_improved_order_costs_what_its_edges_cost(size: int) -> None:
    rng = np.random.default_rng(size)
    costs = rng.integers(1, 1000, (size, size))
    costs = costs + costs.T
    np.fill_diagonal(costs, 0)
    order = improve(costs, 50)
    assert sorted(order) == list(range(size))
    assert arrangement_cost(costs, order) == sum(
        int(costs[order[a], order[b]]) for a, b in edges(size)
    )
    assert arrangement_cost(costs, order) <= arrangement_cost(costs)
    assert improve(costs, 50) == order, "the same costs give the same order"


def test_no_single_swap_improves_what_improve_found() -> None:
    rng = np.random.default_rng(5)
    costs = rng.integers(1, 1000, (14, 14))
    costs = costs + costs.T
    np.fill_diagonal(costs, 0)
    order = improve(costs, 1000)
    best = arrangement_cost(costs, order)
    for a in range(14):
        for b in range(a):
            other = list(order)
            other[a], other[b] = other[b], other[a]
            assert arrangement_cost(costs, other) >= best


def test_two_sites_share_far_fewer_edges_than_by_chance() -> None:
    everyone = members(32)
    table, site = two_sites(everyone, Random(3))
    costs = costs_of([member.node for member in everyone], table)
    order = improve(costs, 200)
    by_chance = sum(site[a] != site[b] for a, b in edges(32))
    crossing = sum(site[order[a]] != site[order[b]] for a, b in edges(32))
    assert 16 <= crossing <= by_chance * 2 // 3, "the least is one dimension of the cube"


# -- hysteresis ----------------------------------------------------------------------------------------------------


def looks(
    placer: Placer, everyone: tuple[Member, ...], table: Table, start: int, count: int
) -> list[int]:
    """Which of `count` looks, one per second, propose something."""
    return [
        k for k in range(count) if placer.look(everyone, table, (start + k) * SECOND) is not None
    ]


def test_a_better_order_is_proposed_after_it_was_confirmed() -> None:
    everyone = members(16)
    table, _ = two_sites(everyone, Random(1))
    assert looks(Placer(confirmations=3), everyone, table, 0, 3) == [2]


def test_after_a_change_the_order_is_held() -> None:
    everyone = members(16)
    table, _ = two_sites(everyone, Random(1))
    placer = Placer(confirmations=1, hold_ns=60 * SECOND)
    order = placer.look(everyone, table, SECOND)
    assert order is not None
    other, _ = two_sites(everyone, Random(2))
    assert looks(placer, order, other, 2, 58) == []
    assert looks(placer, order, other, 61, 2) != []


def test_a_small_gain_moves_no_member() -> None:
    """One slow path of 32 edges is not worth a new view."""
    everyone = members(16)
    table = {
        (one.node, other.node): GOOD
        for a, one in enumerate(everyone)
        for other in everyone[a + 1 :]
    }
    table[everyone[0].node, everyone[1].node] = PathQuality(1_000_000)
    assert looks(Placer(confirmations=1), everyone, table, 0, 5) == []


def test_paths_that_fluctuate_move_no_member() -> None:
    everyone = members(16)
    rng = Random(4)
    placer = Placer()
    for second in range(50):
        table = {
            (one.node, other.node): PathQuality(rng.randint(150_000, 600_000))
            for a, one in enumerate(everyone)
            for other in everyone[a + 1 :]
        }
        assert placer.look(everyone, table, second * SECOND) is None


def test_a_gain_that_does_not_last_is_forgotten() -> None:
    everyone = members(16)
    table, _ = two_sites(everyone, Random(1))
    calm = dict.fromkeys(table, GOOD)
    placer = Placer(confirmations=3)
    for second in range(0, 30, 3):
        assert looks(placer, everyone, table, second, 2) == []
        assert looks(placer, everyone, calm, second + 2, 1) == []


def test_another_membership_begins_again() -> None:
    everyone = members(16)
    table, _ = two_sites(everyone, Random(1))
    placer = Placer(confirmations=2)
    assert placer.look(everyone, table, 0) is None
    assert placer.look(everyone[:15], table, SECOND) is None
    assert placer.look(everyone[:15], table, 2 * SECOND) is not None
