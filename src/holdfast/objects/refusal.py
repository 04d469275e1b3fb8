"""How a procedure ends without success."""

from __future__ import annotations


class Refusal(Exception):
    """`code` is one of a few words; `text` says what failed, why, whether anything took effect, and what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
