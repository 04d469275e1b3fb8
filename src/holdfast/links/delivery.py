"""Checks whether datagrams of applications arrive: real traffic is evidence, too.

Datagrams are not acknowledged. While an application sends some, the link periodically asks the peer how many have
arrived on the flow, on another path if there is one. If at least `FRAMES_MIN` were sent and none has arrived by the
following question, application data does not pass there:

- the sender avoids the flow for a while, so the datagrams use another path;
- the listener informs health (`DataMissing`), which publishes it if heartbeats arrive on that flow and no probe
  explains it.

One question in `ASK_NS` is about two per cent of a flow of 1200 bytes every 50 ms.
"""

from __future__ import annotations

from typing import Final

from holdfast.links.delivery_watch import FRAMES_MIN
from holdfast.links.flow import FlowState
from holdfast.links.flow_selection import FlowSelection, PlainFlowChoice
from holdfast.links.ports import DATAGRAMS
from holdfast.types import MILLISECOND, FlowId, Nanos
from holdfast.wire.codec import encode
from holdfast.wire.frames import DeliveryQuery, DeliveryReport

ASK_NS: Final = 250 * MILLISECOND


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
            if flow.raw_sent - flow.asked_sent < FRAMES_MIN or now < flow.asked_at + ASK_NS:
                continue
            flow.asked_at, flow.asked_sent = now, flow.raw_sent
            other = self._selection.another(now, self._choice, flow) or flow
            other.parts.append(encode(DeliveryQuery(flow.remote_path, flow.raw_sent)))

    def reported(self, now: Nanos, frame: DeliveryReport) -> None:
        """The peer reports what has arrived: a flow on which nothing arrives is avoided."""
        for flow in self._flows.values():
            if flow.path != frame.path or frame.sent > flow.raw_sent:
                continue
            flow.delivery.take(now, frame.sent, frame.received)
            if flow.delivery.fails:
                flow.delivery.forget(flow.raw_sent)
                flow.shun(now + self._shun_ns, f"application data does not pass on {flow.path}")
