"""The members of a group as `holdfast groups` shows them, from a status that is given."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from holdfast.cli.groups import _members


def shown(**peer: Any) -> str:
    group = {
        "state": "leading",
        "leader": "n1",
        "last": 70,
        "applied": 70,
        "peers": [{"name": "n2", "match": 70, "applied": 70, "held": 0, **peer}],
        "streams": {},
        "view": [{"name": "n1", "part": "voter"}, {"name": "n2", "part": "voter"}],
    }
    text = StringIO()
    Console(file=text, width=80).print(_members(group))
    return next(line for line in text.getvalue().splitlines() if "n2" in line)


def test_a_voter_that_has_stopped_is_not_shown_as_up_to_date() -> None:
    """What it had acknowledged when it stopped says nothing of now."""
    assert "not heard" in shown(heard=False)
    assert "not heard" not in shown(heard=True)
