"""Settings of a dialog: assurances, local features, profiles.

Three sources are merged once, when a dialog is created or accepted: what code sets directly, the profile that the
configuration names, the defaults. A direct setting wins. A minimum assurance that code sets can be raised by the
profile and never lowered.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

import msgspec

from holdfast.errors import ConfigError, MisuseError
from holdfast.types import SECOND, Nanos

PRIORITY_MAX: Final = 9
SESSION_TTL_MAX: Final = 10 * 365 * 86_400 * SECOND
COUNT_MAX: Final = 1 << 50


class Assurances(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Assurances of both ends of a dialog, in any combination."""

    at_least_once: bool = True
    at_most_once: bool = True
    in_order: bool = True

    @property
    def code(self) -> int:
        """0 to 7: at-least-once 4, at-most-once 2, in-order 1."""
        return 4 * self.at_least_once + 2 * self.at_most_once + self.in_order

    def raised(self, other: Assurances) -> Assurances:
        """Every assurance that one of the two asks for."""
        return Assurances(
            self.at_least_once or other.at_least_once,
            self.at_most_once or other.at_most_once,
            self.in_order or other.in_order,
        )

    def covers(self, other: Assurances) -> bool:
        """Whether this promises all that `other` asks for."""
        return self.raised(other) == self


NONE: Final = Assurances(False, False, False)


def assurances_of(code: int) -> Assurances:
    return Assurances(bool(code & 4), bool(code & 2), bool(code & 1))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set for one end of a dialog, complete."""

    at_least_once: bool = True
    at_most_once: bool = True
    in_order: bool = True
    store: str = "default"
    """The store that holds the dialog's state here."""
    session_ttl_ns: Nanos = 0
    """The dialog must complete within this time, or it is faulted; 0: no limit."""
    session_ttl_ns_max: Nanos = SESSION_TTL_MAX
    """A partner's proposal to extend is accepted up to this time from now."""
    quota_messages: int = 1024
    """Messages that each buffer (sent and unacknowledged, received and not taken) holds at most."""
    quota_bytes: int = 64 << 20
    """Bytes that each buffer holds at most. At least `quota_reserved` messages of the largest size."""
    quota_reserved: int = 1
    """Messages of the largest size for which each buffer always has room in the store's budget."""
    message_bytes_max: int = 64 << 10
    send_timeout_ns: Nanos = 30 * SECOND
    """How long `send` waits for room in the buffer; 0: it never waits."""
    message_ttl_ns: Nanos = 0
    """A message must be acknowledged within this time, or the application gets a notice; 0: no limit."""
    priority: int = 4
    """0 to 9; higher is transmitted and delivered first."""
    poison_after: int = 5
    """Aborted deliveries of one message after which it is poison; 0: never."""
    simplex: str = ""
    """`send` or `receive`: this end does only that, and has one buffer. Empty: duplex."""
    rate_per_s: int = 0
    """Messages handed to the network per second at most: spreads a peak; 0: no limit."""
    hours: tuple[tuple[int, int], ...] = ()
    """Minutes of the day (UTC) between which messages may be transmitted; empty: always."""
    partner_silent_ns: Nanos = 300 * SECOND
    """With unacknowledged messages and no answer for so long, the dialog is faulted; 0: never."""
    reroute_ns: Nanos = 5 * SECOND
    """A dialog that found no partner looks again after this time, then after twice as long, up to ten minutes; 0: only
    when it is repaired."""
    idle_ns: Nanos = 300 * SECOND
    """An idle dialog is deactivated after this time; 0: never."""

    @property
    def assurances(self) -> Assurances:
        return Assurances(self.at_least_once, self.at_most_once, self.in_order)


DEFAULTS: Final = Settings()
_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Settings)}
_TIMES: Final = (
    "session_ttl_ns", "session_ttl_ns_max", "send_timeout_ns", "message_ttl_ns", "partner_silent_ns", "reroute_ns",
    "idle_ns",
)  # fmt: skip
_COUNTS: Final = (
    "quota_messages",
    "quota_bytes",
    "message_bytes_max",
    "poison_after",
    "rate_per_s",
)
_ASSURANCES: Final = ("at_least_once", "at_most_once", "in_order")


