"""How a run works: the settings that a caller may change, checked once."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.pipeline.engine import DEFAULT_ENGINE, check_engine
from holdfast.pipeline.units import Retention

LOOK_BACK_DAYS: Final = 30
BUCKETS: Final = 4


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a run works. `buckets` counts only for the first run of an output directory."""

    engine: str = DEFAULT_ENGINE
    look_back_days: int = LOOK_BACK_DAYS
    retention: Retention = Retention()
    buckets: int = BUCKETS
    reconcile: bool = False
    """List all landing folders, not only the recent ones."""
    report: bool = True
    models_every_s: int = 0
    """How often localisation, predictions and busy windows are made again; 0 for never."""
    inventory: str = ""
    """A CSV file: where adapters are plugged in. Localisation then also names switches, ports and realms."""

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.look_back_days < 1:
            raise MisuseError(
                f"a look-back of {self.look_back_days} days holds nothing; nothing was done"
            )
        if not 1 <= self.buckets <= 4096:
            raise MisuseError(f"{self.buckets} buckets are not from 1 to 4096; nothing was done")
