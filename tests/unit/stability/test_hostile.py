"""Damaged and hostile frames: each is refused and counted, nothing is freed early, and the view goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stability.harness import Table

from holdfast.stability import PROTOCOLS
from holdfast.stability.frames import (
    CubeState,
    ResultAck,
    RoundReport,
    RoundResult,
    RoundStart,
    Row,
    StabilityFrame,
)
from holdfast.types import MILLISECOND

HEAD = ("g", 7, 1, 1, 1)
"""Group, epoch, view, life and incarnation of a sound frame."""
GOOD = np.array([10, 10], np.int64).tobytes()
HUGE = np.array([1 << 61, 1 << 61], np.int64).tobytes()
NAMES = bytes(4)


def running(protocol: str) -> Table:
    """A round is under way, and d has reported less than the others."""
    table = Table("abcd", protocol)
    table.enter()
    table.report_all(3, 3)
    table.later(100 * MILLISECOND)
    for name in "abc":
        table.report(name, 10, 10)
    table.later(5 * MILLISECOND, deliver=False)
    return table


CUBE_FRAMES = [
    ("bitmap", CubeState(*HEAD, 9, 1, b"", GOOD, NAMES)),
    ("bitmap", CubeState(*HEAD, 9, 1, b"\x0f\x00", GOOD, NAMES)),
    ("bitmap", CubeState(*HEAD, 9, 1, b"\xff", GOOD, NAMES)),
    ("bitmap", CubeState(*HEAD, 9, 1, b"\x00", GOOD, NAMES)),
    ("vector", CubeState(*HEAD, 9, 1, b"\x0f", GOOD[:-1], NAMES)),
    ("vector", CubeState(*HEAD, 9, 1, b"\x0f", b"", NAMES)),
    ("vector", CubeState(*HEAD, 9, 1, b"\x0f", GOOD * 9, NAMES)),
    ("vector", CubeState(*HEAD, 9, 1, b"\x0f", GOOD, b"")),
    ("above report", CubeState(*HEAD, 9, 1, b"\x0f", HUGE, NAMES)),
    ("round", CubeState(*HEAD, 1 << 60, 1, b"\x0f", GOOD, NAMES)),
    ("round", CubeState(*HEAD, 0, 1, b"\x0f", GOOD, NAMES)),
    ("round", CubeState(*HEAD, -5, 1, b"\x0f", GOOD, NAMES)),
    ("round", CubeState(*HEAD, 9, -1, b"\x0f", GOOD, NAMES)),
    ("round", CubeState(*HEAD, 9, 1 << 62, b"\x0f", GOOD, NAMES)),
    ("late", CubeState("g", 7, 1, 1, -9, 9, 1, b"\x0f", GOOD, NAMES)),
    ("above report", RoundResult(*HEAD, 9, HUGE, NAMES)),
    ("vector", RoundResult(*HEAD, 9, b"", NAMES)),
    ("holders", RoundResult(*HEAD, 9, GOOD, b"12345")),
    ("round", RoundResult(*HEAD, 1 << 62, GOOD, NAMES)),
    ("kind", RoundStart(*HEAD, 9)),
    ("kind", Row(*HEAD, 9, GOOD)),
]
OTHERS: list[tuple[str, str, str, StabilityFrame]] = [
    ("coord", "c", "above report", RoundResult(*HEAD, 9, HUGE, NAMES)),
    ("coord", "c", "vector", RoundResult(*HEAD, 9, GOOD[:3], NAMES)),
    ("coord", "c", "round", RoundResult(*HEAD, 0, GOOD, NAMES)),
    ("coord", "c", "round", RoundStart(*HEAD, 1 << 61)),
    ("coord", "c", "kind", CubeState(*HEAD, 9, 1, b"\x0f", GOOD, NAMES)),
    ("coord", "a", "vector", RoundReport(*HEAD, 2, b"", GOOD[:-1], b"")),
    ("coord", "a", "bitmap", RoundReport(*HEAD, 2, b"\x0f", HUGE, NAMES)),
    ("coord", "a", "round", RoundReport(*HEAD, -2, b"", GOOD, b"")),
    ("coord", "a", "round", ResultAck(*HEAD, -1, b"\x02")),
    ("tree", "c", "above report", RoundResult(*HEAD, 9, HUGE, NAMES)),
    ("tree", "c", "sender", RoundStart(*HEAD, 9)),
    ("tree", "a", "bitmap", RoundReport(*HEAD, 3, b"\x0f\x0f", GOOD, NAMES)),
    ("tree", "a", "bitmap", RoundReport(*HEAD, 3, b"\x01", GOOD, NAMES)),
    ("tree", "a", "vector", RoundReport(*HEAD, 3, b"\x0f", b"", NAMES)),
    ("tree", "a", "holders", RoundReport(*HEAD, 3, b"\x0f", GOOD, b"1")),
    ("tree", "a", "round", RoundReport(*HEAD, 1 << 30, b"\x0f", GOOD, NAMES)),
    ("tree", "a", "bitmap", ResultAck(*HEAD, 2, b"")),
    ("full", "a", "vector", Row(*HEAD, 9, GOOD + GOOD)),
    ("full", "a", "round", Row(*HEAD, 1 << 62, GOOD)),
    ("full", "a", "round", RoundReport(*HEAD, 5, b"", GOOD, b"")),
    ("full", "a", "kind", RoundResult(*HEAD, 5, GOOD, NAMES)),
]


def refused_by(table: Table, receiver: str, sender: str, frame: StabilityFrame, why: str) -> None:
    before, stable = table.status(receiver).refused.get(why, 0), table.stable(receiver)
    waiting = len(table.frames)
    table.take(sender, receiver, frame)
    assert table.status(receiver).refused.get(why, 0) == before + 1
    assert table.stable(receiver) == stable
    assert len(table.frames) == waiting, "a refused frame is not answered"


@pytest.mark.parametrize(("why", "frame"), CUBE_FRAMES)
def test_the_cube_refuses_and_counts(why: str, frame: StabilityFrame) -> None:
    table = running("cube")
    refused_by(table, "a", "b", frame, why)
    table.report("d", 10, 10)
    table.later(300 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(10, 10)] * 4


@pytest.mark.parametrize(("protocol", "receiver", "why", "frame"), OTHERS)
def test_the_other_protocols_refuse_and_count(
    protocol: str, receiver: str, why: str, frame: StabilityFrame
) -> None:
    table = running(protocol)
    sender = "b" if why == "sender" or receiver == "a" else "a"
    refused_by(table, receiver, sender, frame, why)
    table.report("d", 10, 10)
    table.later(300 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(10, 10)] * 4


def test_a_round_from_the_future_is_adopted_only_within_reach() -> None:
    """A million rounds ahead are possible after a restart; 2^60 would use the numbers up."""
    table = running("cube")
    table.take("b", "a", CubeState(*HEAD, 1_000_000, 1, b"\x0f", bytes(16), NAMES))
    assert table.status("a").round == 1_000_000
    table.report("d", 10, 10)
    table.later(500 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(10, 10)] * 4


def test_holders_that_are_no_members_are_not_named() -> None:
    table = running("cube")
    names = np.array([999, 0xFFFF], np.uint16).tobytes()
    table.take("b", "a", CubeState(*HEAD, 9, 1, b"\x0f", np.array([3, 3]).tobytes(), names))
    assert table.stable("a") == (3, 3)
    assert table.status("a").blockers == ()


small = st.integers(-2, 12)
fields: dict[str, st.SearchStrategy[Any]] = {
    "epoch": st.sampled_from([7, 7, 7, 8, -1]),
    "view": st.sampled_from([1, 1, 1, 0, 2]),
    "life": st.sampled_from([1, 1, 1, 0, 2]),
    "incarnation": st.sampled_from([1, 1, 2, -1, 1 << 63]),
    "round": small | st.integers(0, (1 << 64) - 1),
    "iteration": small | st.integers(0, (1 << 64) - 1),
    "bits": st.binary(max_size=3) | st.sampled_from([b"\x0f", b"\x02", b"\x03"]),
    "values": st.binary(max_size=40) | st.sampled_from([GOOD, HUGE, bytes(16)]),
    "holders": st.binary(max_size=8) | st.sampled_from([NAMES, b""]),
    "ask": st.booleans(),
}


@st.composite
def any_frame(draw: st.DrawFn) -> StabilityFrame:
    kind = draw(st.sampled_from([CubeState, RoundStart, RoundReport, RoundResult, ResultAck, Row]))
    names = [field.name for field in msgspec.structs.fields(kind) if field.name != "group"]
    frame: StabilityFrame = kind("g", **{name: draw(fields[name]) for name in names})
    return frame


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=60, deadline=None)
@given(frames=st.lists(any_frame(), min_size=1, max_size=12))
def test_no_frame_raises_or_frees_what_this_member_lacks(
    protocol: str, frames: list[StabilityFrame]
) -> None:
    """b is hostile. Whatever it sends, a frees nothing above its own report, and no call raises."""
    table = running(protocol)
    for frame in frames:
        table.take("b", "a", frame)
        table.take("a", "c", frame)
        for name in "ac":
            own = table.status(name).report
            assert all(s <= r for s, r in zip(table.stable(name), own, strict=True))
            table.status(name)
    table.later(50 * MILLISECOND)
