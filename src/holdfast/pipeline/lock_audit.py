"""The judgement on a lock of a group: fencing tokens never go back, and the lock has one holder at a time.

Leaders record what committed entries did to a lock; the holder records the token it was told. The log orders grants
(`index`), not the clocks of nodes. A leader that crashes loses its last facts, so an end that is missing between two
grants is a contradiction only if one leader recorded both in one term.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from holdfast.pipeline.guarantees import Case, Row, by_life

TOKENS: Final = "tokens never go back"
ONE_HOLDER: Final = "one holder"
CLAIMS: Final = {
    TOKENS: "a later grant of a lock has a higher token, in the log and for every node that sees it",
    ONE_HOLDER: "a lock is granted again only after its last grant has ended",
}
GRANTED: Final = "granted"
HELD: Final = "held"


def judge_lock(rows: Sequence[Row], case: Case) -> None:
    """`rows` are the facts about one lock in one epoch of its group."""
    grants = sorted(
        (row for row in rows if row["event"] == GRANTED),
        key=lambda row: (row["index"], row["term"], row["node"], row["n"]),
    )
    ends = [row for row in rows if row["event"] not in (GRANTED, HELD)]
    holders = [row for row in rows if row["event"] == HELD]
    single = _distinct(grants, case)
    for one, other in itertools.pairwise(single):
        text = f"token {other['token']} was granted after token {one['token']}"
        case.check(other["token"] > one["token"], TOKENS, text, one, other)
    _judge_turns(single, ends, case)
    _judge_recorders(grants, case)
    _judge_holders(single, holders, case)


def _distinct(grants: Sequence[Row], case: Case) -> list[Row]:
    """One row per grant: a second leader may record the same. One entry must not grant a lock twice."""
    single: list[Row] = []
    for row in grants:
        if single and single[-1]["index"] == row["index"]:
            one = single[-1]
            text = f"entry {row['index']} granted token {row['token']} to two holders"
            case.check(_grant(one) == _grant(row), ONE_HOLDER, text, one, row)
            continue
        single.append(row)
    return single


def _grant(row: Row) -> tuple[str, int, int]:
    return row["holder"], row["holder_incarnation"], row["token"]


def _judge_turns(grants: Sequence[Row], ends: Sequence[Row], case: Case) -> None:
    """Each grant ends before the next one, or with the entry that makes it."""
    ended: dict[int, int] = {}
    for row in ends:
        ended[row["token"]] = min(row["index"], ended.get(row["token"], row["index"]))
    for one, other in itertools.pairwise(grants):
        end = ended.get(one["token"])
        if end is None and (not case.complete or _recorder(one) != _recorder(other)):
            case.doubts(f"the leader changed, and the end of token {one['token']} was not recorded")
            continue
        text = f"token {other['token']} was granted while token {one['token']} was held"
        case.check(end is not None and end <= other["index"], ONE_HOLDER, text, one, other)


def _recorder(row: Row) -> tuple[str, int, int]:
    return row["node"], row["incarnation"], row["term"]


def _judge_recorders(grants: Sequence[Row], case: Case) -> None:
    """In the order in which a leader recorded them, tokens grow."""
    for facts in by_life(grants).values():
        for one, other in itertools.pairwise(facts):
            text = f"a leader granted token {other['token']} after token {one['token']}"
            case.check(other["token"] > one["token"], TOKENS, text, one, other)


def _judge_holders(grants: Sequence[Row], held: Sequence[Row], case: Case) -> None:
    """A holder has a token that was granted to it, and never an older one than before."""
    granted = {row["token"]: row for row in grants}
    for facts in by_life(held).values():
        for one, other in itertools.pairwise(facts):
            text = f"a node held token {other['token']} after token {one['token']}"
            case.check(other["token"] >= one["token"], TOKENS, text, one, other)
    for row in held:
        grant = granted.get(row["token"])
        if grant is None:
            case.doubts(f"the grant of token {row['token']}, which a node held, was not recorded")
            continue
        text = f"a node holds token {row['token']}, which was granted to another one"
        case.check(_grant(grant) == _grant(row), ONE_HOLDER, text, grant, row)
