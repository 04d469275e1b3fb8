"""Traces of replicated groups, correct ones and ones with a planted violation."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from tests.pipeline.making import Fact, fact, node_id, write_segment

HOURS_S = 3600.0
Entry = dict[str, Any]


def log(entries: int, per_entry: int = 10, stream: str = "s", first_index: int = 2) -> list[Entry]:
    """A plain log of one stream."""
    return [
        {
            "index": first_index + i,
            "position": i * per_entry,
            "stream": stream,
            "first": i * per_entry + 1,
            "last": (i + 1) * per_entry,
            "content": f"{stream}/{i}",
        }
        for i in range(entries)
    ]


class Trace:
    """What the replicas of one group recorded. Nodes are named after the group, so traces do not meet."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.facts: dict[str, dict[str, list[Fact]]] = {}

    def node(self, replica: str) -> str:
        return f"{self.group} {replica}"

    def deliver(
        self,
        replica: str,
        entries: list[Entry],
        *,
        incarnation: int = 1,
        epoch: int = 7,
        start_s: float = 0.0,
        every_s: float = 1.0,
        digest: int = 0,
        skip_n: tuple[int, ...] = (),
    ) -> None:
        """Facts of a replica, with a cumulative digest. Numbers in `skip_n` are facts that were lost."""
        name = self.node(replica)
        mine = self.facts.setdefault(name, {}).setdefault("delivery", [])
        for i, entry in enumerate(entries):
            body = f"{entry['content']}@{entry['position']}".encode()
            digest = (digest + zlib.crc32(body)) & 0xFFFFFFFF
            n = sum(f["incarnation"] == incarnation for f in mine)
            n += sum(1 for lost in skip_n if lost <= n)
            fields = {key: value for key, value in entry.items() if key != "content"}
            fields.setdefault("term", 1)
            mine.append(
                fact(
                    "delivery", name, n, start_s + i * every_s, incarnation, group=self.group,
                    epoch=epoch, digest=digest, **fields,
                )
            )  # fmt: skip

    def event(self, replica: str, event: str, at_s: float, **fields: Any) -> None:
        name = self.node(replica)
        mine = self.facts.setdefault(name, {}).setdefault("group", [])
        usual = {"epoch": 7, "term": 1, "rollback_index": -1}
        row = fact(
            "group", name, len(mine), at_s, group=self.group, event=event, **(usual | fields)
        )
        mine.append(row)

    def order(self, replica: str, entry: str, at_s: float, **fields: Any) -> None:
        name = self.node(replica)
        mine = self.facts.setdefault(name, {}).setdefault("order", [])
        usual = {"epoch": 7, "term": 1}
        mine.append(
            fact("order", name, len(mine), at_s, group=self.group, entry=entry, **(usual | fields))
        )

    def write(self, landing: Path) -> None:
        for name, kinds in self.facts.items():
            for kind, facts in kinds.items():
                for incarnation in sorted({f["incarnation"] for f in facts}):
                    life = [f for f in facts if f["incarnation"] == incarnation]
                    assert life[0]["node"] == node_id(name)
                    write_segment(landing, kind, life, seq=1)


def all_deliver(trace: Trace, entries: list[Entry], replicas: str = "abc", **more: Any) -> Trace:
    for replica in replicas:
        trace.deliver(replica, entries, **more)
    return trace


def wrong_content() -> Trace:
    """One message of one replica has other bytes: everything after it has another cumulative digest."""
    trace, entries = all_deliver(Trace("wrong-content"), log(2000), "ab"), log(2000)
    entries[700] = {**entries[700], "content": "something else"}
    trace.deliver("c", entries)
    return trace


def wrong_entry() -> Trace:
    trace, entries = all_deliver(Trace("wrong-entry"), log(50), "ab"), log(50)
    entries[20] = {**entries[20], "stream": "t"}
    trace.deliver("c", entries)
    return trace


def same_place() -> Trace:
    """Two replicas that recorded different parts of the log claim one position."""
    trace, entries = Trace("same-place"), log(40)
    late = [{**e, "position": e["position"] - 5} for e in entries[20:]]
    for replica in "ab":
        trace.deliver(replica, entries[:20])
    for replica in "cd":
        trace.deliver(replica, late)
    return trace


def repeated() -> Trace:
    """All replicas deliver a message twice: they agree, and are wrong."""
    entries = log(40)
    entries[30] = {**entries[30], "first": 101, "last": 110}
    return all_deliver(Trace("repeated"), entries)


def backwards() -> Trace:
    trace, entries = all_deliver(Trace("backwards"), log(40), "ab"), log(40)
    trace.deliver("c", [*entries[:20], {**entries[15], "stream": "s"}, *entries[20:]])
    return trace


