"""A flow in doubt: acknowledgements of a channel do not arrive, and the cause is not known yet.

A flow is blamed only on evidence about this flow. A channel that waits too long therefore does not move at once:

1. It sends what is not acknowledged a second time, on another path, and from then on everything on both.
2. It asks the peer, on that other path, how many bytes of channels have arrived on the flow in doubt.
3. If all of them have, the flow delivers and the acknowledgements were lost or late: the doubt is over.
4. If they arrive later than the question did, the flow is slow: the channel uses both flows until health has had time
   to find the reason and move it.
5. If nothing more arrives there for a while although more is sent, the channel leaves the flow.
6. The first few kilobytes are also sent as small datagrams on every path, because all paths may have the same fault: a
   connection stops behind its first segment that is lost or too large. While nothing is acknowledged, more of it is
   sent, smaller each time. Questions, answers and repeated acknowledgements are packets of their own, so that they pass
   wherever a heartbeat does.

The peer answers on every flow, and sends its acknowledgements on every flow for a while, because its earlier ones did
not arrive in time.
"""

from __future__ import annotations

from typing import Final

from holdfast.links.flow import DATAGRAM_MIN, FlowState
from holdfast.types import MILLISECOND, FlowId, Nanos
from holdfast.wire.frames import AckRequest

ASK_NS_MIN: Final = 10 * MILLISECOND
MARGIN_NS: Final = 10 * MILLISECOND
"""How much longer than usual an acknowledgement may take."""
PATIENCE_MAX: Final = 4
CALM_NS: Final = 10_000 * MILLISECOND
"""After unfounded doubts, a channel waits longer for this time."""
STREAM_CONFIRM: Final = 2
"""A stream retransmits after 200 ms at the earliest, so it gets twice the usual time."""
COPIES_MAX: Final = 64 << 10
SMALL_START: Final = 576
FIRST_COPIES_MAX: Final = 4 << 10
SMALL_COPIES_MAX: Final = 16 << 10
CARRIERS_MAX: Final = 4
"""Small copies: the size of the first packets, bytes the first time and later, and the number of flows that carry
them."""
LINGER_NS: Final = 2000 * MILLISECOND
"""How long a channel uses two flows after one of them delivered late. By then health has a verdict."""

OPEN: Final = 0
DELIVERED: Final = 1
LATE: Final = 2
"""The meaning of an answer: nothing yet; the flow is not to blame; the flow delivers, but late."""


class Doubt:
    """The doubt of one channel about the flow that it uses."""

    __slots__ = (
        "asked_at",
        "asked_sent",
        "copied",
        "flow",
        "n",
        "other",
        "received",
        "sent",
        "since",
        "until",
    )

    def __init__(self, now: Nanos, flow: FlowState, other: FlowState, n: int) -> None:
        self.flow: FlowId = flow.flow
        self.other: FlowId = other.flow
        self.since = now
        self.sent = flow.chunk_sent
        """Bytes sent on the flow when the doubt began."""
        self.received: int | None = None
        """Bytes of these that had arrived by the first answer; None while there is no answer."""
        self.n = n
        self.asked_at = now
        self.asked_sent = flow.chunk_sent
        self.copied = 0
        """So many pieces of the channel were copied, as far as they were in flight: a stream needs no second copy."""
        self.until: Nanos = 0
        """The flow delivered late: both flows are used until this time, without questions; 0: answers are awaited."""

    def linger(self, now: Nanos) -> None:
        """The flow delivers, but late."""
        self.until = now + LINGER_NS

    def renew(self, now: Nanos, flow: FlowState) -> None:
        """Acknowledgements stopped again: ask again."""
        self.until = 0
        self.since, self.sent, self.received = now, flow.chunk_sent, None

    def ask(self, now: Nanos, n: int, flow: FlowState) -> AckRequest:
        """The question, for the other flow."""
        self.n, self.asked_at, self.asked_sent = n, now, flow.chunk_sent
        return AckRequest(n, flow.remote_path)


class Patience:
    """How long one channel waits for acknowledgements before it doubts its flow."""

    __slots__ = ("_unfounded", "_until")

    def __init__(self) -> None:
        self._unfounded = 0
        self._until: Nanos = 0

    def wait_ns(self, now: Nanos, usual_ns: Nanos, delay_ns: Nanos, most_ns: Nanos) -> Nanos:
        """`usual_ns` is how long acknowledgements usually take (0: not known yet), `delay_ns` how long the peer may
        delay them."""
        if not usual_ns:
            return most_ns
        if now >= self._until:
            self._unfounded = 0
        wait_ns = max(usual_ns, delay_ns) + usual_ns // 2 + MARGIN_NS
        return min(wait_ns << max(0, self._unfounded - 1), max(most_ns, wait_ns))

    def unfounded(self, now: Nanos) -> None:
        """The flow had delivered everything. Once, acknowledgements may have been lost, which is no reason to wait
        longer; again, they take longer at the moment."""
        self._unfounded = min(self._unfounded + 1, PATIENCE_MAX + 1)
        self._until = now + CALM_NS


class SmallCopies:
    """The packet size of additional copies of one channel. It is remembered for a while: the next flow may have the
    same limit."""

    __slots__ = ("_steps", "_until")

    def __init__(self) -> None:
        self._steps = 0
        self._until: Nanos = 0

    def shrink(self, now: Nanos) -> None:
        """Nothing was acknowledged since the last copies."""
        self._steps = 1 if now >= self._until else self._steps + 1
        self._until = now + CALM_NS

    def size(self, now: Nanos) -> int:
        """The packet size to use; 0 if copies of the usual size have not failed."""
        if now >= self._until:
            return 0
        return max(DATAGRAM_MIN, SMALL_START >> min(self._steps - 1, 8))


def answered(doubt: Doubt, flow: FlowState, received: int) -> int:
    """Evaluate the peer's answer: `OPEN`, `DELIVERED` or `LATE`."""
    if received >= doubt.sent - flow.chunk_deficit:
        return DELIVERED if doubt.received is None else LATE
    if doubt.received is None:
        doubt.received = received
        return OPEN
    if received <= doubt.received:
        return OPEN
    # It delivers slowly or partially: a deep buffer, or loss, which health measures. That is no reason to move.
    if not flow.stream:
        flow.chunk_deficit = max(0, doubt.asked_sent - received)
    return LATE if doubt.asked_sent - received <= COPIES_MAX else DELIVERED
