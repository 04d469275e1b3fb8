"""Terminal output of commands. Text from nodes is printed as it is: a path in brackets is not markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.errors import HoldfastError, MisuseError, SetupError


def exit_code(error: HoldfastError) -> int:
    """2 for misuse, 1 for every other failure."""
    return 2 if isinstance(error, (MisuseError, SetupError)) else 1


def terminal(*, errors: bool = False) -> Console:
    """Standard output or standard error. Styles are passed next to the text (`words`), never inside."""
    return Console(markup=False, emoji=False, stderr=errors)


def words(*parts: str | tuple[str, str]) -> Text:
    """One line of texts, each with an optional style."""
    return Text.assemble(*parts)
