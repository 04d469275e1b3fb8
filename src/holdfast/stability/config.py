"""Settings of stability detection, and the choice of the default protocol."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.types import MILLISECOND, SECOND, Nanos

AUTO: Final = "auto"
CUBE: Final = "cube"
COORD: Final = "coord"
FULL: Final = "full"
TREE: Final = "tree"
PROTOCOLS: Final = (CUBE, COORD, FULL, TREE)
"""CubeFullDist, Coord, FullDist and S_Coord of the paper."""

_NOT_ABOVE: Final = (
    ("gap_ns", "period_ns"),
    ("period_ns", "period_max_ns"),
    ("calm_ns", "period_max_ns"),
    ("repeat_ns", "repeat_max_ns"),
)
_MAY_BE_ZERO: Final = ("gap_ns", "ride_ns", "member_ns", "calm_ns", "calm_bytes")


class StabilityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the members of a view find out what all of them have. Must be the same on every member."""

    protocol: str = AUTO
    """`cube`, `coord`, `full`, `tree`, or `auto`: `coord` below `cube_from` members and `cube` from there on."""
    cube_from: int = 129
    """Members from which `auto` takes the cube."""
    period_ns: Nanos = 50 * MILLISECOND
    """A round begins this long after the last one, if the member has something that is not stable."""
    member_ns: Nanos = 200_000
    """The period is at least this long for each member of the view: what rounds cost grows with their number."""
    calm_ns: Nanos = 0
    """The least time between two rounds while one could free less than `calm_bytes`, or less than a sixteenth of what
    is held: nothing waits for that much room."""
    calm_bytes: int = 0
    period_max_ns: Nanos = SECOND
    """Each round without progress doubles the wait for the next one, up to this."""
    gap_ns: Nanos = 5 * MILLISECOND
    """The least time between two rounds (delta of the paper), also when buffers are full."""
    held_bytes: int = 4 << 20
    """A member that holds this much asks for a round without waiting for `period_ns`, if it could free a sixteenth."""
    repeat_ns: Nanos = 20 * MILLISECOND
    """How long an answer may take before a frame is repeated; doubles with every repetition."""
    repeat_max_ns: Nanos = SECOND
    """The longest time between two repetitions."""
    ride_ns: Nanos = 2 * MILLISECOND
    """How long a frame waits for other traffic to the same member. Only where such traffic flowed lately."""

    def __post_init__(self) -> None:
        if self.protocol not in (AUTO, *PROTOCOLS):
            near = get_close_matches(self.protocol, (AUTO, *PROTOCOLS), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join((AUTO, *PROTOCOLS))
            raise ConfigError(
                f"stability protocol {self.protocol!r} is not known, use one of {known}{hint}"
            )
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value <= 0 and field.name not in _MAY_BE_ZERO:
                raise ConfigError(f"stability: {field.name} is {value}, must be positive")
        if min([getattr(self, name) for name in _MAY_BE_ZERO]) < 0:
            raise ConfigError(f"stability: {', '.join(_MAY_BE_ZERO)} must not be negative")
        for low, high in _NOT_ABOVE:
            if getattr(self, low) > getattr(self, high):
                raise ConfigError(
                    f"stability: {low} is {getattr(self, low)}, must not exceed {high} "
                    f"({getattr(self, high)})"
                )

    def period_of(self, size: int) -> Nanos:
        """The time between rounds in a view of `size` members."""
        return min(max(self.period_ns, size * self.member_ns), self.period_max_ns)

    def chosen(self, size: int) -> str:
        """The protocol of a view of `size` members. Every member of the view gets the same answer."""
        if self.protocol != AUTO:
            return self.protocol
        # rule: S-10a
        return CUBE if size >= self.cube_from else COORD
