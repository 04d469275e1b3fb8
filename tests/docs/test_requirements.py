"""The table of requirements is complete, and everything it links to exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/requirements.md"
COUNTS = {"H": 19, "L": 11, "S": 9, "D": 14, "O": 14, "T": 1, "P": 10, "U": 7}
ID = re.compile(r"\b[HLSDOTPU][1-9]\d?\b")
LINK = re.compile(r"\]\(([^)#]+)(?:#([^)]*))?\)")


class Row(NamedTuple):
    id: str
    text: str
    status: str
    reference: str
    packages: str
    tests: str


def rows() -> list[Row]:
    lines = re.findall(r"^\| [A-Z]\d+ \|.*\|$", PAGE.read_text(), re.MULTILINE)
    return [Row(*(cell.strip() for cell in line[1:-1].split("|"))) for line in lines]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, in the form that GitHub gives them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def prose(path: Path) -> str:
    """Comments and docstrings of a Python file; nothing for one that cites no requirement anywhere."""
    source = path.read_text()
    if not ID.search(source):
        return ""
    parts = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    parts += [
        str(node.value.value)  # a docstring, of an attribute too
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    return "\n".join(parts)


def test_every_requirement_has_one_row() -> None:
    expected = [f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)]
    assert sorted(row.id for row in rows()) == sorted(expected)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_the_links_of_a_row_fit_its_status(row: Row) -> None:
    assert row.status in ("built", "partly", "not yet")
    for cell in (row.reference, row.packages, row.tests):
        assert bool(LINK.search(cell)) == (row.status != "not yet"), row


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_everything_a_row_links_to_exists(row: Row) -> None:
    for cell, where in ((row.reference, "docs"), (row.packages, "src"), (row.tests, "tests")):
        for target, anchor in LINK.findall(cell):
            path = (PAGE.parent / target).resolve()
            assert path.exists(), f"{row.id} links to {target}"
            assert path.is_relative_to(ROOT / where), f"{row.id}: {target} is not in {where}/"
            assert not anchor or anchor in anchors(path), f"{row.id}: {target} has no #{anchor}"


def test_every_cited_requirement_is_listed() -> None:
    known = {row.id for row in rows()}
    cited = {
        (name, path.relative_to(ROOT))
        for folder in ("src", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in ID.findall(prose(path))
    }
    assert len({name for name, _ in cited}) > 20
    assert {(name, path) for name, path in cited if name not in known} == set()
