"""Numbers as the report says them."""

from __future__ import annotations

import pytest

from holdfast.pipeline.printing import path_cells
from holdfast.pipeline.words import count, duration, listing, microseconds, percent, with_names


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.34, "340 ms"),
        (0.9999, "1.0 s"),
        (4.23, "4.2 s"),
        (9.99, "10 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (3_605, "1 h"),
        (7_500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 %"),
        (1, "100 %"),
        (0.000_01, "< 0.01 %"),
        (0.0004, "0.04 %"),
        (0.125, "12.5 %"),
        (0.999_999, "99.99 %"),
    ],
)
def test_shares_never_round_to_nothing_or_all(ratio: float | None, said: str) -> None:
    assert percent(ratio) == said


def test_round_trips_counts_and_lists() -> None:
    assert (microseconds(120.4), microseconds(4_200)) == ("120 µs", "4.2 ms")
    assert (count(1, "path"), count(0, "path")) == ("1 path", "0 paths")
    assert count(12_000, "fact") == "12\N{NARROW NO-BREAK SPACE}000 facts"
    assert [listing(["a"]), listing(["a", "b", "c"])] == ["a", "a, b and c"]


def test_ids_of_nodes_become_names() -> None:
    known, unknown = "ab" * 16, "cd" * 16
    assert with_names(f"{known}/eth0>{unknown}/eth0", {known: "alba"}) == "alba/eth0>cdcdcdcd/eth0"
    assert with_names(known, {known: ""}) == "abababab"


def test_an_answer_about_paths_fits_into_a_terminal() -> None:
    """Four columns of names and adapters left three letters of each heading in 80 columns."""
    row = {
        "sender_name": "n1", "sender_adapter": "eth0", "listener_name": "n2", "listener_adapter": "eth1",
        "subnet": "lan[red]", "transport": "udp", "state": "soft error", "size": 600, "size_max": 1472,
        "asked_coverage": 0.5,
    }  # fmt: skip
    unknown = row | {"size": 0, "size_max": 0, "state": "ok"}
    cells = path_cells([row, unknown])
    assert cells["path"] == ["n1/eth0 to n2/eth1"] * 2
    assert cells["subnet"][0] == r"lan\[red]", "names are not markup"
    assert cells["size"] == ["600 of 1472", ""]
    assert cells["state"][0] == "[yellow]soft error[/]"
    assert cells["observed"][0] == "50.0 %"
