"""A small domain with everything in it that the report has a place for."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.making import Fact, delivery, fact, path_fact, write_segment

NODES = ("alba", "brno", "cork", "delft", "evora", "faro")
MINUTES = 40


def paths_of(listener: str, hour_s: float = 0.0) -> list[Fact]:
    """Forty minutes of what one node hears: samples each minute, and the troubles below."""
    timeline: list[tuple[float, dict[str, object]]] = []
    for sender in NODES:
        if sender == listener:
            continue
        for subnet, adapter in (("lan1", "eth0"), ("lan2", "eth1")):
            where = {"subnet": subnet, "sender_adapter": adapter, "listener_adapter": adapter}
            for transport in ("tcp", "udp"):
                path: dict[str, object] = {**where, "sender": sender, "transport": transport}
                if transport == "tcp":
                    path |= {"size": 0, "size_max": 0}
                spread = (len(sender) * 7 + ord(listener[0]) * 3 + ord(sender[0])) % 20
                timeline += [
                    (
                        60.0 * minute + spread,
                        {**path, "event": "sample"}
                        | _state(path, listener, 60.0 * minute + spread),
                    )
                    for minute in range(MINUTES)
                ]
                timeline += [
                    (at_s, path | _state(path, listener, at_s)) for at_s in _changes(path, listener)
                ]
    timeline.sort(key=lambda item: item[0])
    facts = []
    for n, (at_s, fields) in enumerate(timeline):
        sender = str(fields.pop("sender"))
        size = int(str(fields.pop("size", 1472)))
        facts.append(path_fact(listener, sender, n, hour_s + at_s, size, **fields))
    return facts


TROUBLES = (
    # sender, listener, subnet, transport, from, to, what the listener then says
    ("alba", "cork", "lan1", "udp", 300, 900, {"size": 600}),
    ("alba", "cork", "lan1", "udp", 900, 1100, {"size": 1200}),
    ("brno", "delft", "lan2", "udp", 1500, 9_999, {"size": 576}),
    ("cork", "alba", "lan2", "udp", 700, 712, {"size": 1024, "heard": 7}),
    ("cork", "alba", "lan2", "udp", 1400, 1430, {"size": 1024, "heard": 7}),
    *(
        ("evora", node, "lan1", transport, 1200, 1800, {"alive": False, "heard": 0})
        for node in NODES
        for transport in ("tcp", "udp")
    ),
    ("faro", "brno", "lan2", "udp", 2000, 9_999, {"alive": False, "heard": 0}),
    ("faro", "brno", "lan2", "tcp", 2000, 9_999, {"alive": False, "heard": 0}),
    ("delft", "evora", "lan1", "udp", 100, 9_999, {"heard": 9}),
)


def _state(path: dict[str, object], listener: str, at_s: float) -> dict[str, object]:
    rtt: dict[str, object] = {"rtt_us": 180 + (round(at_s) * 37) % 90}
    for sender, hears, subnet, transport, start, end, says in TROUBLES:
        here = (path["sender"], listener, path["subnet"], path["transport"])
        if here == (sender, hears, subnet, transport) and start <= at_s < end:
            return rtt | says
    return rtt


def _changes(path: dict[str, object], listener: str) -> list[float]:
    here = (path["sender"], listener, path["subnet"], path["transport"])
    return [
        float(at_s)
        for *where, start, end, _ in TROUBLES
        if here == tuple(where)
        for at_s in (start, end)
        if at_s < MINUTES * 60
    ]


def write_domain(landing: Path) -> None:
    """Telemetry of six nodes, with two groups: one agrees, one does not."""
    for name in NODES:
        write_segment(landing, "node", [fact("node", name, 0, 0.0, event="start")])
        write_segment(landing, "path", paths_of(name))
    for name in NODES[:3]:
        good = [
            delivery(name, n, n + 1, n * 50, n * 50 + 1, n * 50 + 50, group="orders", stream="a/1")
            for n in range(200 if name != "cork" else 180)
        ]
        bad = [
            delivery(name, len(good) + n, n + 1, n * 10, n * 10 + 1, n * 10 + 10, group="stock")
            for n in range(40)
        ]
        if name == "brno":
            bad[17]["digest"] = 77
        facts = good + bad
        if name == "alba":
            del facts[20:22]
            write_segment(
                landing,
                "lost",
                [
                    fact(
                        "lost",
                        name,
                        0,
                        99.0,
                        lost_kind="delivery",
                        first=20,
                        last=20,
                        reason="buffer full",
                    )
                ],
            )
        write_segment(landing, "delivery", facts)
        write_segment(
            landing, "group", [fact("group", name, 0, 0.0, group="orders", event="follows")]
        )
