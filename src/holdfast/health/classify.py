"""What is wrong with a path, from what its listener says of it, and what that most likely comes from.

A soft error is named by a class. That it has one direction only is claimed when the way back passes basics and does
not show the same: if nothing comes back, nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from holdfast.health.table import LOSSY_PPM
from holdfast.wire.frames import PathRow

DEAD: Final = "dead"
SIZE: Final = "size"
PROTOCOL: Final = "protocol"
MULTICAST: Final = "multicast"
PATTERN: Final = "pattern"
FLOWS: Final = "flows"
LOSS: Final = "loss"
FLAPPING: Final = "flapping"

CLASSES: Final[Mapping[str, str]] = {
    DEAD: "nothing passes",
    SIZE: "packets of some sizes do not pass",
    PROTOCOL: "one protocol does not pass",
    MULTICAST: "multicast does not pass",
    PATTERN: "packets with certain bytes do not pass",
    FLOWS: "some connections do not carry what others do",
    LOSS: "many packets are lost, whatever they are",
    FLAPPING: "it changes again and again",
}
"""Every class of error, with what it means."""

ETHERNET: Final = 1500
JUMBO: Final = 9000
_IP_UDP: Final = 28
_SMALL: Final = 576

Rows = Mapping[str, PathRow]
"""The rows of one path, by kind."""


class SoftError(msgspec.Struct, frozen=True, gc=False):
    """One thing that is wrong with a path."""

    error_class: str
    kind: str
    """The kind of packets that shows it; empty when all do."""
    value: int = 0
    """The largest size that passes, the loss in parts per million, or the number of bad connections."""
    values: tuple[str, ...] = ()
    """The patterns, or the sizes, that do not pass."""
    one_way: bool | None = None
    """Whether the way back is free of it; None while nothing is heard from there."""


def errors_of(rows: Rows, reverse: Rows, flapping: bool = False) -> tuple[SoftError, ...]:
    """Everything that is wrong with a path, gravest first."""
    found = _one_direction(rows, flapping)
    back_alive = any(row.alive for row in reverse.values())
    back = {(error.error_class, error.kind) for error in _one_direction(reverse, False)}
    return tuple(
        msgspec.structs.replace(
            error,
            one_way=(error.error_class, error.kind) not in back if back_alive else None,
        )
        for error in found
    )


def _one_direction(rows: Rows, flapping: bool) -> list[SoftError]:
    if not rows:
        return []
    errors = [SoftError(FLAPPING, "")] if flapping else []
    alive = any(row.alive for row in rows.values())
    if not alive:
        return [SoftError(DEAD, ""), *errors]
    whole = rows.get("udp")
    limited = whole is not None and whole.alive and 0 < whole.size < whole.size_max
    for kind, row in sorted(rows.items()):
        if kind == "frag" and limited and (not row.alive or row.size < row.size_max):
            continue  # fragments are as large as packets come: it is the same limit
        if not row.alive:
            errors.append(SoftError(MULTICAST if kind == "multicast" else PROTOCOL, kind))
            continue
        if row.holes or 0 < row.size < row.size_max:
            holes = tuple(str(size) for size in sorted(row.holes))
            errors.append(SoftError(SIZE, kind, row.size, holes))
        if row.bad_patterns:
            errors.append(SoftError(PATTERN, kind, len(row.bad_patterns), row.bad_patterns))
        if row.flows_bad:
            errors.append(SoftError(FLOWS, kind, row.flows_bad, (str(row.flows),)))
        if row.loss_ppm >= LOSSY_PPM:
            errors.append(SoftError(LOSS, kind, row.loss_ppm))
    rank = list(CLASSES)
    return sorted(errors, key=lambda error: rank.index(error.error_class))


def size_band(size: int) -> str:
    """Where a limit lies, in the words of the sizes that networks are built for."""
    for landmark in (ETHERNET, JUMBO):
        if size < landmark:
            return f"below {landmark}" if landmark == ETHERNET else f"above {ETHERNET}"
        if size == landmark:
            return f"at {landmark}"
    return f"above {JUMBO}"


def text_of(error: SoftError, sender: str, listener: str) -> str:
    """One plain sentence: what happens to what, from where to where, and where to look."""
    what = _SYMPTOMS[error.error_class](error)
    ways = {
        True: f"from {sender} to {listener}, one way only",
        False: f"between {sender} and {listener}, both ways",
        None: f"from {sender} to {listener}",
    }
    return f"{what} {ways[error.one_way]}: {cause_of(error)}"


def cause_of(error: SoftError) -> str:
    """The most likely cause."""
    cause = _CAUSES[error.error_class](error)
    if error.one_way and error.error_class in (SIZE, PATTERN, LOSS):
        return (
            f"{cause}; the fault is on the way there only, so look at what sends in that direction"
        )
    return cause


def _kind(error: SoftError) -> str:
    names = {"udp": "UDP ", "tcp": "TCP ", "multicast": "multicast ", "frag": "fragmented UDP "}
    return names.get(error.kind, "")


def _size_symptom(error: SoftError) -> str:
    if error.values:
        return (
            f"{_kind(error)}packets of {' and '.join(error.values)} bytes vanish, larger ones pass,"
        )
    payload = f" ({error.value - _IP_UDP} of payload)" if error.kind in ("udp", "multicast") else ""
    return f"{_kind(error)}packets over {error.value} bytes{payload} vanish"


_SYMPTOMS: Final[Mapping[str, Callable[[SoftError], str]]] = {
    DEAD: lambda _: "nothing is heard",
    SIZE: _size_symptom,
    PROTOCOL: lambda e: f"{_kind(e)}packets do not pass although others do,",
    MULTICAST: lambda _: "multicast packets do not pass although others do,",
    PATTERN: lambda e: f"{_kind(e)}packets filled with {', '.join(e.values)} (hexadecimal) vanish",
    FLOWS: lambda e: (
        f"{e.value} of {e.values[0]} {_kind(e)}connections fail where the others pass,"
    ),
    LOSS: lambda e: f"{e.value / 10_000:.1f} % of {_kind(e)}packets are lost",
    FLAPPING: lambda _: "the path changes its state again and again",
}


def _size_cause(error: SoftError) -> str:
    if error.kind == "frag":
        return (
            "a firewall or an address translator drops fragments, or a buffer for them is too small"
        )
    if error.values:
        return "a network card or driver mishandles packets of one size; try without its offloads"
    if error.value <= _SMALL:
        return "a tunnel, a filter or a damaged line lets only small packets pass"
    if error.value < ETHERNET:
        return (
            "a switch port or tunnel on that way has a smaller MTU (a tunnel takes 20 to 80 bytes) and does not "
            "say so, or a firewall swallows its 'fragmentation needed'"
        )
    if error.value == ETHERNET:
        return "jumbo frames are not switched on at every port of the way"
    if error.value < JUMBO:
        return "a port on that way is set to a smaller jumbo size than the adapters"
    return "a port on that way stops at the usual jumbo size"


_CAUSES: Final[Mapping[str, Callable[[SoftError], str]]] = {
    DEAD: lambda _: (
        "the cable, the port or the machine is down, or a firewall blocks these addresses altogether"
    ),
    SIZE: _size_cause,
    PROTOCOL: lambda e: (
        f"a firewall rule or an access list blocks {_kind(e).strip() or e.kind} on these ports"
    ),
    MULTICAST: lambda _: (
        "a switch with IGMP snooping but no querier, or multicast switched off on a port"
    ),
    PATTERN: lambda _: (
        "a line, a network card or an inspecting firewall damages or drops packets with such contents; a bad "
        "cable or transceiver is the usual one"
    ),
    FLOWS: lambda _: (
        "one member of a bundle of links, or one of several equal routes, is bad: it takes only some connections"
    ),
    LOSS: lambda _: "a damaged line, a duplex mismatch or an overloaded port",
    FLAPPING: lambda _: (
        "a loose contact, a port that is renegotiating, or a route that changes to and fro"
    ),
}
