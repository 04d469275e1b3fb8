"""Every key of the configuration file is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.subsystem import NodeConfig

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "\n".join(
    page.read_text()
    for folder in ("reference", "howto")
    for page in sorted((DOCS / folder).glob("*.md"))
)
INTERNAL = ("sections",)
"""Fields of `NodeConfig` that are no keys of the file."""


def structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from structs(part)


def keys(kind: Any, place: str) -> Iterator[tuple[str, str]]:
    for struct in structs(kind):
        for field in msgspec.structs.fields(struct):
            if field.encode_name not in INTERNAL:
                yield place, field.encode_name
                yield from keys(field.type, f"{place}.{field.encode_name}")


def all_keys() -> list[tuple[str, str]]:
    sections = [section for subsystem in SUBSYSTEMS for section in subsystem.sections]
    found = [*keys(NodeConfig, "node"), *((s.key, s.key) for s in sections)]
    return [*found, *(key for section in sections for key in keys(section.kind, section.key))]


@pytest.mark.parametrize(("place", "key"), all_keys(), ids=".".join)
def test_a_key_is_named_in_the_reference_or_a_how_to(place: str, key: str) -> None:
    """In backticks, or at the beginning of a line of a configuration."""
    named = re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`|^{key} =", TEXT, re.MULTILINE)
    assert named, f"{key} of {place} is in no page of docs/reference or docs/howto"
