"""Paths of objects: `/a/b/c`. A path never leaves the tree."""

from __future__ import annotations

from typing import Final

from holdfast.objects.refusal import Refusal

NAME_MAX: Final = 255
DEPTH_MAX: Final = 64


def split(path: str) -> tuple[str, ...]:
    """The names of a path, root excluded. Raises `Refusal` for a path outside of the tree."""
    if not path.startswith("/"):
        raise Refusal("misuse", f"path {path!r} does not start with '/'; nothing was changed")
    names = tuple(name for name in path.split("/") if name)
    if len(names) > DEPTH_MAX:
        raise Refusal("misuse", f"path {path[:80]!r} has more than {DEPTH_MAX} names")
    for name in names:
        check_name(name)
    return names


def check_name(name: str) -> None:
    if name in (".", ".."):
        raise Refusal(
            "misuse", f"a name cannot be {name!r}: paths stay inside the tree; nothing was changed"
        )
    if not name or "/" in name or "\0" in name:
        raise Refusal("misuse", f"{name!r} is not a name: it is empty, or has '/' or a zero byte")
    if len(name.encode("utf-8", "replace")) > NAME_MAX:
        raise Refusal("misuse", f"name {name[:40]!r}... has more than {NAME_MAX} bytes")


def parent_of(path: str) -> tuple[tuple[str, ...], str]:
    """The names of the parent directory, and the last name. Raises `Refusal` for the root."""
    names = split(path)
    if not names:
        raise Refusal("misuse", "the root directory cannot be created, moved or deleted")
    return names[:-1], names[-1]
