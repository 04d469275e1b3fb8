"""Times and shares as text: `1.5s`, `20ms`, `25%`. Exact in both directions, with integers only."""

from __future__ import annotations

from typing import Final

from holdfast.errors import MisuseError
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, Nanos

MILLION: Final = 1_000_000
"""Shares are parts per million."""

_UNITS: Final = (("s", SECOND), ("ms", MILLISECOND), ("us", MICROSECOND), ("ns", 1))
_DECIMALS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}


def _scaled(text: str, decimals: int, whole: str) -> int:
    """`text` times ten to the `decimals`, exactly."""
    number, dot, fraction = text.partition(".")
    good = number.isascii() and number.isdigit() and (not dot or fraction.isdigit())
    if not good or len(fraction) > decimals:
        raise MisuseError(f"{whole!r} is not a number with at most {decimals} decimals")
    return int(number + fraction.ljust(decimals, "0"))


def _decimal(value: int, decimals: int) -> str:
    """`value` over ten to the `decimals`, without trailing zeros."""
    if not decimals:
        return str(value)
    digits = str(value).rjust(decimals + 1, "0")
    number, tail = digits[:-decimals], digits[-decimals:].rstrip("0")
    return f"{number}.{tail}" if tail else number


def parse_time(text: str) -> Nanos:
    """`1.5s`, `20ms`, `5us` or `7ns` in nanoseconds."""
    for unit in ("ms", "us", "ns", "s"):
        if text.endswith(unit):
            return _scaled(text.removesuffix(unit), _DECIMALS[unit], text)
    raise MisuseError(f"{text!r} is not a time: write it as 1.5s, 20ms, 5us or 7ns")


def time_text(value: Nanos) -> str:
    """The shortest exact form, in the largest unit that is not larger than the value."""
    for unit, size in _UNITS:
        if value >= size:
            return _decimal(value, _DECIMALS[unit]) + unit
    return "0s"


def parse_share(text: str) -> int:
    """`25%` in parts per million."""
    if not text.endswith("%"):
        raise MisuseError(f"{text!r} is not a share: write it as 25% or 0.01%")
    ppm = _scaled(text.removesuffix("%"), 4, text)
    if ppm > MILLION:
        raise MisuseError(f"{text!r} is more than 100%")
    return ppm


def share_text(ppm: int) -> str:
    return _decimal(ppm, 4) + "%"


def parse_count(text: str) -> int:
    """A plain whole number."""
    return _scaled(text, 0, text)
