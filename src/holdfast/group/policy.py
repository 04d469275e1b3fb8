"""What to do about lost messages, as a table in the configuration: the first rule that matches decides.

Every condition that a rule names must hold. A condition about what is not known for certain does not hold: a rule
about messages of low priority does not match when one of the lost ones may be urgent.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.actions import Action, By, Ignore, nanos, parse_action
from holdfast.group.loss import LossInfo


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table: conditions, and an action."""

    action: str
    """`drop`, `ignore`, `recover`, `suspend`, `recover else drop`, `recover else suspend`, ..."""
    priority: int | None = None
    """No lost message can be more urgent than this."""
    topic: str | None = None
    """The messages around the gap are of this topic."""
    source: str | None = None
    """The name of the source's node."""
    count_max: int | None = None
    """At most so many are lost."""
    age_min_s: float | None = None
    """Even the youngest of them was created so long ago."""
    source_gone: bool | None = None
    """Whether the source will bring nothing back any more: a new life of it, a goodbye, or silence for `gone_s`."""
    alone: bool | None = None
    """Whether no other voter can be reached."""
    recoverable: bool | None = None
    """Whether there is a place that has some of them."""
    attempt_min: int | None = None
    """2: only when an earlier answer has not settled it."""
    at_once: bool = False
    """Decide as soon as the gap is noticed, without asking the source, or the application, first."""

    within_s: float = 0
    """How long `recover` may take; the group's `recover_s` when left out."""
    ignore_by: tuple[By, ...] = ("stream",)
    """What future messages have in common with the lost ones when they are ignored."""
    ignore_s: float = 0
    ignore_count: int = 0
    ignore_until: Literal["", "resync"] = ""

    def __post_init__(self) -> None:
        action = self.meant()
        nanos(self.age_min_s or 0, "age_min_s")
        for name, value, least in (
            ("priority", self.priority, 0),
            ("count_max", self.count_max, 1),
            ("attempt_min", self.attempt_min, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} of a rule is {value}: it is at least {least}")
        if not self.at_once:
            return
        if self.attempt_min is not None or self.recoverable is not None:
            name = "attempt_min" if self.attempt_min is not None else "recoverable"
            raise ConfigError(
                f"a rule that decides at once does so before anything was tried: no {name}"
            )
        if action.do != "drop":
            raise ConfigError(
                f"what can be decided at once is to drop, or to ignore, not to {self.action}"
            )

    def meant(self) -> Action:
        """The action that the rule says."""
        resync = self.ignore_until == "resync"
        ignore = Ignore.like(self.ignore_by, self.ignore_s, self.ignore_count, resync)
        action = parse_action(self.action, ignore)
        return action.within(self.within_s)

    def matches(self, info: LossInfo) -> bool:
        """Whether every condition holds, for certain."""
        possible = info.priorities.possible
        topics = info.transport.topics
        return (
            (self.priority is None or (bool(possible) and possible[0] >= self.priority))
            and (self.topic is None or topics == (self.topic,))
            and (self.source is None or info.transport.source == self.source)
            and (self.count_max is None or info.count <= self.count_max)
            and (
                self.age_min_s is None or info.age.youngest_ns >= nanos(self.age_min_s, "age_min_s")
            )
            and (self.source_gone is None or info.transport.source_gone == self.source_gone)
            and (self.alone is None or info.cluster.alone == self.alone)
            and (self.recoverable is None or info.recovery.possible == self.recoverable)
            and (self.attempt_min is None or info.attempt >= self.attempt_min)
        )


DEFAULT: Final = (
    Rule("recover", recoverable=True),
    Rule("recover", source_gone=False),
    Rule("recover else drop"),
)
"""Behind every table: what anybody has, or may bring, is recovered, however long it takes. What nobody has whose source
is gone is dropped."""


class Policy:
    """A table, asked for one answer at a time."""

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
        """The first rule that matches and its action; steps in `refused` cannot be carried out now, nor what would end
        in one of them after recovery was `tried`. None only when `at_once` asks for a rule that decides before anything
        was tried, and the one that matches does not."""
        for number, (rule, action) in enumerate(self._rules, 1):
            is_refused = action.do in refused or (tried and action.failing in refused)
            if not is_refused and rule.matches(info):
                return (f"rule {number}", action) if rule.at_once or not at_once else None
        return None
