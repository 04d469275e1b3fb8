"""Message metadata, from which a receiver derives what is missing in a gap (L3).

The source writes it once per frame, which is the unit of loss (`Annotator`). Each message has, for every priority
except the lowest, an *ordinal distance*: how many messages back the last one of that priority was. A receiver that
lacks the numbers between X and Y examines the distances of Y: if the number of Y minus the distance lies above X, that
number is a lost message of this priority (`indicate`). Times work the same way: Y states how much earlier the messages
1, 10, 100 and 1000 back were created (`created_before`).

Only differences of the clock of the source are used: clocks of different machines cannot be compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.group.frames import MessageMetadata
from holdfast.group.streams.values import Indication, Note
from holdfast.types import Nanos

BACK: Final = (1, 10, 100, 1000)
"""The distances of the messages whose age difference is stated."""
BATCHES_KEPT: Final = 2048
"""The number of recorded send times; what lies further back is unknown."""
LEVELS_MAX: Final = 16
TOPICS_MAX: Final = 255
"""Of one frame."""
NAME_MAX: Final = 200
REQUEST_MAX: Final = 64
"""Bytes of a request id."""


class Annotator:
    """The side of the source: writes the metadata of frames. Its work is per frame."""

    __slots__ = ("_firsts", "_last_of", "_lowest", "_times", "last")

    def __init__(self, levels: int = 1) -> None:
        assert 1 <= levels <= LEVELS_MAX
        self._lowest = levels - 1
        self.last = 0
        self._last_of = [0] * (levels - 1)
        """Per priority except the lowest: the last number that has it, 0 if none has."""
        self._firsts: list[int] = []
        self._times: list[Nanos] = []
        """When sending continued, and with which number."""

    def take(
        self, now: Nanos, count: int, notes: Sequence[tuple[int, Note]] = ()
    ) -> MessageMetadata:
        """Describe the next `count` messages; `notes` are (place, note) of those with metadata."""
        first = self.last + 1
        about = self._describe(now, first)
        column = b""
        if notes:
            # rule: 12b
            column = self._priorities(count, notes)
            about = _with_notes(about, column, count, notes)
        self._remember(now, first, count, column)
        return about

    def next(self, now: Nanos) -> MessageMetadata:
        """The metadata of a message that would be sent now."""
        return self._describe(now, self.last + 1)

    def _describe(self, now: Nanos, first: int) -> MessageMetadata:
        distances = tuple([first - last if last else -1 for last in self._last_of])
        ages = tuple([self._age(now, first - back) for back in BACK])
        return MessageMetadata(b"", distances, ages)

    def _age(self, now: Nanos, number: int) -> Nanos:
        at = bisect_right(self._firsts, number) - 1
        return now - self._times[at] if at >= 0 else -1

    def _priorities(self, count: int, notes: Sequence[tuple[int, Note]]) -> bytes:
        """The column, or nothing if all have the lowest priority."""
        if not self._lowest or all(note.priority < 0 for _, note in notes):
            return b""
        column = bytearray((self._lowest,)) * count
        for place, note in notes:
            if 0 <= note.priority < self._lowest:
                column[place] = note.priority
        return bytes(column)

    def _remember(self, now: Nanos, first: int, count: int, column: bytes) -> None:
        self.last += count
        if column:
            for priority in range(self._lowest):
                at = column.rfind(priority)
                if at >= 0:
                    self._last_of[priority] = first + at
        if self._times and self._times[-1] == now:
            return
        self._firsts.append(first)
        self._times.append(now)
        if len(self._times) > 2 * BATCHES_KEPT:
            del self._firsts[:BATCHES_KEPT], self._times[:BATCHES_KEPT]


def _with_notes(
    about: MessageMetadata, column: bytes, count: int, notes: Sequence[tuple[int, Note]]
) -> MessageMetadata:
    names: dict[str, int] = {}
    topics = bytearray(count)
    requests: list[tuple[int, bytes]] = []
    resyncs: list[int] = []
    for place, note in notes:
        if note.topic and (note.topic in names or len(names) < TOPICS_MAX):
            topics[place] = names.setdefault(note.topic, len(names) + 1)
        if note.request:
            requests.append((place, note.request))
        if note.resync:
            resyncs.append(place)
    return MessageMetadata(
        column,
        about.distances,
        about.ages_ns,
        about.earlier,
        tuple(names),
        bytes(topics) if names else b"",
        tuple(requests),
        tuple(resyncs),
    )


# -- for receivers -----------------------------------------------------------------------------------------------


def is_sound_about(about: MessageMetadata | None, count: int) -> bool:
    """Whether it is valid for `count` messages. Checked before it is used."""
    if about is None:
        return True
    if len(about.priorities) not in (0, count) or len(about.topic_column) not in (0, count):
        return False
    if len(about.distances) >= LEVELS_MAX or len(about.ages_ns) > len(BACK):
        return False
    if about.earlier or len(about.topics) > TOPICS_MAX:
        return False
    if not (about.topics or about.topic_column or about.requests or about.resyncs):
        return True
    if about.topic_column and max(about.topic_column) > len(about.topics):
        return False
    return (
        all(len(topic) <= NAME_MAX for topic in about.topics)
        and all(0 <= place < count and 0 < len(it) <= REQUEST_MAX for place, it in about.requests)
        and all(0 <= place < count for place in about.resyncs)
    )


def priority_at(about: MessageMetadata | None, place: int, levels: int) -> int:
    """Of the message at `place` in a frame."""
    if about is None or not about.priorities:
        return levels - 1
    return min(about.priorities[place], levels - 1)


def topic_at(about: MessageMetadata | None, place: int) -> str:
    if about is None or not about.topic_column:
        return ""
    at = about.topic_column[place]
    return about.topics[at - 1] if at else ""


ZONE_MARK: Final = "@"
"""A topic that starts with it names the zone of the message: `@zone`, or `@zone/topic`."""


def zone_topic(zone: str, topic: str) -> str:
    """The topic of a message to a zone."""
    if not zone:
        return topic
    return f"{ZONE_MARK}{zone}/{topic}" if topic else ZONE_MARK + zone


def zone_of(topic: str) -> str:
    """The zone that a topic names; empty for a message to all."""
    return topic[1:].partition("/")[0] if topic.startswith(ZONE_MARK) else ""


def distances_at(about: MessageMetadata, place: int) -> tuple[int, ...]:
    """The ordinal distances of the message at `place`, from those of the first one and the messages between."""
    if not place:
        return about.distances
    column = about.priorities
    found = []
    for priority, distance in enumerate(about.distances):
        at = column.rfind(priority, 0, place) if column else -1
        if at >= 0:
            found.append(place - at)
        else:
            found.append(distance + place if distance >= 0 else -1)
    return tuple(found)


def indicate(before: int, after: int, distances: Sequence[int], levels: int) -> Indication:
    """The priorities of the messages between `before` and `after`, from the distances of `after`.

    `after - distance` is the last message of a priority before `after`. If it lies in the gap, it is a lost message of
    that priority, and none behind it is. Without distances only the number of lost messages is known.
    """
    lost = after - before - 1
    last_of = {
        priority: after - distance
        for priority, distance in enumerate(distances[: levels - 1])
        if distance > 0 and before < after - distance
    }
    known = {number: priority for priority, number in last_of.items()}
    lowest = levels - 1
    if len(distances) < lowest:
        return Indication(levels, (), (0,) * levels, (lost,) * levels)
    behind = max(last_of.values(), default=before)
    at_least = [0] * levels
    at_most = [0] * levels
    for priority in known.values():
        at_least[priority] += 1
    at_least[lowest] = after - 1 - behind
    for priority, number in last_of.items():
        others = sum(1 for one in known if before < one < number)
        at_most[priority] = 1 + (number - before - 1 - others)
    at_most[lowest] = lost - len(known)
    _tighten(at_least, at_most, lost)
    every = dict.fromkeys(range(behind + 1, min(after, behind + 1 + KNOWN_MAX)), lowest)
    every |= known
    return Indication(levels, tuple(sorted(every.items())), tuple(at_least), tuple(at_most))


KNOWN_MAX: Final = 64
"""How many messages at the end of a gap are listed; the counts include all."""


def _tighten(at_least: list[int], at_most: list[int], lost: int) -> None:
    """Tighten the bounds: certain counts of the other priorities bound each one from above, their maximum counts from
    below."""
    for priority in range(len(at_least)):
        others_least = sum(at_least) - at_least[priority]
        at_most[priority] = min(at_most[priority], lost - others_least)
        others_most = sum(at_most) - at_most[priority]
        at_least[priority] = max(at_least[priority], lost - others_most)


def with_told(one: Indication, first: int, last: int, told: Mapping[int, int]) -> Indication:
    """Of the numbers `first` to `last`, if the priorities of some of them are `told` by others."""
    lowest, lost = one.levels - 1, last - first + 1
    numbers = range(first, last + 1)
    some = numbers if lost <= len(told) else told
    known = {n: min(told[n], lowest) for n in some if n in numbers and n in told}
    if not known:
        return one
    known |= dict(one.known)
    at_least, at_most = list(one.at_least), list(one.at_most)
    for priority in range(one.levels):
        count = sum(1 for of in known.values() if of == priority)
        at_least[priority] = max(at_least[priority], count)
        at_most[priority] = min(at_most[priority], lost - len(known) + count)
    _tighten(at_least, at_most, lost)
    return Indication(one.levels, tuple(sorted(known.items())), tuple(at_least), tuple(at_most))


def merge(one: Indication, other: Indication) -> Indication:
    """Of two gaps together."""
    return Indication(
        one.levels,
        one.known + other.known,
        tuple(a + b for a, b in zip(one.at_least, other.at_least, strict=True)),
        tuple(a + b for a, b in zip(one.at_most, other.at_most, strict=True)),
    )


def created_before(back: int, ages_ns: Sequence[Nanos]) -> Nanos | None:
    """How much earlier the message `back` numbers back was created, from the age differences to 1, 10, 100, 1000 back:
    interpolated between two of them, extrapolated beyond the last. None if nothing is known."""
    known = [(n, age) for n, age in zip(BACK, ages_ns, strict=False) if age >= 0]
    if not known:
        return None
    low = (0, 0)
    for point in known:
        if back <= point[0]:
            return low[1] + (point[1] - low[1]) * (back - low[0]) // (point[0] - low[0])
        low = point
    return low[1] * back // low[0]
