"""The unit `services/<group>`: requests of this node to a group, repeated until the committed log has them.

A request goes to the replica that led last, which names the leader if it does not lead. Renewals extend the leases of
this node. A lock may be used until its lease has run out by the clock of this node, counted from before the renewal
was sent, so that it ends here before it ends at the leader. What protects against a clock that is wrong is the token.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from holdfast.group.config import GroupConfig, replica_unit, services_unit
from holdfast.group.facts import LockFact
from holdfast.group.peers import Peers, post
from holdfast.group.services.frames import OPS_MAX, ServiceAnswer, ServiceReply, ServiceRequest
from holdfast.group.services.ports import AskBarrier, AskLock, GiveUp, ServiceNotice
from holdfast.group.services.values import REQUESTS_MAX, Op, Outcome, ServiceOp
from holdfast.links.ports import PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos, NodeId

REPEAT_NS: Final = 60 * MILLISECOND
REPEAT_MAX_NS: Final = 250 * MILLISECOND
"""How soon a request without an answer is repeated, and at most how much later again. Not later than a quarter of the
shortest lease: a repetition renews as well."""
POLL_NS: Final = SECOND
"""How often a request that waits is repeated: the answer may be lost with its leader."""
BEATS_KEPT: Final = 16
REDIRECTS_MAX: Final = 3
"""Hints that are followed at once, between two repetitions."""
ENDED: Final = (
    Outcome.RELEASED,
    Outcome.EXPIRED,
    Outcome.REFUSED,
    Outcome.BROKEN,
)


class _Request:
    """One request that is not over."""

    __slots__ = ("due_ns", "epoch", "is_given_up", "op", "outcome", "sent_ns", "tries", "until_ns")

    def __init__(self, op: ServiceOp) -> None:
        self.op = op
        self.outcome: Outcome | None = None
        """None while there is no answer."""
        self.sent_ns: Nanos = -1
        """When it was first sent."""
        self.due_ns: Nanos = 0
        self.tries = 0
        self.until_ns: Nanos = 0
        self.epoch = 0
        self.is_given_up = False


class ServiceClient(Machine):
    """Requests of one node to one group."""

    layer: ClassVar[str] = "services"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(
        self, *, config: GroupConfig, node: NodeId, name: str, incarnation: int, rng: Random
    ) -> None:
        self._config = config
        self._node = node
        self._name = name
        self._incarnation = incarnation
        self._rng = rng
        self._unit = services_unit(config.name)
        self._peers = Peers(config, name)
        self._target = name if name in config.replicas else ""
        self._redirects = 0
        self._requests: dict[int, _Request] = {}
        self._last = 0
        self._beat = 0
        self._beats: dict[int, Nanos] = {}
        """When renewals without an answer were sent."""
        self._beat_ns: Nanos = NEVER
        self._beat_tries = 0
        self.ignored = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, Outbox], None]] = {
            AskLock: self._ask_lock,
            AskBarrier: self._ask_barrier,
            GiveUp: self._give_up,
            Received: self._received,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
        }

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            take = self._inputs.get(type(item))
            if take is None:
                self.ignored += 1
            else:
                take(now, item, out)
        self._settle(now, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._redirects = 0
        self._settle(now, out)
        self.deadline = max(self.deadline, now + 1)

    def _peer_up(self, _now: Nanos, item: PeerUp, _out: Outbox) -> None:
        self._peers.up(item.peer, item.member)

    def _peer_down(self, now: Nanos, item: PeerDown, _out: Outbox) -> None:
        peer = self._peers.down(item.peer)
        if peer is not None and peer.name == self._target:
            self._next_target()
            self._repeat_all(now)

    def _ask_lock(self, _now: Nanos, item: AskLock, out: Outbox) -> None:
        self._ask(ServiceOp(Op.ACQUIRE, item.number, item.name, item.lease_ns), out)

    def _ask_barrier(self, _now: Nanos, item: AskBarrier, out: Outbox) -> None:
        op = ServiceOp(
            Op.ARRIVE, item.number, item.name, item.lease_ns, item.parties, item.phases, item.phase
        )
        known = self._requests.get(item.number)
        if known is not None and not known.is_given_up:
            known.op, known.outcome, known.due_ns, known.tries = op, None, 0, 0
        else:
            self._ask(op, out)

    def _ask(self, op: ServiceOp, out: Outbox) -> None:
        if op.number <= self._last or len(self._requests) >= REQUESTS_MAX:
            why = f"this node has {len(self._requests)} requests already"
            self._notice(out, op.number, Outcome.REFUSED, why=why)
            return
        self._last = op.number
        self._requests[op.number] = _Request(op)

    def _give_up(self, _now: Nanos, item: GiveUp, out: Outbox) -> None:
        request = self._requests.get(item.number)
        if request is None:
            self._notice(out, item.number, Outcome.EXPIRED, why="it is over already")
            return
        if item.token and request.outcome is not Outcome.HELD:
            why = f"token {item.token} of lock {request.op.name} is stale"
            self._notice(out, item.number, Outcome.REFUSED, why=why)
            return
        request.op = ServiceOp(Op.RELEASE, item.number, request.op.name, token=item.token)
        request.is_given_up = True
        request.outcome, request.due_ns, request.tries = None, 0, 0

    # -- answers -------------------------------------------------------------------------------------------------

    def _received(self, now: Nanos, item: Received, out: Outbox) -> None:
        for frame in item.frames:
            if not isinstance(frame, ServiceReply) or not self._is_ours(item.peer, frame):
                self.ignored += 1
            elif frame.answers:
                self._answered(now, item.peer, frame, out)
            else:
                self._redirected(now, frame.leader)

    def _is_ours(self, node: NodeId, frame: ServiceReply) -> bool:
        known = node == self._node or self._peers.at(node) is not None
        ours = frame.group == self._config.name and frame.incarnation == self._incarnation
        return known and ours

    def _answered(self, now: Nanos, node: NodeId, frame: ServiceReply, out: Outbox) -> None:
        peer = self._peers.at(node)
        self._target = self._name if peer is None else peer.name
        beat_ns = -1
        for answer in frame.answers:
            if answer.outcome == Outcome.RENEWED:
                # rule: S-12f
                beat_ns = self._beats.get(answer.number, -1)
                if beat_ns >= 0:
                    self._beats = {n: at for n, at in self._beats.items() if at > beat_ns}
                    self._beat_tries = 0
        listed = {a.number: None for a in frame.answers if a.outcome != Outcome.RENEWED}
        for answer in frame.answers:
            request = self._requests.get(answer.number)
            if answer.outcome == Outcome.RENEWED:
                continue
            if request is not None:
                self._take(now, request, answer, beat_ns, frame.group_epoch, out)
            elif answer.outcome in (Outcome.HELD, Outcome.QUEUED, Outcome.WAITING):
                self._disown(answer)
        if beat_ns >= 0:
            # rule: S-12g
            self._drop_unlisted(listed, beat_ns, out)

    def _disown(self, answer: ServiceAnswer) -> None:
        """The group keeps something for a request that this unit does not know: it was rebuilt. Renewals would keep it
        held."""
        if 0 <= answer.number < self._last and len(self._requests) < REQUESTS_MAX:
            request = _Request(ServiceOp(Op.RELEASE, answer.number))
            request.is_given_up = True
            self._requests[answer.number] = request
        else:
            self.ignored += 1

    def _take(
        self, now: Nanos, request: _Request, answer: ServiceAnswer, beat_ns: Nanos, epoch: int,
        out: Outbox,
    ) -> None:  # fmt: skip
        """What has become of one request."""
        try:
            outcome = Outcome(answer.outcome)
        except ValueError:
            self.ignored += 1
            return
        if request.is_given_up and outcome not in ENDED:
            return  # said before it was given up
        if outcome in ENDED:
            self._end(request, outcome, out, answer)
            return
        if request.epoch not in (0, epoch):
            self._end(request, Outcome.EXPIRED, out, None, "the group has begun again without it")
            return
        request.epoch = epoch
        is_news = request.outcome is not outcome
        if outcome is Outcome.PASSED and answer.phase != request.op.phase:
            return
        request.outcome = outcome
        request.due_ns, request.tries = now + POLL_NS, 0
        request.until_ns = max(
            request.until_ns, max(beat_ns, request.sent_ns) + request.op.lease_ns
        )
        if outcome is Outcome.PASSED:
            request.due_ns = NEVER
            if request.op.phase == request.op.phases:
                del self._requests[answer.number]
        if outcome is Outcome.HELD:
            request.due_ns = NEVER
            if is_news:
                out.fact(self._held(now, request, answer.value))
        if is_news and outcome in (Outcome.HELD, Outcome.PASSED):
            self._notice(
                out, answer.number, outcome, answer.value, answer.phase, until_ns=request.until_ns
            )
        elif outcome is Outcome.HELD and beat_ns >= 0:
            self._notice(
                out, answer.number, Outcome.RENEWED, answer.value, until_ns=request.until_ns
            )

    def _held(self, now: Nanos, request: _Request, token: int) -> LockFact:
        group, holder = self._config.name, self._node.hex()
        return LockFact(
            now, "held", group, request.epoch, request.op.name, holder, self._incarnation, token
        )

    def _drop_unlisted(self, listed: dict[int, None], beat_ns: Nanos, out: Outbox) -> None:
        """A renewal is answered with all that this node has. What is missing there is over, and that it ended was not
        heard."""
        for number, request in list(self._requests.items()):
            asked_before = request.outcome is not None and request.sent_ns < beat_ns
            if number not in listed and asked_before and not request.is_given_up:
                if request.outcome is Outcome.HELD:
                    self._end(
                        request, Outcome.EXPIRED, out, None, "the group does not know it any more"
                    )
                elif request.outcome is not Outcome.PASSED:
                    request.outcome, request.due_ns = None, 0

    def _end(
        self,
        request: _Request,
        outcome: Outcome,
        out: Outbox,
        answer: ServiceAnswer | None,
        why: str = "",
    ) -> None:
        number = request.op.number
        del self._requests[number]
        if answer is not None:
            self._notice(out, number, outcome, answer.value, answer.phase, answer.why)
        else:
            self._notice(out, number, outcome, why=why)

    def _redirected(self, now: Nanos, leader: str) -> None:
        if not leader or leader == self._target or self._redirects >= REDIRECTS_MAX:
            return
        self._redirects += 1
        self._target = leader
        self._repeat_all(now)

    # -- sending -------------------------------------------------------------------------------------------------

    def _settle(self, now: Nanos, out: Outbox) -> None:
        self._lose(now, out)
        ops = self._due(now)
        if ops:
            self._send(ops, now, out)
        self._set_deadline()

    def _lose(self, now: Nanos, out: Outbox) -> None:
        """Locks whose lease has run out by the clock of this node: they are released, and the caller is notified."""
        for number, request in list(self._requests.items()):
            # rule: S-12a
            if request.outcome is Outcome.HELD and now >= request.until_ns:
                why = f"its lease of {request.op.lease_ns / SECOND:g} s has run out, and was not renewed"
                self._notice(out, number, Outcome.EXPIRED, why=why)
                request.op = ServiceOp(Op.RELEASE, number, request.op.name)
                request.is_given_up, request.outcome = True, None
                request.due_ns = request.tries = 0

    def _due(self, now: Nanos) -> list[ServiceOp]:
        ops: list[ServiceOp] = []
        is_again = False
        for request in self._requests.values():
            if request.due_ns > now:
                continue
            is_again = is_again or (request.tries > 0 and request.outcome is None)
            request.tries += 1
            if request.sent_ns < 0:
                request.sent_ns = now
            request.due_ns = now + self._delay(request.tries)
            ops.append(request.op)
        if self._is_beat_due(now):
            is_again = is_again or self._beat_tries > 0
            self._beat_tries += 1
            self._beat += 1
            self._beats[self._beat] = now
            if len(self._beats) > BEATS_KEPT:
                del self._beats[next(iter(self._beats))]
            self._beat_ns = now + self._delay(self._beat_tries)
            ops.append(ServiceOp(Op.RENEW, self._beat))
        if is_again:
            self._next_target()
        return ops

    def _delay(self, tries: int) -> Nanos:
        leases = [r.op.lease_ns for r in self._requests.values() if r.op.lease_ns]
        most_ns = min([REPEAT_MAX_NS, *(lease_ns // 4 for lease_ns in leases)])
        delay_ns = min(REPEAT_NS << min(tries - 1, 8), most_ns)
        return delay_ns + self._rng.randrange(delay_ns // 4)

    def _is_beat_due(self, now: Nanos) -> bool:
        """Renew three times in a lease; until there is an answer, at the pace of repetitions."""
        leases = [r.op.lease_ns for r in self._requests.values() if r.outcome is not None]
        if not leases:
            self._beat_ns = NEVER
            self._beats.clear()
            self._beat_tries = 0
            return False
        if not self._beats:
            begun_ns = max(
                r.until_ns - r.op.lease_ns for r in self._requests.values() if r.outcome is not None
            )
            self._beat_ns = begun_ns + min(leases) // 3
        return now >= self._beat_ns

    def _send(self, ops: list[ServiceOp], now: Nanos, out: Outbox) -> None:
        heard = min(self._requests, default=self._last + 1)
        target = self._target or self._next_target()
        for start in range(0, len(ops), OPS_MAX):
            part = tuple(ops[start : start + OPS_MAX])
            frame = ServiceRequest(self._config.name, self._incarnation, heard, part)
            if target == self._name:
                out.up(replica_unit(self._config.name), Received(self._node, [frame], now))
            elif (peer := self._peers.named(target)) is not None:
                post(out, [peer.node], frame)

    def _next_target(self) -> str:
        """Another replica: this one does not answer."""
        names = [peer.name for peer in self._peers.replicas]
        if self._name in self._config.replicas:
            names.append(self._name)
        if names:
            at = names.index(self._target) + 1 if self._target in names else 0
            self._target = names[at % len(names)]
        return self._target

    def _repeat_all(self, now: Nanos) -> None:
        for request in self._requests.values():
            if request.outcome not in (Outcome.HELD, Outcome.PASSED):
                request.due_ns, request.tries = now, 0
        if self._beats:
            self._beat_ns, self._beat_tries = now, 0

    def _set_deadline(self) -> None:
        due_ns = self._beat_ns
        for request in self._requests.values():
            due_ns = min(due_ns, request.due_ns)
            if request.outcome is Outcome.HELD:
                due_ns = min(due_ns, request.until_ns)
        self.deadline = due_ns

    def _notice(
        self, out: Outbox, number: int, outcome: Outcome, value: int = 0, phase: int = 0,
        why: str = "", until_ns: Nanos = 0,
    ) -> None:  # fmt: skip
        out.effect(ServiceNotice(self._unit, number, outcome, value, phase, why, until_ns))

    def holds(self, name: str, now: Nanos) -> int:
        """The number of the request by which this node may use a lock now; 0 if none."""
        for number, request in self._requests.items():
            if (
                request.outcome is Outcome.HELD
                and request.op.name == name
                and now < request.until_ns
            ):
                return number
        return 0

    def status(self) -> dict[str, object]:
        outcomes = [r.outcome for r in self._requests.values()]
        return {
            "group": self._config.name,
            "asks": self._target,
            "held": outcomes.count(Outcome.HELD),
            "waiting": len(outcomes) - outcomes.count(Outcome.HELD),
            "ignored": self.ignored,
        }
