"""How the source is laid out, as far as tools other than import-linter must hold it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.machine import Machine

PROTOCOLS = (
    "collect",
    "dialog",
    "group",
    "health",
    "links",
    "machine",
    "node",
    "objects",
    "overlay",
    "stability",
)
BORDERS = ("holdfast.group.ports", "holdfast.health.ports")
"""What crosses a border: structs, beside the interface that applications or drivers implement."""


def modules() -> Iterator[ModuleType]:
    for package in PROTOCOLS:
        root = importlib.import_module(f"holdfast.{package}")
        yield root
        for found in pkgutil.walk_packages(root.__path__, f"holdfast.{package}."):
            yield importlib.import_module(found.name)


def classes_of(module: ModuleType) -> list[type[Any]]:
    found = (item for _, item in inspect.getmembers(module, inspect.isclass))
    return [item for item in found if item.__module__ == module.__name__]


@pytest.mark.parametrize("module", list(modules()), ids=lambda module: module.__name__)
def test_structs_live_apart_from_machines(module: ModuleType) -> None:
    """Machines can be compiled only where no `msgspec.Struct` is defined in the same module."""
    if module.__name__ in BORDERS:
        return
    classes = classes_of(module)
    structs = [c.__name__ for c in classes if issubclass(c, msgspec.Struct)]
    others = [
        c.__name__
        for c in classes
        if not issubclass(c, msgspec.Struct | Enum) and not getattr(c, "_is_protocol", False)
    ]
    assert not (structs and others), f"structs {structs} beside classes {others}"


def test_machines_are_found_where_the_check_looks() -> None:
    found = {
        c.__name__ for module in modules() for c in classes_of(module) if issubclass(c, Machine)
    }
    assert {"ReplicaMachine", "SourceMachine", "LinkMachine", "HealthMachine"} <= found
    assert holdfast.__version__


def test_tests_share_nothing_that_lives_in_a_test_module() -> None:
    """What tests share lives in a module of its own: a test module can then be moved, split or skipped."""
    root = Path(__file__).resolve().parents[1]
    shared = re.compile(
        r"^\s*from tests\.[\w.]*\btest_\w+ import|^\s*import tests\.[\w.]*\btest_", re.MULTILINE
    )
    assert [str(file) for file in root.rglob("*.py") if shared.search(file.read_text())] == []
