"""What can be done about lost messages, and how to say it.

    DROP                                        go on without them
    RECOVER                                     get them from wherever they are; ask again if that fails
    RECOVER.otherwise(DROP)                     ... and go on without what cannot be had
    RECOVER.otherwise(SUSPEND).within(2)        ... and let another replica lead, after two seconds
    SUSPEND                                     let another replica lead, one that has them if there is one
    IGNORE(by=("stream",), seconds=60)          go on without them, and without what the stream sends for a minute
    RECOVER.and_ignore(by=("topic",), count=5)  recover these, ignore the next five of the topic

In text, as in a configuration: `drop`, `recover else suspend`, `drop and ignore`, ...
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.types import SECOND, Nanos

Step = Literal["drop", "recover", "suspend"]
Else = Literal["ask", "drop", "suspend"]
By = Literal["source", "stream", "topic", "priority"]

BY: Final[tuple[By, ...]] = ("source", "stream", "topic", "priority")


class Ignore(msgspec.Struct, frozen=True):
    """Which future messages are ignored: those that are like the lost ones in all of `by`. For ever, unless one of the
    ends is given; the first that comes counts."""

    by: tuple[By, ...] = ("stream",)
    for_ns: Nanos = 0
    count: int = 0
    resync: bool = False

    def text(self) -> str:
        ends = []
        if self.for_ns:
            ends.append(f"for {self.for_ns / SECOND:g} s")
        if self.count:
            ends.append(f"for {self.count} messages")
        if self.resync:
            ends.append("until a resync")
        return f"ignore by {', '.join(self.by)} {' or '.join(ends) or 'for ever'}"


class Action(msgspec.Struct, frozen=True):
    """An answer to the question what to do about lost messages."""

    do: Step
    failing: Else = "ask"
    """What happens with what could not be recovered."""
    limit_ns: Nanos = 0
    """How long recovery may take; 0: as long as the group's setting says."""
    ignore: Ignore | None = None

    def otherwise(self, other: Action) -> Action:
        """What to do with what cannot be recovered."""
        if self.do != "recover" or other.do == "recover":
            raise ConfigError(f"{self.text()!r} has no alternative {other.text()!r}")
        ignore = other.ignore or self.ignore
        return Action("recover", other.do, self.limit_ns, ignore)

    def within(self, seconds: float) -> Action:
        """Give recovery this long."""
        return msgspec.structs.replace(self, limit_ns=int(seconds * SECOND))

    def and_ignore(
        self,
        by: tuple[By, ...] = ("stream",),
        *,
        seconds: float = 0,
        count: int = 0,
        resync: bool = False,
    ) -> Action:
        """Also ignore messages like these from now on."""
        for name in by:
            if name not in BY:
                raise ConfigError(f"ignore by {name!r}: it is one or more of {', '.join(BY)}")
        if not by:
            raise ConfigError(f"ignore by nothing: name one or more of {', '.join(BY)}")
        ignore = Ignore(tuple(by), int(seconds * SECOND), count, resync)
        return msgspec.structs.replace(self, ignore=ignore)

    def text(self) -> str:
        words = self.do if self.failing == "ask" else f"{self.do} else {self.failing}"
        return f"{words} and {self.ignore.text()}" if self.ignore else words


DROP: Final = Action("drop")
RECOVER: Final = Action("recover")
SUSPEND: Final = Action("suspend")


def IGNORE(  # noqa: N802  # reads like the other answers
    by: tuple[By, ...] = ("stream",), *, seconds: float = 0, count: int = 0, resync: bool = False
) -> Action:
    """Go on without the lost messages, and ignore others like them."""
    return DROP.and_ignore(by, seconds=seconds, count=count, resync=resync)


TEXTS: Final[dict[str, tuple[Action, bool]]] = {
    "drop": (DROP, False),
    "recover": (RECOVER, False),
    "suspend": (SUSPEND, False),
    "ignore": (DROP, True),
    "recover else drop": (RECOVER.otherwise(DROP), False),
    "recover else suspend": (RECOVER.otherwise(SUSPEND), False),
    "recover else ask": (RECOVER, False),
    "drop and ignore": (DROP, True),
    "recover and ignore": (RECOVER, True),
    "recover else ignore": (RECOVER.otherwise(DROP), True),
    "recover else drop and ignore": (RECOVER.otherwise(DROP), True),
    "recover else suspend and ignore": (RECOVER.otherwise(SUSPEND), True),
}
"""The words for actions, and whether something is ignored as well."""


def parse_action(text: str) -> tuple[Action, bool]:
    """The action that words say, and whether they say that something is to be ignored."""
    words = " ".join(text.lower().split())
    if words not in TEXTS:
        near = get_close_matches(words, TEXTS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TEXTS)}"
        raise ConfigError(f"unknown action {text!r}; {hint}")
    return TEXTS[words]
