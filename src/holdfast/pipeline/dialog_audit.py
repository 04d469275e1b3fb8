"""The judgement on what dialogs promised: a pure function of ranges of messages, without Spark.

Each end of a dialog records which messages passed: `captured` by the sender's store, `taken` by the receiving
application, or `deleted` without being received. Each direction of a dialog is judged alone. Nothing is ordered by wall
clock: messages have numbers, an end has an epoch, the facts of one life have numbers.

- *at most once*: ranges that were taken never overlap;
- *in order*: they grow;
- *at least once*: when the dialog has completed, every captured message was taken or deleted;
- *same content*: between two numbers at which both ends begin a range, the digests add up to the same.

What an end promised is in its facts (`assurances`). A claim without a promise is not judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.dialog.ids import DIALOG_BYTES, is_twin, twin
from holdfast.pipeline.audit import HOLDS, NOT_PROVABLE, VIOLATED

AT_LEAST_ONCE: Final = "at least once"
AT_MOST_ONCE: Final = "at most once"
IN_ORDER: Final = "in order"
SAME_CONTENT: Final = "same content"
CLAIMS: Final = {
    AT_LEAST_ONCE: "every message that was captured is taken, or deleted for a reason, when the dialog completes",
    AT_MOST_ONCE: "no message is taken twice",
    IN_ORDER: "messages are taken in the order of their numbers",
    SAME_CONTENT: "what is taken is what was captured",
}
LEAST: Final = 4
MOST: Final = 2
ORDER: Final = 1
"""Bits of `assurances`."""
CAPTURED: Final = "captured"
TAKEN: Final = "taken"
DELETED: Final = "deleted"
COMPLETED: Final = "completed"
DIGEST_MASK: Final = (1 << 63) - 1
NAMED_MAX: Final = 20

Row = Mapping[str, Any]
Key = tuple[str, str]
"""The dialog, and the end that sends."""


class DialogVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one dialog."""

    dialog: str
    sender: str
    assurances: int
    verdict: str
    why: str
    captured: int
    taken: int
    deleted: int
    compared: int
    """Messages whose content was compared between both ends."""
    violations: int


class DialogViolation(msgspec.Struct, frozen=True, kw_only=True):
    dialog: str
    sender: str
    claim: str
    text: str
    events: tuple[str, ...]


def conversation(dialog: str) -> str:
    """One name for both ends: with both in one store they differ in a bit."""
    raw = bytes.fromhex(dialog)
    if len(raw) == DIALOG_BYTES and is_twin(raw):
        return twin(raw).hex()
    return dialog


def judge_dialogs(
    ranges: Iterable[Row], completed: Iterable[str], incomplete: Mapping[tuple[str, int], int]
) -> tuple[list[DialogVerdict], list[DialogViolation]]:
    """Verdicts and violations.

    `ranges` have event, dialog, sender, assurances, first, last, digest, epoch, node, incarnation and n. `completed`
    are dialogs that ended well. `incomplete` maps lives of nodes to the number of range facts that are missing.
    """
    done = {conversation(dialog): True for dialog in completed}
    sides: dict[Key, list[Row]] = {}
    for row in ranges:
        sides.setdefault((conversation(row["dialog"]), row["sender"]), []).append(row)
    verdicts: list[DialogVerdict] = []
    violations: list[DialogViolation] = []
    for key in sorted(sides):
        missing = sum(
            incomplete.get(life, 0)
            for life in dict.fromkeys((row["node"], row["incarnation"]) for row in sides[key])
        )
        side = _Side(key, sides[key], key[0] in done, missing)
        verdicts.append(side.verdict())
        violations += side.violations
    return verdicts, violations


