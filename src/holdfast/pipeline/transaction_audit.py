"""The judgement on transactions over dialogs: committed ones took effect as a whole, aborted ones not at all.

The end of a transaction is recorded with the number of messages that it received and sent. Each range of messages that
was taken or captured names its transaction. A process that is killed may have written one of these facts and not the
other, so the last transactions of a life are a doubt if something is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.pipeline.guarantees import Case, Row

ALL: Final = "all of a committed transaction"
NOTHING: Final = "nothing of an aborted transaction"
ONE_END: Final = "one outcome"
CLAIMS: Final = {
    ALL: "every message that a committed transaction received or sent is taken or captured",
    NOTHING: "no message of an aborted transaction is taken or captured by it",
    ONE_END: "a transaction ends once",
}
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
TAKEN: Final = "taken"


def judge_transactions(rows: Sequence[Row], case: Case) -> None:
    """`rows` are the ends of the transactions of one node, and the sums of their ranges."""
    ends: dict[str, list[Row]] = {}
    ranges: dict[str, list[Row]] = {}
    last: dict[int, int] = {}
    for row in rows:
        if row["event"] in (COMMITTED, ABORTED):
            ends.setdefault(row["transaction"], []).append(row)
        else:
            ranges.setdefault(row["transaction"], []).append(row)
            last[row["incarnation"]] = max(row["now_ns"], last.get(row["incarnation"], 0))
    for transaction, found in sorted(ends.items()):
        _judge(transaction, found, ranges.get(transaction, []), last, case)
    without = [transaction for transaction in ranges if transaction not in ends]
    if without:
        case.doubts(f"the outcome of {len(without)} transactions was not recorded")


def _judge(
    transaction: str, ends: Sequence[Row], parts: Sequence[Row], last: dict[int, int], case: Case
) -> None:
    end, short = ends[0], transaction[:12]
    for other in ends[1:]:
        text = f"transaction {short} ended twice"
        case.check(other["event"] == end["event"], ONE_END, text, end, other)
    if end["event"] == ABORTED:
        text = f"transaction {short} was aborted, and messages of it took effect"
        case.check(not parts, NOTHING, text, end, *parts[:2])
        return
    taken = sum(row["taken"] for row in parts)
    sent = sum(row["sent"] for row in parts)
    whole = (taken, sent) == (end["taken"], end["sent"])
    is_tail = end["now_ns"] >= last.get(end["incarnation"], 0)
    if not whole and (not case.complete or is_tail):
        case.doubts(f"the recording ends before all messages of transaction {short}")
        return
    text = (
        f"transaction {short} was committed with {end['taken']} messages received and {end['sent']} sent; "
        f"{taken} were taken and {sent} captured"
    )
    case.check(whole, ALL, text, end, *parts[:2])
