"""The classes of soft errors, and the words for each: symptom, likely cause, a short label.

`verdict` decides which errors a path has. This module names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

DEAD: Final = "dead"
SIZE: Final = "size"
PROTOCOL: Final = "protocol"
MULTICAST: Final = "multicast"
PATTERN: Final = "pattern"
FLOWS: Final = "flows"
CONGESTED: Final = "congested"
DATA: Final = "data"
LOSS: Final = "loss"
DELAY: Final = "delay"
FLAPPING: Final = "flapping"

CLASSES: Final[Mapping[str, str]] = {
    DEAD: "nothing passes",
    SIZE: "packets of some sizes do not pass",
    PROTOCOL: "one protocol does not pass",
    MULTICAST: "multicast does not pass",
    PATTERN: "packets with certain bytes do not pass",
    FLOWS: "some connections do not carry what others do",
    CONGESTED: "more is sent than the path carries",
    DATA: "application data does not pass, cause unknown",
    LOSS: "many packets are lost, whatever they are",
    DELAY: "packets take much longer than usual",
    FLAPPING: "it changes again and again",
}
"""Every error class and its meaning."""

ETHERNET: Final = 1500
JUMBO: Final = 9000
_IP_UDP: Final = 28
_SMALL: Final = 576


class SoftError(msgspec.Struct, frozen=True, gc=False):
    """One error of a path."""

    error_class: str
    kind: str
    """The affected packet kind; empty if all are."""
    value: int = 0
    """The largest size that passes, the loss in parts per million, the number of bad connections, the rate limit in
    kbit/s, the additional delay in microseconds, or the milliseconds of an outage."""
    values: tuple[str, ...] = ()
    """The patterns, or the sizes, that do not pass; the number of connections; the milliseconds in which a loss was
    counted; the milliseconds after which an outage comes again."""
    one_way: bool | None = None
    """Whether the reverse direction is free of it; None while nothing is heard from there."""


def size_band(size: int) -> str:
    """The range of a size limit, relative to common network sizes."""
    for landmark in (ETHERNET, JUMBO):
        if size < landmark:
            return f"below {landmark}" if landmark == ETHERNET else f"above {ETHERNET}"
        if size == landmark:
            return f"at {landmark}"
    return f"above {JUMBO}"


def text_of(error: SoftError, sender: str, listener: str) -> str:
    """One sentence: what fails, from where to where, and the likely cause."""
    what = _SYMPTOMS[error.error_class](error)
    ways = {
        True: f"from {sender} to {listener}, one way only",
        False: f"between {sender} and {listener}, both ways",
        None: f"from {sender} to {listener}",
    }
    return f"{what} {ways[error.one_way]}: {cause_of(error)}"


def symptom_of(error: SoftError) -> str:
    """What happens to what, without names and causes."""
    return _SYMPTOMS[error.error_class](error).rstrip(",")


def cause_of(error: SoftError) -> str:
    """The most likely cause."""
    cause = _CAUSES[error.error_class](error)
    if error.one_way and error.error_class in (SIZE, PATTERN, LOSS, CONGESTED, DATA):
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


def _loss_symptom(error: SoftError) -> str:
    window = f" (in the last {int(error.values[0]) / 1000:g} s)" if error.values else ""
    return f"{error.value / 10_000:.1f} % of {_kind(error)}packets are lost{window}"


def _flapping_symptom(error: SoftError) -> str:
    if not error.values:
        return "the path changes its state again and again"
    lasts, every = error.value / 1000, int(error.values[0]) / 1000
    return f"nothing passes for {lasts:.1f} s, about every {every:.1f} s"


_SYMPTOMS: Final[Mapping[str, Callable[[SoftError], str]]] = {
    DEAD: lambda _: "nothing is heard",
    SIZE: _size_symptom,
    PROTOCOL: lambda e: f"{_kind(e)}packets do not pass although others do,",
    MULTICAST: lambda _: "multicast packets do not pass although others do,",
    PATTERN: lambda e: f"{_kind(e)}packets filled with {', '.join(e.values)} (hexadecimal) vanish",
    FLOWS: lambda e: (
        f"{e.value} of {e.values[0]} {_kind(e)}connections fail where the others pass,"
    ),
    CONGESTED: lambda e: f"packets are dropped above about {e.value} kbit/s",
    DATA: lambda e: f"{_kind(e)}application data does not pass although probes do,",
    LOSS: _loss_symptom,
    DELAY: lambda e: f"{_kind(e)}packets take {e.value / 1000:.0f} ms longer than usual",
    FLAPPING: _flapping_symptom,
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
    CONGESTED: lambda _: (
        "a rate limit, a narrow line or a full queue; Holdfast sends fewer probes there while it lasts"
    ),
    DATA: lambda _: (
        "cause unknown: a filter that looks at contents, or a pattern that is not probed; add it to "
        "[diagnostics] patterns to find out"
    ),
    DELAY: lambda _: "a longer route, a full queue, or a machine that is overloaded",
    LOSS: lambda _: "a damaged line, a duplex mismatch or an overloaded port",
    FLAPPING: lambda _: (
        "a loose contact, a port that is renegotiating, or a route that changes to and fro"
    ),
}


def label_of(error: SoftError) -> str:
    """A few characters, for a cell of a matrix or a narrow column."""
    return _LABELS[error.error_class](error)


_LABELS: Final[Mapping[str, Callable[[SoftError], str]]] = {
    DEAD: lambda _: "dead",
    SIZE: lambda e: f"not {e.values[0]}" if e.values else str(e.value),
    PROTOCOL: lambda e: f"no {e.kind}",
    MULTICAST: lambda e: f"no {e.kind}",
    PATTERN: lambda e: f"0x{e.values[0]}",
    FLOWS: lambda e: f"{e.value}/{e.values[0]}",
    CONGESTED: lambda e: f"{e.value}k/s",
    DATA: lambda _: "data",
    LOSS: lambda e: f"{e.value / 10_000:.0f}%",
    DELAY: lambda e: f"{e.value // 1000}ms",
    FLAPPING: lambda _: "flaps",
}
