"""One trial: a steady flow of messages between two nodes of a lab, a fault on its path, and the effect on both.

The fault is injected on the path that the flow uses; the switch counted packets of the flow there just before. If the
flow is elsewhere, the trial is refused. Measured are the time until the table of the listener shows the fault, the time
until the flow uses another path, and the longest delay of a message.
"""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.health.config import RUNGS
from holdfast.health.verdict import DEAD, LOSSY_PPM, SOFT, judge, vector_of
from holdfast.lab.lab import Lab
from holdfast.lab.member import CHANNEL, DATAGRAMS, PORT
from holdfast.types import MILLISECOND, SECOND

FLOW_BYTES: Final = 1200
FLOW_EVERY_MS: Final = 50
FILL: Final = "55"
"""The contents of the messages; in a plain domain they cross the wire unchanged."""
_POLL_NS: Final = 20 * MILLISECOND
_SOUND_NS: Final = 60 * SECOND
_LOOK_S: Final = 1.0
_AIMS_MAX: Final = 5
_CROSSING: Final = 0.7
"""The minimum share of the messages that must be seen on the path: a busy machine sends some of them late."""
_CALM_NS: Final = 4 * SECOND
"""A blocked stream may be closed only after the fault is removed, and the budget of the heartbeats must have recovered
from the last fault."""

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
"""The fault per class. `share` faults select the quarter of the flows that contains the messages."""
WAYS: Final = {"blackout": "<->"}
"""All others are one way only."""


class Flow(msgspec.Struct, frozen=True):
    """How the messages travel."""

    by: str = CHANNEL
    protocol: str = ""
    """What its path must carry: `udp`, `tcp` or `multicast`."""
    text: str = "a channel: every message arrives, in order"


ANY_CHANNEL: Final = Flow()
FLOWS: Final = {
    "udp_only": Flow(
        DATAGRAMS,
        text="datagrams over UDP: those that the fault drops are lost and counted as missing",
    ),
    "multicast_only": Flow(
        protocol="multicast",
        text="a channel that needs a path with multicast. Holdfast multicasts only heartbeats and "
        "probes, so no message is lost; measured is how soon the channel leaves the path",
    ),
}
"""Flows that their class of faults affects; others use a channel without further needs."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of one trial; -1 for what did not happen in time."""

    fault: str
    alarm_ms: float
    moved_ms: float
    stall_ms: float
    """The longest delay of a message of the flow, including undelivered ones."""
    missing: int
    expelled: int
    """Members that a node reported as not up, and sessions that ended."""
    accused: tuple[str, ...] = ()
    """Unaffected paths about which the two nodes reported an error."""
    errors: tuple[tuple[str, str, str], ...] = ()
    """What the listener reports about the path at the end: error classes, packet kind, direction."""
    packets_per_s: float = 0.0
    """Packets of the flow that the switch counted on the path just before the fault."""


