"""The judgement on what replicas delivered: a pure function of summaries, without Spark.

Every claim is judged on its own evidence. A step that goes back, leaves a hole or repeats a message is a violation
unless a restored state, a rollback or lost facts explain it. Nothing is ordered by wall clock: entries have indexes,
the facts of one node have numbers and its own monotonic time.

A verdict is given per range of the log, and for each group and epoch as a whole:

- `holds`: all entries were recorded by two replicas or more and are the same, except for a short tail that the others
  may still be recording;
- `violated`: an event contradicts a claim; it is named;
- `not provable`: nothing speaks against it, but part of the evidence is missing, and `why` says which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from holdfast.pipeline.audit_drops import DROPPED, delivered_drops
from holdfast.pipeline.evidence import Evidence, Life, Row, Violation, life_of, name_of
from holdfast.pipeline.transforms.delivery_blocks import BACK, HOLE, REPEAT
from holdfast.pipeline.transforms.group_events import LEADS, RESTORED, ROLLED_BACK

HOLDS: Final = "holds"
VIOLATED: Final = "violated"
NOT_PROVABLE: Final = "not provable"

AGREEMENT: Final = "agreement"
ONE_PLACE: Final = "one place"
ONE_LEADER: Final = "one leader per term"

CLAIMS: Final = {
    AGREEMENT: "replicas deliver the same at the same index",
    ONE_PLACE: "no two entries claim the same position",
    REPEAT: "no message is delivered twice, and a stream's numbers grow with the index",
    BACK: "a replica never goes back, unless its state was restored or rolled back",
    HOLE: "a replica skips no position, unless its state was restored",
    DROPPED: "a message that was dropped is not delivered",
    ONE_LEADER: "a term has at most one leader",
}
"""The claims about groups that the facts can prove. Those about dialogs are in `dialog_audit`."""

TAIL_ENTRIES: Final = 64
TAIL_SHARE: Final = 0.01
"""How long the newest part of the log may be that only one replica has recorded yet."""
NAMED_MAX: Final = 20
_WITHOUT_CONTENT: Final = "the same entries, but the content was not recorded twice"


class Range(msgspec.Struct, frozen=True):
    """A verdict on part of a group's log."""

    group: str
    epoch: int
    first_index: int
    last_index: int
    first_position: int
    last_position: int
    entries: int
    messages: int
    verdict: str
    why: str
    replicas: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one group and epoch."""

    group: str
    epoch: int
    verdict: str
    why: str
    replicas: int
    entries: int
    entries_compared: int
    coverage: float
    messages: int
    first_index: int
    last_index: int
    first_position: int
    last_position: int
    rolled_back: int
    holes_unexplained: int
    violations: int
    named: tuple[str, ...]


def judge(evidence: Evidence) -> tuple[list[Verdict], list[Range], list[Violation]]:
    """Verdicts per group and epoch, per range, and all violations."""
    violations, holes = _steps(evidence)
    violations += _disagreements(evidence)
    violations += _two_leaders(evidence)
    violations += delivered_drops(evidence)
    violations = sorted(set(violations))
    ranges = _ranges(evidence)
    verdicts = []
    keys = sorted({(r.group, r.epoch) for r in ranges} | {(v.group, v.epoch) for v in violations})
    for key in keys:
        mine = [r for r in ranges if (r.group, r.epoch) == key]
        broken = [v for v in violations if (v.group, v.epoch) == key]
        verdicts.append(_verdict(key, mine, broken, holes.get(key, 0), evidence))
    return verdicts, ranges, violations


# -- steps of one replica ----------------------------------------------------------------------------------------


def _steps(evidence: Evidence) -> tuple[list[Violation], dict[tuple[str, int], int]]:
    """Steps that nothing explains, and how many holes lost facts may explain, per group and epoch."""
    found: list[Violation] = []
    holes: dict[tuple[str, int], int] = {}
    explained = _Explanations(evidence.events)
    recorded = _Recorded(evidence.recorded)
    for step in [*evidence.breaks, *_between_hours(evidence)]:
        life = life_of(step)
        if explained.between(life, step["ns_before"], step["now_ns"]):
            continue
        if step["claim"] == HOLE and not recorded.has_all(life, step["n_before"], step["n"]):
            key = (life[0], life[1])
            holes[key] = holes.get(key, 0) + 1
            continue
        found.append(_step_violation(step, evidence.names))
    return found, holes


def _between_hours(evidence: Evidence) -> list[dict[str, Any]]:
    """The steps from one hour to the next, judged as those within an hour are."""
    rows: list[dict[str, Any]] = []
    for steps in _by_life(evidence.edges).values():
        furthest = steps[0]["end_max"]
        for before, after in pairwise(steps):
            back = after["index_before"] <= before["index"]
            if back or after["position"] > furthest:
                rows.append(
                    {
                        **after, "claim": BACK if back else HOLE, "stream": "",
                        "n_before": before["n"], "n": after["n_before"],
                        "ns_before": before["now_ns"], "now_ns": after["ns_before"],
                        "index_before": before["index"], "index": after["index_before"],
                        "end_before": before["end_before"], "first": 0, "last": 0,
                    }
                )  # fmt: skip
            furthest = max(furthest, after["end_max"])
    by_stream: dict[tuple[Life, str], list[Row]] = {}
    for row in evidence.streams:
        by_stream.setdefault((life_of(row), row["stream"]), []).append(row)
    for steps in by_stream.values():
        ordered = sorted(steps, key=lambda row: (row["hour"], row["n_before"]))
        furthest = ordered[0]["last"]
        for before, after in pairwise(ordered):
            if after["first"] <= furthest:
                rows.append(
                    {
                        **after, "claim": REPEAT, "n_before": before["n"], "n": after["n_before"],
                        "ns_before": before["now_ns"], "now_ns": after["ns_before"],
                        "index_before": before["index"], "index": after["index_before"],
                        "end_before": after["position"], "last": after["first"],
                    }
                )  # fmt: skip
            furthest = max(furthest, after["last"])
    return rows


class _Explanations:
    """Restored and rolled-back states: after one a replica may go back, skip and repeat."""

    def __init__(self, events: Iterable[Row]) -> None:
        self._at: dict[tuple[str, str, int], list[int]] = {}
        for event in events:
            if event["event"] in (RESTORED, ROLLED_BACK):
                key = (event["group"], event["node"], event["incarnation"])
                self._at.setdefault(key, []).append(event["now_ns"])
        for times in self._at.values():
            times.sort()

    def between(self, life: Life, from_ns: int, to_ns: int) -> bool:
        group, _, node, incarnation = life
        times = self._at.get((group, node, incarnation), ())
        place = bisect_left(times, from_ns)
        return place < len(times) and times[place] <= to_ns


class _Recorded:
    """Which fact numbers of which node are there."""

    def __init__(self, ranges: Iterable[Row]) -> None:
        self._ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for row in ranges:
            if row["facts"] > 0:
                key = (row["node"], row["incarnation"])
                self._ranges.setdefault(key, []).append((row["first"], row["last"]))
        for key, found in self._ranges.items():
            self._ranges[key] = _merged(found)

    def has_all(self, life: Life, first: int, last: int) -> bool:
        ranges = self._ranges.get((life[2], life[3]), ())
        return any(low <= first and last <= high for low, high in ranges)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _step_violation(step: Row, names: Mapping[str, str]) -> Violation:
    who = name_of(step, names)
    words = {
        BACK: f"{who} delivered index {step['index']} after index {step['index_before']}",
        HOLE: (
            f"{who} delivered position {step['position']} after position {step['end_before'] - 1} "
            f"and recorded everything in between"
        ),
        REPEAT: f"{who} delivered message {step['first']} of stream {step['stream']} again",
    }
    events = (
        f"{who}, fact {step['n_before']}: index {step['index_before']}",
        f"{who}, fact {step['n']}: index {step['index']}, position {step['position']}",
    )
    text = words[step["claim"]]
    return Violation(step["group"], step["epoch"], step["index"], step["claim"], text, events)


# -- replicas side by side ---------------------------------------------------------------------------------------


def _disagreements(evidence: Evidence) -> list[Violation]:
    found = []
    for row in evidence.differing:
        events = tuple(_told(told, evidence.names) for told in row["told"])
        text = f"replicas delivered different messages at index {row['index']}"
        found.append(Violation(row["group"], row["epoch"], row["index"], AGREEMENT, text, events))
    for row in evidence.overlapping:
        events = tuple(_told(told, evidence.names) for told in row["told"])
        texts = {
            ONE_PLACE: f"index {row['index']} claims a position that an earlier entry has",
            REPEAT: f"index {row['index']} delivers messages that an earlier entry has",
        }
        text = texts[row["claim"]]
        found.append(
            Violation(row["group"], row["epoch"], row["index"], row["claim"], text, events)
        )
    return found


def _two_leaders(evidence: Evidence) -> list[Violation]:
    leaders: dict[tuple[str, int, int], dict[tuple[str, int], Row]] = {}
    for event in evidence.events:
        if event["event"] == LEADS:
            key = (event["group"], event["epoch"], event["term"])
            leaders.setdefault(key, {})[(event["node"], event["incarnation"])] = event
    found = []
    for (group, epoch, term), by_node in sorted(leaders.items()):
        if len(by_node) > 1:
            who = sorted(name_of(event, evidence.names) for event in by_node.values())
            index = min(event["index"] for event in by_node.values())
            text = f"{' and '.join(who)} both led in term {term}"
            found.append(Violation(group, epoch, index, ONE_LEADER, text, tuple(who)))
    return found


# -- verdicts ----------------------------------------------------------------------------------------------------


def _ranges(evidence: Evidence) -> list[Range]:
    words = {
        "same": (HOLDS, "recorded by all of these replicas, and the same"),
        "single": (NOT_PROVABLE, "recorded by one replica only"),
        "unknown": (NOT_PROVABLE, _WITHOUT_CONTENT),
        "differs": (VIOLATED, "recorded differently"),
        "unread": (NOT_PROVABLE, "blocks that differ, too many to compare each entry"),
    }
    ranges = []
    for row in _joined(evidence.ranges):
        verdict, why = words[row["outcome"]]
        names = tuple(evidence.names.get(node, node[:8]) for node in row["nodes"])
        ranges.append(
            Range(
                row["group"], row["epoch"], row["first_index"], row["last_index"],
                row["first_position"], row["last_position"], row["entries"], row["messages"],
                verdict, why, names,
            )
        )  # fmt: skip
    return sorted(ranges, key=lambda r: (r.group, r.epoch, r.first_index))


def _joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Adjacent rows with the same outcome and replicas, as one."""
    ordered = sorted(rows, key=lambda row: (row["group"], row["epoch"], row["first_index"]))
    alike = lambda row: (row["group"], row["epoch"], row["outcome"], row["nodes"])
    for _, found in groupby(ordered, key=alike):
        mine = list(found)
        yield {
            **mine[0],
            "last_index": max(row["last_index"] for row in mine),
            "entries": sum(row["entries"] for row in mine),
            "messages": sum(row["messages"] for row in mine),
            "first_position": min(row["first_position"] for row in mine),
            "last_position": max(row["last_position"] for row in mine),
        }


