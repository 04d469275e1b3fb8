"""The receiving side of a dialog: the receive rules, the receive buffer, the window, what the application took."""

from __future__ import annotations

from collections import deque

from holdfast.dialog.assurances import AGAIN, DISCARD, Rules
from holdfast.dialog.place import Place
from holdfast.machine import RangeSet


class Piece:
    """Consecutive messages in the receive buffer, all in one block of the store."""

    __slots__ = ("first", "messages", "place", "size")

    def __init__(self, first: int, messages: list[memoryview], place: Place | None = None) -> None:
        self.first = first
        self.messages = messages
        self.place = place or Place()
        self.size = sum(map(len, messages))

    @property
    def stop(self) -> int:
        return self.first + len(self.messages)

    def cut(self, count: int) -> Piece:
        """Take the first `count` messages off."""
        head = Piece(self.first, self.messages[:count], self.place)
        self.first += count
        self.messages = self.messages[count:]
        self.size -= head.size
        return head


class Arrival:
    """What became of a run that arrived."""

    __slots__ = ("again", "discarded", "refused", "stored")

    def __init__(self) -> None:
        self.stored: list[Piece] = []
        """New messages: to be stored."""
        self.again = 0
        self.discarded = 0
        self.refused = 0
        """Outside the window: not stored, not acknowledged."""