class Trial:
    """Trials in one lab, one after the other, from its host n1 to its host n2."""

    def __init__(self, lab: Lab, sender: str = "n1", listener: str = "n2") -> None:
        self.lab = lab
        self.sender = sender
        self.listener = listener
        self.flow: Flow | None = None

    def start_flow(self, flow: Flow = ANY_CHANNEL) -> None:
        """Use this flow from now on."""
        if flow == self.flow:
            return
        self.lab.warm_up()
        self.flow = flow
        self.lab.ask(
            self.sender,
            "flow",
            to=self.listener,
            size=FLOW_BYTES,
            every_ms=FLOW_EVERY_MS,
            fill=FILL,
            by=flow.by,
            protocol=flow.protocol,
        )

    def run(
        self, what: str, ways: str = "->", seconds: float = 5.0, flow: Flow = ANY_CHANNEL
    ) -> Outcome:
        """Break the path in use, watch for this long, heal. `ways` is `->`, `<-` (the reverse direction only) or
        `<->`."""
        self.start_flow(flow)
        self.wait_sound()
        path, what, packets_per_s = self._aim(what)
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
        errors = self._errors(subnet, ends)
        self.lab.heal()
        return Outcome(
            fault,
            _since(began, alarm),
            _since(began, moved),
            max(heard["latency_ms_max"], heard["gap_ms_max"] - FLOW_EVERY_MS),
            heard["missing"],
            outsiders + self._ended() - ended,
            tuple(accused),
            errors,
            packets_per_s,
        )

    def _errors(self, subnet: str, ends: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
        """The errors that the listener of a path reports, one for each kind of packets that shows it. In a lab,
        adapters are named like their subnet."""
        incidents = self.lab.ask(ends[1], "health", what="incidents")["incidents"]
        path = f"{ends[0]}/{subnet} -> {ends[1]}/{subnet}"
        mine = [one for one in incidents if path in one["paths"]]
        return tuple(
            sorted(
                (one["error_class"], kind, one["direction"])
                for one in mine
                for kind in one["kinds"] or (one["transport"],)
            )
        )

    def path_in_use(self) -> str:
        """The path of the flow, as adapter/adapter/transport."""
        path = self._path_in(self.lab.ask(self.sender, "status"))
        if not path:
            raise HoldfastError(f"node {self.sender} has no flow to {self.listener}")
        return path

    def _path_in(self, status: dict[str, Any]) -> str:
        datagrams = self.flow is not None and self.flow.by == DATAGRAMS
        lanes, name = ("datagrams", "port") if datagrams else ("channels", "channel")
        for link in status["links"]:
            if link["peer"] == self.listener:
                for lane in link[lanes]:
                    if lane[name] == PORT:
                        return str(lane["path"])
        return ""

    def _aim(self, what: str) -> tuple[str, str, float]:
        """The path in use, the fault adapted to the flow on it (the quarter of the flows that contains it), and the
        packets of the flow per second."""
        for _ in range(_AIMS_MAX):
            path = self.path_in_use()
            quarter, packets_per_s = self._look_at(path)
            if path == self.path_in_use():
                break
        else:
            raise HoldfastError("the flow does not stay on one path; nothing was broken")
        if packets_per_s < _CROSSING * SECOND / (FLOW_EVERY_MS * MILLISECOND):
            raise HoldfastError(
                f"{packets_per_s} packets of the flow in a second on {path}: it is not there; nothing was broken"
            )
        return path, f"{what} from {quarter}%" if " share " in what else what, packets_per_s

    def _look_at(self, path: str) -> tuple[int, float]:
        """The quarter of the flows that contains the messages, which is the one with the most packets of their size,
        and their number per second. Messages are distinguished from probes by their length."""
        subnet, _, transport = path.partition("+")[0].split("/")
        watch, only = f"{subnet} {self.sender}->{self.listener} watch", f"only {transport}"
        quarters = (0, 25, 50, 75)
        probes = [size for size in (*RUNGS, self.lab.plan.mtu) if size > FLOW_BYTES]
        edges = [FLOW_BYTES, *(size - over for size in sorted({*probes}) for over in (1, 0))]
        began = monotonic_ns()
        names = self.lab.break_(
            *(f"{watch} {FLOW_BYTES - 200} {only} share 25% from {start}%" for start in quarters),
            *(f"{watch} {edge} {only}" for edge in edges),
        )
        time.sleep(_LOOK_S)
        counts = {fault["name"]: fault["packets"] for fault in self.lab.status()["faults"]}
        took_s = (monotonic_ns() - began) / SECOND
        self.lab.heal(*names)
        here, longer = [counts[name] for name in names[:4]], [counts[name] for name in names[4:]]
        messages = sum(longer[::2]) - sum(longer[1::2])
        return quarters[here.index(max(here))], round(messages / took_s, 1)

    def _ended(self) -> int:
        sent = self.lab.ask(self.sender, "flows")["sent"]
        return int(sent[self.listener]["ended"])

    def wait_sound(self) -> None:
        """Wait until no error was reported for a while, and the flow stays on its path."""
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
                    f"the lab was not healthy within {_SOUND_NS // SECOND} s: {worst[:3]}, flow {flows}"
                )
            time.sleep(0.1)


def unsound(row: dict[str, Any]) -> bool:
    """Whether a row of the path table shows an error."""
    return judge([vector_of(row)]).state in (DEAD, SOFT)


def _is_on(row: dict[str, Any], subnet: str, ends: tuple[str, str] | set[str]) -> bool:
    """Whether a row is about a path between two ends: in that order, or in any if they are a set."""
    found = (row["sender"], row["listener"])
    return row["subnet"] == subnet and (
        set(found) == ends if isinstance(ends, set) else found == ends
    )


def _name(row: dict[str, Any]) -> str:
    return f"{row['subnet']} {row['sender']}->{row['listener']} {row['transport']}"


def settled(row: dict[str, Any]) -> bool:
    """Whether a row shows no trace of a past fault."""
    return bool(row["loss_ppm"] < LOSSY_PPM // 2)


def _outsiders(status: dict[str, Any]) -> int:
    return sum(1 for member in status["members"] if member["state"] != "up")


def _since(began: int, when: int) -> float:
    return round((when - began) / MILLISECOND, 1) if when else -1.0
