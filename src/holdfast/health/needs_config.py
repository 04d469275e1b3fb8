"""The needs of traffic in a configuration file, with common units and names instead of numbers."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from holdfast.errors import ConfigError, MisuseError
from holdfast.health.placement.needs import LOSS_PPM, Needs, SetNeeds
from holdfast.links.ports import DATAGRAMS, PORT_MIN
from holdfast.types import DATA, MILLISECOND, NEVER, SECOND, SYNC, Nanos

PORT_MAX: Final = DATAGRAMS - 1
_UNITS: Final = {
    "ms": MILLISECOND,
    "s": SECOND,
    "min": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
}
_DURATION: Final = re.compile(r"(\d+) ?([a-z]+)")


class NeedsFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a path must provide; see `holdfast.Needs`."""

    size: int = 0
    protocol: str = ""
    pattern: str = ""
    latency_ms: float = 0.0
    loss_percent: float = LOSS_PPM / 10_000
    clean: str = ""
    """Such as `size 30 d`: no size error in the past 30 days."""
    adapter: str = ""
    subnet: str = ""
    node: str = ""
    choice: str = "prefer"
    move_back: str = "2 s"
    """A duration, `at once` or `never`."""

    def needs(self, where: str) -> Needs:
        """The same as a `Needs` object; a `ConfigError` names the place."""
        clean, _, clean_for = self.clean.partition(" ")
        try:
            return Needs(
                size=self.size,
                protocol=self.protocol,
                pattern=self.pattern.lower(),
                latency_us=round(self.latency_ms * 1000),
                loss_ppm_max=round(self.loss_percent * 10_000),
                clean=clean,
                clean_ns=_duration(clean_for) if clean else 0,
                adapter=self.adapter,
                subnet=self.subnet,
                node=self.node,
                choice=self.choice,
                move_back_ns=_move_back(self.move_back),
            )
        except MisuseError as error:
            raise ConfigError(f"{where}: {error}") from None


class NeedsSection(NeedsFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The needs of the traffic of one port, to one peer or to all."""

    port: int
    traffic: Literal["channel", "datagrams"] = "channel"
    peer: str = ""
    """The name of a node; empty: all."""

    def items(self, source: str) -> list[SetNeeds]:
        where = f"{source}: [[needs]] of port {self.port}"
        if not PORT_MIN <= self.port <= PORT_MAX:
            raise ConfigError(f"{where}: application ports are from {PORT_MIN} to {PORT_MAX}")
        traffic = self.port + (DATAGRAMS if self.traffic == "datagrams" else 0)
        return [SetNeeds("configuration", traffic, self.needs(where), self.peer or None)]


def group_needs(group: str, fields: NeedsFields, source: str) -> list[SetNeeds]:
    """The needs of the channels that carry the order and the messages of a group."""
    needs = fields.needs(f"{source}: group {group!r}: needs")
    return [SetNeeds(f"group {group}", traffic, needs) for traffic in (SYNC, DATA)]


def _duration(text: str) -> Nanos:
    match = _DURATION.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        units = ", ".join(_UNITS)
        raise MisuseError(f"needs: {text!r} is not a duration; write a number and one of {units}")
    return int(match[1]) * _UNITS[match[2]]


def _move_back(text: str) -> Nanos:
    if text == "never":
        return NEVER
    return 0 if text == "at once" else _duration(text)
