"""One trial: a steady flow of messages between two nodes of a lab, a fault under it, and what becomes of both.

The fault is put on the very path that the flow uses. What is measured: how long until the listener's table says so,
until the flow has another path, and the longest time that any message took.
"""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.cli.lab.lab import Lab
from holdfast.cli.lab.member import PORT
from holdfast.errors import HoldfastError
from holdfast.types import MILLISECOND, SECOND

FLOW_BYTES: Final = 1200
FLOW_EVERY_MS: Final = 50
FILL: Final = "55"
"""What the messages consist of; in a plain domain it is what crosses the cable."""
LOSSY_PPM: Final = 50_000
_POLL_NS: Final = 20 * MILLISECOND
_SOUND_NS: Final = 60 * SECOND
_CALM_NS: Final = 2 * SECOND
"""A stream that was stuck may be given up only after the fault that stopped it is gone."""

CLASSES: Final = {
    "size": "over 1000",
    "pattern": "pattern 55555555",
    "udp_only": "filter udp",
    "multicast_only": "filter multicast",
    "one_direction": "blackout",
    "quarter_of_flows": "blackout share 25%",
    "loss_20": "loss 20%",
    "blackout": "blackout",
}
"""What is wrong, by class. Of the flows it is the quarter that the messages belong to."""
WAYS: Final = {"blackout": "<->"}
"""All others are one way only."""


class Outcome(msgspec.Struct, frozen=True):
    """What happened in one trial; -1 for what did not happen while it lasted."""

    fault: str
    alarm_ms: float
    moved_ms: float
    stall_ms: float
    """The longest time that a message of the flow took, or has been taking."""
    missing: int
    expelled: int
    """Members that a node held for anything but up, and sessions that ended."""
    accused: tuple[str, ...] = ()
    """Paths that the fault does not concern, and of which the two nodes said something bad."""


