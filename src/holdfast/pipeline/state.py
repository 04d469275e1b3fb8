"""What earlier runs know about segments, so that each is read through only once.

A cache and no more: without it, segments are checked again and the same tables come out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from holdfast.pipeline.publish import write_atomically
from holdfast.pipeline.sources import Segment
from holdfast.telemetry.facts import SCHEMA

_VERSION: Final = 1


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """A segment as it was when it was checked. `problem` is set for one that is bad and could not be moved away."""

    size: int
    mtime_ns: int
    kind: str
    day: str
    rows: int = 0
    digest: str = ""
    problem: str = ""

    def fits(self, segment: Segment) -> bool:
        return self.size == segment.size and self.mtime_ns == segment.mtime_ns


class State(msgspec.Struct, frozen=True):
    """Path of a segment to what is known of it."""

    files: dict[str, Known]
    version: int = _VERSION
    schema: int = SCHEMA
    """A newer schema may accept what an older one did not: then everything is checked again."""


def load_state(root: Path) -> State:
    """The state that the last run left; an empty one if there is none or it cannot be used."""
    try:
        state = msgspec.json.decode((root / "state.json").read_bytes(), type=State)
    except (FileNotFoundError, msgspec.DecodeError):
        return State({})
    return state if (state.version, state.schema) == (_VERSION, SCHEMA) else State({})


def save_state(root: Path, state: State) -> None:
    write_atomically(root / "state.json", msgspec.json.encode(state))
