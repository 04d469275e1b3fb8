"""Listener ports by protocol id, deliveries, and snooping (seed: 'Listeners', 'Snooping', 'Message Listening').

A message with a protocol id goes to the port of that id, one without to every port that is bound to the tree. A port
that snoops is shown messages and replies that pass, and decides: continue, change, suspend, consume. What is
suspended and not resumed is swept and reported; the copy then ends by name (rule 2).
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.hub import Hub, Timer
from holdfast.overlay.ports import (
    CHANGE,
    CONSUME,
    CONTINUE,
    SUSPEND,
    ClosePort,
    OpenPort,
    Snooped,
    SnoopVerdict,
)

PORTS_MAX = 4096

Verdict = Callable[[int, bytes], None]
"""Called with CONTINUE, CHANGE or CONSUME and the data."""


class _Suspended:
    __slots__ = ("data", "decide", "timer", "tree")

    def __init__(self, data: bytes, tree: bytes, decide: Verdict, timer: Timer) -> None:
        self.data = data
        self.tree = tree
        self.decide = decide
        self.timer = timer


class Listeners:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ports: dict[int, OpenPort] = {}
        self._suspended: dict[int, _Suspended] = {}
        self.snoops = 0
        """Ports that snoop; mostly none."""

    def open(self, port: OpenPort) -> None:
        if port.protocol not in self._ports and len(self._ports) >= PORTS_MAX:
            self._hub.count("ports_full")
            return
        self._ports[port.protocol] = port
        self.snoops = sum(p.snoop for p in self._ports.values())

    def close(self, port: ClosePort) -> None:
        self._ports.pop(port.protocol, None)
        self.snoops = sum(p.snoop for p in self._ports.values())

    def ports_for(self, tree: bytes, protocol: int) -> list[int]:
        if protocol:
            return [protocol] if protocol in self._ports else []
        return [number for number, port in self._ports.items() if tree in port.trees]

    def snooper(self, tree: bytes, protocol: int) -> int | None:
        """The port that wants to see what passes on this tree, if any."""
        if not self.snoops:
            return None
        for number, port in self._ports.items():
            if not port.snoop or (protocol and number != protocol):
                continue
            if not port.snoop_trees or tree in port.snoop_trees:
                return number
        return None

    # -- suspended messages and replies --------------------------------------------------------------------------

    def show(self, snooped: Snooped, decide: Verdict, swept: Callable[[], None]) -> bool:
        """Show it to the snooper and hold it. False when too many are held: then it passes unseen."""
        hub = self._hub
        if len(self._suspended) >= hub.config.suspended_max:
            hub.count("suspended_full")
            return False
        timer = hub.after(
            hub.config.suspended_ns, lambda: self._sweep(snooped.token, snooped.tree, swept)
        )
        self._suspended[snooped.token] = _Suspended(snooped.data, snooped.tree, decide, timer)
        hub.effect(snooped)
        return True

    def _sweep(self, token: int, tree: bytes, swept: Callable[[], None]) -> None:
        if self._suspended.pop(token, None) is not None:
            self._hub.count("swept")
            self._hub.event("swept", tree=tree)
            swept()

    def verdict(self, verdict: SnoopVerdict) -> None:
        held = self._suspended.get(verdict.token)
        if held is None:
            self._hub.count("verdict_without_message")
            return
        if verdict.action == SUSPEND:
            return
        if verdict.action not in (CONTINUE, CHANGE, CONSUME):
            self._hub.count("bad_verdict")
            return
        del self._suspended[verdict.token]
        held.timer.cancel()
        held.decide(verdict.action, verdict.data if verdict.action == CHANGE else held.data)

    def forget(self, token: int) -> None:
        held = self._suspended.pop(token, None)
        if held is not None:
            held.timer.cancel()

    def held(self) -> int:
        return len(self._suspended)
