"""Flow control between neighbours: a window of messages per link, and a bounded queue behind it.

A node that cannot pass messages on stops giving credit back, so its neighbours wait, and theirs, up to the senders. A
queue that is full refuses: the copy ends with `refused`, it does not vanish.
"""

from __future__ import annotations

from holdfast.overlay.frames import Credit, Message
from holdfast.overlay.hub import Hub, Neighbour
from holdfast.types import NodeId


class Flow:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.queued = 0

    def send(self, peer: NodeId, message: Message) -> bool:
        """False when the queue for this neighbour is full."""
        neighbour = self._hub.neighbours.get(peer)
        if neighbour is None or not (neighbour.echoed and neighbour.epoch):
            return False
        if neighbour.credit > 0 and not neighbour.queue:
            neighbour.credit -= 1
            self._hub.send(peer, message)
            return True
        if len(neighbour.queue) >= self._hub.config.queue_max:
            self._hub.count("queue_full")
            return False
        neighbour.queue.append(message)
        self.queued += 1
        return True

    def arrived(self, neighbour: Neighbour) -> bool:
        """A message came and has been counted in `owed`, which is half of the window or more. False when the neighbour
        ignores its window: the message is refused."""
        if neighbour.owed > 2 * self._hub.config.credit:
            self._hub.count("window_ignored")
            return False
        self._pay(neighbour)
        return True

    def _pay(self, neighbour: Neighbour) -> None:
        config = self._hub.config
        if neighbour.owed * 2 >= config.credit and self.queued < config.queue_max:
            self._hub.send(neighbour.peer, Credit(neighbour.owed))
            neighbour.owed = 0

    def credited(self, peer: NodeId, frame: Credit) -> None:
        neighbour = self._hub.neighbours[peer]
        if not 0 < frame.messages <= 4 * self._hub.config.credit:
            self._hub.count("bad_credit")
            return
        neighbour.credit = min(neighbour.credit + frame.messages, self._hub.config.credit)
        before = self.queued
        while neighbour.queue and neighbour.credit > 0:
            neighbour.credit -= 1
            self.queued -= 1
            self._hub.send(peer, neighbour.queue.popleft())
        if before >= self._hub.config.queue_max > self.queued:
            for other in self._hub.open_peers:
                self._pay(self._hub.neighbours[other])

    def link_down(self, neighbour: Neighbour) -> None:
        self.queued -= len(neighbour.queue)
        neighbour.queue.clear()
