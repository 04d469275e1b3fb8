"""Messages that were dropped and delivered all the same: a part of the judgement on deliveries, without Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from holdfast.pipeline.evidence import Evidence, Life, Row, Violation, life_of, name_of, rollbacks
from holdfast.pipeline.transforms.group_events import SKIP

DROPPED: Final = "no delivery after drop"


def delivered_drops(evidence: Evidence) -> list[Violation]:
    """Messages that a committed entry dropped and a replica delivered.

    A drop that no later delivery of its term follows may never have been committed, and proves nothing. In a `fast`
    group a replica may have delivered ahead what the next leader drops, and undone that: a drop at or after the index
    from which it rolled back is compared only with hours of deliveries that began after the rollback.
    """
    undone: dict[Life, list[Row]] = {}
    for void in rollbacks(evidence.events):
        undone.setdefault(life_of(void), []).append(void)
    committed: dict[tuple[str, int, int], int] = {}
    for edge in evidence.edges:
        of_term = (edge["group"], edge["epoch"], edge["term"])
        committed[of_term] = max(committed.get(of_term, -1), edge["index"])
    passed: dict[tuple[Life, str], list[tuple[int, int]]] = {}
    for gap in evidence.gaps:
        passed.setdefault((life_of(gap), gap["stream"]), []).append((gap["first"], gap["last"]))
    spans: dict[tuple[Life, str], list[Row]] = {}
    for row in evidence.streams:
        spans.setdefault((life_of(row), row["stream"]), []).append(row)
    for key, rows in spans.items():
        ordered = sorted(rows, key=lambda row: (row["hour"], row["n_before"]))
        for before, after in pairwise(ordered):
            if after["first"] > before["last"] + 1:
                passed.setdefault(key, []).append((before["last"] + 1, after["first"] - 1))
    takers: dict[tuple[str, int, str], list[_Taker]] = {}
    for (life, stream), rows in spans.items():
        taker = _Taker(life, rows, passed.get((life, stream), []), undone.get(life, []))
        takers.setdefault((life[0], life[1], stream), []).append(taker)
    found: list[Violation] = []
    for event in evidence.events:
        term = (event["group"], event["epoch"], event["term"])
        if event["event"] != SKIP or committed.get(term, -1) < event["index"]:
            continue
        mine = takers.get((event["group"], event["epoch"], event["stream"]), ())
        guilty = [taker.life for taker in mine if taker.delivered(event)]
        found += [_delivered(event, life, evidence.names) for life in guilty]
    return found


class _Taker:
    """What one life of a replica delivered of one stream."""

    def __init__(
        self,
        life: Life,
        rows: Sequence[Row],
        passed: Iterable[tuple[int, int]],
        undone: Sequence[Row],
    ) -> None:
        self.life, self._rows, self._undone = life, rows, undone
        self._bounds = _bounds(rows)
        gaps = sorted(passed)
        self._from = [low for low, _ in gaps]
        self._to = list(accumulate((high for _, high in gaps), max))

    def delivered(self, skip: Row) -> bool:
        """Whether it delivered some of what was dropped, and did not roll that back."""
        bounds: tuple[int, int] | None = self._bounds
        voids = [v["before_ns"] for v in self._undone if v["from_index"] <= skip["index"]]
        if voids:
            since_ns = max(voids)
            valid = [row for row in self._rows if row["ns_before"] >= since_ns]
            bounds = _bounds(valid) if valid else None
        if bounds is None:
            return False
        first, last = max(skip["first"], bounds[0]), min(skip["last"], bounds[1])
        return first <= last and not self._passed_over(first, last)

    def _passed_over(self, first: int, last: int) -> bool:
        place = bisect_right(self._from, first) - 1
        return place >= 0 and self._to[place] >= last


def _bounds(rows: Sequence[Row]) -> tuple[int, int]:
    return min(row["first"] for row in rows), max(row["last"] for row in rows)


def _delivered(skip: Row, life: Life, names: Mapping[str, str]) -> Violation:
    who = f"{names.get(life[2], life[2][:8])} (incarnation {life[3]})"
    what = f"messages {skip['first']} to {skip['last']} of stream {skip['stream']}"
    text = f"{who} delivered some of {what}, which index {skip['index']} drops"
    events = (
        f"{name_of(skip, names)} dropped {what} at index {skip['index']}, term {skip['term']}",
    )
    return Violation(life[0], life[1], skip["index"], DROPPED, text, events)
