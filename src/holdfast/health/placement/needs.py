"""What traffic needs from its path. Each client is judged by its own needs: a soft error for one may be none for
another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.health.classify import CLASSES
from holdfast.links.ports import DATAGRAMS
from holdfast.types import BULK, DATA, NEVER, SECOND, SYNC, NodeId

PROTOCOLS: Final = ("", "udp", "tcp", "multicast")
CHOICES: Final = ("prefer", "require")
ERRORS: Final = ("", "any", *CLASSES)
"""Classes of soft errors that a path can be asked to have been free of."""
SIZE_MAX: Final = 65_535
PATTERN_MAX: Final = 64
AT_ONCE: Final = 0
LOSS_PPM: Final = 150_000
"""Streams stall on paths with more loss than this, and a short run of losses shows nothing."""


class Needs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a path must provide. The default is a live path without heavy loss."""

    size: int = 0
    """Packets of up to this many bytes, headers included, must pass unfragmented; 0: any size will do."""
    protocol: str = ""
    """`udp` or `tcp`: use this transport; `multicast`: the path must also carry multicast. Empty: any."""
    pattern: str = ""
    """Bytes, in hexadecimal, that occur in the payload and must pass; empty: the payload is unknown."""
    latency_us: int = 0
    """The maximum one-way latency, estimated as half of the round trip; 0: any."""
    loss_ppm_max: int = LOSS_PPM
    """The maximum loss in parts per million; a million: any."""
    clean: str = ""
    """A class of soft errors (one of `ERRORS`) that the path must not have had for `clean_ns`."""
    clean_ns: int = 0
    adapter: str = ""
    """The chosen local adapter, subnet and node (by name)."""
    subnet: str = ""
    node: str = ""
    choice: str = "prefer"
    """`prefer`: use the choice while it fits, and others otherwise. `require`: use nothing else, and wait if
    necessary."""
    move_back_ns: int = 2 * SECOND
    """How long a failed path must be healthy before it is used again, doubled with each relapse; `AT_ONCE`, or `NEVER`:
    only if the current path fails as well."""

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX:
            raise MisuseError(f"needs: size must be from 0 to {SIZE_MAX} bytes, not {self.size}")
        _one_of("protocol", self.protocol, PROTOCOLS)
        _one_of("choice", self.choice, CHOICES)
        _one_of("clean", self.clean, ERRORS)
        if not _is_pattern(self.pattern):
            raise MisuseError(
                f"needs: pattern must be one to {PATTERN_MAX} bytes in hexadecimal, such as '55aa', "
                f"not {self.pattern!r}"
            )
        if self.latency_us < 0 or self.move_back_ns < 0 or self.clean_ns < 0:
            raise MisuseError("needs: a time must not be negative")
        if not 0 <= self.loss_ppm_max <= 1_000_000:
            raise MisuseError("needs: loss_ppm_max must be from 0 to 1000000")
        if bool(self.clean) != bool(self.clean_ns):
            raise MisuseError(
                "needs: clean and clean_ns must be given together: which error, and for how long"
            )
        if self.choice == "require" and not (self.adapter or self.subnet or self.node):
            raise MisuseError("needs: require needs an adapter, a subnet or a node")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        words = ", ".join(repr(word) for word in known if word)
        raise MisuseError(f"needs: {name} must be one of {words}, not {value!r}")


def _is_pattern(pattern: str) -> bool:
    hexadecimal = all(letter in "0123456789abcdef" for letter in pattern)
    return hexadecimal and len(pattern) % 2 == 0 and len(pattern) <= 2 * PATTERN_MAX


DEFAULTS: Final[Mapping[int, Needs]] = {
    SYNC: Needs(),
    DATA: Needs(),
    BULK: Needs(),
    DATAGRAMS: Needs(),
}
"""The needs of internal channels, and of applications that declare none. All of this traffic can be re-packetised."""


class SetNeeds(msgspec.Struct, frozen=True, gc=False):
    """Input of the unit `health`: some traffic needs this from now on. Several owners may declare needs for one
    traffic; then all of them must hold. `needs` is None if the owner withdraws them."""

    owner: str
    traffic: int
    needs: Needs | None
    peer: NodeId | str | None = None
    """A node by id or by name; None: any."""


__all__ = ["AT_ONCE", "DEFAULTS", "NEVER", "Needs", "SetNeeds"]
