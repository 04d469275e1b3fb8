"""Path facts of one life of a node: a `change` whenever a state begins, a `sample` every so often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.columns import Columns, Facts, strings
from holdfast.pipeline.synth.faults import Fault
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.options import DAY_S
from holdfast.pipeline.synth.path_states import (
    SIZE_MAX,
    Hit,
    State,
    hits_on,
    states_of,
    warning_ppm,
    warnings_on,
)
from holdfast.pipeline.synth.topology import Path, Topology

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

_HEARD_PER_S: Final = 10
"""Basics per second that a listener expects."""
_PATTERNS: Final = "00,55,aa,ff"
_MISS_SHARE: Final = 0.02
"""Samples in which a single basic is missing."""


class PathTimeline(msgspec.Struct, frozen=True):
    """A path and everything that a listener sees on it in one life."""

    path: Path
    hits: list[Hit]
    states: list[State]
    warnings: list[tuple[float, float]]
    rtt_us: int
    phase_s: float


def timelines(life: Life, faults: list[Fault], topology: Topology) -> list[PathTimeline]:
    """All paths that a node listens on, in this life of it."""
    found = []
    for path in topology.paths_to(life.node):
        rng = generator(topology.options.seed, "path", path)
        hits = hits_on(path, faults, topology)
        found.append(
            PathTimeline(
                path,
                hits,
                states_of(path, hits, life, topology.options),
                warnings_on(path, faults, topology),
                int(rng.lognormal(5.3, 0.4)),
                float(rng.uniform(0, topology.options.sample_s)),
            )
        )
    return found


def path_facts(
    paths: list[PathTimeline], life: Life, begin: float, end: float, topology: Topology
) -> Facts:
    """The path facts of a life in `begin` to `end`, in order of time."""
    pieces = []
    states = 0
    for number, line in enumerate(paths):
        piece = _piece(line, life, begin, end, topology)
        piece["path"] = np.full(len(piece["at_s"]), number, dtype=np.int64)
        piece["bad"] = piece.pop("state") + states
        states += len(line.states)
        pieces.append(piece)
    at_s = np.concatenate([piece["at_s"] for piece in pieces])
    order = np.argsort(at_s, kind="stable")
    columns: Columns = {
        name: np.concatenate([piece[name] for piece in pieces])[order]
        for name in pieces[0]
        if name not in ("at_s", "path", "bad")
    }
    index = np.concatenate([piece["path"] for piece in pieces])[order]
    bad = np.concatenate([piece["bad"] for piece in pieces])[order]
    columns |= _names(paths, index, topology)
    columns["event"] = strings(("sample", "change"), columns.pop("is_change").astype(np.int64))
    columns["bad_patterns"] = strings(_bad_patterns(paths), bad)
    columns["patterns"] = strings((_PATTERNS,), np.zeros(len(index), dtype=np.int64))
    return Facts("path", at_s[order], columns)


def _names(paths: list[PathTimeline], index: Ints, topology: Topology) -> Columns:
    lines = [line.path for line in paths]
    return {
        "sender": strings([topology.ids[path.sender] for path in lines], index),
        "sender_name": strings([topology.name(path.sender) for path in lines], index),
        "sender_adapter": strings([topology.adapter(path.sender_adapter) for path in lines], index),
        "listener_adapter": strings(
            [topology.adapter(path.listener_adapter) for path in lines], index
        ),
        "subnet": strings([topology.subnet(path.listener_adapter) for path in lines], index),
        "transport": strings([path.transport for path in lines], index),
    }


def _bad_patterns(paths: list[PathTimeline]) -> list[str]:
    """The patterns of all states of all paths, one after the other."""
    return [state.bad_patterns for line in paths for state in line.states]


def _piece(
    line: PathTimeline, life: Life, begin: float, end: float, topology: Topology
) -> dict[str, Any]:
    """The facts of one path in a stretch of time, as arrays."""
    options = topology.options
    step = options.sample_s
    first = int(np.ceil((begin - life.begin - line.phase_s) / step))
    last = int(np.ceil((end - life.begin - line.phase_s) / step))
    samples = life.begin + line.phase_s + step * np.arange(max(first, 0), last)
    edges = np.array([state.begin for state in line.states])
    changes = edges[(edges >= begin) & (edges < end)]
    at_s = np.concatenate([changes, samples])
    is_change = np.arange(len(at_s)) < len(changes)
    order = np.argsort(at_s, kind="stable")
    at_s, is_change = at_s[order], is_change[order]
    which = np.maximum(np.searchsorted(edges, at_s, side="right") - 1, 0)
    rng = generator(options.seed, "samples", line.path, life.number, round(begin))
    columns = _measured(line, at_s, which, rng, step, options.noise)
    return columns | {"at_s": at_s, "is_change": is_change, "state": which}


def _measured(
    line: PathTimeline,
    at_s: Floats,
    which: Ints,
    rng: np.random.Generator,
    step: float,
    noise: float,
) -> dict[str, Any]:
    rows = len(at_s)
    of = lambda name, kind: np.array([getattr(state, name) for state in line.states], kind)[which]
    alive = of("alive", bool)
    loss_ppm = of("loss_ppm", np.int64)
    for begin, end in line.warnings:
        soon = (at_s >= begin) & (at_s < end)
        loss_ppm = np.maximum(
            loss_ppm, np.where(soon, warning_ppm(at_s, begin, end), 0).astype(np.int64)
        )
    expected = np.full(rows, round(_HEARD_PER_S * step), dtype=np.int64)
    lost = rng.binomial(expected, np.clip(loss_ppm / 1e6, 0, 1))
    lost += rng.random(rows) < _MISS_SHARE * noise
    heard = np.where(alive, np.maximum(expected - lost, 0), 0)
    day = np.sin(2 * np.pi * at_s / DAY_S)
    rtt = line.rtt_us * (1 + 0.1 * day) * rng.lognormal(0, 0.08, rows)
    tcp = line.path.transport == "tcp"
    return {
        "alive": alive,
        "size": of("size", np.int64),
        "size_max": np.full(rows, 0 if tcp else SIZE_MAX, dtype=np.int64),
        "loss_ppm": loss_ppm,
        "rtt_us": np.where(alive, rtt, 0).astype(np.int64),
        "heard": heard,
        "expected": expected,
        "jitter_us": (line.rtt_us * rng.exponential(0.05, rows)).astype(np.int64),
        "rate_kbps": np.full(rows, 900_000, dtype=np.int64),
        "flows": np.full(rows, 4, dtype=np.int64),
        "worsened": which.astype(np.int64),
    }
