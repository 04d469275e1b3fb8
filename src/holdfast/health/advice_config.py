"""The configuration of advice: `[advice]`."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError
from holdfast.subsystem.config import Anchor

EVERY_S_MAX = 3600


class AdviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where this node finds advice of the pipeline."""

    directory: str = ""
    """The directory `advice` of the pipeline's output, or a copy of it; without it, no advice is followed."""
    accept: bool = False
    """Whether members may put editions into the directory (`holdfast pipeline collect --advice`)."""
    every_s: float = 30.0
    """Interval between looks for a new edition."""


def check_advice(advice: AdviceConfig, source: str) -> None:
    if not 0.1 <= advice.every_s <= EVERY_S_MAX:
        raise ConfigError(f"{source}: [advice] every_s must be from 0.1 to {EVERY_S_MAX}")


def anchor_advice(advice: AdviceConfig, anchor: Anchor) -> AdviceConfig:
    return msgspec.structs.replace(advice, directory=anchor(advice.directory))
