"""One rule of a loss policy: conditions and an action."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.loss.actions import Action, By, Ignore, nanos, parse_action
from holdfast.group.loss.loss_info import LossInfo


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table: conditions, and an action."""

    action: str
    """`drop`, `ignore`, `recover`, `suspend`, `recover else drop`, `recover else suspend`, ..."""
    priority: int | None = None
    """No lost message can be more urgent than this."""
    topic: str | None = None
    """The messages around the gap have this topic."""
    source: str | None = None
    """The name of the source's node."""
    count_max: int | None = None
    """At most this many messages are lost."""
    age_min_s: float | None = None
    """Even the newest of them is at least this old."""
    source_gone: bool | None = None
    """Whether the source cannot send them again: it restarted, stopped, or was silent for `gone_s`."""
    alone: bool | None = None
    """Whether no other voter is reachable."""
    recoverable: bool | None = None
    """Whether some node is known to have some of them."""
    attempt_min: int | None = None
    """2: only if an earlier answer has not settled the loss."""
    at_once: bool = False
    """Decide as soon as the gap is detected, without asking the source or the application first."""

    within_s: float = 0
    """Time limit of `recover`; default: `recover_s` of the group."""
    ignore_by: tuple[By, ...] = ("stream",)
    """The properties in which ignored messages equal the lost ones."""
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
                raise ConfigError(f"{name} of a rule is {value}, but must be at least {least}")
        if not self.at_once:
            return
        if self.attempt_min is not None or self.recoverable is not None:
            name = "attempt_min" if self.attempt_min is not None else "recoverable"
            raise ConfigError(
                f"a rule with at_once decides before any recovery attempt, so it cannot have {name}"
            )
        if action.do != "drop":
            raise ConfigError(f"a rule with at_once can only drop or ignore, not {self.action}")

    def meant(self) -> Action:
        """The action of the rule."""
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
