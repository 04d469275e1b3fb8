"""A small domain as paths: who sends to whom, over which adapters, plugged in where."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NODES = tuple("abcdefgh")
ADAPTERS = ("eth0", "eth1")


def realm_of(node: str) -> str:
    """The first half of the nodes is in one realm."""
    return "east" if node in NODES[:4] else "west"


def port_of(node: str) -> str:
    """Two nodes share a port, as blades of one chassis do."""
    return str(NODES.index(node) // 2)


def grid(failing: dict[str, str] | None = None) -> pd.DataFrame:
    """All paths between all nodes on two subnets; `failing` has column values that mark failing paths."""
    import pandas as pd

    rows = [
        {
            "sender": sender,
            "sender_adapter": adapter,
            "listener": listener,
            "listener_adapter": adapter,
            "subnet": f"lan{adapter[-1]}",
            "transport": "udp",
            "sender_realm": realm_of(sender),
            "listener_realm": realm_of(listener),
            "sender_switch": f"sw-{realm_of(sender)}-{adapter}",
            "listener_switch": f"sw-{realm_of(listener)}-{adapter}",
            "sender_port": port_of(sender),
            "listener_port": port_of(listener),
        }
        for sender, listener, adapter in product(NODES, NODES, ADAPTERS)
        if sender != listener
    ]
    frame = pd.DataFrame(rows)
    frame["failing"] = False
    if failing:
        frame["failing"] = match(frame, failing)
    return frame


def match(frame: pd.DataFrame, wanted: dict[str, str]) -> pd.Series:
    """Rows that have all these values."""
    hit = frame["sender"] == frame["sender"]
    for column, value in wanted.items():
        hit &= frame[column] == value
    return hit
