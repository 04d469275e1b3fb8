"""The base of all frames."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

VERSION_LOW: Final = 1
VERSION_HIGH: Final = 1
"""The range of frame versions that this node supports; the highest common one is used."""


class Frame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Base class of all frames."""

    by_multicast: ClassVar[bool] = False
    """Whether nodes also accept it from a multicast group."""


class FilledFrame(Frame, frozen=True, gc=False, array_like=True):
    """A frame whose last field, `fill`, pads its packet to the size that its sender wants."""