class _Side:
    """The evidence on one direction."""

    def __init__(self, key: Key, rows: Sequence[Row], completed: bool, missing: int) -> None:
        self.key = key
        self.assurances = max(row["assurances"] for row in rows)
        self.completed, self.missing = completed, missing
        of = lambda event: sorted((row for row in rows if row["event"] == event), key=_order)
        self.captured, self.taken, self.deleted = of(CAPTURED), of(TAKEN), of(DELETED)
        self.violations: list[DialogViolation] = []
        if self.assurances & MOST:
            self._judge_repeats()
        if self.assurances & ORDER:
            self._judge_order()
        self.compared = self._judge_content()
        self.unaccounted = _minus(_union(self.captured), _union([*self.taken, *self.deleted]))
        if self.assurances & LEAST and completed and not missing:
            self._judge_losses()

    def verdict(self) -> DialogVerdict:
        word, why = self._word()
        return DialogVerdict(
            dialog=self.key[0],
            sender=self.key[1],
            assurances=self.assurances,
            verdict=word,
            why=why,
            captured=_size(_union(self.captured)),
            taken=_size(_union(self.taken)),
            deleted=_size(_union(self.deleted)),
            compared=self.compared,
            violations=len(self.violations),
        )

    def _word(self) -> tuple[str, str]:
        taken = _size(_union(self.taken))
        if self.violations:
            return VIOLATED, self.violations[0].text
        if self.missing:
            return NOT_PROVABLE, f"{self.missing} facts about it are missing"
        if not self.captured:
            return NOT_PROVABLE, "the sending end was not recorded"
        if self.assurances & LEAST and self.unaccounted:
            return NOT_PROVABLE, f"{_size(self.unaccounted)} messages are on their way"
        if self.compared < taken:
            return NOT_PROVABLE, f"the content of {taken - self.compared} messages was not compared"
        return HOLDS, "all promises are proved by the facts of both ends"

    def _judge_repeats(self) -> None:
        last: Row | None = None
        for row in sorted(self.taken, key=lambda row: (row["first"], row["last"])):
            if last is not None and row["first"] <= last["last"]:
                end = min(row["last"], last["last"])
                text = f"messages {row['first']} to {end} were taken twice"
                self._violated(AT_MOST_ONCE, text, last, row)
            if last is None or row["last"] > last["last"]:
                last = row

    def _judge_order(self) -> None:
        highest: Row | None = None
        for row in self.taken:
            if highest is not None and row["last"] < highest["first"]:
                text = (
                    f"messages {row['first']} to {row['last']} were taken after {highest['first']}"
                )
                self._violated(IN_ORDER, text, highest, row)
            if highest is None or row["last"] > highest["last"]:
                highest = row

    def _judge_content(self) -> int:
        """Compare digests between common cuts; gives the number of messages that were compared."""
        sent, received = _sums(self.captured), _sums(self.taken)
        compared = 0
        for first, stop in _common(sent, received):
            compared += stop - first
            if _between(sent, first, stop) != _between(received, first, stop):
                text = f"messages {first} to {stop - 1} were not taken as they were captured"
                within = [
                    next(row for row in rows if row["first"] <= first <= row["last"])
                    for rows in (self.captured, self.taken)
                ]
                self._violated(SAME_CONTENT, text, *within)
        never = _minus(_union(self.taken), _union(self.captured))
        if self.captured and not self.missing:
            for first, stop in never:
                row = next(
                    row for row in self.taken if row["first"] < stop and row["last"] >= first
                )
                text = f"messages {first} to {stop - 1} were taken and never captured"
                self._violated(SAME_CONTENT, text, row)
        return compared

    def _judge_losses(self) -> None:
        for first, stop in self.unaccounted:
            row = next(r for r in self.captured if r["first"] < stop and r["last"] >= first)
            text = f"the dialog completed, and messages {first} to {stop - 1} were never taken"
            self._violated(AT_LEAST_ONCE, text, row)

    def _violated(self, claim: str, text: str, *rows: Row) -> None:
        events = tuple(_told(row) for row in rows)
        dialog, sender = self.key
        self.violations.append(
            DialogViolation(dialog=dialog, sender=sender, claim=claim, text=text, events=events)
        )


# -- ranges ------------------------------------------------------------------------------------------------------

Spans = list[tuple[int, int]]
"""Disjoint half-open ranges, in order."""


def _order(row: Row) -> tuple[int, int, int]:
    return row["epoch"], row["incarnation"], row["n"]


def _told(row: Row) -> str:
    return (
        f"{row['event']} {row['first']} to {row['last']} at node {row['node'][:8]}, incarnation {row['incarnation']}, "
        f"fact {row['n']}, epoch {row['epoch']}"
    )


def _union(rows: Iterable[Row]) -> Spans:
    spans: Spans = []
    for first, last in sorted((row["first"], row["last"]) for row in rows):
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], last + 1))
        else:
            spans.append((first, last + 1))
    return spans


def _minus(spans: Spans, others: Spans) -> Spans:
    left: Spans = []
    for start, stop in spans:
        at = start
        for begin, end in others:
            if end <= at or begin >= stop:
                continue
            if begin > at:
                left.append((at, begin))
            at = max(at, end)
        if at < stop:
            left.append((at, stop))
    return left


def _size(spans: Spans) -> int:
    return sum(stop - start for start, stop in spans)


Sums = dict[int, tuple[int, int, int]]
"""Position to (run, sum of digests up to there, position): positions of one run are connected."""


def _sums(rows: Sequence[Row]) -> Sums:
    """Sums of digests at each cut. Ranges that overlap begin a run of their own: they cannot be added up."""
    sums: Sums = {}
    run, total, end = 0, 0, -1
    for row in sorted(rows, key=lambda row: (row["first"], row["last"])):
        if row["first"] < end:
            continue  # taken again: the first range stands for it
        if row["first"] != end:
            run, total = run + 1, 0
            sums[row["first"]] = (run, 0, row["first"])
        total = (total + row["digest"]) & DIGEST_MASK
        end = row["last"] + 1
        sums[end] = (run, total, end)
    return sums


def _common(one: Sums, other: Sums) -> Spans:
    """Adjacent cuts that both have, each within one run of both."""
    cuts = [cut for cut in sorted(one) if cut in other]
    return [
        (a, b)
        for a, b in itertools.pairwise(cuts)
        if one[a][0] == one[b][0] and other[a][0] == other[b][0]
    ]


def _between(sums: Sums, first: int, stop: int) -> int:
    return (sums[stop][1] - sums[first][1]) & DIGEST_MASK