class Incoming:
    """What this end has received and still keeps."""

    __slots__ = (
        "buffered", "buffered_bytes", "early", "expected", "leases", "limit", "message_bytes_max", "quota_bytes",
        "quota_messages", "ready", "ready_count", "received", "received_count", "rules", "taken", "taken_count",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, quota_messages: int, quota_bytes: int, message_bytes_max: int
    ) -> None:
        self.rules = rules
        self.quota_messages = quota_messages
        self.quota_bytes = quota_bytes
        self.message_bytes_max = message_bytes_max
        self.received = RangeSet()
        """Every number that arrived, or that the partner will never send."""
        self.received_count = 0
        self.taken = RangeSet()
        """Every number that the application has taken for good, or that it will never get."""
        self.taken_count = 0
        self.expected = 0
        """In order: the number that is delivered next."""
        self.ready: deque[Piece] = deque()
        self.ready_count = 0
        self.early: dict[int, Piece] = {}
        """Held back by a gap, by first number."""
        self.leases: dict[bytes, list[Piece]] = {}
        """Handed to the application, by the transaction whose outcome decides."""
        self.buffered = 0
        self.buffered_bytes = 0
        self.limit = 0
        self.open_window()

    # -- arrival -------------------------------------------------------------------------------------------------

    def arrive(self, first: int, messages: list[memoryview]) -> Arrival:
        """Apply the receive rules to messages from `first` on."""
        arrival = Arrival()
        stop = first + len(messages)
        # rule: D-13b
        if stop > self.limit:
            keep = max(0, self.limit - first)
            arrival.refused = len(messages) - keep
            messages = messages[:keep]
            stop = first + keep
        received = self.received
        at = first
        for new, end in list(received.missing(first, stop)):
            self._seen(at, new, messages[at - first : new - first], arrival)
            self._new(new, messages[new - first : end - first], arrival)
            at = end
        self._seen(at, stop, messages[at - first :], arrival)
        if self.early:
            self._fill()
        return arrival

    def _seen(self, first: int, stop: int, messages: list[memoryview], arrival: Arrival) -> None:
        if first >= stop:
            return
        # rule: D-receive-1a
        if self.rules.seen != AGAIN:
            arrival.discarded += stop - first
            return
        # A copy of a message that still waits in the buffer adds nothing: only what was taken comes again.
        for number, message in enumerate(messages, first):
            # rule: D-receive-4a
            if number in self.taken and self._spare(message):
                # Not stored: its first delivery was what the assurances asked for.
                self._available(Piece(number, [message]))
                arrival.again += 1
            else:
                arrival.discarded += 1

    def _spare(self, message: memoryview) -> bool:
        """Room that is not reserved for a number that has not arrived."""
        holes = self.limit - self.received_count if self.rules.acknowledges else 0
        size = self.buffered_bytes + len(message) + holes * self.message_bytes_max
        return self.buffered + holes < self.quota_messages and size <= self.quota_bytes

    def _fitting_now(self, messages: list[memoryview]) -> list[memoryview]:
        """As many of the messages as there is room for."""
        count = min(len(messages), self.quota_messages - self.buffered)
        room = self.quota_bytes - self.buffered_bytes
        if count == len(messages) and sum(map(len, messages)) <= room:
            return messages
        fitting: list[memoryview] = []
        for message in messages[: max(0, count)]:
            room -= len(message)
            if room < 0:
                break
            fitting.append(message)
        return fitting

    def _new(self, first: int, messages: list[memoryview], arrival: Arrival) -> None:
        """Messages that did not arrive before, consecutive."""
        rules = self.rules
        stop = first + len(messages)
        self.received.add(first, stop)
        self.received_count += stop - first
        # rule: D-receive-2a
        if rules.in_order and first < self.expected and rules.behind == DISCARD:
            late = min(stop, self.expected) - first
            arrival.discarded += late
            self._skip(first, first + late)
            messages, first = messages[late:], first + late
            if not messages:
                return
        if not rules.acknowledges:
            # Nothing is reserved for late arrivals: those that do not fit are lost, as they may be.
            messages = self._fitting_now(messages)
            arrival.refused += stop - first - len(messages)
            self._skip(first + len(messages), stop)
            if not messages:
                return
        piece = Piece(first, messages)
        arrival.stored.append(piece)
        # rule: D-receive-3a
        if rules.waits and first > self.expected:
            self.early[first] = piece
            self.buffered += len(messages)
            self.buffered_bytes += piece.size
            return
        if rules.in_order:
            self.expected = stop
        self._available(piece)

    def _available(self, piece: Piece) -> None:
        self.ready.append(piece)
        self.ready_count += len(piece.messages)
        self.buffered += len(piece.messages)
        self.buffered_bytes += piece.size

    def _fill(self) -> None:
        """Release held pieces whose gap has closed."""
        for first in sorted(self.early):
            if first != self.expected:
                return
            piece = self.early.pop(first)
            self.ready.append(piece)
            self.ready_count += len(piece.messages)
            self.expected = piece.stop

    def collapse(self, lowest: int) -> bool:
        """The partner will send no number below `lowest`: those that did not arrive never will."""
        gaps = list(self.received.missing(0, lowest))
        for first, stop in gaps:
            self.received.add(first, stop)
            self.received_count += stop - first
            self._skip(first, stop)
        if self.rules.in_order and not self.rules.waits:
            self.expected = max(self.expected, lowest)
        return bool(gaps)

    def _skip(self, first: int, stop: int) -> None:
        """Numbers that the application never gets."""
        self._take_numbers(first, stop)

    # -- the window ----------------------------------------------------------------------------------------------

    def open_window(self) -> int:
        """The number below which the partner may send. Room for every hole below it is reserved at maximum size."""
        tops = self.received.stops
        top = tops[-1] if tops else 0
        if self.rules.acknowledges:
            # rule: D-13d
            limit = min(self.taken_count + self.quota_messages, self._byte_limit(top))
        else:
            limit = top + self.quota_messages - self.buffered
        self.limit = max(self.limit, limit)
        return self.limit

    def _byte_limit(self, top: int) -> int:
        room = (self.quota_bytes - self.buffered_bytes) // self.message_bytes_max
        # rule: D-13a
        holes = top - self.received_count
        if room >= holes:
            return top + room - holes
        for first, stop in self.received.missing(0, top):
            if room < stop - first:
                return first + max(room, 0)
            room -= stop - first
        return top

    # -- taking --------------------------------------------------------------------------------------------------

    def take(self, count: int, bytes_max: int, lease: bytes = b"") -> list[Piece]:
        """Hand out up to `count` messages and at least one, if there is one. With a lease they stay in the store until
        its outcome; without, they are taken for good."""
        pieces: list[Piece] = []
        size = 0
        while self.ready and count > 0:
            piece = self.ready[0]
            number = min(count, len(piece.messages))
            if size + piece.size > bytes_max:
                number = min(number, self._fitting(piece, bytes_max - size, bool(pieces)))
                if not number:
                    break
            if number < len(piece.messages):
                piece = piece.cut(number)
            else:
                self.ready.popleft()
            self.ready_count -= number
            count -= number
            size += piece.size
            pieces.append(piece)
        if not pieces:
            return pieces
        if lease:
            self.leases.setdefault(lease, []).extend(pieces)
        else:
            self.settle(pieces)
        return pieces

    @staticmethod
    def _fitting(piece: Piece, room: int, some: bool) -> int:
        """How many of a piece's messages fit; at least one if there are none yet."""
        fitting = 0
        for message in piece.messages:
            room -= len(message)
            if room < 0:
                break
            fitting += 1
        return fitting or (0 if some else 1)

    def settle(self, pieces: list[Piece]) -> None:
        """These messages are taken for good."""
        for piece in pieces:
            self._take_numbers(piece.first, piece.stop)
            self.buffered -= len(piece.messages)
            self.buffered_bytes -= piece.size

    def _take_numbers(self, first: int, stop: int) -> None:
        for start, end in list(self.taken.missing(first, stop)):
            self.taken_count += end - start
        self.taken.add(first, stop)

    def give_back(self, lease: bytes) -> list[Piece]:
        """The transaction was aborted: its messages are available again, in their old place."""
        pieces = self.leases.pop(lease, [])
        self.put_back(pieces)
        return pieces

    def put_back(self, pieces: list[Piece]) -> None:
        """Make pieces available again, before everything above them."""
        for piece in reversed(pieces):
            self.ready.appendleft(piece)
            self.ready_count += len(piece.messages)

    def remove(self, ranges: list[tuple[int, int]]) -> list[Piece]:
        """Take numbers for good that are not leased here: the outcome of a transaction from before a reload."""
        gone = self._pick(ranges)
        for piece in gone:
            self.buffered -= 1
            self.buffered_bytes -= piece.size
        for first, stop in ranges:
            self._take_numbers(first, stop)
        return gone

    def lease_again(self, lease: bytes, ranges: list[tuple[int, int]]) -> None:
        """Lease numbers to a transaction that had them before a reload."""
        pieces = self._pick(ranges)
        if pieces:
            self.leases[lease] = pieces

    def _pick(self, ranges: list[tuple[int, int]]) -> list[Piece]:
        """Remove numbers from what is available; gives them as pieces of one message each."""
        wanted = RangeSet(ranges)
        picked: list[Piece] = []
        kept: deque[Piece] = deque()
        for piece in self.ready:
            if list(wanted.missing(piece.first, piece.stop)) == [(piece.first, piece.stop)]:
                kept.append(piece)
                continue
            for number, message in enumerate(piece.messages, piece.first):
                part = Piece(number, [message], piece.place)
                (picked if number in wanted else kept).append(part)
        self.ready = kept
        self.ready_count = sum(len(piece.messages) for piece in kept)
        return picked

    # -- restore -------------------------------------------------------------------------------------------------

    def restore(self, received: RangeSet, taken: RangeSet, expected: int) -> None:
        """Ranges as the store had them; `restore_piece` follows for each piece, by number."""
        self.received = received
        self.received_count = received.total()
        self.taken = taken
        self.taken_count = taken.total()
        self.expected = expected

    def restore_piece(self, piece: Piece) -> None:
        """Messages that the store has and the application has not taken."""
        self.received.add(piece.first, piece.stop)
        for first, stop in list(self.taken.missing(piece.first, piece.stop)):
            part = Piece(
                first, piece.messages[first - piece.first : stop - piece.first], piece.place
            )
            self.early[first] = part
            self.buffered += len(part.messages)
            self.buffered_bytes += part.size

    def restored(self) -> None:
        """All pieces are here: decide what is available."""
        self.received_count = self.received.total()
        if self.rules.waits:
            self.expected = self.received.first_missing(0)
        elif self.rules.in_order and self.early:
            self.expected = max(self.expected, *(piece.stop for piece in self.early.values()))
        for first in sorted(self.early):
            if self.rules.waits and first >= self.expected:
                break
            piece = self.early.pop(first)
            self.ready.append(piece)
            self.ready_count += len(piece.messages)
        self.open_window()

    def clear(self) -> list[Piece]:
        """Forget the buffer; gives what was in it."""
        pieces = [*self.ready, *self.early.values()]
        for leased in self.leases.values():
            pieces += leased
        self.ready.clear()
        self.early.clear()
        self.leases.clear()
        self.ready_count = self.buffered = self.buffered_bytes = 0
        return pieces

    @property
    def empty(self) -> bool:
        return not self.ready and not self.early and not self.leases
