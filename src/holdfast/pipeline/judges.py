"""The guarantees that are judged subject by subject, in one place: the judge of each, and the facts it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.pipeline import lock_audit, object_audit, stability_audit, transaction_audit
from holdfast.pipeline.guarantees import (
    GuaranteeVerdict,
    GuaranteeViolation,
    Judge,
    Row,
    verdict_on,
)

STABILITY: Final = "stability"
LOCKS: Final = "locks"
TRANSACTIONS: Final = "transactions"
OBJECTS: Final = "objects"
HOPS: Final = "one hop"


class Guarantee(msgspec.Struct, frozen=True):
    judge: Judge
    kinds: tuple[str, ...]
    """The kinds of facts that must be complete; a subject without facts of the first kind is not judged."""
    claims: Mapping[str, str]


_HOP: Final = {object_audit.ONE_HOP: object_audit.CLAIMS[object_audit.ONE_HOP]}
_OBJECT: Final = {claim: text for claim, text in object_audit.CLAIMS.items() if claim not in _HOP}

GUARANTEES: Final[dict[str, Guarantee]] = {
    STABILITY: Guarantee(stability_audit.judge_stability, ("stability",), stability_audit.CLAIMS),
    LOCKS: Guarantee(lock_audit.judge_lock, ("lock",), lock_audit.CLAIMS),
    TRANSACTIONS: Guarantee(
        transaction_audit.judge_transactions,
        ("dialog_transaction", "dialog_range"),
        transaction_audit.CLAIMS,
    ),
    OBJECTS: Guarantee(object_audit.judge_object, ("object", "object_op"), _OBJECT),
    HOPS: Guarantee(object_audit.judge_hops, ("object_op", "link"), _HOP),
}

Missing = Mapping[tuple[str, int, str], int]
"""Node, incarnation and kind to the number of facts that are lost."""


def judge_subject(
    guarantee: str, subject: str, rows: Sequence[Row], missing: Missing
) -> tuple[list[GuaranteeVerdict], list[GuaranteeViolation]]:
    """The verdict on one subject; none if it has no facts of the kind that matters."""
    known = GUARANTEES[guarantee]
    if not any(row["kind"] == known.kinds[0] for row in rows):
        return [], []
    lives = dict.fromkeys((row["node"], row["incarnation"]) for row in rows)
    lost = sum(missing.get((*life, kind), 0) for life in lives for kind in known.kinds)
    verdict, violations = verdict_on(guarantee, subject, rows, known.judge, lost)
    return [verdict], violations