class Profile(msgspec.Struct, frozen=True):
    """A named set of settings from the configuration: only those that it sets."""

    name: str
    values: dict[str, Any]


def read_profile(name: str, table: dict[str, Any]) -> Profile:
    """A profile as the configuration file has it. Raises `ConfigError` with the nearest known key."""
    for key in table:
        if key not in _FIELDS:
            near = get_close_matches(key, _FIELDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(_FIELDS)}"
            raise ConfigError(f"profile {name!r}: unknown setting {key!r}{hint}")
    try:
        values = {key: _converted(key, value) for key, value in table.items()}
    except msgspec.ValidationError as error:
        raise ConfigError(f"profile {name!r}: {error}; nothing was changed") from error
    problem = wrong(msgspec.structs.replace(DEFAULTS, **values))
    if problem:
        raise ConfigError(f"profile {name!r}: {problem}")
    return Profile(name, values)


def _converted(key: str, value: Any) -> Any:
    return msgspec.convert(value, _FIELDS[key].type)


def wrong(settings: Settings) -> str:
    """Why these settings cannot be; empty when they can."""
    if settings.quota_messages < 1:
        return "quota_messages must be at least 1"
    if settings.message_bytes_max < 1:
        return "message_bytes_max must be at least 1"
    if not 0 <= settings.quota_reserved <= settings.quota_messages:
        return "quota_reserved must lie between 0 and quota_messages"
    if settings.quota_bytes < settings.message_bytes_max * max(1, settings.quota_reserved):
        return "quota_bytes has no room for quota_reserved messages of message_bytes_max"
    if not 0 <= settings.priority <= PRIORITY_MAX:
        return f"priority must lie between 0 and {PRIORITY_MAX}"
    if settings.simplex not in ("", "send", "receive"):
        return "simplex must be 'send', 'receive' or empty"
    for first, stop in settings.hours:
        if not (0 <= first < stop <= 24 * 60):
            return "hours must be pairs of minutes of a day, 0 to 1440, the first below the second"
    times = {name: getattr(settings, name) for name in _TIMES}
    if min(*times.values(), settings.poison_after, settings.rate_per_s) < 0:
        return "times, rates and counts must not be negative"
    for name, value in times.items():
        if value > SESSION_TTL_MAX:
            return f"{name} must be at most ten years"
    for name in _COUNTS:
        if getattr(settings, name) > COUNT_MAX:
            return f"{name} must be at most {COUNT_MAX}"
    return ""


def merged(
    direct: dict[str, Any] | None = None,
    profile: Profile | None = None,
    minimum: Assurances = NONE,
) -> Settings:
    """The settings that hold: direct before profile before default; a profile only raises `minimum`."""
    values: dict[str, Any] = dict(profile.values) if profile is not None else {}
    for name in _ASSURANCES:
        if getattr(minimum, name):
            # rule: D-terms-2a
            values[name] = True
        elif minimum != NONE:
            # Code named the minimum, so an assurance that it left out is off unless the profile asks for it.
            # rule: D-terms-2b
            values.setdefault(name, False)
    for key, value in (direct or {}).items():
        if key not in _FIELDS:
            near = get_close_matches(key, _FIELDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise MisuseError(f"unknown dialog setting {key!r}{hint}; nothing was opened")
        try:
            # rule: D-terms-2c
            values[key] = _converted(key, value)
        except (msgspec.ValidationError, OverflowError) as error:
            raise MisuseError(f"dialog setting {key!r}: {error}; nothing was opened") from error
    settings = msgspec.structs.replace(DEFAULTS, **values)
    problem = wrong(settings)
    if problem:
        raise MisuseError(f"dialog settings: {problem}; nothing was opened")
    return settings
