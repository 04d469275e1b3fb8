"""Where outputs of groups arrive: a node takes each once, and in order, whichever replica sends it.

Remembers per group the id of the last output that it took. An output that does not follow from that waits at its
sender: it is told where to go on.

That outputs were taken is written down, and said, when the application has been called with them, not before: they
would be lost if the process ended in between, if nobody listens yet, or if it fails. So what is written down grows with
the groups that somebody here listens to, whatever others send. What is refused for want of room is forgotten, and not
answered: its sender begins again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import msgspec

from holdfast.group.config import replica_unit
from holdfast.group.peers import post
from holdfast.group.ports import Output, OutputsReady, OutputsRefused, OutputsTaken
from holdfast.group.rulings import NOTHING
from holdfast.links.ports import Received
from holdfast.machine import Machine, Outbox, Put
from holdfast.types import Nanos, NodeId
from holdfast.wire.frames import Outputs, OutputsHere

TABLE: Final = "outputs"
FLOORS_MAX: Final = 4096
"""Of so many groups from which nothing was taken here it is remembered where they are."""
NUMBER_MAX: Final = 1 << 60
OVER_MAX: Final = 16
"""So many earlier foundings of a group are remembered."""


class Watermark(msgspec.Struct, frozen=True, array_like=True):
    """The last output that was taken from a group, and which founding of the group it was."""

    history: int
    position: int
    k: int
    over: tuple[int, ...] = ()
    """Foundings before that: whoever still leads one of them is not listened to."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Watermark)


class SinkMachine(Machine):
    """The unit `outputs` of a node."""

    layer = 5

    def __init__(self, node: NodeId, stored: list[tuple[bytes, bytes]]) -> None:
        self._node = node
        self._marks: dict[str, Watermark] = {}
        self._floors: dict[str, Watermark] = {}
        """Where groups are from which nothing was taken here; the oldest are forgotten."""
        self._ahead: dict[str, Watermark] = {}
        """Where groups are of whose outputs some were handed over, and not taken yet."""
        self._waiting: dict[str, dict[NodeId, None]] = {}
        """Who waits for an answer about those."""
        self.ignored = 0
        for key, value in stored:
            self._marks[key.decode()] = _decoder.decode(value)

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, OutputsTaken):
                self._taken(now, item, out)
            elif isinstance(item, OutputsRefused):
                self._refused(item)
            elif isinstance(item, Received):
                for frame in item.frames:
                    if isinstance(frame, Outputs) and self._is_sound(frame):
                        self._take(now, item.peer, frame, out)
                    else:
                        self.ignored += 1

    def _is_sound(self, frame: Outputs) -> bool:
        ids = [(position, k) for position, k, _ in frame.items]
        return (
            bool(ids)
            and 0 < len(frame.group) <= 200
            and frame.history >= 0
            and all(0 < position < NUMBER_MAX and 0 <= k < NUMBER_MAX for position, k in ids)
            and all(a < b for a, b in pairwise(ids))
            and frame.after < ids[0]
        )

    def _take(self, now: Nanos, peer: NodeId, frame: Outputs, out: Outbox) -> None:
        ahead = self._ahead.get(frame.group)
        known = ahead or self._marks.get(frame.group) or self._floors.get(frame.group)
        over = known.over if known is not None else ()
        if frame.history in over:
            self.ignored += 1
            return
        have = NOTHING
        if known is not None and known.history == frame.history:
            have = (known.position, known.k)
        elif known is not None:
            over = (*over, known.history)[-OVER_MAX:]
        # What everybody has agreed to have arrived did, if at an earlier life of this node that kept no memory.
        have = max(have, frame.floor)
        new: tuple[Output, ...] = ()
        if frame.after <= have:
            new = tuple(
                Output(position, k, "", payload, frame.history)
                for position, k, payload in frame.items
                if (position, k) > have
            )
        if new:
            last = new[-1]
            self._ahead[frame.group] = Watermark(frame.history, last.position, last.k, over)
            # What is doubled by a crash has an id, what is lost has none.
            after = NOTHING
            if ahead is not None and ahead.history == frame.history:
                after = (ahead.position, ahead.k)
            out.effect(OutputsReady(frame.group, new, frame.history, after), immediate=True)
        if frame.group in self._ahead:
            self._waiting.setdefault(frame.group, {})[peer] = None
            return
        mark = Watermark(frame.history, have[0], have[1], over)
        if frame.group not in self._marks:
            self._remember(frame.group, mark)
        elif mark != known:
            self._keep(frame.group, mark, out)
        self._answer(peer, frame.group, mark, now, out)

    def _taken(self, now: Nanos, item: OutputsTaken, out: Outbox) -> None:
        ahead = self._ahead.get(item.group)
        if ahead is None or item.history != ahead.history:
            return  # of an earlier founding: nobody asks about those any more
        reached = Watermark(ahead.history, item.position, item.k, ahead.over)
        waiting = self._waiting.get(item.group, {})
        if (item.position, item.k) >= (ahead.position, ahead.k):
            reached = self._ahead.pop(item.group)
            self._waiting.pop(item.group, None)
        self._keep(item.group, reached, out)
        for peer in waiting:
            self._answer(peer, item.group, reached, now, out)

    def _refused(self, item: OutputsRefused) -> None:
        ahead = self._ahead.get(item.group)
        if ahead is not None and ahead.history == item.history:
            del self._ahead[item.group]
            self._waiting.pop(item.group, None)

    def _remember(self, group: str, mark: Watermark) -> None:
        self._floors[group] = mark
        if len(self._floors) > FLOORS_MAX:
            del self._floors[next(iter(self._floors))]

    def _keep(self, group: str, mark: Watermark, out: Outbox) -> None:
        self._marks[group] = mark
        self._floors.pop(group, None)
        out.write(Put(TABLE, group.encode(), _encode(mark)))

    def _answer(self, peer: NodeId, group: str, mark: Watermark, now: Nanos, out: Outbox) -> None:
        answer = OutputsHere(group, mark.history, mark.position, mark.k)
        if peer == self._node:
            out.up(replica_unit(group), Received(self._node, [answer], now))
        else:
            post(out, [peer], answer)

    def status(self) -> dict[str, object]:
        return {
            group: {"position": mark.position, "k": mark.k} for group, mark in self._marks.items()
        }
