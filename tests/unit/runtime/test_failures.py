"""What is written down of a failure: enough to look for the cause, and never much."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.machine import Failure
from holdfast.runtime.failures import (
    BYTES_SHOWN,
    FILE_CHARS_MAX,
    FILES_MAX,
    INPUT_CHARS_MAX,
    text_of,
    write_down,
)


class Input(msgspec.Struct):
    number: int
    data: object

    def __repr__(self) -> str:
        raise AssertionError("the whole of it is never made")


def failed(*inputs: object) -> Failure:
    return Failure("replica/book", ValueError("a bug"), list(inputs), 7, stopped=False)


def test_small_inputs_are_shown_whole() -> None:
    lines = text_of(failed(Input(1, memoryview(b"ab")), Input(2, [(b"c", "d")]))).splitlines()
    assert lines == [
        "ValueError('a bug') at 7",
        "Input(number=1, data=b'ab')",
        "Input(number=2, data=[(b'c', 'd')])",
    ]


def test_large_inputs_are_cut_and_say_how_large_they_are() -> None:
    text = text_of(failed(Input(1, bytes(8 << 20)), Input(2, [bytes(4000)] * 5000)))
    assert f"... {8 << 20} bytes" in text
    assert len(text) < 4 * BYTES_SHOWN + INPUT_CHARS_MAX + 200


def test_many_inputs_are_counted() -> None:
    text = text_of(failed(*[bytes(1000)] * 1000))
    assert len(text) < FILE_CHARS_MAX + 2 * INPUT_CHARS_MAX
    assert text.endswith("more inputs\n")


def test_the_oldest_make_room(tmp_path: Path) -> None:
    for number in range(FILES_MAX + 20):
        (tmp_path / f"{number:03}-link_x.txt").write_text("")
    write_down(tmp_path, failed(b"x"))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == FILES_MAX
    assert left[0] == "021-link_x.txt"
    assert left[-1].endswith("-replica_book.txt")
