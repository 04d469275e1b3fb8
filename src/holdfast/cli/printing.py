"""How commands write to a terminal: what nodes say is written as it is. A path in brackets is no markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def terminal(*, errors: bool = False) -> Console:
    """Standard output, or standard error. Styles are given beside the words (`words`), never inside."""
    return Console(markup=False, emoji=False, stderr=errors)


def words(*parts: str | tuple[str, str]) -> Text:
    """One line: texts, and texts with a style."""
    return Text.assemble(*parts)