def _verdict(
    key: tuple[str, int],
    ranges: Sequence[Range],
    violations: Sequence[Violation],
    holes: int,
    evidence: Evidence,
) -> Verdict:
    entries = sum(r.entries for r in ranges)
    compared = sum(r.entries for r in ranges if r.verdict == HOLDS)
    tail = ranges[-1] if ranges and ranges[-1].verdict == NOT_PROVABLE else None
    tail_max = max(TAIL_ENTRIES, int(entries * TAIL_SHARE))
    pending = tail.entries if tail and tail.entries <= tail_max and compared else 0
    # The content of the first entry follows from the digest before it, which the look-back may not have.
    head = ranges[0] if ranges and ranges[0].why == _WITHOUT_CONTENT else None
    if head and head.entries <= TAIL_ENTRIES and head.first_position > 0 and compared:
        pending += head.entries if head is not tail else 0
    replicas = {row["node"] for row in evidence.edges if (row["group"], row["epoch"]) == key}
    missing = entries - compared - pending
    verdict, why = _overall(len(violations), len(replicas), compared, missing, holes, pending)
    named = [f"{v.claim}: {v.text}. {' | '.join(v.events)}" for v in violations[:NAMED_MAX]]
    return Verdict(
        group=key[0],
        epoch=key[1],
        verdict=verdict,
        why=why,
        replicas=len(replicas),
        entries=entries,
        entries_compared=compared,
        coverage=compared / entries if entries else 0.0,
        messages=sum(r.messages for r in ranges),
        first_index=min((r.first_index for r in ranges), default=0),
        last_index=max((r.last_index for r in ranges), default=0),
        first_position=min((r.first_position for r in ranges), default=0),
        last_position=max((r.last_position for r in ranges), default=0),
        rolled_back=sum(
            event["event"] == ROLLED_BACK and (event["group"], event["epoch"]) == key
            for event in evidence.events
        ),
        holes_unexplained=holes,
        violations=len(violations),
        named=tuple(named),
    )


