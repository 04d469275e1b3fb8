"""Vectors on the wire, and the running minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stability.vectors import (
    Minimum,
    as_holders,
    pack,
    unknown_holders,
    unpack,
    unpack_holders,
)

numbers = st.lists(st.integers(0, 1 << 62), min_size=1, max_size=60)


@given(numbers)
def test_a_vector_survives_the_wire(values: list[int]) -> None:
    read = unpack(pack(np.array(values, np.int64)), len(values))
    assert read is not None
    assert read.tolist() == values


@pytest.mark.parametrize("length", [0, 8, 23, 25, 32])
def test_a_vector_of_another_length_is_none(length: int) -> None:
    assert unpack(bytes(length), 3) is None


@pytest.mark.parametrize(("size", "width"), [(65_535, 2), (65_536, 4)])
def test_holders_take_two_bytes_up_to_65535_members(size: int, width: int) -> None:
    holders = as_holders(np.array([0, size - 1, -1]), size)
    data = pack(holders)
    assert len(data) == 3 * width
    read = unpack_holders(data, 3, size)
    assert read is not None
    assert read.tolist()[:2] == [0, size - 1]
    assert read.tolist()[2] >= size, "a negative place is no member"
    assert unpack_holders(data[:-1], 3, size) is None
    assert (unknown_holders(3, size) >= size).all()


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=8))
def test_the_minimum_of_all_reports_names_a_holder_of_each_number(rows: list[list[int]]) -> None:
    minimum = Minimum(4, len(rows))
    minimum.open(0, np.array(rows[0], np.int64))
    for place, row in enumerate(rows[1:], 1):
        minimum.merge(1 << place, np.array(row, np.int64), as_holders(np.full(4, place), len(rows)))
    assert minimum.values.tolist() == [min(column) for column in zip(*rows, strict=True)]
    for slot, (holder, value) in enumerate(zip(minimum.holders, minimum.values, strict=True)):
        assert rows[int(holder)][slot] == value
    assert minimum.bits == (1 << len(rows)) - 1


def test_a_minimum_that_covers_no_further_member_changes_nothing() -> None:
    minimum = Minimum(1, 2)
    minimum.open(0, np.array([5], np.int64))
    minimum.merge(1, np.array([2], np.int64), as_holders(np.array([0]), 2))
    assert minimum.values.tolist() == [5]


def test_packed_and_unpacked_merges_agree() -> None:
    one, two = Minimum(3, 4), Minimum(3, 4)
    for minimum in (one, two):
        minimum.open(0, np.array([5, 6, 7], np.int64))
    values, holders = np.array([9, 2, 7], np.int64), as_holders(np.array([1, 2, 3]), 4)
    one.merge(0b1110, values, holders)
    two.merge_packed(0b1110, pack(values), pack(holders))
    assert one.values.tolist() == two.values.tolist() == [5, 2, 7]
    assert one.holders.tolist() == two.holders.tolist() == [0, 2, 0]
    assert one.bits == two.bits == 0b1111
