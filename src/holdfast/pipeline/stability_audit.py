"""The judgement on stability: nothing is called stable, or freed, before every member has it.

A fact of a replica says up to which entry the log is stable as far as it knows, how much of the log it has itself
(`held`), and where its log begins (`freed`). A replica holds what it held before, in this life and, if the group is
durable, in the next. So a member that lacks an entry now lacked it at all earlier times.

Two replicas are compared if the second fact is later by more than the clocks may differ, and its view is the same or a
later one: a replica that was removed from the view may fall behind. A replica whose wall clock is off is compared with
itself only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.pipeline.guarantees import SKEW_US, Case, Row, with_true_clocks

STABLE: Final = "stable means held by all"
FREED: Final = "nothing is freed before it is stable"
CLAIMS: Final = {
    STABLE: "an entry is stable only if every member of the view has it",
    FREED: "a replica frees an entry only if every member of the view has it",
}
RESTORED: Final = "restored"


def judge_stability(rows: Sequence[Row], case: Case) -> None:
    """`rows` are the stability facts of one group epoch, and the facts of replicas that restored a state."""
    restored: dict[str, int] = {}
    for row in rows:
        if row["event"] == RESTORED:
            restored[row["node"]] = max(row["index"], restored.get(row["node"], 0))
    samples = [row for row in rows if row["event"] != RESTORED and row["held"] >= 0]
    for row in samples:
        text = f"a replica calls entry {row['stable']} stable and has the log up to {row['held']}"
        case.check(row["stable"] <= row["held"], STABLE, text, row)
    _compare(with_true_clocks(samples, "held"), restored, case)
    if len({row["node"] for row in samples}) < 2:
        case.doubts("the facts of one replica only")


class _Highest:
    """The highest entry that some replica claimed, by view."""

    def __init__(self) -> None:
        self._claims: dict[int, tuple[int, Row]] = {}

    def add(self, index: int, row: Row) -> None:
        known = self._claims.get(row["view"])
        if known is None or index > known[0]:
            self._claims[row["view"]] = (index, row)

    def before(self, view: int) -> tuple[int, Row] | None:
        """The highest claim of this view and earlier ones."""
        claims = [claim for number, claim in self._claims.items() if number <= view]
        return max(claims, key=lambda claim: claim[0], default=None)


def _compare(samples: Sequence[Row], restored: dict[str, int], case: Case) -> None:
    """Each sample against what others had claimed long enough before it."""
    ordered = sorted(samples, key=lambda row: (row["at_us"], row["node"], row["n"]))
    stable, freed = _Highest(), _Highest()
    seen = 0
    for row in ordered:
        while ordered[seen]["at_us"] + SKEW_US <= row["at_us"]:
            earlier = ordered[seen]
            stable.add(earlier["stable"], earlier)
            # A log that begins with a state begins above what others may still need from other replicas.
            if earlier["freed"] > restored.get(earlier["node"], -1):
                freed.add(earlier["freed"], earlier)
            seen += 1
        for claim, highest, word in ((STABLE, stable, "was stable"), (FREED, freed, "was freed")):
            known = highest.before(row["view"])
            if known is not None:
                index, source = known
                text = f"entry {index} {word}, and later a member had the log up to {row['held']}"
                case.check(index <= row["held"], claim, text, source, row)
