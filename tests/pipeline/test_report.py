"""The report says what the tables say, needs nothing from anywhere, and trusts no name."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from tests.pipeline.making import NOON, node_id

from holdfast.pipeline.page import Content
from holdfast.pipeline.pictures import BARS_MAX, NODES_MAX
from holdfast.pipeline.report import headline, render


def path(sender: str, listener: str, **fields: Any) -> dict[str, Any]:
    """A row of `path_health` for a path that is well."""
    return {
        "sender": node_id(sender),
        "sender_name": sender,
        "sender_adapter": "eth0",
        "listener": node_id(listener),
        "listener_name": listener,
        "listener_adapter": "eth0",
        "subnet": "lan1",
        "transport": "udp",
        "state": "ok",
        "alive": True,
        "size": 1472,
        "size_max": 1472,
        "first_seen": NOON,
        "last_seen": NOON + timedelta(minutes=10),
        "facts": 10,
        "observed_s": 600.0,
        "alive_ratio": 1.0,
        "soft_error_s": 0.0,
        "dead_s": 0.0,
        "degradations": 0,
        "deaths": 0,
        "worst_size": 1472,
        "heard": 100,
        "expected": 100,
        "loss_ratio": 0.0,
        "rtt_p50_us": 200.0,
        "rtt_p99_us": 900.0,
    } | fields


def soft(sender: str, listener: str) -> dict[str, Any]:
    return path(sender, listener) | {
        "state": "soft error",
        "size": 577,
        "soft_error_s": 300.0,
        "degradations": 1,
        "worst_size": 577,
    }


def dead(sender: str, listener: str) -> dict[str, Any]:
    return path(sender, listener) | {
        "state": "dead",
        "alive": False,
        "dead_s": 60.0,
        "deaths": 1,
        "loss_ratio": 0.1,
    }


def trouble(of: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return of | {
        "start_at": NOON + timedelta(minutes=5),
        "end_at": None,
        "open": True,
        "ended_by": None,
        "start_ns": 1,
        "seconds": 300.0,
        "incarnation": 1,
        **fields,
    }


def verdict(group: str, word: str, **fields: Any) -> dict[str, Any]:
    return {"group": group, "verdict": word, "why": "because", "named": []} | fields


def recorded(name: str, kind: str = "path", **fields: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": node_id(name),
        "name": name,
        "incarnations": 1,
        "facts": 10,
        "first_at": NOON,
        "last_at": NOON + timedelta(minutes=10),
        "missing": 0,
        "said_lost": 0,
        "uncounted_losses": 0,
        "unexplained": 0,
        "reasons": [],
    } | fields


def content(**parts: Any) -> Content:
    nothing: dict[str, Any] = {
        "recording": [recorded("alba"), recorded("brno")],
        "health": [path("alba", "brno"), path("brno", "alba")],
        "troubles": [],
        "deliveries": [],
        "audit": [],
        "set_aside": [],
        "runs": {"path_health": "2026-11-15-0123"},
    }
    return Content(**(nothing | parts))


FULL = content(
    health=[soft("alba", "brno"), path("brno", "alba"), dead("cork", "alba")],
    troubles=[
        trouble(soft("alba", "brno")),
        trouble(dead("cork", "alba"), open=False, ended_by="repaired", seconds=60.0),
    ],
    recording=[
        recorded("alba"),
        recorded("brno", missing=7, said_lost=5, unexplained=2, reasons=["buffer full"]),
    ],
    deliveries=[
        {
            "group": "orders",
            "replica": node_id("alba"),
            "replica_name": "alba",
            "incarnations": 1,
            "entries": 12,
            "messages": 3456,
            "first_position": 0,
            "last_position": 3455,
            "positions": 3456,
        }
    ],
    audit=[verdict("orders", "violated", named=["agreement: row one | row two"])],
    set_aside=[("torn-1-0.parquet", "not a whole Parquet file")],
)


@pytest.fixture(scope="module")
def page() -> str:
    return render(FULL, "stamp-of-the-tables")


def text_of(page: str) -> str:
    body = re.sub(r"<(style|title)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "All 2 paths work."),
        ({"health": []}, "No path was recorded."),
        ({"health": [path("a", "b", soft_error_s=3.0)]}, "The only path works again."),
        (
            {"health": [soft("a", "b"), path("b", "a")]},
            "1 of 2 paths in trouble: 1 with a soft error.",
        ),
        ({"audit": [verdict("g", "holds")]}, "All 2 paths work. All replicas agree."),
        (
            {"audit": [verdict("g", "holds"), verdict("h", "not provable")]},
            "All 2 paths work. Whether replicas of h agree cannot be proved.",
        ),
        (
            {"audit": [verdict("g", "not provable"), verdict("h", "violated")]},
            "All 2 paths work. Replicas of h do not agree.",
        ),
    ],
)
def test_the_headline_says_the_worst_first(parts: dict[str, Any], said: str) -> None:
    assert headline(content(**parts)) == said


@pytest.mark.parametrize(
    "claim",
    [
        "2 of 3 paths in trouble: 1 with a soft error and 1 dead. Replicas of orders do not agree.",
        "15 Nov 2026, 12:00:00 UTC to 15 Nov 2026, 12:10:00 UTC",
        "alba → brno lan1 · udp · eth0 soft error 577 / 1472 577 5 min 0 1 0",
        "cork → alba lan1 · udp · eth0 dead",
        "orders violated because",
        "agreement: row one row two",
        "brno path 7 5 2 buffer full",
        "torn-1-0.parquet not a whole Parquet file",
        "path_health 2026-11-15-0123",
    ],
)
def test_the_page_says(page: str, claim: str) -> None:
    assert claim in text_of(page)


def test_the_page_needs_nothing_from_anywhere(page: str) -> None:
    without_names = page.replace("http://www.w3.org/", "")
    assert not re.search(r"https?:|//cdn|<script|<link|<img|@import|url\((?!#)", without_names)


def test_every_mark_in_a_picture_says_what_it_is(page: str) -> None:
    assert "<title>alba → brno: soft error, 577 of 1472 bytes, loss 0 %" in page
    assert (
        "soft error, 577 of 1472 bytes from 15 Nov 2026, 12:05:00 UTC for 5 min, still so" in page
    )
    assert "dead from 15 Nov 2026, 12:05:00 UTC for 1 min, repaired" in page


def test_pictures_take_their_colours_from_the_page(page: str) -> None:
    assert "var(--dead)" in page
    assert "#00a00" not in page
    used = set(re.findall(r"var\(--([a-z-]+)[,)]", page))
    defined = set(re.findall(r"--([a-z-]+):", page))
    assert used <= defined


def test_the_same_tables_give_the_same_bytes(page: str) -> None:
    assert render(FULL, "stamp-of-the-tables") == page


def test_names_from_the_network_cannot_break_the_page() -> None:
    evil = '<script>alert("x")</script>&|#'
    page = render(
        content(
            health=[soft(evil, "brno") | {"subnet": evil, "transport": evil}],
            troubles=[trouble(soft(evil, "brno") | {"subnet": evil, "transport": evil})],
            recording=[recorded(evil, missing=1, reasons=[evil]), recorded("brno")],
            audit=[verdict(evil, "violated", why=evil, named=[evil])],
            set_aside=[(evil, evil)],
        ),
        "stamp",
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_two_nodes_of_one_name_stay_two() -> None:
    page = text_of(render(content(health=[soft("alba", "x") | {"listener_name": "alba"}]), "s"))
    assert f"alba {node_id('alba')[:8]} → alba {node_id('x')[:8]}" in page


def test_a_large_domain_shows_the_worst_and_says_so() -> None:
    names = [f"n{number:03}" for number in range(NODES_MAX + 20)]
    health = [path(name, names[1]) for name in names if name != names[1]]
    bad = [soft(name, "n000") for name in names[-(BARS_MAX + 10) :]]
    page = render(
        content(
            health=health + bad,
            troubles=[trouble(row) for row in bad],
            recording=[recorded(name) for name in names],
        ),
        "s",
    )
    said = text_of(page)
    assert f"The {NODES_MAX} nodes with the most trouble, of {NODES_MAX + 20}." in said
    assert f"The {BARS_MAX} worst of {BARS_MAX + 10} paths." in said
    assert "And 28 more paths with trouble or loss." in said


def test_a_page_without_any_path_is_a_page() -> None:
    page = render(content(health=[], recording=[]), "s")
    assert "No path was recorded." in text_of(page)
    assert "nothing recorded" in text_of(page)
