"""Whether a group can still remember what it delivered.

In `memory` a process that ends takes with it what it acknowledged. As long as a majority of the voters has not ended
since it was whole, everything that was committed is somewhere, and must stay in the order. When more have ended the
group has *lost its memory*: its life is over, and what is founded in its place is another one, with an order of its
own. A `durable` group never loses its memory.

A replica's own word is taken for whether it is whole. One that says so too early is then held to it.
"""

from __future__ import annotations

from holdfast.sim.checkers.sight import BLANK, Sight


class Memory:
    """Of one group: whose memory counts, and which life of the group this is."""

    def __init__(self, voters: tuple[str, ...], durable: bool = False) -> None:
        self.voters = voters
        self.durable = durable
        self.life = 1
        self.survivors: dict[tuple[str, int], None] = {}
        """Processes of an earlier life that still run; they may hold another order."""
        self._holds: dict[str, int] = {}
        """Per voter: the boot in which it has taken part."""
        self._forgot: dict[str, None] = {}
        """Voters that took part, ended, and are not whole again."""
        self._running: dict[str, int] = {}

    def see(self, sight: Sight) -> None:
        self._running[sight.host] = sight.boots
        if sight.memory != BLANK:
            self._holds[sight.host] = sight.boots
        if sight.memory == "whole":
            self._forgot.pop(sight.host, None)

    def ended(self, host: str, boots: int) -> bool:
        """A process is gone; True when that was the end of the group's memory."""
        self._running.pop(host, None)
        self.survivors.pop((host, boots), None)
        took_part = self._holds.pop(host, None) == boots
        if self.durable or not took_part or host not in self.voters:
            return False
        self._forgot[host] = None
        forgot = sum(voter in self._forgot for voter in self.voters)
        if len(self.voters) - forgot >= len(self.voters) // 2 + 1:
            return False
        self.life += 1
        self._forgot.clear()
        self._holds.clear()
        self.survivors = dict.fromkeys(self._running.items())
        return True

    def restored(self, life: tuple[str, int]) -> None:
        """A survivor has been given a state: it belongs to the new life."""
        self.survivors.pop(life, None)
