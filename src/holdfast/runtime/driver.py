"""The asyncio driver: sockets, disk and application on one side, the node's core on the other.

It queues inputs, runs a turn when there is work or a deadline has passed, and performs the effects of the turn. It
performs effects on flows and stores itself; all others belong to the edges of subsystems.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any, Final

from holdfast.errors import HoldfastError, NodeStopped
from holdfast.links.ports import (
    ACCEPTOR,
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    MayFragment,
    OpenFailed,
    OpenFlow,
    Transmit,
)
from holdfast.machine import NODE_STORE, Failure, Intake, ReadTable, Result, TableRead
from holdfast.node.core import NodeCore
from holdfast.runtime.alarm import open_alarm
from holdfast.stores.writer import StoreWriter
from holdfast.subsystem import Edge, NodeConfig
from holdfast.subsystem.edge import StoreWriter as AnyWriter
from holdfast.subsystem.resolve import overrides
from holdfast.telemetry.load import AdapterLoad, LoadMeter
from holdfast.transports.port import Transport
from holdfast.types import DATA, MICROSECOND, MILLISECOND, NEVER, SYNC, FlowId, Nanos

log = logging.getLogger("holdfast")

SKIPPED: Final = "a part of a turn failed and was skipped"
BATCH_BYTES: Final = 1 << 20
"""The maximum input of one turn from the network."""
AT_ONCE_BYTES: Final = 64 << 10
"""Packets of at least this total size start a turn without waiting for more."""
ANSWER_NS: Final = 5 * MILLISECOND
"""A patient answer of a thread waits at most this long for a turn."""
AT_ONCE_NS: Final = 400 * MICROSECOND
"""Deadlines that are no further away are awaited with an alarm, or by polling the clock and the sockets."""
ITEM_BYTES: Final = 64
"""The size of an input without payload."""
CROWD_BYTES: Final = 4 << 20
"""While this much waits for a turn, less urgent input waits elsewhere."""

Record = Callable[[list[Any]], None]


class Driver:
    """Runs one core. Everything except applications and disk runs on the thread of the event loop."""

    def __init__(
        self,
        core: NodeCore,
        record: Record,
        failed: Callable[[BaseException], None],
        on_failure: Callable[[Failure], None],
        edges: Sequence[Edge] = (),
    ) -> None:
        """`record` is called with facts, `failed` with the error that stops the node, `on_failure` with a failed
        unit."""
        self.core = core
        self.edges = edges
        self.intake = Intake()
        self.transports: dict[tuple[str, str], Transport] = {}
        self.turns = 0
        self.lag_ns_max = 0
        self._loop = asyncio.get_running_loop()
        self._writer: StoreWriter | None = None
        self._writers: dict[str, AnyWriter] = {}
        """The writers of stores other than the node's own."""
        self._record = record
        self._failed = failed
        self._on_failure = on_failure
        self.load = LoadMeter(monotonic_ns())
        """The traffic of each adapter, recorded once a minute."""
        self._flows: dict[FlowId, Transport] = {}
        self._loads: dict[FlowId, AdapterLoad] = {}
        self._paused: dict[FlowId, Transport] = {}
        self._scheduled = False
        self._stirred = False
        """Something has happened since the last turn; a turn that ran at once leaves nothing for the next one."""
        self._alarm = open_alarm(self._loop, self._due)
        self._timer: asyncio.Handle | None = None
        self._timer_at: Nanos = NEVER
        self._last_flow = 0
        self.started = False
        """The first turn has taken place; until then, input waits."""
        self._stopped = False
        self._held_back = False
        self._in_turn = False
        self._now: Nanos = 0
        """When the last turn began."""
        self._answers: deque[tuple[str, Any]] = deque()
        """Answers of applications and the store since the last turn, added by their threads."""
        self._answers_due: Nanos = 0
        """When a turn takes place that checks for answers; 0: a thread with an answer must request one."""
        self._effects: dict[type, Callable[[Any], None]] = {
            Transmit: self._transmit,
            OpenFlow: self._open,
            CloseFlow: self._close,
            MayFragment: self._may_fragment,
            ReadTable: self._read_table,
        }
        for edge in edges:
            self._effects.update(edge.effects())
        # Most edges have nothing to do around a turn: those are not called.
        self._before_turn = [e.before_turn for e in edges if overrides(e, "before_turn")]
        self._after_turn = [e.after_turn for e in edges if overrides(e, "after_turn")]

    @property
    def config(self) -> NodeConfig:
        return self.core.config

    def clock(self) -> Nanos:
        return monotonic_ns()

    def handle(self, kind: type, call: Callable[[Any], None]) -> None:
        """Register a handler for a kind of effect."""
        self._effects[kind] = call

    # -- start and stop ------------------------------------------------------------------------------------------

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
        """The writer of the node's own store."""
        self._writer = writer

    def use_store(self, store: str, writer: AnyWriter) -> None:
        assert store != NODE_STORE, "the node's own store has a writer"
        self._writers[store] = writer

    def leave(self) -> None:
        """The last turn, to inform peers, if there was a first one. Answers received so far are processed before it:
        outputs that were delivered here would otherwise be repeated."""
        if self.started and not self._stopped:
            if self.intake.waiting:
                self._turn()
            self._do(self.core.stop(monotonic_ns()))

    def halt(self) -> None:
        """No more turns: the node can no longer keep its guarantees."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    async def stop(self) -> None:
        """No more turns, and no more sockets."""
        self.halt()
        for (adapter, kind), transport in self.transports.items():
            try:
                await transport.stop()
            except (Exception, asyncio.CancelledError):
                log.exception(
                    "%s on adapter %s could not be closed",
                    kind,
                    adapter,
                    extra=self._fields("close_failed") | {"adapter": adapter, "transport": kind},
                )

    # -- inputs --------------------------------------------------------------------------------------------------

    def offer(self, unit: str, item: Any, size: int = ITEM_BYTES, cls: int = SYNC) -> bool:
        """Queue an input; False if its class is full."""
        if self._stopped:
            raise NodeStopped("the node has stopped; nothing was sent")
        if not self.intake.offer(cls, unit, item, size):
            return False
        self.wake()
        return True

    def answer(self, unit: str, item: Any) -> None:
        """Queue an input that a unit waits for, even if the queue is full."""
        self.intake.force(SYNC, unit, item, ITEM_BYTES)
        self.wake()

    @property
    def crowded(self) -> bool:
        """More input waits than some turns can process, or flows are not read because of that."""
        intake = self.intake
        return bool(self._paused) or intake.room(DATA) < intake.bound[DATA] - CROWD_BYTES

    def wake(self) -> None:
        """Run a turn soon."""
        self._stirred = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_run)

    def expect_answers(self) -> None:
        """Work was passed to a thread: schedule a turn in a few milliseconds that collects patient answers."""
        if not self._answers_due:
            self._answers_due = monotonic_ns() + ANSWER_NS

    def answer_from_thread(self, unit: str, item: Any, patient: bool = False) -> None:
        """Queue an answer from a thread, even if the queue is full. A patient answer waits for the next turn, because
        waking the event loop costs more than most batches."""
        self._answers.append((unit, item))
        # Only after it is in the queue: the event loop announces before its last check that it will not check again.
        if (not patient or monotonic_ns() >= self._answers_due) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)

    def written(self, turn: int, store: str = NODE_STORE) -> None:
        """From the writer's thread: writes of a store up to `turn` are durable."""

        def take() -> None:
            free = self.core.written(turn, store)
            if store != NODE_STORE:
                free = self._make_way(store) or free
            elif self._held_back:
                self._held_back, free = False, True
            if free:
                self.wake()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)

    def write_failed(self, error: HoldfastError, store: str = NODE_STORE) -> None:
        """From the writer's thread. A node cannot continue without its own store; any other store fails its units."""
        if store == NODE_STORE:
            self._loop.call_soon_threadsafe(self._failed, error)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_store, store, str(error))

    def _fail_store(self, store: str, reason: str) -> None:
        extra = self._fields("store_failed") | {"store": store, "error": reason}
        log.error("store %s: %s", store, reason, extra=extra)
        self.core.turns.fail_store(store, reason)
        self.wake()

    def _make_way(self, store: str) -> bool:
        """Let the units of a store run unless too much waits for its disk; True if some can continue."""
        writer = self._writers.get(store)
        return self.core.turns.block(store, blocked=writer is not None and writer.full)

    # Events of the transports: they may occur within our own calls, so they are only queued.

    def opened(self, event: FlowOpened) -> None:
        self._flows[event.flow] = self.transports[(event.adapter, event.transport)]
        self._loads[event.flow] = self.load.of(event.adapter)
        self._offer_always(event)

    def open_failed(self, event: OpenFailed) -> None:
        self._offer_always(event)

    def closed(self, event: FlowClosed) -> None:
        self._flows.pop(event.flow, None)
        self._loads.pop(event.flow, None)
        self._paused.pop(event.flow, None)
        self._offer_always(event)

    def arrived(self, flow: FlowId, packets: list[memoryview], at: Nanos) -> None:
        size = sum(map(len, packets))
        load = self._loads.get(flow)
        if load is not None:
            load.received += size
            load.received_packets += len(packets)
        # Data that was read cannot be put back, so it is accepted; beyond the bound, its flow is no longer read.
        self._offer_always(Arrived(flow, packets, at), size, DATA)
        if self.intake.room(DATA) == 0 and flow in self._flows:
            self._paused[flow] = self._flows[flow]
            self._flows[flow].pause(flow)
        if size >= AT_ONCE_BYTES and not self._in_turn and not self._stopped:
            self._run()  # enough for a separate turn: saves one poll of all sockets

    def credit(self, flow: FlowId, is_open: bool) -> None:
        self._offer_always(Credit(flow, is_open))

    def _offer_always(self, item: Any, size: int = 0, cls: int = DATA) -> None:
        # All events of flows share one class, because their order matters.
        self.intake.force(cls, ACCEPTOR, item, size)
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
            # The disk does not keep up: no turn that could write more, until something is written.
            self._held_back = True
            return
        more = False
        self._in_turn = True
        try:
            more = self._turn()
        finally:
            # In any case: otherwise there would never be another turn.
            self._in_turn = False
            self._go_on(more)

    def _turn(self) -> bool:
        """True if something waits for the next one."""
        for before_turn in self._before_turn:
            try:
                before_turn()
            except Exception:
                log.exception(
                    "some messages of applications could not be passed on",
                    extra=self._fields("hand_over_failed"),
                )
        now = self._now = monotonic_ns()
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
        # Packets carry the time at which the turn began: if it took long, or this process was not scheduled, they were
        # sent later than that.
        self.core.lagged(monotonic_ns() - now)
        return result.more

    def _go_on(self, more: bool) -> None:
        """Schedule the next turn: at once if something waits for it, otherwise in time."""
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
        if result.store_writes:
            self._write_others(result)
        effects, rest = self._effects, iter(result.effects)
        while True:
            try:
                for effect in rest:
                    effects[type(effect)](effect)
                break
            except Exception:
                # The other effects must still happen: an application that waits for a batch would wait indefinitely.
                log.exception(SKIPPED, extra=self._fields("effect_failed"))
        for after_turn in self._after_turn:
            try:
                after_turn()
            except Exception:
                log.exception(SKIPPED, extra=self._fields("effect_failed"))
        if result.facts:
            self._tell(self._record, result.facts)
        if self._now >= self.load.deadline:
            self._record_load(self._now)
        for failure in result.failures:
            self._tell(self._on_failure, failure)

    def _record_load(self, now: Nanos) -> None:
        """Record the traffic of adapters, with the drops and the queues of their transports."""
        for (adapter, kind), transport in self.transports.items():
            counters = transport.counters
            self.load.refused(adapter, kind, counters.dropped)
            self.load.queued(adapter, counters.queued_bytes_max)
            counters.queued_bytes_max = 0
        self._tell(self._record, list(self.load.facts(now)))

    def _write_others(self, result: Result) -> None:
        for store, writes in result.store_writes.items():
            writer = self._writers.get(store)
            if writer is None:
                self._fail_store(store, "the node has no such store")
                continue
            writer.submit(result.number, writes)
            self._make_way(store)

    def _tell(self, call: Callable[[Any], None], what: Any) -> None:
        """A failing observer must not affect the others."""
        try:
            call(what)
        except Exception:
            log.exception(
                "facts of a turn could not be recorded", extra=self._fields("recording_failed")
            )

    def _fields(self, event: str) -> dict[str, Any]:
        """What the log knows about every event of this driver."""
        config = self.core.config
        return {"event": event, "subsystem": "node", "node": config.name, "domain": config.domain}

    def _arm(self, is_new: bool = True) -> None:
        """Schedule the next turn in time. A timer that is too early stays: most deadlines move before they pass, and
        setting a timer costs more than checking."""
        deadline = self._deadline()
        if deadline >= self._timer_at or self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        left_ns = deadline - monotonic_ns()
        if left_ns < AT_ONCE_NS:
            # So short a wait would take three times as long with a timer.
            if self._alarm is not None:
                self._timer = None
                self._alarm.set(left_ns)
                return
            if is_new:
                self._timer = self._loop.call_soon(self._look)
                return
        # Loops count in milliseconds, and uvloop rounds: late is better than repeatedly too early.
        delay_ms = -(-max(0, left_ns) // MILLISECOND)
        self._timer = self._loop.call_later(delay_ms / 1000, self._due)

    def _look(self) -> None:
        """A deadline was close; other work has been done meanwhile."""
        if monotonic_ns() < self._timer_at:
            self._timer = self._loop.call_soon(self._look)
        else:
            self._due()

    def _deadline(self) -> Nanos:
        deadline = self.core.next_deadline()
        return min(deadline, self._answers_due) if self._answers_due else deadline

    def _due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()  # an earlier alarm; a later one has taken its place
        self._timer = None
        self._timer_at = NEVER
        late = monotonic_ns() - self._deadline()
        if late < 0:
            self._arm(is_new=False)
        else:
            self.lag_ns_max = max(self.lag_ns_max, late)
            self.core.lagged(late)
            self.wake()

    # -- effects -------------------------------------------------------------------------------------------------

    def _transmit(self, effect: Transmit) -> None:
        transport = self._flows.get(effect.flow)
        if transport is not None:
            load, packets = self._loads[effect.flow], effect.packets
            load.sent += sum(map(len, packets))
            load.sent_packets += len(packets)
            transport.transmit(effect.flow, packets)

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

    def _read_table(self, effect: ReadTable) -> None:
        assert self._writer is not None

        def take(future: Future[list[tuple[bytes, bytes]]]) -> None:
            failed = future.exception()
            if failed is not None:
                extra = self._fields("read_failed") | {"table": effect.table, "error": str(failed)}
                log.warning("table %s cannot be read: %s", effect.table, failed, extra=extra)
                answer = TableRead(effect.table, [], str(failed))
            else:
                answer = TableRead(effect.table, future.result())
            self.answer_from_thread(effect.unit, answer)

        rows = self._writer.load(effect.table, effect.first, effect.stop, effect.limit)
        rows.add_done_callback(take)
