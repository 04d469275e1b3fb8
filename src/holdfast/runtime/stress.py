"""Stress runs of a running node: passes control requests to the unit `stress`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import MisuseError, PeerUnknown
from holdfast.health.stress.stress_machine import STRESS
from holdfast.health.stress.values import PATTERNS, StressRequest
from holdfast.health.subsystem import HealthService
from holdfast.links.subsystem import LinkService
from holdfast.node.core import NodeCore
from holdfast.runtime.driver import Driver
from holdfast.subsystem import Control
from holdfast.types import DATA, NodeId


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request `stress`."""

    nodes: tuple[str, ...] = ()
    """Names of members; default: all."""
    rounds: int = 10
    bytes_per_s: int = 1_000_000
    sizes: tuple[int, ...] = ()
    patterns: tuple[str, ...] = PATTERNS


def stress_handlers(driver: Callable[[], Driver]) -> dict[str, Control]:
    """`stress` starts a run between members and returns its number; `stress_report` returns its progress."""

    def begin(request: dict[str, Any]) -> dict[str, Any]:
        fields = {key: value for key, value in request.items() if key != "do"}
        try:
            asked = msgspec.convert(fields, _Asked)
        except msgspec.ValidationError as error:
            raise MisuseError(f"stress: {error}; nothing was sent") from None
        nodes = _members(driver().core, asked.nodes)
        run = secrets.randbits(32)
        begin = StressRequest(
            run, nodes, asked.rounds, asked.bytes_per_s, asked.sizes, asked.patterns
        )
        driver().intake.force(DATA, STRESS, begin, 0)
        driver().wake()
        return {"run": run}

    def report(request: dict[str, Any]) -> dict[str, Any]:
        run = request.get("run")
        core = driver().core
        stress = core.service(HealthService).stress
        found = stress.status(run, _names(core)) if isinstance(run, int) else None
        if found is None:
            raise MisuseError(f"this node has no stress run {run!r}; only the last few are kept")
        return found

    return {"stress": begin, "stress_report": report}


def _names(core: NodeCore) -> dict[bytes, str]:
    return {member.node: member.name for member in core.service(LinkService).members()}


def _members(core: NodeCore, wanted: tuple[str, ...]) -> tuple[NodeId, ...]:
    by_name = {name: NodeId(node) for node, name in _names(core).items()}
    for name in wanted:
        if name not in by_name:
            known = ", ".join(sorted(by_name))
            raise PeerUnknown(
                f"no member is named {name!r}; the members are {known}; nothing was sent"
            )
    nodes = [by_name[name] for name in dict.fromkeys(wanted or sorted(by_name))]
    if len(nodes) < 2:
        raise MisuseError("a stress run needs at least two nodes; nothing was sent")
    return tuple(nodes)
