"""The reference of facts, generated from the structs: `python -m holdfast.pipeline.reference` prints it.

`docs/reference/telemetry.md` holds the same text between two markers, and a test compares both.
"""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Final

import msgspec

from holdfast.node.subsystems import fact_types
from holdfast.pipeline.schemas import COLUMNS
from holdfast.recording.columns import LostFact
from holdfast.telemetry.facts import SCHEMA, Fact

BEGIN: Final = "<!-- generated: facts -->"
END: Final = "<!-- end of generated text -->"


def render() -> str:
    """All kinds of facts, with their columns and what they mean."""
    parts = [
        f"Schema version {SCHEMA}. Kinds: {', '.join(f'`{kind}`' for kind in COLUMNS)}.",
        *(_kind(fact) for fact in fact_types()),
        _kind(LostFact),
    ]
    return "\n\n".join(parts) + "\n"


def _kind(fact: type[Fact]) -> str:
    notes = _notes(fact)
    lines = [f"### `{fact.kind}`", "", _plain(fact.__doc__ or ""), ""]
    lines += ["| column | type | default | meaning |", "| --- | --- | --- | --- |"]
    types = {column.name: column.spark for column in COLUMNS[fact.kind]}
    for field in msgspec.structs.fields(fact):
        if field.name == "now_ns":
            continue
        default = "" if field.required else f"`{field.default!r}`"
        meaning = _plain(notes.get(field.name, ""))
        lines.append(f"| `{field.name}` | {types[field.name]} | {default} | {meaning} |")
    return "\n".join(lines)


def _notes(fact: type[Fact]) -> dict[str, str]:
    """The texts under the fields of a struct."""
    (tree,) = ast.parse(inspect.getsource(fact)).body
    assert isinstance(tree, ast.ClassDef)
    notes: dict[str, str] = {}
    name = ""
    for item in tree.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name = item.target.id
        elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and name:
            notes[name] = str(item.value.value)
    return notes


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
