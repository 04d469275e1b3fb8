"""The geometry of complete and incomplete cubes, and of the tree."""

from __future__ import annotations

import pytest

from holdfast.health.probing.neighbourhood import cube_of
from holdfast.stability.hypercube import (
    children,
    compensating_edges,
    cube,
    diameter,
    dimensions,
    disjoint_paths,
    distances,
    edges,
    neighbours,
    parent,
    subtrees,
    tree_degree,
)


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11)]
)
def test_dimensions_are_the_bits_of_the_highest_place(size: int, expected: int) -> None:
    assert dimensions(size) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 14, 16, 33, 100, 300])
def test_neighbours_of_one_place_are_those_of_the_whole_cube(size: int) -> None:
    assert tuple(neighbours(size, place) for place in range(size)) == cube(size)


@pytest.mark.parametrize("size", [2, 7, 14, 100])
def test_the_heartbeat_neighbourhood_has_the_same_shape(size: int) -> None:
    """One hypercube in the product: health and stability agree on who is next to whom."""
    assert [tuple(cube_of(size, place)) for place in range(size)] == list(cube(size))


def test_edges_have_both_ends_and_no_loops() -> None:
    for size in range(1, 70):
        sides = cube(size)
        assert all(place not in near for place, near in enumerate(sides))
        assert all(place in sides[there] for place, near in enumerate(sides) for there in near)
        assert len(edges(size)) == sum(map(len, sides)) // 2


def test_a_complete_cube_has_no_compensating_edges() -> None:
    assert not any(compensating_edges(1 << m) for m in range(8))


def test_compensating_edges_join_members_two_bits_apart() -> None:
    for size in range(3, 130):
        assert all((low ^ high).bit_count() == 2 for low, high in compensating_edges(size))


def test_distances_without_members_that_do_not_forward() -> None:
    assert distances(8, 0) == [0, 1, 1, 2, 1, 2, 2, 3]
    assert distances(8, 0, without=[1, 2]) == [0, -1, -1, 4, 1, 2, 2, 3]
    assert distances(8, 0, without=[1, 2, 4])[7] == -1


def test_disjoint_paths_of_a_complete_cube_are_its_dimensions() -> None:
    assert all(disjoint_paths(16, 0, place) == 4 for place in range(1, 16))


def test_disjoint_paths_are_as_many_as_the_smallest_degree() -> None:
    """Between any two members, for every size of up to 34: so many failures less one, anywhere, cut nothing."""
    for size in range(3, 35):
        least = min(map(len, cube(size)))
        for start in range(size):
            for end in range(start + 1, size):
                assert disjoint_paths(size, start, end) >= least, (size, start, end)


def test_diameter_of_small_cubes() -> None:
    assert [diameter(size) for size in (1, 2, 4, 8, 16)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100, 300])
def test_the_tree_reaches_every_member_once(size: int) -> None:
    below = [child for place in range(size) for child in children(size, place)]
    assert sorted(below) == list(range(1, size))
    assert all(place in children(size, parent(size, place)) for place in range(1, size))
    assert parent(size, 0) == -1
    assert subtrees(size)[0] == (1 << size) - 1


def test_a_subtree_is_a_member_and_everything_below_it() -> None:
    size = 50
    masks = subtrees(size)
    for place in range(size):
        expected = 1 << place
        for child in children(size, place):
            expected |= masks[child]
        assert masks[place] == expected
    assert tree_degree(size) == 6