class Trial:
    """Trials one after the other in one lab, from its host n1 to its host n2."""

    def __init__(self, lab: Lab, sender: str = "n1", listener: str = "n2") -> None:
        self.lab = lab
        self.sender = sender
        self.listener = listener

    def start_flow(self) -> None:
        self.lab.warm_up()
        self.lab.ask(
            self.sender,
            "flow",
            to=self.listener,
            size=FLOW_BYTES,
            every_ms=FLOW_EVERY_MS,
            fill=FILL,
        )

    def run(self, what: str, ways: str = "->", seconds: float = 5.0) -> Outcome:
        """Break the path in use, watch for so long, heal. `ways` is `->`, `<-` (the way back only) or `<->`."""
        self.wait_sound()
        path, what = self._aim(what)
        subnet = path.partition("/")[0]
        ends = (self.listener, self.sender) if ways == "<-" else (self.sender, self.listener)
        fault = f"{subnet} {ends[0]}{'<->' if ways == '<->' else '->'}{ends[1]} {what}"
        self.lab.ask(self.listener, "flows", reset=True)
        ended = self._ended()
        began = monotonic_ns()
        self.lab.break_(fault)
        alarm = moved = 0
        outsiders = 0
        accused: dict[str, None] = {}
        while monotonic_ns() - began < seconds * SECOND:
            told = {host: self.lab.ask(host, "status") for host in (self.listener, self.sender)}
            now = monotonic_ns()
            bad = [row for row in told[ends[1]]["paths"] if unsound(row)]
            mine = [row for row in bad if _is_on(row, subnet, ends)]
            alarm = alarm or (now if mine else 0)
            if not moved and self._path_in(told[self.sender]) != path:
                moved = now
            outsiders = max(outsiders, *map(_outsiders, told.values()))
            innocent = [row for row in bad if not _is_on(row, subnet, {*ends})]
            accused |= dict.fromkeys(map(_name, innocent))
            time.sleep(_POLL_NS / SECOND)
        heard = self.lab.ask(self.listener, "flows")["heard"][self.sender]
        self.lab.heal()
        return Outcome(
            fault,
            _since(began, alarm),
            _since(began, moved),
            max(heard["latency_ms_max"], heard["gap_ms_max"] - FLOW_EVERY_MS),
            heard["missing"],
            outsiders + self._ended() - ended,
            tuple(accused),
        )

    def path_in_use(self) -> str:
        """The path of the flow, as adapter/adapter/transport."""
        path = self._path_in(self.lab.ask(self.sender, "status"))
        if not path:
            raise HoldfastError(f"node {self.sender} has no flow to {self.listener}")
        return path

    def _path_in(self, status: dict[str, Any]) -> str:
        for link in status["links"]:
            if link["peer"] == self.listener:
                for channel in link["channels"]:
                    if channel["channel"] == PORT:
                        return str(channel["path"])
        return ""

    def _aim(self, what: str) -> tuple[str, str]:
        """The path in use, and the fault such that it hits the flow on it: of the flows, the quarter that it is in."""
        path = self.path_in_use()
        while " share " in what:
            quarter = self._quarter_in_use(path)
            before, path = path, self.path_in_use()
            if path == before:
                return path, f"{what} from {quarter}%"
        return path, what

    def _quarter_in_use(self, path: str) -> int:
        """Which quarter of the flows the messages belong to: the one with the most packets of their size."""
        subnet, _, transport = path.partition("+")[0].split("/")
        watch = f"{subnet} {self.sender}->{self.listener} watch {FLOW_BYTES - 200} only {transport}"
        quarters = (0, 25, 50, 75)
        self.lab.break_(*(f"{watch} share 25% from {start}%" for start in quarters))
        time.sleep(1.0)
        counts = [fault["packets"] for fault in self.lab.status()["faults"]]
        self.lab.heal()
        return quarters[counts.index(max(counts))]

    def _ended(self) -> int:
        sent = self.lab.ask(self.sender, "flows")["sent"]
        return int(sent[self.listener]["ended"])

    def wait_sound(self) -> None:
        """Until nobody has had anything to complain about for a while, and the flow stays where it is."""
        deadline = monotonic_ns() + _SOUND_NS
        since, path = 0, ""
        while True:
            worst = [
                row
                for host in (self.sender, self.listener)
                for row in self.lab.ask(host, "status")["paths"]
                if unsound(row) or not settled(row)
            ]
            flows = self.lab.ask(self.listener, "flows")["heard"].get(self.sender)
            before, path = path, self.path_in_use()
            sound = not worst and flows and flows["messages"] and path == before
            since = (since or monotonic_ns()) if sound else 0
            if since and monotonic_ns() - since >= _CALM_NS:
                return
            if monotonic_ns() > deadline:
                raise HoldfastError(
                    f"the lab was not sound within {_SOUND_NS // SECOND} s: {worst[:3]}, flow {flows}"
                )
            time.sleep(0.1)


def unsound(row: dict[str, Any]) -> bool:
    """Whether a row of the path table says that something is wrong."""
    return bool(
        not row["alive"]
        or row["size"] < row["size_max"]
        or row["loss_ppm"] >= LOSSY_PPM
        or row.get("holes")
        or row.get("bad_patterns")
        or row.get("flows_bad")
    )


def _is_on(row: dict[str, Any], subnet: str, ends: tuple[str, str] | set[str]) -> bool:
    """Whether a row is about a path between two ends: in that order, or in any when they are a set."""
    found = (row["sender"], row["listener"])
    return row["subnet"] == subnet and (
        set(found) == ends if isinstance(ends, set) else found == ends
    )


def _name(row: dict[str, Any]) -> str:
    return f"{row['subnet']} {row['sender']}->{row['listener']} {row['transport']}"


def settled(row: dict[str, Any]) -> bool:
    """Whether a row shows no trace of a fault that was there."""
    return bool(row["loss_ppm"] < LOSSY_PPM // 2)


def _outsiders(status: dict[str, Any]) -> int:
    return sum(1 for member in status["members"] if member["state"] != "up")


def _since(began: int, when: int) -> float:
    return round((when - began) / MILLISECOND, 1) if when else -1.0
