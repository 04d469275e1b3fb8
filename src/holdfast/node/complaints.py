"""What is wrong with a configuration file, in words: the key, the value, and what would be valid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from holdfast.errors import ConfigError

NEAR: Final = 0.6
_PLACE: Final = re.compile(r" - at `\$\.(.+)`$")
_STEP: Final = re.compile(r"\w+|\[[^]]*\]")


def check_keys(raw: Any, known: Mapping[str, Any], source: str, where: str = "") -> None:
    """Refuse unknown keys, at any depth, with the nearest known one. `known` maps keys to their types."""
    for key, value in raw.items():
        if key not in known:
            place = f"[{where}] " if where else ""
            near = get_close_matches(key, known, n=1, cutoff=NEAR)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"{source}: {place}unknown key {key!r}; {hint}")
        inner = _struct_of(known[key])
        if inner is None:
            continue
        path = f"{where}.{key}" if where else key
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                check_keys(item, _fields(inner), source, path)


def explain(error: msgspec.ValidationError, known: Mapping[str, Any]) -> str:
    """The error of a conversion, with the valid values or the valid form."""
    text = str(error).replace("Object missing required field", "missing key")
    place = _PLACE.search(text)
    if place is None:
        return text
    steps = _STEP.findall(place[1])
    kind = _type_at(known, steps)
    if text.startswith("Invalid enum value") and get_origin(kind) is Literal:
        return f"{text}; known values: {', '.join(get_args(kind))}"
    if text.startswith("Expected `array`, got `object`") and _struct_of(kind) is not None:
        return f"{text}; begin each with [[{'.'.join(steps)}]]"
    return text


def _type_at(known: Mapping[str, Any], steps: Iterable[str]) -> Any:
    """The type at a place such as `group`, `[0]`, `mode`; None if it cannot be told."""
    types: Mapping[str, Any] = known
    kind: Any = None
    for step in steps:
        if step.startswith("["):
            inside = [argument for argument in get_args(kind) if argument is not Ellipsis]
            kind = inside[-1] if inside else None
        else:
            kind = types.get(step)
        inner = _struct_of(kind)
        types = _fields(inner) if inner is not None else {}
    return kind


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that a type is, or is made of."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return kind
    return None
