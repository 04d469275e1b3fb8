"""Metrics of members and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.subsystem import Family
from holdfast.subsystem.metrics import counted, rows

_LINK: Final = {
    "queued": "Bytes waiting to be sent, over all channels.",
    "unacked": "Bytes sent and not acknowledged, over all channels.",
    "moves": "How often a channel changed its path.",
}


def link_metrics(status: Mapping[str, Any]) -> Iterator[Family]:
    members = Counter(str(member.get("state", "unknown")) for member in rows(status, "members"))
    help_text = "Members of the domain, by state."
    yield "holdfast_members", "gauge", help_text, counted("state", members)
    failing: list[tuple[Mapping[str, object], Any]] = [
        ({"address": row.get("address", ""), "reason": row.get("reason", "")}, row.get("tries", 0))
        for row in rows(status, "joining")
    ]
    help_text = "Failed attempts to join through an address of the configuration."
    yield "holdfast_join_failures", "gauge", help_text, failing
    for key, help_text in _LINK.items():
        samples: list[tuple[Mapping[str, object], Any]] = [
            ({"peer": link.get("peer", "")}, sum(c.get(key) or 0 for c in rows(link, "channels")))
            for link in rows(status, "links")
        ]
        yield f"holdfast_link_{key}", "gauge", help_text, samples
