"""A domain that exists only as a status: nodes, subnets, and faults that tests put in while somebody looks."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from holdfast.health.verdict import judge, vector_of

TRANSPORTS = {"tcp": 65000, "udp": 9000}


class FakeDomain:
    """Makes the status that node `n1` would tell. All times stand still unless a test moves them."""

    def __init__(self, nodes: int = 3, subnets: tuple[str, ...] = ("red", "blue")) -> None:
        self.names = [f"n{i}" for i in range(1, nodes + 1)]
        self.subnets = subnets
        self.down: set[str] = set()
        self.faults: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.uptime_s = 754.2
        self.commit = 120_431
        self.behind: dict[str, int] = {}
        self.extra: dict[str, Any] = {}
        self.asked = 0

    def fault(self, sender: str, listener: str, subnet: str, transport: str, **values: Any) -> None:
        """Make one path different, as `size=1000` or `alive=False`, and tell it as an event."""
        self.faults[sender, listener, subnet, transport] = values
        self.event("path", f"{sender} -> {listener} on {subnet} ({transport}): {values}")

    def heal(self) -> None:
        self.faults.clear()
        self.event("path", "all faults are gone")

    def event(self, kind: str, text: str) -> None:
        n = len(self.events)
        at = f"2026-11-15T12:{n // 60:02d}:{n % 60:02d}+00:00"
        self.events.append({"at": at, "kind": kind, "text": text})

    def status(self) -> dict[str, Any]:
        self.asked += 1
        me = self.names[0]
        return {
            "schema": 1,
            "node": self._node(me),
            "members": [self._member(i, name) for i, name in enumerate(self.names)],
            "paths": self._paths(),
            "paths_left_out": 0,
            "lag_ms": 0,
            "incidents": [],
            "links": [self._link(name) for name in self.names[1:]],
            "groups": [self._group(me)],
            "sources": [self._source()],
            "events": list(self.events),
            "queues": {"intake": 0},
            "telemetry": {"facts": 18_204, "lost": 0},
            **self.extra,
        }

    def _source(self) -> dict[str, Any]:
        return {
            "group": "book",
            "stream": f"{'00' * 15}01/3/0",
            "last": 48_000,
            "freed": 47_990,
            "forgotten": 47_995,
            "held": 1_480,
            "kept": 740,
            "queued": 0,
            "window": 16 << 20,
            "refused": 0,
            "ignored": 0,
            "replicas": list(self.names),
        }

    def _node(self, me: str) -> dict[str, Any]:
        return {
            "id": "00" * 15 + "01",
            "name": me,
            "domain": "demo",
            "incarnation": 3,
            "started_at": "2026-11-15T12:00:00+00:00",
            "uptime_s": self.uptime_s,
            "security": "tls",
            "version": "0.1.0",
            "stopped_units": [],
            "stopped": "",
        }

    def _member(self, i: int, name: str) -> dict[str, Any]:
        adapters = [
            {
                "name": subnet,
                "subnet": subnet,
                "address": f"127.0.{j + 1}.{i + 1}:7000",
                "transports": list(TRANSPORTS),
            }
            for j, subnet in enumerate(self.subnets)
        ]
        return {
            "id": f"{i + 1:032x}",
            "name": name,
            "incarnation": 1 + i % 3,
            "state": "down" if name in self.down else "up",
            "since_s": self.uptime_s - i,
            "adapters": adapters,
        }

    def _paths(self) -> list[dict[str, Any]]:
        rows = []
        for subnet in self.subnets:
            for sender in self.names:
                for listener in self.names:
                    if sender != listener:
                        rows += self._kinds(sender, listener, subnet)
        return rows

    def _kinds(self, sender: str, listener: str, subnet: str) -> list[dict[str, Any]]:
        rows = [self._path(sender, listener, subnet, t) for t in TRANSPORTS]
        verdict = json.loads(msgspec.json.encode(judge(map(vector_of, rows))))
        return [{**row, "state": judge([vector_of(row)]).state, "verdict": verdict} for row in rows]

    def _path(self, sender: str, listener: str, subnet: str, transport: str) -> dict[str, Any]:
        size = TRANSPORTS[transport]
        return {
            "sender": sender,
            "sender_adapter": subnet,
            "listener": listener,
            "listener_adapter": subnet,
            "subnet": subnet,
            "transport": transport,
            "alive": not self.down & {sender, listener},
            "size": size,
            "size_max": size,
            "loss_ppm": 0,
            "rtt_us": 212,
            "since_s": 31.0,
            "holes": [],
            "patterns": [],
            "bad_patterns": [],
            "jitter_us": 0,
            "rate_kbps": 0,
            "flows": 0,
            "flows_bad": 0,
            "errors": [],
            "stale": listener in self.down,
            **self.faults.get((sender, listener, subnet, transport), {}),
        }

    def _link(self, peer: str) -> dict[str, Any]:
        alive = peer not in self.down
        flows = [
            {"path": f"{s}/{s}/{t}", "ready": alive, "alive": alive, "size": size}
            for s in self.subnets
            for t, size in TRANSPORTS.items()
        ]
        path = flows[0]["path"] if alive else ""
        channels = [
            {
                "channel": n,
                "path": path,
                "queued": 0,
                "reason": "the best when it was placed",
                "unacked": n * 3,
                "sent": 12_300 * (n + 1),
                "received": 9_931,
                "moves": n,
            }
            for n in (0, 1)
        ]
        state = "up" if alive else "down"
        return {"peer": peer, "state": state, "session": 7, "flows": flows, "channels": channels}

    def _group(self, me: str) -> dict[str, Any]:
        replicas = [name for name in self.names[1:5] if name not in self.down]
        return {
            "name": "book",
            "state": "leading",
            "leader": me,
            "term": 4,
            "commit": self.commit,
            "applied": self.commit - 2,
            "position": 48_000_120,
            "digest": "9af3c01d",
            "peers": [
                {"name": name, "match": self.commit - self.behind.get(name, 0), "held": 1_480}
                for name in replicas
            ],
            "lag": 2,
        }
