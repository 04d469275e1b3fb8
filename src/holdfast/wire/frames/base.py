"""What every frame is."""

from __future__ import annotations

from typing import Final

import msgspec

VERSION_LOW: Final = 1
VERSION_HIGH: Final = 1
"""The range of frame versions that this node speaks; the highest that both speak is used."""


class Frame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Base of all frames."""
