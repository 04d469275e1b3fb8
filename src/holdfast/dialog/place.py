"""Where messages lie in the store: shared by all parts that a run or a piece is cut into."""

from __future__ import annotations


class Place:
    """The block of the store; 0 until the turn that stores it has ended."""

    __slots__ = ("block",)

    def __init__(self, block: int = 0) -> None:
        self.block = block


class Parcel:
    """Messages to be stored. What is cut off the piece later in the same turn is still in here."""

    __slots__ = ("body", "check", "first", "messages", "place")

    def __init__(
        self,
        first: int,
        messages: list[memoryview],
        place: Place,
        body: memoryview | None = None,
        check: int = 0,
    ) -> None:
        self.first = first
        self.messages = messages
        self.place = place
        self.body = body
        """The block that they came in, if they are just all of it: the same bytes are stored."""
        self.check = check
