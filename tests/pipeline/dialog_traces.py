"""Traces of two dialogs: one that keeps its promises, and one whose receiver takes messages twice."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.making import Fact, fact, write_segment

from holdfast.dialog.facts import digest_of

SOUND, BROKEN = ("0b" * 31 + f"{n:02x}" for n in (1, 2))
ALL = 7


def _passed(name: str, dialog: str, event: str, first: int, last: int, n: int, at_s: float) -> Fact:
    bodies = [f"message {number}".encode() for number in range(first, last + 1)]
    return fact(
        "dialog_range", name, n, at_s, event=event, dialog=dialog, sender="creator", assurances=ALL, first=first,
        last=last, digest=digest_of(first, bodies),
    )  # fmt: skip


def write_dialogs(landing: Path) -> None:
    """Sent in batches of ten and taken in batches of eight, over an hour boundary."""
    sent, taken = [], []
    for dialog in (SOUND, BROKEN):
        for at in range(0, 40, 10):
            place = len(sent)
            sent.append(_passed("sender", dialog, "captured", at, at + 9, place, at * 120.0))
        for at in range(0, 40, 8):
            place = len(taken)
            taken.append(_passed("taker", dialog, "taken", at, at + 7, place, at * 120.0 + 60))
    taken.append(_passed("taker", BROKEN, "taken", 32, 39, len(taken), 4900.0))
    write_segment(landing, "dialog_range", sent)
    write_segment(landing, "dialog_range", taken)
    done = [fact("dialog", "sender", 0, 4950.0, event="completed", dialog=SOUND)]
    write_segment(landing, "dialog", done)
