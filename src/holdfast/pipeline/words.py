"""How the report says numbers: short, with units, the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

UNKNOWN: Final = "\N{EN DASH}"
CROSS: Final = "\N{MULTIPLICATION SIGN}"
VERDICTS: Final = ("violated", "not provable", "holds")
"""What an audit says, worst first."""
_STEPS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """`340 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _STEPS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def percent(ratio: float | None) -> str:
    """`0 %`, `0.04 %`, `12.5 %`, `100 %`; small losses do not vanish. A dash for what is not known."""
    if ratio is None:
        return UNKNOWN
    value = 100 * ratio
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.01:
        return "< 0.01 %"
    # What is not whole must not look whole.
    return f"{min(value, 99.99):.2f} %" if value < 1 or value > 99 else f"{value:.1f} %"


def microseconds(value: float | None) -> str:
    """`120 µs`, `4.2 ms`."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} µs" if value < 1_000 else f"{value / 1_000:.1f} ms"


def moment(at: datetime | None) -> str:
    """`15 Nov 2026, 19:47:24 UTC`."""
    return UNKNOWN if at is None else f"{at:%d %b %Y, %H:%M:%S} UTC".lstrip("0")


def grouped(number: int) -> str:
    """`12 000`, with a space that does not break."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def count(number: int, noun: str, nouns: str = "") -> str:
    """`1 path`, `2 paths`, `12 000 facts`."""
    return f"{grouped(number)} {noun if number == 1 else nouns or noun + 's'}"


def listing(things: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)


_NODE_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Ids of nodes replaced by their names; the start of the id where the name is not known."""
    return _NODE_ID.sub(lambda found: names.get(found[0]) or found[0][:8], text)


_COMPONENTS: Final = {
    "pair": "path",
    "adapter_send": "sending side of adapter",
    "adapter_receive": "receiving side of adapter",
    "port": "switch port",
    "direction": "direction",
    "uplink": "uplink of realm",
}


def component(group: Mapping[str, str], names: Mapping[str, str]) -> tuple[str, str]:
    """A risk group for people: what it is, and its name with the names of nodes."""
    kind = _COMPONENTS.get(group["kind"], group["kind"])
    return kind, with_names(group["name"], names).replace(">", " to ")
