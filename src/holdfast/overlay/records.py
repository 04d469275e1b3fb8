"""What a node remembers of a message that passes: where it came from, where it went, what is still owed.

Every copy that is sent over a link is owed exactly one `last` (rule 2). A record ends when all of them have come and
the local listeners have given their last reply; then it owes its own `last` to the link that the message came over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.overlay.frames import (
    ANSWERED,
    END,
    HIDDEN,
    NOT_FOUND,
    NULL,
    Message,
    Part,
    Reply,
)
from holdfast.types import Nanos, NodeId

IDS_MAX: Final = 4096
_FIRST: Final = bytes(4)


def record_key(request: bytes, attempt: int) -> bytes:
    """Request and attempt: a re-send is a new message to the forwarders (rule 1)."""
    # rule: O-1a
    return request + (attempt & 0xFFFFFFFF).to_bytes(4, "big") if attempt else request + _FIRST


class Trace:
    """What stays of a record after it ended, for as long as the message lives: enough to tell a duplicate, and to
    follow the way back for a reverse route."""

    __slots__ = ("entry", "incoming", "late", "sent")

    def __init__(self, incoming: NodeId | None, entry: bytes = b"", late: bool = False) -> None:
        self.incoming = incoming
        self.late = late
        """It first came as a late copy: a second one, on a regular route, is no circle."""
        self.entry = entry
        """The node by which the first copy came into the realm."""
        self.sent: dict[NodeId, bool] = {}
        """Links that copies were sent over, and whether on a route that was found later."""


class Record:
    """One message under way at this node. Most fields keep their defaults, which belong to the class: a record is made
    for every message."""

    waiting = ""
    """`recovery`, `snoop` or `moving` while the message is held here."""
    forwarded = False
    sending = False
    """Copies are being sent: an instance that answers at once does not end the record before all are."""
    recovered = 0
    good = False
    """Some instance got it."""
    null = False
    """A link failed or a copy was given up."""
    not_found = False
    stale = False
    moved = False
    """The role was re-pointed to where the message came from."""
    unknown = False
    orphan = False
    """The way back is gone."""
    cancelled = False
    closing = False
    """The reply that is handled now is the last one: its parts travel with our own `last`, in one frame."""
    done = False
    reason = ""
    part_bytes = 0
    """The size of the parts of an aggregated reply."""
    remembered: Nanos = 0
    """Until when copies of the message may come on other paths: later than its own deadline."""

    def __init__(
        self, key: bytes, message: Message, trace: Trace, deadline: Nanos, op: int = 0
    ) -> None:
        self.key = key
        self.message = message
        self.trace = trace
        self.incoming = trace.incoming
        self.op = op
        self.deadline = deadline
        self.pending: dict[NodeId, tuple[bytes, ...]] = {}
        """Links that owe a last reply, and the instances that are known to be behind each."""
        self.tokens: dict[int, bytes] = {}
        """Deliveries to local listeners that owe a last reply, and the instance each is for."""
        self.expected: dict[bytes, bool] = {}
        self.outcomes: dict[bytes, int] = {}
        self.parts: list[Part] = []
        self.held: list[Part] = []
        """Replies that a snooper has not let go yet, in order."""

    def expect(self, instances: Iterable[bytes]) -> None:
        for instance in instances:
            if len(self.expected) >= IDS_MAX:
                self.unknown = True
                return
            self.expected[instance] = True

    def conclude(self, instance: bytes, outcome: int) -> None:
        """An answer outweighs any other outcome, whichever came first."""
        outcomes = self.outcomes
        if instance not in self.expected:
            self.expect((instance,))
        if instance not in outcomes or outcomes[instance] != ANSWERED:
            outcomes[instance] = outcome

    def fail(self, instances: Iterable[bytes], outcome: int, reason: str) -> None:
        """A copy was given up: replies may be missing, also from instances that this node cannot name."""
        self.null = True
        self.unknown = True
        self.reason = self.reason or reason
        for instance in instances:
            if instance not in self.outcomes:
                self.conclude(instance, outcome)

    def merge(self, reply: Reply) -> None:
        """What the last reply of a copy says of the instances behind its link."""
        if not self.outcomes and len(reply.outcomes) == 1 == len(reply.expected):
            # One copy to one instance, as most messages are.
            instance, outcome = reply.outcomes[0]
            if reply.expected[0] == instance and len(self.expected) < IDS_MAX:
                self.expected[instance] = True
                self.outcomes[instance] = outcome
            else:
                self._merge_names(reply)
        else:
            self._merge_names(reply)
        if reply.unknown:
            self.unknown = True
        if reply.reason and not self.reason:
            self.reason = reply.reason
        # rule: O-9a
        if reply.kind == END:
            self.good = True
        elif reply.kind == NULL:
            self.null = True
        elif reply.kind == NOT_FOUND:
            self.not_found = True

    def all_answered(self) -> bool:
        """Every instance that was expected has answered, in the order in which they were expected."""
        return self.outcomes == dict.fromkeys(self.expected, ANSWERED)

    def _merge_names(self, reply: Reply) -> None:
        self.expect(reply.expected)
        for instance, outcome in reply.outcomes:
            self.conclude(instance, outcome)

    def silent(self) -> list[bytes]:
        """Expected, and nothing was heard of them."""
        return [instance for instance in self.expected if instance not in self.outcomes]

    def kind(self) -> int:
        """How this record ends. A hidden null counts as no reply (rule 9)."""
        if self.null:
            return NULL
        if self.good:
            return END
        return NOT_FOUND if self.not_found else HIDDEN

    def last(self, kind: int) -> Reply:
        message = self.message
        return Reply(
            message.request,
            message.attempt,
            kind,
            True,
            tuple(self.parts),
            tuple(self.expected),
            tuple(self.outcomes.items()),
            self.unknown,
            self.reason,
        )
