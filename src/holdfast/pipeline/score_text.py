"""The scores of predictions in a few lines, printed with every run that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def score_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Precision, recall and calibration of the chosen model, beside the Brier scores of the baselines."""
    chosen = next((row for row in rows if row["chosen"]), None)
    if chosen is None:
        return []
    others = ", ".join(f"{row['model']} {row['brier']:.5f}" for row in rows if not row["chosen"])
    bars = ", ".join(
        f"{item['mean']:.2f} -> {item['observed']:.2f} ({item['rows']})" for item in chosen["bins"]
    )
    found = (
        f"Predictions by {chosen['model']}: precision {_share(chosen['precision'])} "
        f"({chosen['episodes_hit']} of {chosen['episodes']} episodes), recall {_share(chosen['recall'])} "
        f"({chosen['incidents_predicted']} of {chosen['incidents']} incidents), "
        f"Brier {chosen['brier']:.5f} ({others})"
    )
    return [
        found,
        f"Calibration, predicted -> observed (rows): {bars or 'nothing to judge by yet'}",
        f"Advice is {'given' if chosen['advice_open'] else 'withheld'}: {chosen['why']}",
    ]


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
