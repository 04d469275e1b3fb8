"""What an engine says when it fails, for people: the problem and its root cause, without the stack of its Java."""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 1_000
_STACK: Final = re.compile(r"^\s*(at |\.\.\. \d+ (common frames|more))")
_CAUSE: Final = re.compile(r"^\s*Caused by: ")
_CLASS: Final = re.compile(r"\b(?:[a-z]\w*\.)+([A-Z]\w*)(?=:)")
FULL_DISK: Final = "No space left on device"


def engine_words(failure: object) -> str:
    """The message without stack and driver trace; a full disk says what to do."""
    text = str(failure).strip()
    if FULL_DISK in text:
        return (
            f"{FULL_DISK}. Free space where the output is, and where Spark keeps scratch files "
            "(spark.local.dir), then run again"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [
        line for line in lines if not _STACK.match(line) and not line.startswith("JVM stacktrace")
    ]
    causes = [line for line in said if _CAUSE.match(line)]
    first: list[str] = []
    for line in said:
        if _CAUSE.match(line) or line.startswith("Driver stacktrace"):
            break
        first.append(line)
    words = " ".join([*first, *causes[-1:]])
    return _CLASS.sub(r"\1", words)[:LENGTH_MAX]
