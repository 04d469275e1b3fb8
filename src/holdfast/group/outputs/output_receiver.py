"""Receives outputs of groups: a node accepts each once and in order, whichever replica sends it.

It records per group the id of the last accepted output. An output that does not follow from that waits at its sender,
which is informed where to continue.

Delivery is recorded and acknowledged when the application has been called, not before: outputs would be lost if the
process ended in between, if there is no listener yet, or if it fails. The records therefore grow only with the groups
that have a listener here. Outputs that are refused for lack of room are not answered: their sender starts again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, Final

import msgspec

from holdfast.group.config import replica_unit
from holdfast.group.frames import Outputs, OutputsAck
from holdfast.group.log.values import NOTHING
from holdfast.group.outputs.values import Watermark
from holdfast.group.peers import post
from holdfast.group.ports import Output, OutputsReady, OutputsRefused, OutputsTaken
from holdfast.links.ports import Received
from holdfast.machine import Machine, Outbox, Put
from holdfast.types import Nanos, NodeId

TABLE: Final = "outputs"
FLOORS_MAX: Final = 4096
"""The number of groups without accepted outputs whose progress is tracked."""
NUMBER_MAX: Final = 1 << 60
OVER_MAX: Final = 16
"""The number of earlier epochs recorded per group."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Watermark)


class OutputReceiverMachine(Machine):
    """The unit `outputs` of a node."""

    layer: ClassVar[str] = "source"

    def __init__(self, node: NodeId, stored: list[tuple[bytes, bytes]]) -> None:
        self._node = node
        self._marks: dict[str, Watermark] = {}
        self._floors: dict[str, Watermark] = {}
        """The progress of groups without accepted outputs; the oldest are removed."""
        self._ahead: dict[str, Watermark] = {}
        """The progress of groups with outputs that were passed on and not acknowledged yet."""
        self._waiting: dict[str, dict[NodeId, None]] = {}
        """Senders that wait for an answer about those."""
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
            and frame.group_epoch >= 0
            and all(0 < position < NUMBER_MAX and 0 <= k < NUMBER_MAX for position, k in ids)
            and all(a < b for a, b in pairwise(ids))
            and frame.after < ids[0]
        )

    def _take(self, now: Nanos, peer: NodeId, frame: Outputs, out: Outbox) -> None:
        ahead = self._ahead.get(frame.group)
        known = ahead or self._marks.get(frame.group) or self._floors.get(frame.group)
        over = known.over if known is not None else ()
        if frame.group_epoch in over:
            self.ignored += 1
            return
        have = NOTHING
        if known is not None and known.group_epoch == frame.group_epoch:
            have = (known.position, known.k)
        elif known is not None:
            over = (*over, known.group_epoch)[-OVER_MAX:]
        # What is committed as arrived did arrive, possibly at an earlier incarnation of this node without durable
        # state.
        have = max(have, frame.floor)
        new: tuple[Output, ...] = ()
        if frame.after <= have:
            # rule: 10a
            new = tuple(
                Output(position, k, "", payload, frame.group_epoch)
                for position, k, payload in frame.items
                if (position, k) > have
            )
        if new:
            last = new[-1]
            self._ahead[frame.group] = Watermark(frame.group_epoch, last.position, last.k, over)
            # A duplicate caused by a crash has an id; a lost output would not be detected.
            after = NOTHING
            if ahead is not None and ahead.group_epoch == frame.group_epoch:
                after = (ahead.position, ahead.k)
            out.effect(OutputsReady(frame.group, new, frame.group_epoch, after), immediate=True)
        if frame.group in self._ahead:
            self._waiting.setdefault(frame.group, {})[peer] = None
            return
        mark = Watermark(frame.group_epoch, have[0], have[1], over)
        if frame.group not in self._marks:
            self._remember(frame.group, mark)
        elif mark != known:
            self._keep(frame.group, mark, out)
        self._answer(peer, frame.group, mark, now, out)

    def _taken(self, now: Nanos, item: OutputsTaken, out: Outbox) -> None:
        ahead = self._ahead.get(item.group)
        if ahead is None or item.group_epoch != ahead.group_epoch:
            return  # of an earlier epoch, which no longer matters
        reached = Watermark(ahead.group_epoch, item.position, item.k, ahead.over)
        waiting = self._waiting.get(item.group, {})
        if (item.position, item.k) >= (ahead.position, ahead.k):
            reached = self._ahead.pop(item.group)
            self._waiting.pop(item.group, None)
        self._keep(item.group, reached, out)
        for peer in waiting:
            self._answer(peer, item.group, reached, now, out)

    def _refused(self, item: OutputsRefused) -> None:
        ahead = self._ahead.get(item.group)
        if ahead is not None and ahead.group_epoch == item.group_epoch:
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
        answer = OutputsAck(group, mark.group_epoch, mark.position, mark.k)
        if peer == self._node:
            out.up(replica_unit(group), Received(self._node, [answer], now))
        else:
            post(out, [peer], answer)

    def status(self) -> dict[str, object]:
        return {
            group: {"position": mark.position, "k": mark.k} for group, mark in self._marks.items()
        }