def hole() -> Trace:
    """Replica c never delivers entry 20, and has recorded everything that it did."""
    trace, entries = all_deliver(Trace("hole"), log(40), "ab"), log(40)
    trace.deliver("c", entries[:20] + entries[21:])
    return trace


def dropped() -> Trace:
    """The order drops numbers 101 to 110, and one replica delivers them all the same."""
    trace = Trace("dropped")
    entries = log(40)
    kept = [e for e in entries if e["first"] != 101]
    for i, entry in enumerate(kept):
        kept[i] = {**entry, "position": i * 10}
    for replica in "ab":
        trace.deliver(replica, kept)
    trace.order("a", "skip", 5.0, index=entries[10]["index"], stream="s", first=101, last=110)
    trace.deliver("c", entries[:11])
    return trace


def two_leaders() -> Trace:
    trace = all_deliver(Trace("two-leaders"), log(40))
    trace.event("a", "leads", 1.0, term=3)
    trace.event("b", "leads", 2.0, term=3)
    trace.event("c", "leads", 3.0, term=4)
    return trace


PLANTED = {
    "wrong-content": (wrong_content, {("agreement", 702)}),
    "wrong-entry": (wrong_entry, {("agreement", 22)}),
    "same-place": (same_place, {("one place", 22)}),
    "repeated": (repeated, {("once", 32)}),
    "backwards": (backwards, {("in order", 17), ("once", 17)}),
    "hole": (hole, {("no hole", 23)}),
    "dropped": (dropped, {("one place", 13), ("no delivery after drop", 12)}),
    "two-leaders": (two_leaders, {("one leader per term", 0)}),
}


def correct() -> Trace:
    """Over several hours: edges between hours are no difference."""
    return all_deliver(Trace("correct"), log(5000, 3), every_s=2.5)


def new_epoch() -> Trace:
    """A `memory` group that was re-created: the same indexes, other messages, another epoch."""
    trace = all_deliver(Trace("new-epoch"), log(60))
    for replica in "abc":
        trace.deliver(replica, log(60, stream="u"), incarnation=2, epoch=8, start_s=500.0)
    return trace


def rolled_back() -> Trace:
    """Replica c delivered entries 30 to 32 early, they were decided otherwise, and it began again from a state."""
    trace, entries = all_deliver(Trace("rolled-back"), log(60), "ab"), log(60)
    early = [{**e, "stream": "x", "content": "early"} for e in entries[30:33]]
    trace.deliver("c", entries[:30] + early)
    trace.event("c", "rolled_back", 40.0, rollback_index=entries[30]["index"])
    trace.event("c", "restored", 41.0)
    body = sum(zlib.crc32(f"{e['content']}@{e['position']}".encode()) for e in entries[:30])
    trace.deliver("c", entries[30:], start_s=50.0, digest=body & 0xFFFFFFFF)
    return trace


def restored() -> Trace:
    """A replica that missed a part takes a state and goes on behind it."""
    trace, entries = all_deliver(Trace("restored"), log(60), "ab"), log(60)
    trace.deliver("c", entries[:20])
    trace.event("c", "restored", 25.0)
    body = sum(zlib.crc32(f"{e['content']}@{e['position']}".encode()) for e in entries[:40])
    trace.deliver("c", entries[40:], start_s=30.0, digest=body & 0xFFFFFFFF)
    return trace


def lost_facts() -> Trace:
    """Facts 20 to 24 of the only other replica are not there."""
    trace, entries = Trace("lost-facts"), log(60)
    trace.deliver("a", entries)
    body = sum(zlib.crc32(f"{e['content']}@{e['position']}".encode()) for e in entries[:25])
    trace.deliver("b", entries[:20])
    trace.deliver(
        "b", entries[25:], start_s=25.0, skip_n=(20, 20, 20, 20, 20), digest=body & 0xFFFFFFFF
    )
    return trace


def crashed_tail() -> Trace:
    trace, entries = Trace("crashed-tail"), log(500)
    trace.deliver("a", entries)
    trace.deliver("b", entries[:490])
    return trace


def one_in_common() -> Trace:
    """Only one entry of many was recorded twice: that proves one entry."""
    trace, entries = Trace("one-in-common"), log(500)
    trace.deliver("a", entries)
    trace.deliver("b", entries[:1])
    return trace


def alone() -> Trace:
    return all_deliver(Trace("alone"), log(60), "a")


HARMLESS = {
    "correct": (correct, "holds"),
    "new-epoch": (new_epoch, "holds"),
    "rolled-back": (rolled_back, "holds"),
    "restored": (restored, "holds"),
    "lost-facts": (lost_facts, "not provable"),
    "crashed-tail": (crashed_tail, "holds"),
    "one-in-common": (one_in_common, "not provable"),
    "alone": (alone, "not provable"),
}