def _overall(
    violations: int, replicas: int, compared: int, missing: int, holes: int, pending: int
) -> tuple[str, str]:
    if violations:
        return VIOLATED, f"{violations} violation{'s' if violations > 1 else ''}"
    if replicas < 2:
        return NOT_PROVABLE, "only one replica recorded deliveries"
    if not compared:
        return NOT_PROVABLE, "no entry was recorded by two replicas"
    reasons = []
    if missing:
        reasons.append(f"{missing} entries were recorded by one replica only, or without content")
    if holes:
        reasons.append(f"{holes} hole{'s' if holes > 1 else ''} where facts were lost")
    if reasons:
        return NOT_PROVABLE, "; ".join(reasons)
    rest = f"; {pending} at the ends are not compared yet or any more" if pending else ""
    return HOLDS, f"{compared} entries compared between {replicas} replicas, all the same{rest}"


def _by_life(edges: Iterable[Row]) -> dict[Life, list[Row]]:
    lives: dict[Life, list[Row]] = {}
    for edge in edges:
        lives.setdefault(life_of(edge), []).append(edge)
    return {
        life: sorted(rows, key=lambda row: (row["hour"], row["n_before"]))
        for life, rows in lives.items()
    }


def _told(told: Row, names: Mapping[str, str]) -> str:
    digest = "unknown" if told["delta"] is None else f"{told['delta']:08x}"
    return (
        f"{name_of(told, names)}, fact {told['n']}: index {told['index']}, term {told['term']}, "
        f"position {told['position']}, stream {told['stream']}, {told['first']} to {told['last']}, digest {digest}"
    )
