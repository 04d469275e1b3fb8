"""Rules for lost messages in the configuration: the first one that matches decides.

All conditions of a rule must be known to be true: a rule about messages of low priority does not match if one of the
lost ones may be urgent.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.loss.actions import Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.loss.rule import Rule

DEFAULT: Final = (
    Rule("recover", recoverable=True),
    Rule("recover", source_gone=False),
    Rule("recover else drop"),
)
"""After all configured rules: everything that some node has, or may supply, is recovered without a time limit. What no
replica has and whose source is gone is dropped."""


class Policy:
    """The rules, evaluated for one answer at a time."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = tuple((rule, rule.meant()) for rule in (*rules, *DEFAULT))
        self.decides_at_once = any(rule.at_once for rule in rules)

    def answer(
        self,
        info: LossInfo,
        refused: tuple[str, ...] = (),
        tried: bool = False,
        at_once: bool = False,
    ) -> tuple[str, Action] | None:
        """The first matching rule and its action; actions in `refused` are not possible now, nor what would end in one
        of them after recovery was `tried`. None only if `at_once` asks for an immediate rule and the matching one is
        not."""
        for number, (rule, action) in enumerate(self._rules, 1):
            # rule: 8m
            is_refused = action.do in refused or (tried and action.failing in refused)
            if not is_refused and rule.matches(info):
                return (f"rule {number}", action) if rule.at_once or not at_once else None
        return None
