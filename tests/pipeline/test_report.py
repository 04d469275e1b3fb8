"""The report says what the tables say, needs nothing from anywhere, and trusts no name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.pipeline.making import node_id
from tests.pipeline.report_content import (
    FULL,
    content,
    incident,
    path,
    recorded,
    soft,
    verdict,
)

from holdfast.pipeline.pictures import BARS_MAX, NODES_MAX
from holdfast.pipeline.quality import Check
from holdfast.pipeline.report import headline, render


@pytest.fixture(scope="module")
def page() -> str:
    return render(FULL)


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
        "orders violated because; 50.0 % of the entries are compared",
        "agreement: row one row two",
        "brno path 7 5 2 buffer full",
        "torn-1-0.parquet torn not a whole Parquet file",
        "from snapshot 42",
        "size from alba to brno",
        "clocks are monotonic attention 3 facts",
        "2 to 90 80 violated recorded differently alba, brno",
        "sending side of adapter alba/eth0 or node alba size",
        "logistic (used) model 90.0 % 70.0 % 80.0 % 0.0100 precise enough",
    ],
)
def test_the_page_says(page: str, claim: str) -> None:
    assert claim in text_of(page)


def test_the_page_needs_nothing_from_anywhere(page: str) -> None:
    without_names = page.replace("http://www.w3.org/", "")
    assert not re.search(r"https?:|//cdn|<script|<link|<img|@import|url\((?!#)", without_names)


def test_every_mark_in_a_picture_says_what_it_is(page: str) -> None:
    assert "<title>alba → brno: soft error, 577 of 1472 bytes, loss 0 %" in page
    assert "from 15 Nov 2026, 12:05:00 UTC for 5 min, still open" in page
    assert "from 15 Nov 2026, 12:05:00 UTC for 1 min, repaired" in page
    assert "2026-11-15T12: 18 % bad, 0 % dead" in page
    assert "<title>sending side of adapter alba/eth0, 2026-11-15 12:00 to" in page
    assert "<title>3 failing, 1 passing paths</title>" in page
    assert "<title>logistic: predicted 0.90, observed 0.85, 40 rows</title>" in page
    assert "<title>2 to 90: violated, recorded differently</title>" in page
    labels = re.findall(r'aria-label="([^"]*)"', page)
    assert {"located faults over time", "reliability of logistic", "audited log of orders"} <= set(
        labels
    )


def test_pictures_take_their_colours_from_the_page(page: str) -> None:
    assert "var(--dead)" in page
    assert "#00a00" not in page
    used = set(re.findall(r"var\(--([a-z-]+)[,)]", page))
    defined = set(re.findall(r"--([a-z-]+):", page))
    assert used <= defined


def test_the_same_tables_give_the_same_bytes(page: str) -> None:
    assert render(FULL) == page


def test_names_from_the_network_cannot_break_the_page() -> None:
    evil = '<script>alert("x")</script>&|#'
    page = render(
        content(
            health=[soft(evil, "brno") | {"subnet": evil, "transport": evil}],
            incidents=[incident(soft(evil, "brno") | {"subnet": evil, "transport": evil}, evil)],
            recording=[recorded(evil, missing=1, reasons=[evil]), recorded("brno")],
            audit=[verdict(evil, "violated", why=evil, named=[evil])],
            set_aside=[(evil, evil, evil)],
            checks=[Check(evil, True, evil)],
        )
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_two_nodes_of_one_name_stay_two() -> None:
    page = text_of(render(content(health=[soft("alba", "x") | {"listener_name": "alba"}])))
    assert f"alba {node_id('alba')[:8]} → alba {node_id('x')[:8]}" in page


def test_a_large_domain_shows_the_worst_and_says_so() -> None:
    names = [f"n{number:03}" for number in range(NODES_MAX + 20)]
    health = [path(name, names[1]) for name in names if name != names[1]]
    bad = [soft(name, "n000") for name in names[-(BARS_MAX + 10) :]]
    page = render(
        content(
            health=health + bad,
            incidents=[incident(row) for row in bad],
            recording=[recorded(name) for name in names],
        )
    )
    said = text_of(page)
    assert f"The {NODES_MAX} nodes with the most trouble, of {NODES_MAX + 20}." in said
    assert f"The {BARS_MAX} worst of {BARS_MAX + 10} paths." in said
    assert "And 28 more paths with trouble or loss." in said


def test_a_headline_names_few_groups_and_counts_the_rest() -> None:
    audit = [verdict(f"g{number}", "violated") for number in range(9)]
    said = headline(content(audit=audit))
    assert said.endswith("Replicas of g0, g1 and 7 other groups do not agree.")


def test_causes_come_before_the_paths_that_they_explain(page: str) -> None:
    """A reader in a hurry sees only the first screen."""
    said = text_of(page)
    assert said.index("Where the faults are") < said.index("Paths now") < said.index("Incidents")


def test_pairs_without_a_path_cost_the_page_little() -> None:
    """In a large domain most pairs have none."""
    names = [f"n{number:02}" for number in range(NODES_MAX)]
    ring = [path(one, other) for one, other in zip(names, names[1:] + names[:1], strict=True)]
    assert len(render(content(health=ring))) < 150_000


def test_a_page_without_any_path_is_a_page() -> None:
    page = render(content(health=[], recording=[]))
    assert "No path was recorded." in text_of(page)
    assert "nothing recorded" in text_of(page)


def test_guarantees_are_shown_worst_first_with_their_violations() -> None:
    evil = "<script>"
    rows = [
        {
            "guarantee": "locks",
            "subject": f"g/7/{n}",
            "verdict": "holds",
            "why": "fine",
            "checked": 4,
        }
        for n in range(3)
    ]
    rows.append(rows[0] | {"subject": evil, "verdict": "violated", "why": evil})
    broken = {"subject": evil, "claim": "one holder", "text": "two held it", "events": [evil]}
    page = render(content(guarantees=rows, guarantee_violations=[broken]))
    assert "<script" not in page
    text = text_of(page)
    assert "Violated: locks." in text
    assert text.index("locks violated") < text.index("locks holds")
    assert "locks holds g/7/0: fine 3 12" in text
    assert "one holder: two held it" in text
    assert "Do the other guarantees hold?" not in render(content())


def test_dialogs_are_shown_worst_first_with_their_violations() -> None:
    evil = "<script>"
    numbers = {"captured": 9, "taken": 8, "deleted": 1, "compared": 7}
    rows = [
        {"dialog": f"d{n:02d}", "sender": "opener", "verdict": "holds", "why": "fine", **numbers}
        for n in range(51)
    ]
    rows.append(rows[0] | {"dialog": "d99", "verdict": "violated", "why": evil})
    broken = {"claim": "at most once", "text": "taken twice", "events": [evil, "the second"]}
    page = render(content(dialogs=rows, dialog_violations=[broken]))
    assert "<script" not in page
    text = text_of(page)
    assert text.index("d99 from its opener violated") < text.index("d00 from its opener holds")
    assert "And 2 more directions." in text
    assert "at most once: taken twice" in text
    assert "the second" in text
    assert "Do dialogs keep their promises?" not in render(content())
