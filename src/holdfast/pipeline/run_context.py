"""What all steps of one run share: its places, settings, time, and the progress that it shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import msgspec

from holdfast.errors import MisuseError
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.storage.port import Missing, Store, for_people, to_uri


class Step(msgspec.Struct, frozen=True):
    """What a run is doing, for a progress bar."""

    text: str
    done: int
    total: int


Progress = Callable[[Step], None]


class RunContext(msgspec.Struct, frozen=True):
    """`landings` and `root` are URIs, `now` is the wall clock."""

    landings: tuple[str, ...]
    root: str
    settings: Settings
    tell: Progress
    now: datetime

    @property
    def now_us(self) -> int:
        return int(self.now.timestamp() * 1_000_000)

    @property
    def today(self) -> date:
        return self.now.astimezone(UTC).date()

    def inventory(self, store: Store) -> tuple[str, ...]:
        """The lines of the inventory, checked before an engine is started."""
        from holdfast.pipeline.transforms.risk_groups import parse_inventory

        if not self.settings.inventory:
            return ()
        uri = to_uri(self.settings.inventory)
        try:
            lines = tuple(store.read(uri).decode("utf-8-sig").splitlines())
        except (Missing, UnicodeDecodeError):
            raise MisuseError(
                f"the inventory {for_people(uri)} is not there, or is not text; nothing was done"
            ) from None
        parse_inventory(lines, {})
        return lines
