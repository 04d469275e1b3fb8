"""Stress runs of a running node: what its control socket is asked, and how that reaches the unit `stress`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import MisuseError, PeerUnknown
from holdfast.health.stress import PATTERNS, STRESS, StressRequest
from holdfast.node.core import NodeCore
from holdfast.runtime.control import Handler
from holdfast.runtime.driver import Driver
from holdfast.types import DATA, NodeId


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request `stress`."""

    nodes: tuple[str, ...] = ()
    """Names of members; all when left out."""
    rounds: int = 10
    bytes_per_s: int = 1_000_000
    sizes: tuple[int, ...] = ()
    patterns: tuple[str, ...] = PATTERNS


def stress_handlers(
    core: Callable[[], NodeCore], driver: Callable[[], Driver]
) -> dict[str, Handler]:
    """`stress` begins a run between members and answers with its number; `stress_report` says how far it is."""

    def begin(request: dict[str, Any]) -> dict[str, Any]:
        fields = {key: value for key, value in request.items() if key != "do"}
        try:
            asked = msgspec.convert(fields, _Asked)
        except msgspec.ValidationError as error:
            raise MisuseError(f"stress: {error}; nothing was sent") from None
        nodes = _members(core(), asked.nodes)
        run = secrets.randbits(32)
        begin = StressRequest(
            run, nodes, asked.rounds, asked.bytes_per_s, asked.sizes, asked.patterns
        )
        driver().intake.force(DATA, STRESS, begin, 0)
        driver().wake()
        return {"run": run}

    def report(request: dict[str, Any]) -> dict[str, Any]:
        run = request.get("run")
        found = core().stress.status(run, _names(core())) if isinstance(run, int) else None
        if found is None:
            raise MisuseError(f"this node knows no stress run {run!r}; only the last few are kept")
        return found

    return {"stress": begin, "stress_report": report}


def _names(core: NodeCore) -> dict[bytes, str]:
    names: dict[bytes, str] = {node: m.name for node, m in core.directory.members.items()}
    return names | {core.me.node: core.me.name}


def _members(core: NodeCore, wanted: tuple[str, ...]) -> tuple[NodeId, ...]:
    by_name = {name: NodeId(node) for node, name in _names(core).items()}
    for name in wanted:
        if name not in by_name:
            known = ", ".join(sorted(by_name))
            raise PeerUnknown(f"no member is called {name!r}: {known}; nothing was sent")
    nodes = [by_name[name] for name in dict.fromkeys(wanted or sorted(by_name))]
    if len(nodes) < 2:
        raise MisuseError("a stress run needs two nodes at least; nothing was sent")
    return tuple(nodes)
