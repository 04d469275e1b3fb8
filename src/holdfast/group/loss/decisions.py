"""The part of the leader in deciding about lost messages.

    holes that the source did not fill ──► seeking ──► asking ──► recovering ──┐
                                              ▲           │            │        │ (all arrived)
                                              └───────────┼────────────┘        ▼
                                        (failed, ask again)├──► dropped         complete
                                                          └──► suspended: another replica leads

A *case* is opened for the exhausted holes of one stream. The other replicas are asked what they have of it
(`LossQuery`, `LossReply`); then the application, or the rules, decide. A decision becomes log entries: `DECISION` as a
record, `IGNORE` for a criterion, and `SKIP` where the order reaches the numbers (`Order.skip`). Nothing takes effect
before it is in the log, and nothing is discarded before that is committed.

A case does not outlive its term: a new leader finds committed decisions in the log, and asks about the rest itself.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.group.config import log_unit, replica_unit
from holdfast.group.core import Core
from holdfast.group.frames import LossQuery, LossReply, StreamId
from holdfast.group.log.entries import Closed, Decided, Ignoring, Skipped, encode_data
from holdfast.group.log.order import Order
from holdfast.group.log.replicated_log import Kind
from holdfast.group.loss.actions import Action, Ignore
from holdfast.group.loss.criteria import CRITERIA_MAX, Criterion, covering
from holdfast.group.loss.loss_info import LossInfo, MessageHolder, Range
from holdfast.group.loss.loss_report import LossReport
from holdfast.group.loss.policy import Policy
from holdfast.group.peers import post
from holdfast.group.ports import AskLoss, LossAnswered
from holdfast.group.streams.gap_recovery import RANGES_MAX
from holdfast.group.streams.stream_buffer import Stream
from holdfast.links.ports import Received
from holdfast.machine import Outbox, RangeSet
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos, NodeId

CASES_MAX: Final = 64
TOLD_MAX: Final = 4096
"""The maximum number of priorities of single messages taken from other replicas."""
PAUSE_NS: Final = 20 * MILLISECOND
PAUSE_MAX_NS: Final = SECOND
"""The interval between an answer that settled nothing and the next question; doubles each time."""
LOOK_NS: Final = 200 * MILLISECOND
"""Interval between scans for closed streams."""
STREAMS_PER_LOOK: Final = 256
"""With more streams than this, scans are less frequent."""


class Stage(Enum):
    SEEKING = "seeking"
    ASKING = "asking"
    RECOVERING = "recovering"
    PAUSING = "pausing"


TRANSITIONS: Final[dict[Stage, tuple[Stage, ...]]] = {
    Stage.SEEKING: (Stage.ASKING,),
    Stage.ASKING: (Stage.RECOVERING, Stage.PAUSING),
    Stage.RECOVERING: (Stage.PAUSING,),
    Stage.PAUSING: (Stage.SEEKING,),
}


class Case:
    """The lost messages of one stream, and the progress of the decision about them."""

    __slots__ = (
        "attempt", "due_ns", "failing", "found", "ignored", "lost", "question", "reasons", "recovered", "refused",
        "stage", "stream", "told",
    )  # fmt: skip

    def __init__(self, stream: Stream, lost: RangeSet, question: int, reasons: list[str]) -> None:
        self.stream = stream
        self.lost = lost
        self.question = question
        self.attempt = 1
        self.stage = Stage.SEEKING
        self.due_ns: Nanos = NEVER
        self.found: dict[tuple[str, bool], tuple[NodeId, RangeSet]] = {}
        """Per replica that answered, and per message log: the node, and what it has."""
        self.told: dict[int, int] = {}
        self.recovered = RangeSet()
        self.reasons = reasons
        self.refused: dict[str, str] = {}
        """Actions that are not possible now, and why."""
        self.failing: Action | None = None
        """The answer, while recovery is in progress."""
        self.ignored: Ignore | None = None
        """Criteria that already exist for messages like these."""

    def go(self, stage: Stage, due_ns: Nanos) -> None:
        assert stage in TRANSITIONS[self.stage], f"from {self.stage} to {stage}"
        self.stage = stage
        self.due_ns = due_ns

    def missing(self, first: int) -> RangeSet:
        """What is still lost, from number `first` on, where the order continues."""
        left = RangeSet()
        for start, stop in self.lost:
            for a, b in self.stream.held.missing(max(start, first), stop):
                left.add(a, b)
        return left

    def holders(self, left: RangeSet) -> list[tuple[str, NodeId, bool, int]]:
        """Nodes that have some of the rest: name, node, whether in the message log, how many. Buffers come first, and
        those with the most."""
        found = []
        for (name, from_log), (node, held) in self.found.items():
            count = sum(_common(left, held))
            if count:
                found.append((name, node, from_log, count))
        return sorted(found, key=lambda item: (item[2], -item[3]))


def _common(one: RangeSet, other: RangeSet) -> list[int]:
    """How many numbers of each range of `one` are in `other`."""
    return [stop - start - sum(b - a for a, b in other.missing(start, stop)) for start, stop in one]


def _ranges(numbers: RangeSet) -> tuple[Range, ...]:
    return tuple((start, stop - 1) for start, stop in numbers)


class Decisions:
    """Decides about lost messages while this replica leads."""

    def __init__(self, core: Core, order: Order) -> None:
        self._core = core
        self._order = order
        self._loss_report = LossReport(core)
        self._policy = Policy(core.config.policy)
        self._cases: dict[StreamId, Case] = {}
        self._question = 0
        self._superseded: dict[StreamId, Nanos] = {}
        """Streams whose source has restarted, and since when that is known."""
        self._look_ns: Nanos = 0
        self._informed = False
        self.asked = 0

    def begin(self, now: Nanos) -> None:
        """A term starts: open questions of an earlier one are asked again."""
        self._cases.clear()
        self._superseded.clear()
        self._informed = False
        self._look_ns = now

    @property
    def open(self) -> int:
        return len(self._cases)

    # -- the turn ------------------------------------------------------------------------------------------------

    def settle(self, informed: bool, now: Nanos, out: Outbox) -> None:
        """Before ordering. `informed`: a majority has reported in this term what it holds (rule 6 in
        docs/design/groups.md)."""
        self._informed = informed
        self._expire(now, out)
        if now >= self._look_ns:
            self._look_ns = now + LOOK_NS * (1 + len(self._core.log.tail.next) // STREAMS_PER_LOOK)
            if informed:
                # rule: 7e
                self._close_streams(now, out)
        if informed:
            self._open_cases(now, out)
        for case in list(self._cases.values()):
            self._advance(case, now, out)

    def deadline(self) -> Nanos:
        due_ns = min([case.due_ns for case in self._cases.values()], default=NEVER)
        criteria = self._core.log.tail.metadata.criteria
        ends = [c.until_ns for c, _ in criteria.values() if c.until_ns] if criteria else []
        if ends:
            ahead_ns = self._order.ahead_ns
            due_ns = min(due_ns, min(ends) - ahead_ns)
        if self._superseded:
            due_ns = min(due_ns, self._look_ns)
        return due_ns

    def _open_cases(self, now: Nanos, out: Outbox) -> None:
        for stream_id in self._core.recovery.gaps:
            if stream_id in self._cases or len(self._cases) >= CASES_MAX:
                continue
            holes = self._core.recovery.exhausted(stream_id)
            stream = self._core.streams.get(stream_id)
            if not holes or stream is None:
                continue
            lost = RangeSet()
            reasons: dict[str, None] = {}
            first = self._core.recovery.next_of(stream)
            for hole in holes[:RANGES_MAX]:
                decided = self._order.is_decided(stream_id, hole.first, hole.last)
                # The order may have passed it while another replica led, and nothing of the stream has arrived since.
                # rule: 3d
                if not decided and hole.last >= first:
                    lost.add(hole.first, hole.last + 1)
                    reasons[hole.exhausted] = None
            if not lost:
                self._core.streams.look_at(stream_id)
            elif not self._covered(stream, lost):
                self._question += 1
                case = Case(stream, lost, self._question, list(reasons))
                self._cases[stream_id] = case
                self._seek(case, now, out)

    def _covered(self, stream: Stream, lost: RangeSet) -> bool:
        """Losses of an ignored stream need no question: they are ignored as well."""
        criteria = self._core.log.tail.metadata.criteria
        if not criteria:
            return False
        ranges = _ranges(lost)
        count = sum(last - first + 1 for first, last in ranges)
        possible = self._loss_report.priorities(stream, ranges, {}).possible
        criterion = covering(criteria, stream.id, ranges[0][0], possible, count)
        if not criterion:
            return False
        for first, last in ranges:
            self._order.skip(stream.id, first, last, Skipped("ignored", criterion))
        return True

    def at_once(self, stream: Stream, first: int, last: int, now: Nanos, out: Outbox) -> bool:
        """A hole was just detected: does a rule decide before any recovery attempt?"""
        if not self._policy.decides_at_once or not self._informed:
            return False
        if self._order.is_decided(stream.id, first, last):
            return True
        info = self._loss_report.info(stream, ((first, last),), now)
        answer = self._policy.answer(info, at_once=True)
        if answer is None or answer[1].do != "drop":
            return False
        lost = RangeSet([(first, last + 1)])
        self._question += 1
        self._take(Case(stream, lost, self._question, []), answer[0], answer[1], now, out)
        return True

    # -- one case ------------------------------------------------------------------------------------------------

    def _advance(self, case: Case, now: Nanos, out: Outbox) -> None:
        left = self._left(case)
        if not left:
            self._finish(case)
            return
        if case.stage is Stage.SEEKING and (self._all_answered(case) or now >= case.due_ns):
            self._ask(case, left, now, out)
        elif case.stage is Stage.RECOVERING and self._is_all_that_can_come(case, left):
            self._recovery_failed(case, left, now, out)
        elif case.due_ns > now:
            return
        elif case.stage is Stage.ASKING:
            self._by_table(case, "the application did not answer in time", now, out)
        elif case.stage is Stage.RECOVERING:
            self._recovery_failed(case, left, now, out)
        elif case.stage is Stage.PAUSING:
            case.stage = Stage.SEEKING
            self._seek(case, now, out)

    def _left(self, case: Case) -> RangeSet:
        """The messages that are still lost and still needed."""
        if self._core.log.tail.is_over(case.stream.id):
            return RangeSet()
        return case.missing(self._core.recovery.next_of(case.stream))

    def _is_all_that_can_come(self, case: Case, left: RangeSet) -> bool:
        """All replicas have reported, and everything that they have is here: waiting for the rest is useless."""
        if case.holders(left) or self._core.recovery.source_is_here(case.stream.id):
            return False
        return self._all_answered(case)

    def _finish(self, case: Case) -> None:
        """No message of the case is missing, or it was decided."""
        if self._cases.get(case.stream.id) is case:
            self._core.recovery.grants.pop(case.stream.id, None)
            del self._cases[case.stream.id]

    def _seek(self, case: Case, now: Nanos, out: Outbox) -> None:
        """Ask the other replicas what they have."""
        case.found.clear()
        case.due_ns = now + self._core.config.seek_ns
        ranges = _ranges(self._left(case))[:RANGES_MAX]
        frame = LossQuery(self._core.config.name, case.question, case.stream.id, ranges)
        post(out, [peer.node for peer in self._core.peers.replicas], frame)
        if self._core.config.message_log_bytes:
            item = Received(self._core.node, [frame], now)
            out.up(log_unit(self._core.config.name), item)

    def found(self, name: str, node: NodeId, frame: LossReply, now: Nanos) -> None:
        """A replica reports what it has. During recovery, this is one more place to ask."""
        case = self._cases.get(frame.stream)
        if case is None or case.question != frame.question:
            return
        held = RangeSet()
        for first, last in (frame.logged if frame.from_log else frame.held)[:RANGES_MAX]:
            if 0 < first <= last:
                held.add(first, last + 1)
        case.found[(name, frame.from_log)] = (node, held)
        if case.stage is Stage.RECOVERING and held:
            self._grant(case, self._left(case), now)
        if frame.from_log:
            return
        place = 0
        for start, stop in held:
            for number in range(start, min(stop, start + len(frame.priorities) - place)):
                if len(case.told) < TOLD_MAX:
                    case.told[number] = frame.priorities[place]
                place += 1

    def _all_answered(self, case: Case) -> bool:
        names = [peer.name for peer in self._core.peers.replicas]
        logs = [*names, self._core.name] if self._core.config.message_log_bytes else []
        answered = [(name, False) for name in names] + [(name, True) for name in logs]
        return all(key in case.found for key in answered)

    def _info(self, case: Case, left: RangeSet, now: Nanos) -> LossInfo:
        places: list[MessageHolder] = []
        stream = case.stream
        recovery = self._core.recovery
        if recovery.source_is_here(stream.id):
            there = sum(max(0, stop - max(start, stream.origin)) for start, stop in left)
            if there:
                name = self._loss_report.transport(stream, _ranges(left), now).source
                places.append(MessageHolder("source", name, there))
        for name, _, from_log, count in case.holders(left):
            places.append(MessageHolder("log" if from_log else "replica", name, count))
        return self._loss_report.info(
            stream,
            _ranges(left),
            now,
            case.question,
            case.attempt,
            tuple(places),
            _ranges(case.recovered),
            tuple(case.reasons),
            case.told,
            "; ".join(case.refused.values()),
        )

    def _ask(self, case: Case, left: RangeSet, now: Nanos, out: Outbox) -> None:
        self.asked += 1
        case.lost = left
        case.go(Stage.ASKING, now + self._core.config.answer_ns)
        info = self._info(case, left, now)
        text = (
            f"question {case.question} ({case.attempt}): {info.count} of {case.stream.label} lost"
        )
        self._core.fact("asks", text, now, out)
        effect = AskLoss(replica_unit(self._core.config.name), case.question, info)
        out.effect(effect, immediate=True)

    def answered(self, item: LossAnswered, now: Nanos, out: Outbox) -> None:
        """The application has answered, or leaves it to the rules."""
        case = next((c for c in self._cases.values() if c.question == item.question), None)
        if case is None or case.stage is not Stage.ASKING:
            return
        action: object = item.action  # from the application: it may be anything
        if isinstance(action, Action):
            self._take(case, "application", action, now, out)
            return
        error = item.error if action is None else f"{action!r} is not an action"
        if error:
            self._core.fact("no answer", error, now, out)
        self._by_table(case, f"the application failed: {error}" if error else "", now, out)

    def _by_table(self, case: Case, why: str, now: Nanos, out: Outbox) -> None:
        if why:
            case.reasons.append(why)
        left = self._left(case)
        if not left:
            self._finish(case)
            return
        tried = case.failing is not None
        answer = self._policy.answer(self._info(case, left, now), tuple(case.refused), tried)
        assert answer is not None, "the last rule matches everything and is never refused"
        self._take(case, answer[0], answer[1], now, out)

    # -- actions -------------------------------------------------------------------------------------------------

    def _take(self, case: Case, by: str, action: Action, now: Nanos, out: Outbox) -> None:
        left = self._left(case)
        # rule: 6k
        if not left:  # it arrived in the same turn as the answer
            self._finish(case)
            return
        record = 0
        if action.do != "recover" or by == "application" or action.ignore:
            record = self._record(case, left, by, action, now, out)
        if action.ignore:
            self._ignore(case, left, action.ignore, now, out)
        if action.do == "recover":
            self._recover(case, left, action, now)
        elif action.do == "drop":
            self._drop(case, left, record)
        else:
            self._suspend(case, left, now, out)

    def _record(
        self, case: Case, left: RangeSet, by: str, action: Action, now: Nanos, out: Outbox
    ) -> int:
        """Record the answer; returns the index of the entry."""
        lost = _ranges(left)[:RANGES_MAX]
        core = self._core
        decided = Decided(case.stream.id, lost, case.attempt, core.name, by, action.text())
        self._order.append(Kind.DECISION, None, 0, 0, encode_data(decided), now, out)
        count = sum(last - first + 1 for first, last in lost)
        text = f"{action.text()} ({by}): {count} of {case.stream.label} from {lost[0][0]}"  # fmt: skip
        core.fact("decides", text, now, out)
        return core.log.last

    def _drop(self, case: Case, left: RangeSet, record: int) -> None:
        why = Skipped("dropped", 0, record)
        for first, last in _ranges(left):
            self._order.skip(case.stream.id, first, last, why)
        self._finish(case)

    def _ignore(self, case: Case, left: RangeSet, ignore: Ignore, now: Nanos, out: Outbox) -> None:
        """Ignore from now on what equals the lost messages in all named properties, but not these themselves: they may
        be recovered. If one of the properties is unknown, nothing is ignored."""
        if ignore == case.ignored:
            return
        stream = case.stream
        info = self._loss_report.info(stream, _ranges(left), now, told=case.told)
        topics, certain = info.transport.topics, info.priorities.certain
        unknown = [
            name
            for name, known in (("topic", len(topics) == 1 and topics[0]), ("priority", certain))
            if name in ignore.by and not known
        ]
        if unknown:
            why = f"the {' and the '.join(unknown)} of the lost messages is not known"
            self._core.fact("ignores nothing", why, now, out)
            return
        case.ignored = ignore
        criterion = Criterion(
            stream.id.source if "source" in ignore.by else b"",
            stream.id if "stream" in ignore.by else None,
            topics[0] if "topic" in ignore.by else "",
            certain[-1] if "priority" in ignore.by else -1,
            self._order.log_ns(now) + ignore.for_ns if ignore.for_ns else 0,
            ignore.count,
            ignore.resync,
            stream.id.source,
            (stream.id, _ranges(left)[-1][1]),
        )
        held = self._core.log.tail.metadata.criteria
        if len(held) >= CRITERIA_MAX:
            self._order.resume(next(iter(held)), "replaced", now, out)
        self._order.append(Kind.IGNORE, None, 0, 0, encode_data(Ignoring(criterion)), now, out)
        self._core.fact("ignores", criterion.text(), now, out)
        for other in self._core.streams.streams:
            self._order.note(other)

    def _recover(self, case: Case, left: RangeSet, action: Action, now: Nanos) -> None:
        """Ask the nodes that have lost messages, for as long as the answer allows."""
        case.failing = action
        case.recovered = RangeSet()
        waits = self._grant(case, left, now) or not self._all_answered(case)
        limit_ns = action.limit_ns or self._core.config.recover_ns
        case.go(Stage.RECOVERING, now + limit_ns if waits else now)

    def _grant(self, case: Case, left: RangeSet, now: Nanos) -> bool:
        """Ask the nodes that have some of the rest; False if none has any."""
        places = [(node, from_log) for _, node, from_log, _ in case.holders(left)]
        source = (NodeId(case.stream.id.source), False)
        if self._core.recovery.source_is_here(case.stream.id) and source not in places:
            places.append(source)
        if places:
            self._core.recovery.grant(case.stream.id, left, tuple(places), now)
        return bool(places)

    def _recovery_failed(self, case: Case, left: RangeSet, now: Nanos, out: Outbox) -> None:
        action = case.failing
        assert action is not None, "recovery was answered"
        case.recovered = RangeSet()
        for start, stop in case.lost:
            for a, b in left.missing(start, stop):
                case.recovered.add(a, b)
        case.reasons = [self._why_failed(case, left)]
        self._core.recovery.revoke(case.stream.id, case.reasons[0])
        self._core.fact("not recovered", f"{case.stream.label}: {case.reasons[0]}", now, out)
        if action.failing == "ask":
            self._pause(case, now)
            return
        case.lost = left
        then = Action(action.failing, ignore=action.failing_ignore)
        record = self._record(case, left, "after recovery failed", then, now, out)
        if then.ignore:
            self._ignore(case, left, then.ignore, now, out)
        if action.failing == "drop":
            self._drop(case, left, record)
        else:
            self._suspend(case, left, now, out)

    def _why_failed(self, case: Case, left: RangeSet) -> str:
        count = sum(stop - start for start, stop in left)
        holders = case.holders(left)
        if not holders and not self._core.recovery.source_is_here(case.stream.id):
            return f"no reachable node has the {count} missing messages"
        names = list(dict.fromkeys(name for name, *_ in holders)) or ["the source"]
        return f"{', '.join(names)} did not supply {count} in time"

    def _pause(self, case: Case, now: Nanos) -> None:
        """Nothing was settled: ask again, after an increasing interval."""
        pause_ns = min(PAUSE_NS << min(case.attempt - 1, 10), PAUSE_MAX_NS)
        case.attempt += 1
        case.go(Stage.PAUSING, now + pause_ns)

    def _suspend(self, case: Case, left: RangeSet, now: Nanos, out: Outbox) -> None:
        """Hand leadership to another replica, preferably one that has the lost messages. Refused if too few would
        remain to commit."""
        refusal = self._core.why_not_suspend()
        if refusal:
            case.refused["suspend"] = refusal
            self._core.fact("stays", refusal, now, out)
            self._pause(case, now)
            return
        prefer = tuple(name for name, _, from_log, _ in case.holders(left) if not from_log)
        self._core.fact("suspends itself", f"prefers {', '.join(prefer) or 'none'}", now, out)
        self._core.leadership.hand_over(prefer)
        case.refused["suspend"] = "another replica was asked to lead, and did not"
        self._pause(case, now)
        case.due_ns = now + PAUSE_MAX_NS

    # -- criteria and streams that end ---------------------------------------------------------------------------

    def _expire(self, now: Nanos, out: Outbox) -> None:
        criteria = self._core.log.tail.metadata.criteria
        if not criteria:
            return
        log_ns = self._order.log_ns(now)
        for id_, (criterion, left) in list(criteria.items()):
            if criterion.until_ns and log_ns >= criterion.until_ns:
                self._order.resume(id_, "expired", now, out)
            elif left < 0:
                self._order.resume(id_, "used up", now, out)

    def end_ignoring(self, criterion: int, now: Nanos, out: Outbox) -> None:
        """An operator ends a criterion."""
        if criterion in self._core.log.tail.metadata.criteria:
            self._order.resume(criterion, "operator", now, out)

    def _close_streams(self, now: Nanos, out: Outbox) -> None:
        """Close streams of ended incarnations, the oldest first, when everything known of them is ordered. The node has
        restarted or stopped normally."""
        tail, streams = self._core.log.tail, self._core.streams.streams
        lives: dict[tuple[bytes, int], list[StreamId]] = {}
        for stream in sorted(dict.fromkeys((*tail.next, *streams))):
            if not tail.is_over(stream):
                lives.setdefault((stream.source, stream.stream), []).append(stream)
        known: dict[StreamId, Nanos] = {}
        for (source, _), streams_of in lives.items():
            peer = self._core.peers.at(NodeId(source))
            current = peer.incarnation if peer is not None else 0
            # rule: 7f
            newest = streams_of[-1].incarnation + self._core.recovery.has_left(NodeId(source))
            for stream in streams_of:
                if stream.incarnation >= max(current, newest):
                    break
                known[stream] = self._superseded.get(stream, now)
                if not self._close(stream, known[stream], now, out):
                    break
        self._superseded = known

    def _close(self, stream: StreamId, since_ns: Nanos, now: Nanos, out: Outbox) -> bool:
        """Close one stream; False if it is too early."""
        held = self._core.streams.get(stream)
        following = self._core.log.tail.next.get(stream)
        if now - since_ns < self._core.config.close_delay_ns:
            return False
        if following is None:
            # Nothing of it was ever ordered, and nothing is known to exist.
            return held is None or not held.exists
        if held is not None and held.exists >= following:
            return False
        data = encode_data(Closed(stream, following - 1))
        self._order.append(Kind.CLOSE, None, 0, 0, data, now, out)
        return True
