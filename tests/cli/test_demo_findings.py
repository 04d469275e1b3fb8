"""The end of the demonstration: the incident, its cause and the audit, in words that people understand."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.demo.findings import audit_of, cause_of, incident_of

BROKEN = ("n1", "n2", "red")
IDS = {"n1": "aa" * 16, "n2": "bb" * 16}


class Rows:
    """Published tables of a test."""

    def __init__(self, **tables: list[dict[str, Any]]) -> None:
        nodes = [{"node": node, "name": name} for name, node in IDS.items()]
        self._tables = {"nodes": nodes, "incidents": [], **tables}

    def has(self, name: str) -> bool:
        return name in self._tables

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        return self._tables[name]


def fault(name: str, *more: str) -> dict[str, Any]:
    groups = [{"kind": "pair", "name": name}, *({"kind": "node", "name": one} for one in more)]
    return {"groups": groups, "error_classes": ["size"], "confidence": 0.987}


def test_the_incident_is_told_with_its_length() -> None:
    row = {
        "sender_name": "n1", "listener_name": "n2", "subnet": "red", "error_class": "size", "seconds": 21.4,
        "text": "UDP: packets over 1000 bytes vanish from n1 to n2, one way",
    }  # fmt: skip
    holds, text = incident_of(Rows(incidents=[row]), BROKEN)
    assert holds
    assert text == "UDP: packets over 1000 bytes vanish from n1 to n2, one way, for 21 s"
    assert not incident_of(Rows(), BROKEN)[0]
    assert not incident_of(Rows(incidents=[row | {"subnet": "blue"}]), BROKEN)[0]


def test_the_cause_contains_the_broken_pair_and_names_nodes() -> None:
    pair = f"{IDS['n1']}/red>{IDS['n2']}/red"
    holds, text = cause_of(Rows(located_faults=[fault(pair, "cc" * 16)]), BROKEN)
    assert holds
    assert text == "pair n1/red>n2/red, or 1 more with the same symptoms; confidence 0.99"
    assert not cause_of(Rows(located_faults=[fault("cc/red>dd/red")]), BROKEN)[0]
    assert not cause_of(Rows(), BROKEN)[0]


@pytest.mark.parametrize(
    ("verdict", "fine"), [("holds", True), ("not provable", True), ("violated", False)]
)
def test_only_a_violation_breaks_the_claim_of_the_audit(verdict: str, fine: bool) -> None:
    row = {"group": "book", "verdict": verdict, "coverage": 0.98, "entries": 1200}
    holds, text = audit_of(Rows(delivery_audit=[row]))
    assert holds is fine
    assert text == f"group book: {verdict}, 98% of 1200 entries compared"
    assert audit_of(Rows()) == (False, "nothing recorded")
