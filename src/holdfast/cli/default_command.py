"""Groups of commands with a default: `holdfast groups WHERE` means `holdfast groups show WHERE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperGroup


def by_default(command: str) -> type[TyperGroup]:
    """The class of a group in which a path, given instead of a command, is passed to `command`."""

    class ByDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and _is_path(args[0]):
                args = [command, *args]
            return super().parse_args(ctx, args)

    return ByDefault


def _is_path(text: str) -> bool:
    """Whether it is a path and not a mistyped command. A path may be wrong, too."""
    return not text.startswith("-") and (
        "/" in text or text.endswith(".toml") or Path(text).exists()
    )
