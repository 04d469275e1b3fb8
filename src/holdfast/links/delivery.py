"""Checks whether datagrams of applications arrive: real traffic is evidence, too.

Datagrams are not acknowledged. While an application sends some, the link periodically asks the peer how many have
arrived on the flow, on another path if there is one. If at least `FRAMES_MIN` were sent and none has arrived by the
following question, application data does not pass there:

- the sender avoids the flow for a while, so the datagrams use another path;
- the listener informs health (`DataMissing`), which publishes it if heartbeats arrive on that flow and no probe
  explains it.

From then on the sender repeats a copy of one of the lost datagrams there, twice a second at first and ever more rarely:
at most once a minute. The peer counts the copies and discards them. When one arrives, the fault is over.

One question in `ASK_NS` is about two per cent of a flow of 1200 bytes every 50 ms. The next one follows sooner if
nothing had arrived by the last one.
"""

from __future__ import annotations

from typing import Final

from holdfast.links.datagrams import copy_of
from holdfast.links.delivery_watch import FRAMES_MIN
from holdfast.links.flow import FlowState
from holdfast.links.flow_selection import FlowSelection, PlainFlowChoice
from holdfast.links.ports import DATAGRAMS
from holdfast.types import MILLISECOND, NEVER, SECOND, FlowId, Nanos
from holdfast.wire.codec import encode
from holdfast.wire.frames import DeliveryQuery, DeliveryReport

ASK_NS: Final = 250 * MILLISECOND
DOUBT_ASK_NS: Final = 120 * MILLISECOND
RETRY_NS: Final = 500 * MILLISECOND
RETRY_NS_MAX: Final = 60 * SECOND
_RARER: Final = 16
"""Copies are sent after each such part of the time for which they have failed, within these bounds."""


class Delivery:
    """The questions of one link about the datagrams that it sends."""

    def __init__(
        self, flows: dict[FlowId, FlowState], selection: FlowSelection, shun_ns: Nanos
    ) -> None:
        self._flows = flows
        self._selection = selection
        self._shun_ns = shun_ns
        self._choice = PlainFlowChoice(DATAGRAMS, True)

    def ask(self, now: Nanos) -> None:
        """Ask about each flow on which enough was sent since the last question."""
        for flow in self._flows.values():
            least, ask_ns = (1, DOUBT_ASK_NS) if flow.delivery.doubtful else (FRAMES_MIN, ASK_NS)
            if flow.raw_sent - flow.asked_sent < least or now < flow.asked_at + ask_ns:
                continue
            flow.asked_at, flow.asked_sent = now, flow.raw_sent
            self._query(now, flow)

    def _query(self, now: Nanos, flow: FlowState) -> None:
        other = self._selection.another(now, self._choice, flow) or flow
        other.parts.append(encode(DeliveryQuery(flow.remote_path, flow.raw_sent)))

    def retry(self, now: Nanos) -> Nanos:
        """Send a copy on each flow where datagrams were lost, and ask about it; returns when the next one is due."""
        due = NEVER
        for flow in self._flows.values():
            if not flow.lost:
                continue
            if now >= flow.retry_at:
                age_ns = max(0, now - flow.lost_at)
                flow.retry_at = now + min(max(RETRY_NS, age_ns // _RARER), RETRY_NS_MAX)
                copy = copy_of(flow.lost)
                if self._selection.usable(flow) and flow.credit and len(copy) <= flow.body_max:
                    flow.parts.append(copy)
                    flow.raw_sent += 1
                    self._query(now, flow)
            due = min(due, flow.retry_at)
        return due

    def reported(self, now: Nanos, frame: DeliveryReport) -> Nanos:
        """The peer reports what arrived: flows on which nothing does are avoided. Returns when `retry` is due."""
        due = NEVER
        for flow in self._flows.values():
            if flow.path != frame.path or frame.sent > flow.raw_sent:
                continue
            flow.delivery.take(now, frame.sent, frame.received)
            if flow.lost and frame.received > flow.lost_received:
                flow.lost = b""
                flow.shunned_until = min(flow.shunned_until, now)
            if flow.delivery.fails:
                flow.delivery.forget(flow.raw_sent)
                flow.shun(now + self._shun_ns, f"application data does not pass on {flow.path}")
                if not flow.lost and flow.raw_last:
                    flow.lost, flow.lost_at, flow.lost_received = flow.raw_last, now, frame.received
                    due = flow.retry_at = now + RETRY_NS
        return due
