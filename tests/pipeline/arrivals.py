"""A random history of a small domain over several days, cut into segments that arrive in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.pipeline.making import Fact, delivery, fact, path_fact, write_segment

NODES = ("alba", "brno", "cork")
Batch = list[tuple[str, list[Fact]]]
"""Segments (kind and facts) that arrive together."""

STEP_S = 120.0


def path_history(listener: str, rng: random.Random, start_s: float, hours: float) -> list[Fact]:
    """What one node hears of the others, with troubles, pauses, a restart and a lost stretch."""
    facts: list[Fact] = []
    states: dict[tuple[str, str], dict[str, Any]] = {}
    incarnation, n, at_s = 1, 0, start_s
    end_s = start_s + hours * 3600
    silent_until = start_s
    while at_s < end_s:
        if rng.random() < 0.004:
            incarnation, n = incarnation + 1, 0
        if rng.random() < 0.006:
            silent_until = at_s + rng.choice((700.0, 5000.0))
        for sender in NODES:
            for transport in ("udp", "tcp"):
                if sender == listener or at_s < silent_until:
                    continue
                state = states.setdefault((sender, transport), {"size": 1472})
                if rng.random() < 0.02:
                    bad: list[dict[str, Any]] = [
                        {"size": 600},
                        {"alive": False},
                        {"loss_ppm": 50_000},
                    ]
                    states[sender, transport] = state = rng.choice(
                        [*bad, {"size": 1472}, {"size": 1472}, {"bad_patterns": "55"}]
                    )
                if rng.random() < 0.003:
                    n += 1  # a fact that was lost
                more = {"transport": transport, "incarnation": incarnation, "loss_ppm": 0} | state
                size = int(more.pop("size", 1472))
                facts.append(path_fact(listener, sender, n, at_s, size, **more))
                n += 1
        at_s += STEP_S
    return facts


def delivery_history(replica: str, start_s: float, hours: float, wrong_at: int = 0) -> list[Fact]:
    """One entry each ten minutes; the digest is cumulative, as nodes record it."""
    facts: list[Fact] = []
    digest = 0
    for n in range(int(hours * 6)):
        index = n + 2
        digest = (digest + 7919 * (index + 1)) & 0xFFFFFFFF
        if index == wrong_at:
            digest = (digest + 1) & 0xFFFFFFFF
        facts.append(
            delivery(
                replica, n, index, n * 10, n * 10 + 1, n * 10 + 10, digest=digest,
                at_s=start_s + n * 600 + len(replica), epoch=9,
            )
        )  # fmt: skip
    return facts


def cut(facts: list[Fact], rng: random.Random, kind: str) -> Iterator[tuple[str, list[Fact]]]:
    """Segments of one life each, some hours long; one of them comes twice."""
    place = 0
    while place < len(facts):
        size = rng.randrange(100, 300) if kind == "path" else rng.randrange(5, 20)
        piece = facts[place : place + size]
        life = piece[0]["incarnation"]
        piece = [row for row in piece if row["incarnation"] == life]
        yield kind, piece
        place += len(piece)


def batches(seed: int, count: int, start_s: float, hours: float) -> list[Batch]:
    """All segments of a history, spread over `count` arrivals at random; one segment arrives twice."""
    rng = random.Random(seed)
    segments: Batch = []
    for node in NODES:
        segments += cut(path_history(node, rng, start_s, hours), rng, "path")
        wrong = 17 if node == "cork" else 0
        segments += cut(delivery_history(node, start_s, hours, wrong), rng, "delivery")
        segments.append(("node", [fact("node", node, 0, start_s, event="start")]))
    segments.append(segments[3])
    arrivals: list[Batch] = [[] for _ in range(count)]
    for segment in segments:
        arrivals[rng.randrange(count)].append(segment)
    return arrivals


def write_batch(landing: Path, batch: Batch, first_seq: int) -> int:
    """Write the segments of an arrival; gives the next number."""
    for kind, facts in batch:
        write_segment(landing, kind, facts, seq=first_seq)
        first_seq += 1
    return first_seq
