"""The asyncio driver: sockets, disk and application on one side, the node's core on the other.

It queues what happens, runs a turn when there is something to do or a deadline has come, and does what the turn
asks for. It knows no protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any, Final

from holdfast.errors import NodeStopped, StoreError
from holdfast.group.ports import (
    Applied,
    Apply,
    AskLoss,
    LogRead,
    OutputsReady,
    ReadLog,
    RestoreState,
    SendOutputs,
    SourceRoom,
    StopOutputs,
    TakeSnapshot,
    Tell,
)
from holdfast.links.ports import (
    DOOR,
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    MayFragment,
    OpenFailed,
    OpenFlow,
    PortReady,
    PortRefused,
    PortRoom,
    SessionEnded,
    Transmit,
)
from holdfast.machine import Intake, Result
from holdfast.node.core import NodeCore
from holdfast.runtime.worker import AppWorker, Job
from holdfast.stores.writer import StoreWriter
from holdfast.transports.port import Transport
from holdfast.types import DATA, MICROSECOND, MILLISECOND, NEVER, SECOND, SYNC, FlowId, Nanos

log = logging.getLogger("holdfast")

BATCH_BYTES: Final = 1 << 20
"""What one turn takes from the network at most."""
AT_ONCE_BYTES: Final = 64 << 10
"""What comes in one piece of at least this size is not kept waiting for more."""
ANSWER_NS: Final = 5 * MILLISECOND
"""That an application has come further may wait this long for a turn that takes place anyway..."""
ANSWER_BYTES: Final = 256 << 10
"""...if it is not by this much."""
RETURN_NS: Final = 5 * SECOND
"""How long a stop waits for applications that are at work."""
AT_ONCE_NS: Final = 400 * MICROSECOND
"""Deadlines that are no further away are waited for by looking at the clock, and at the sockets, again and again."""
ITEM_BYTES: Final = 64
"""What an input counts for that carries no payload."""
CROWD_BYTES: Final = 4 << 20
"""While so much waits for its turn, what may wait elsewhere does."""

Record = Callable[[list[Any]], None]
Deliver = Callable[[PortReady], None]


class Driver:
    """Runs one core. Everything but the application and the disk happens on the event loop's thread."""

    def __init__(
        self,
        core: NodeCore,
        record: Record,
        deliver: Deliver,
        room: Callable[[PortRoom | PortRefused | SourceRoom], None],
        ended: Callable[[SessionEnded], None],
        outputs: Callable[[OutputsReady | SendOutputs | StopOutputs], None],
        failed: Callable[[BaseException], None],
        on_failure: Callable[[Any], None],
    ) -> None:
        self.core = core
        self.intake = Intake()
        self.transports: dict[tuple[str, str], Transport] = {}
        self.workers: dict[str, AppWorker] = {}
        self.turns = 0
        self.lag_ns_max = 0
        self._loop = asyncio.get_running_loop()
        self._writer: StoreWriter | None = None
        self._record = record
        self._failed = failed
        self._on_failure = on_failure
        self._flows: dict[FlowId, Transport] = {}
        self._paused: dict[FlowId, Transport] = {}
        self._scheduled = False
        self._stirred = False
        """Something has happened since the last turn; one that was taken at once has left nothing for the one after."""
        self._timer: asyncio.Handle | None = None
        self._timer_at: Nanos = NEVER
        self._last_flow = 0
        self.started = False
        """There has been a first turn; until then, what comes in waits."""
        self._stopped = False
        self._held_back = False
        self._in_turn = False
        self._jobs: dict[str, list[Job]] = {}
        """What the turn that runs now asks of applications."""
        self._answers: deque[tuple[str, Any]] = deque()
        """What applications and the store have answered since the last turn; their threads put it there."""
        self._answers_due: Nanos = 0
        """When a turn takes place that looks for answers; 0: who answers must ask for one."""
        self.before_turn: Callable[[], None] | None = None
        """Called before each turn: the API hands over what applications have sent since the last one."""
        self._effects: dict[type, Callable[[Any], None]] = {
            Transmit: self._transmit,
            PortReady: deliver,
            PortRoom: room,
            PortRefused: room,
            SourceRoom: room,
            SessionEnded: ended,
            OpenFlow: self._open,
            CloseFlow: self._close,
            MayFragment: self._may_fragment,
            Apply: self._apply,
            TakeSnapshot: self._apply,
            RestoreState: self._apply,
            AskLoss: self._apply,
            Tell: self._apply,
            ReadLog: self._read_log,
            OutputsReady: outputs,
            SendOutputs: outputs,
            StopOutputs: outputs,
        }

    def handle(self, kind: type, call: Callable[[Any], None]) -> None:
        """Do one more kind of effect."""
        self._effects[kind] = call

    # -- life ----------------------------------------------------------------------------------------------------

    def next_flow(self) -> FlowId:
        self._last_flow += 1
        return FlowId(self._last_flow)

    def start(self) -> None:
        """The first turn; transports are listening by now."""
        self.started = True
        result = self.core.start(monotonic_ns())
        self._do(result)
        self._go_on(result.more)

    def use_writer(self, writer: StoreWriter) -> None:
        self._writer = writer

    def leave(self) -> None:
        """One last turn, to say goodbye; there is nobody to say it to before the first. What was answered until now is
        taken in before it: outputs that somebody here has had would come again."""
        if self.started and not self._stopped:
            if self.intake.waiting:
                self._turn()
            self._do(self.core.stop(monotonic_ns()))

    def halt(self) -> None:
        """No more turns: the node cannot keep its promises any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """No more turns, and no more sockets."""
        self.halt()
        for (adapter, kind), transport in self.transports.items():
            try:
                await transport.stop()
            except (Exception, asyncio.CancelledError):
                log.exception("%s on adapter %s could not be closed", kind, adapter)

    def close_workers(self) -> None:
        """Off the event loop: wait for what applications are doing, for all of them together."""
        for worker in self.workers.values():
            worker.close(0)
        until = monotonic_ns() + RETURN_NS
        for unit, worker in self.workers.items():
            if not worker.close(max(0, until - monotonic_ns()) / SECOND):
                log.error(
                    "%s: the application has not returned within %d s; its thread is left to itself",
                    unit,
                    RETURN_NS // SECOND,
                )

    # -- inputs --------------------------------------------------------------------------------------------------

    def offer(self, unit: str, item: Any, size: int = ITEM_BYTES, cls: int = SYNC) -> bool:
        """Queue an input; False when its class is full."""
        if self._stopped:
            raise NodeStopped("the node has stopped; nothing was sent")
        if not self.intake.offer(cls, unit, item, size):
            return False
        self.wake()
        return True

    def answer(self, unit: str, item: Any) -> None:
        """Queue what a unit waits for, however full it is."""
        self.intake.force(SYNC, unit, item, ITEM_BYTES)
        self.wake()

    @property
    def crowded(self) -> bool:
        """More waits than some turns can take, or flows are not read because of that."""
        intake = self.intake
        return bool(self._paused) or intake.room(DATA) < intake.bound[DATA] - CROWD_BYTES

    def wake(self) -> None:
        """Run a turn soon."""
        self._stirred = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_run)

    def answer_from_thread(self, unit: str, item: Any) -> None:
        """A thread says what a unit waits for, however full it is: above all how far an application has come. What
        cannot hold anybody up waits for the next turn: to wake the event loop costs more than most batches do."""
        self._answers.append((unit, item))
        patient = type(item) is Applied and item.size < ANSWER_BYTES and not item.outputs
        # Only after it is in the queue: whoever looks there says first that he will not look again.
        if (not patient or monotonic_ns() >= self._answers_due) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)

    def written(self, turn: int) -> None:
        """From the writer's thread: writes up to `turn` are durable."""

        def take() -> None:
            if self.core.written(turn) or self._held_back:
                self._held_back = False
                self.wake()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)

    def write_failed(self, error: StoreError) -> None:
        self._loop.call_soon_threadsafe(self._failed, error)

    # Events of the transports: they may come from within a call of ours, so they only queue.

    def opened(self, event: FlowOpened) -> None:
        self._flows[event.flow] = self.transports[(event.adapter, event.transport)]
        self._offer_always(event)

    def open_failed(self, event: OpenFailed) -> None:
        self._offer_always(event)

    def closed(self, event: FlowClosed) -> None:
        self._flows.pop(event.flow, None)
        self._paused.pop(event.flow, None)
        self._offer_always(event)

    def arrived(self, flow: FlowId, packets: list[memoryview], at: Nanos) -> None:
        size = sum(map(len, packets))
        # What has been read cannot be put back, so it is taken; beyond the bound its flow is not read any more.
        self._offer_always(Arrived(flow, packets, at), size, DATA)
        if self.intake.room(DATA) == 0 and flow in self._flows:
            self._paused[flow] = self._flows[flow]
            self._flows[flow].pause(flow)
        if size >= AT_ONCE_BYTES and not self._in_turn and not self._stopped:
            self._run()  # enough for a turn of its own: saves one look at all sockets

    def credit(self, flow: FlowId, is_open: bool) -> None:
        self._offer_always(Credit(flow, is_open))

    def _offer_always(self, item: Any, size: int = 0, cls: int = DATA) -> None:
        # All events of flows share one class: their order matters.
        self.intake.force(cls, DOOR, item, size)
        self.wake()

    # -- turns ---------------------------------------------------------------------------------------------------

    def _scheduled_run(self) -> None:
        self._scheduled = False
        if self._stirred:
            self._run()

    def _run(self) -> None:
        self._stirred = False
        if not self.started or self._stopped or self._in_turn:
            return
        if self._writer is not None and self._writer.full:
            # The disk does not keep up: no turn that could write more, until it has written something.
            self._held_back = True
            return
        more = False
        self._in_turn = True
        try:
            more = self._turn()
        finally:
            # Whatever went wrong: without this there would never be another turn.
            self._in_turn = False
            self._go_on(more)

    def _turn(self) -> bool:
        """True when something waits for the next one."""
        if self.before_turn is not None:
            try:
                self.before_turn()
            except Exception:
                log.exception("what applications sent could not all be handed over")
        now = monotonic_ns()
        if self._answers_due <= now:
            self._answers_due = 0
        if self._answers:
            self._take_answers()
        batch = self.intake.take(BATCH_BYTES)
        if self._paused and not self.intake.waiting:
            for flow, transport in self._paused.items():
                transport.resume(flow)
            self._paused.clear()
        result = self.core.turn(now, batch)
        self._do(result)
        return result.more

    def _go_on(self, more: bool) -> None:
        """See to it that there is a next turn: at once when something waits for it, else in time."""
        if more or self.intake.waiting:
            self.wake()
        else:
            self._arm()

    def _take_answers(self) -> None:
        answers, force = self._answers, self.intake.force
        while answers:
            unit, item = answers.popleft()
            force(SYNC, unit, item, ITEM_BYTES)

    def _do(self, result: Result) -> None:
        self.turns += 1
        if result.writes:
            assert self._writer is not None
            self._writer.submit(result.number, result.writes)
        effects, rest = self._effects, iter(result.effects)
        while True:
            try:
                for effect in rest:
                    effects[type(effect)](effect)
                break
            except Exception:
                # The others count on their effects: an application that waits for a batch waits for ever.
                log.exception("a part of a turn failed, and is left out")
        if self._jobs:
            self._hand_out()
        if result.facts:
            self._tell(self._record, result.facts)
        for failure in result.failures:
            self._tell(self._on_failure, failure)

    def _tell(self, call: Callable[[Any], None], what: Any) -> None:
        """Whoever is told what a turn has shown cannot hold up the others."""
        try:
            call(what)
        except Exception:
            log.exception("what a turn has shown could not be recorded")

    def _arm(self, is_new: bool = True) -> None:
        """See to it that the next turn takes place in time. A timer that is too early stays: most deadlines move on
        before they come, and to set one costs more than to find out."""
        deadline = self._deadline()
        if deadline >= self._timer_at or self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        left_ns = deadline - monotonic_ns()
        if left_ns < AT_ONCE_NS and is_new:
            # Whoever asks for so short a time has no use for a timer, which would come three times as late.
            self._timer = self._loop.call_soon(self._look)
            return
        # Loops count in milliseconds, and uvloop rounds: rather late than too early, for nothing, again and again.
        delay_ms = -(-max(0, left_ns) // MILLISECOND)
        self._timer = self._loop.call_later(delay_ms / 1000, self._due)

    def _look(self) -> None:
        """A deadline was close; whatever else there was to do has been done meanwhile."""
        if monotonic_ns() < self._timer_at:
            self._timer = self._loop.call_soon(self._look)
        else:
            self._due()

    def _deadline(self) -> Nanos:
        deadline = self.core.next_deadline()
        return min(deadline, self._answers_due) if self._answers_due else deadline

    def _due(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        late = monotonic_ns() - self._deadline()
        if late < 0:
            self._arm(is_new=False)
        else:
            self.lag_ns_max = max(self.lag_ns_max, late)
            self.wake()

    # -- effects -------------------------------------------------------------------------------------------------

    def _transmit(self, effect: Transmit) -> None:
        transport = self._flows.get(effect.flow)
        if transport is not None:
            transport.transmit(effect.flow, effect.packets)

    def _open(self, effect: OpenFlow) -> None:
        transport = self.transports.get((effect.adapter, effect.transport))
        if transport is None:
            reason = f"adapter {effect.adapter} has no {effect.transport}"
            self.open_failed(
                OpenFailed(
                    effect.adapter,
                    effect.transport,
                    effect.host,
                    effect.port,
                    effect.unit,
                    reason,
                    effect.use,
                )
            )
            return
        transport.open(effect)

    def _close(self, effect: CloseFlow) -> None:
        transport = self._flows.get(effect.flow)
        if transport is not None:
            transport.close_flow(effect.flow, effect.reason)

    def _may_fragment(self, effect: MayFragment) -> None:
        transport = self._flows.get(effect.flow)
        if transport is not None:
            transport.may_fragment(effect.flow)

    def _read_log(self, effect: ReadLog) -> None:
        assert self._writer is not None

        def take(future: Future[dict[str, list[tuple[bytes, bytes]]]]) -> None:
            # Who cannot be read has nothing: the log asks others then, and is read again later.
            failed = future.exception()
            rows = future.result()[effect.table] if failed is None else []
            if failed is not None:
                log.warning("the message log %s cannot be read: %s", effect.table, failed)
            self.answer_from_thread(effect.unit, LogRead(effect.table, rows))

        self._writer.load([effect.table]).add_done_callback(take)

    def _apply(self, effect: Job) -> None:
        if effect.unit in self._jobs:
            self._jobs[effect.unit].append(effect)
        else:
            self._jobs[effect.unit] = [effect]

    def _hand_out(self) -> None:
        """To the applications: after everything else, which others wait for."""
        if not self._answers_due:
            self._answers_due = monotonic_ns() + ANSWER_NS
        for unit in list(self._jobs):
            # Taken out one by one: what an interrupt leaves is handed out by the next turn.
            some = self._jobs.pop(unit)
            if unit not in self.workers:
                continue
            try:
                self.workers[unit].submit(some)
            except Exception:
                log.exception("%s: its application could not be given its work", unit)
