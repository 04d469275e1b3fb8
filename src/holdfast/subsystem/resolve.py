"""Creates the edges of subsystems. A subsystem names its edge, because it may not import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from holdfast.subsystem import Edge, Subsystem


def make_edges(subsystems: Sequence[Subsystem]) -> list[Edge]:
    """One edge for each subsystem that has one."""
    return [resolve(subsystem.edge)() for subsystem in subsystems if subsystem.edge]


def resolve(named: str | Callable[..., Any]) -> Callable[..., Any]:
    """`package.module:attribute`, imported."""
    if not isinstance(named, str):
        return named
    module, _, attribute = named.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def overrides(edge: Edge, name: str) -> bool:
    """Whether an edge overrides a method; drivers do not call the empty ones of the base class."""
    return getattr(type(edge), name) is not getattr(Edge, name)
