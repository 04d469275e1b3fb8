"""What traffic needs of the path that it is placed on. Each client is judged against its own: what is a soft error
for one is none for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.links.ports import DATAGRAMS
from holdfast.types import BULK, DATA, NEVER, SECOND, SYNC, NodeId

PROTOCOLS: Final = ("", "udp", "tcp", "multicast")
CHOICES: Final = ("prefer", "require")
ERRORS: Final = (
    *("", "any"),
    *("size", "pattern", "protocol", "multicast", "loss", "flows", "flapping", "dead"),
)
"""Classes of soft errors that a path can be asked to have been free of."""
SIZE_MAX: Final = 65_535
PATTERN_MAX: Final = 64
AT_ONCE: Final = 0
LOSS_PPM: Final = 150_000
"""Streams stall on paths that lose more than this, and a shorter run of losses says nothing."""


class Needs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a path must give. The defaults ask for nothing special: a live path without heavy loss."""

    size: int = 0
    """Packets of up to so many bytes, headers included, must pass in one piece; 0: any, what is sent can be cut."""
    protocol: str = ""
    """`udp` or `tcp`: carried by that; `multicast`: on a path that carries multicast as well. Empty: any."""
    pattern: str = ""
    """Bytes, in hexadecimal, that occur in the payload and must pass; empty: nothing is known of the payload."""
    latency_us: int = 0
    """The longest way there, taken as half of the round trip; 0: any."""
    loss_ppm_max: int = LOSS_PPM
    """The highest loss, in millionths; a million: any."""
    clean: str = ""
    """A class of soft errors (one of `ERRORS`) that the
    path must not have had for `clean_ns`."""
    clean_ns: int = 0
    adapter: str = ""
    """The local adapter, the subnet, and the node (by name) that are chosen."""
    subnet: str = ""
    node: str = ""
    choice: str = "prefer"
    """`prefer`: chosen where it suits, others otherwise. `require`: nothing else is used, traffic rather waits."""
    move_back_ns: int = 2 * SECOND
    """How long a path that failed must be sound before it is used again, doubled with each relapse; `AT_ONCE`, or
    `NEVER`: only when where the traffic is fails as well."""

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX:
            raise MisuseError(f"needs: size is from 0 to {SIZE_MAX} bytes, not {self.size}")
        _one_of("protocol", self.protocol, PROTOCOLS)
        _one_of("choice", self.choice, CHOICES)
        _one_of("clean", self.clean, ERRORS)
        if not _is_pattern(self.pattern):
            raise MisuseError(
                f"needs: pattern is one to {PATTERN_MAX} bytes in hexadecimal, as '55aa', not {self.pattern!r}"
            )
        if self.latency_us < 0 or self.move_back_ns < 0 or self.clean_ns < 0:
            raise MisuseError("needs: a time is not negative")
        if not 0 <= self.loss_ppm_max <= 1_000_000:
            raise MisuseError("needs: loss_ppm_max is from 0 to 1000000")
        if bool(self.clean) != bool(self.clean_ns):
            raise MisuseError(
                "needs: clean and clean_ns go together: which error, and for how long"
            )
        if self.choice == "require" and not (self.adapter or self.subnet or self.node):
            raise MisuseError("needs: what is required? name an adapter, a subnet or a node")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        words = ", ".join(repr(word) for word in known if word)
        raise MisuseError(f"needs: {name} is one of {words}, not {value!r}")


def _is_pattern(pattern: str) -> bool:
    hexadecimal = all(letter in "0123456789abcdef" for letter in pattern)
    return hexadecimal and len(pattern) % 2 == 0 and len(pattern) <= 2 * PATTERN_MAX


DEFAULTS: Final[Mapping[int, Needs]] = {
    SYNC: Needs(),
    DATA: Needs(),
    BULK: Needs(),
    DATAGRAMS: Needs(),
}
"""Holdfast's own channels, and what applications send without saying what they need. All of it can be cut."""


class SetNeeds(msgspec.Struct, frozen=True, gc=False):
    """Input of the unit `health`: some traffic needs this from now on. Several owners may speak for one traffic;
    then all of their needs hold. `needs` is None when the owner takes back what it said."""

    owner: str
    traffic: int
    needs: Needs | None
    peer: NodeId | str | None = None
    """A node by id or by name; None: whoever it goes to."""


__all__ = ["AT_ONCE", "DEFAULTS", "NEVER", "Needs", "SetNeeds"]
