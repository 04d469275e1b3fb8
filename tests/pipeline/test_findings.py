"""What the pipeline found reaches people in a few lines: with each run, and on the page of each node."""

from __future__ import annotations

from typing import Any

from tests.pipeline.making import NOON, node_id

from holdfast.pipeline.findings import LINES_MAX, findings
from holdfast.pipeline.reader import Tables
from holdfast.pipeline.score_text import score_lines
from holdfast.pipeline.snapshot import Snapshot
from holdfast.pipeline.storage.local import LocalStore


class Rows(Tables):
    """Tables of a test."""

    def __init__(self, **tables: list[dict[str, Any]]) -> None:
        super().__init__(LocalStore(), "", Snapshot(number=1))
        self._tables = tables

    def has(self, name: str) -> bool:
        return name in self._tables

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        return self._tables[name]


def score(model: str, chosen: bool, **fields: Any) -> dict[str, Any]:
    usual = {
        "precision": 0.9, "recall": 0.8, "brier": 0.01, "episodes": 10, "episodes_hit": 9, "incidents": 20,
        "incidents_predicted": 16, "advice_open": True, "why": "precision is high enough",
        "bins": [{"mean": 0.9, "observed": 0.85, "rows": 40}],
    }  # fmt: skip
    return {"model": model, "chosen": chosen} | usual | fields


def test_precision_recall_and_calibration_are_said_beside_the_baselines() -> None:
    lines = score_lines([score("logistic", True), score("base rate", False, brier=0.02)])
    assert lines == [
        (
            "Predictions by logistic: precision 0.90 (9 of 10 episodes), recall 0.80 (16 of 20 incidents), "
            "Brier 0.01000 (base rate 0.02000)"
        ),
        "Calibration, predicted -> observed (rows): 0.90 -> 0.85 (40)",
        "Advice is given: precision is high enough",
    ]


def test_what_is_not_known_yet_is_said_to_be() -> None:
    rows = [score("recurrence", True, precision=None, recall=None, bins=[], advice_open=False)]
    text = " ".join(score_lines(rows))
    assert "precision unknown" in text
    assert "nothing to judge by yet" in text
    assert "Advice is withheld" in text
    assert score_lines([]) == []


def test_findings_name_incidents_causes_verdicts_and_the_quality_of_predictions() -> None:
    pair = f"{node_id('alba')}/eth0>{node_id('brno')}/eth0"
    cause = {
        "kind": "pair", "name": pair, "start_at": NOON, "end_at": NOON, "error_classes": ["size"],
        "confidence": 0.987,
    }  # fmt: skip
    audit = lambda group, verdict: {
        "group": group, "verdict": verdict, "coverage": 0.5, "entries": 80,
    }  # fmt: skip
    found = findings(
        Rows(
            nodes=[{"node": node_id(name), "name": name} for name in ("alba", "brno")],
            incidents=[
                {"open": is_open, "text": f"trouble {is_open}", "start_at": NOON}
                for is_open in (True, False)
            ],
            located_faults=[cause],
            delivery_audit=[audit("book", "holds"), audit("stock", "violated")],
            guarantee_audit=[
                {"guarantee": "locks", "subject": "g/7/door", "verdict": word, "why": "two"}
                for word in ("violated", "holds")
            ],
            prediction_scores=[score("logistic", True)],
        )
    )
    assert found[:5] == (
        "open incident: trouble True",
        "likely cause: path alba/eth0 to brno/eth0 (size), since 2026-11-15 12:00, confidence 0.99",
        "group stock: violated, 50% of 80 entries compared",
        "group book: holds, 50% of 80 entries compared",
        "locks of g/7/door: violated, two",
    )
    assert found[5].startswith("Predictions by logistic: precision 0.90")
    assert findings(Rows()) == ()
    many = [{"open": True, "text": str(n), "start_at": NOON} for n in range(50)]
    assert len(findings(Rows(incidents=many))) == LINES_MAX
