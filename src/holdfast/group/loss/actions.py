"""The actions for lost messages.

    DROP                                        skip them
    RECOVER                                     recover them; ask again if that fails
    RECOVER.otherwise(DROP)                     ... and skip what cannot be recovered
    RECOVER.otherwise(SUSPEND).within(2)        ... and hand leadership to another replica, after two seconds
    SUSPEND                                     hand leadership to another replica, preferably one that has them
    IGNORE(by=("stream",), seconds=60)          skip them, and everything the stream sends for a minute
    RECOVER.and_ignore(by=("topic",), count=5)  recover these, ignore the next five of the topic
    RECOVER.otherwise(IGNORE(seconds=60))       recover these; if that fails skip them, and ignore as above

As text in a configuration: `drop`, `recover else suspend`, `drop and ignore`, ...
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
STEPS: Final[tuple[Step, ...]] = ("drop", "recover", "suspend")
ELSES: Final[tuple[Else, ...]] = ("ask", "drop", "suspend")
SECONDS_MAX: Final = 3_000_000_000
"""About a century: more is an error, and could not be encoded."""
COUNT_MAX: Final = 1 << 60


def nanos(seconds: float, what: str) -> Nanos:
    """Seconds as nanoseconds. Only 0 becomes 0, which has a special meaning."""
    if not 0 <= seconds <= SECONDS_MAX:  # also false for NaN
        raise ConfigError(f"{what} is {seconds} s, but must be 0 to {SECONDS_MAX}")
    return max(1, int(seconds * SECOND)) if seconds else 0


def _check_number(value: int, most: int, what: str) -> None:
    """Followers accept only values that can be decoded exactly: a plain integer within its bounds."""
    if type(value) is not int or not 0 <= value <= most:
        raise ConfigError(f"{what} is {value!r}, but must be a whole number from 0 to {most}")


def _check_ignore(value: Ignore | None) -> None:
    if value is not None and type(value) is not Ignore:
        raise ConfigError(f"what is ignored is {value!r}, but must be an Ignore, or None")


class Ignore(msgspec.Struct, frozen=True):
    """Which future messages are ignored: those equal to the lost ones in all of `by`. Without end, unless one of the
    ends is given; the first one counts."""

    by: tuple[By, ...] = ("stream",)
    for_ns: Nanos = 0
    count: int = 0
    resync: bool = False

    def __post_init__(self) -> None:
        if type(self.by) is not tuple:
            raise ConfigError(f"ignore by {self.by!r}: must be a tuple of {', '.join(BY)}")
        for name in self.by:
            if name not in BY:
                raise ConfigError(f"ignore by {name!r}: must be one or more of {', '.join(BY)}")
        if not self.by:
            raise ConfigError(f"ignore by nothing: name one or more of {', '.join(BY)}")
        _check_number(self.for_ns, SECONDS_MAX * SECOND, "the time to ignore")
        _check_number(self.count, COUNT_MAX, "the count to ignore")
        if type(self.resync) is not bool:
            raise ConfigError(
                f"ignore until a resync is {self.resync!r}, but must be True or False"
            )

    @staticmethod
    def like(by: tuple[By, ...], seconds: float, count: int, resync: bool) -> Ignore:
        """With a time in seconds."""
        return Ignore(tuple(by), nanos(seconds, "the time to ignore"), count, resync)

    def text(self) -> str:
        ends = []
        if self.for_ns:
            ends.append(f"for {self.for_ns / SECOND:g} s")
        if self.count:
            ends.append(f"for {self.count} messages")
        if self.resync:
            ends.append("until a resync")
        return f"ignore by {', '.join(self.by)} {' or '.join(ends) or 'permanently'}"


class Action(msgspec.Struct, frozen=True):
    """An answer to a loss question."""

    do: Step
    failing: Else = "ask"
    """The action for messages that could not be recovered."""
    limit_ns: Nanos = 0
    """Time limit of recovery; 0: that of the group."""
    ignore: Ignore | None = None
    """Messages to ignore from now on; recovered ones are not ignored."""
    failing_ignore: Ignore | None = None
    """Messages to ignore once recovery has failed."""

    def __post_init__(self) -> None:
        if self.do not in STEPS or self.failing not in ELSES:
            raise ConfigError(
                f"{self.do!r} else {self.failing!r} is not an action: one of {', '.join(STEPS)}, else "
                f"{', '.join(ELSES)}"
            )
        _check_number(self.limit_ns, SECONDS_MAX * SECOND, "the time for recovery")
        _check_ignore(self.ignore)
        _check_ignore(self.failing_ignore)

    def otherwise(self, other: Action) -> Action:
        """The action for messages that cannot be recovered."""
        if self.do != "recover" or other.do == "recover":
            raise ConfigError(f"{self.text()!r} has no alternative {other.text()!r}")
        return Action("recover", other.do, self.limit_ns, self.ignore, other.ignore)

    def within(self, seconds: float) -> Action:
        """Set the time limit of recovery."""
        return msgspec.structs.replace(self, limit_ns=nanos(seconds, "the time for recovery"))

    def and_ignore(
        self,
        by: tuple[By, ...] = ("stream",),
        *,
        seconds: float = 0,
        count: int = 0,
        resync: bool = False,
    ) -> Action:
        """Also ignore messages like these from now on."""
        return msgspec.structs.replace(self, ignore=Ignore.like(by, seconds, count, resync))

    def text(self) -> str:
        words: str = self.do
        if self.ignore:
            words += f" and {self.ignore.text()}"
        if self.failing != "ask":
            words += f" else {self.failing}"
        if self.failing_ignore:
            words += f" and {self.failing_ignore.text()}"
        return words


DROP: Final = Action("drop")
RECOVER: Final = Action("recover")
SUSPEND: Final = Action("suspend")


def IGNORE(  # noqa: N802  # reads like the other answers
    by: tuple[By, ...] = ("stream",), *, seconds: float = 0, count: int = 0, resync: bool = False
) -> Action:
    """Skip the lost messages, and ignore others like them."""
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
    "suspend and ignore": (SUSPEND, True),
    "recover and ignore": (RECOVER, True),
    "recover else ignore": (RECOVER.otherwise(DROP), True),
    "recover else drop and ignore": (RECOVER.otherwise(DROP), True),
    "recover else suspend and ignore": (RECOVER.otherwise(SUSPEND), True),
}
"""The text of actions, and whether something is ignored as well: if there is an alternative, together with it."""


def parse_action(text: str, ignore: Ignore) -> Action:
    """The action of a text; `ignore` is what is ignored if the text says so."""
    words = " ".join(text.lower().split())
    if words not in TEXTS:
        near = get_close_matches(words, TEXTS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TEXTS)}"
        raise ConfigError(f"unknown action {text!r}; {hint}")
    action, ignores = TEXTS[words]
    if not ignores:
        return action
    if action.failing == "ask":
        return msgspec.structs.replace(action, ignore=ignore)
    return msgspec.structs.replace(action, failing_ignore=ignore)
