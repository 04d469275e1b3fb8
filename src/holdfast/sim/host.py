"""A simulated machine that runs one core, with realistic delays, batches and crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from holdfast.errors import HoldfastError, MisuseError, StoreError
from holdfast.group.ports import Replica
from holdfast.links.ports import ACCEPTOR, Arrived, FlowClosed, Transmit
from holdfast.machine import NODE_STORE, Result
from holdfast.sim.application import Worker
from holdfast.sim.disk import OUTSTANDING_MAX, Disk, DiskStore
from holdfast.sim.effects import Handlers, handlers_of
from holdfast.sim.multicast import MulticastEnd
from holdfast.sim.port import Boot, Core, HostContext
from holdfast.sim.profile import HostProfile
from holdfast.sim.seeds import chance
from holdfast.sim.tcp import PREFIX, Pipe, TcpEnd
from holdfast.sim.udp import UdpEnd
from holdfast.subsystem import Edge, NodeConfig, Port, Subsystem
from holdfast.subsystem.edge import StoreWriter
from holdfast.subsystem.resolve import overrides, resolve
from holdfast.types import NEVER, SECOND, FlowId, Nanos

if TYPE_CHECKING:
    from holdfast.sim.network import Adapter
    from holdfast.sim.world import World

EPOCH_NS: Final = 1_893_456_000 * SECOND
"""The wall-clock time at which every world starts: 2030-01-01 UTC."""

DOWN: Final = "down"
UP: Final = "up"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"
"""It stopped by itself, for the given reason; `start` starts it again."""


class Host:
    """One machine: a process that may crash, pause and restart, a persistent disk, and adapters on the network."""

    def __init__(
        self,
        world: World,
        name: str,
        boot: Boot,
        profile: HostProfile,
        application: Callable[[str], Replica] | None,
    ) -> None:
        self.world = world
        self.name = name
        self.profile = profile
        self.boots = 0
        self.state = DOWN
        self.reason = ""
        self.powered = True
        self.core: Core | None = None
        self.adapters: dict[str, Adapter] = {}
        self.flows: dict[FlowId, UdpEnd | MulticastEnd | TcpEnd] = {}
        self.workers: dict[str, Worker] = {}
        self.turns = 0
        self.dropped_packets = 0
        self.application_slow_ns = 0
        """Additional duration of each application job."""
        self._boot = boot
        self.application = application
        random = chance(world.seed, "host", name)
        self._random = random
        self._draw = random.getrandbits
        self._jitter_ns = profile.turn_jitter_ns
        self._hiccups = profile.hiccup_ppm * 65_536 // 1_000_000
        """Out of 65536 turns. Attributes here are read in every turn."""
        self._packets_max = profile.packets_max
        self._skew_ns = random.randint(-profile.wall_skew_ns, profile.wall_skew_ns)
        self.clock_ns = random.getrandbits(44)
        """The monotonic time of the host is that of the world plus this."""
        self.disk = Disk(
            world, chance(world.seed, "disk", name), profile.disk_lag_ns, profile.disk_jitter_ns
        )
        self._disks: dict[str, Disk] = {NODE_STORE: self.disk}
        self._writers: dict[str, StoreWriter] = {}
        """The writers of stores that are not disks of this host."""
        self.edges: list[Edge] = []
        self._before_turn: list[Callable[[], None]] = []
        self._after_turn: list[Callable[[], None]] = []
        self.callbacks: dict[type, Callable[[Host, Any], None]] = {}
        self._handlers: Handlers = Handlers({})
        self._reset()

    def _reset(self) -> None:
        """Everything that ends with a process."""
        self.core = None
        self.inbox: list[tuple[str, Any]] = []
        self._unread: list[tuple[TcpEnd | None, Any]] = []
        self._read: list[tuple[Pipe, int]] = []
        self._written_turns: dict[str, int] = {}
        """Turns that stores have reported while the process was paused."""
        self._waits_for_disk = False
        """A turn was due while too much waited for the disk; it runs when some of that is written."""
        self._turn_at = NEVER
        self._wake_for = NEVER
        self._batch_limit = self.profile.batch_max
        self._crash_armed = False
        self._flow = 0
        self.flows.clear()
        self.workers.clear()
        for adapter in self.adapters.values():
            self.world.network.process_gone(adapter)

    def disk_of(self, store: str) -> Disk:
        """The disk of a store; created at its first use."""
        if store not in self._disks:
            random = chance(self.world.seed, "disk", self.name, store)
            profile = self.profile
            made = Disk(self.world, random, profile.disk_lag_ns, profile.disk_jitter_ns)
            self._disks[store] = made
        disk = self._disks[store]
        disk.on_written = partial(self.written, store=store)
        disk.on_failed = partial(self.write_failed, store=store)
        return disk

    @property
    def alive(self) -> bool:
        """There is a process, even if it is paused."""
        return self.state in (UP, PAUSED)

    @property
    def paused(self) -> bool:
        return self.state == PAUSED

    @property
    def now(self) -> Nanos:
        """The monotonic time of the host."""
        return self.world.now + self.clock_ns

    @property
    def wall_offset_ns(self) -> Nanos:
        """Offset from the monotonic time of the host to its (wrong) wall clock."""
        return EPOCH_NS + self._skew_ns - self.clock_ns

    # -- start and stop ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot the process from what is on the disk."""
        if self.alive:
            raise MisuseError(f"host {self.name} is already running; nothing was started")
        if not self.powered:
            # The machine itself restarts, so its monotonic clock starts again.
            self.powered = True
            self.clock_ns = self._random.getrandbits(36) - self.world.now
            self.world.network.power_changed()
        self._reset()
        self.boots += 1
        self.reason = ""
        self._log(f"start {self.boots}")
        self._writers.clear()
        context = HostContext(
            self.world.seed,
            self.name,
            self.boots,
            DiskStore(self.disk_of(NODE_STORE)),
            self.wall_offset_ns,
            self.disk_of,
        )
        try:
            self.core = self._boot(context)
        except StoreError as error:
            self._die(STOPPED, str(error))
            return
        self.state = UP
        self.edges = make_sim_edges(getattr(self.core, "subsystems", ()))
        for edge in self.edges:
            edge.attach(cast("Port", self))  # its core exists by now
        self._before_turn = [e.before_turn for e in self.edges if overrides(e, "before_turn")]
        self._after_turn = [e.after_turn for e in self.edges if overrides(e, "after_turn")]
        self._handlers = handlers_of(self)
        for checker in self.world.checkers:
            checker.booted(self)
        self._special_turn(self.core.start)

    def start_again(self) -> None:
        """Start it unless it is running; a crash planned for one of its turns is cancelled."""
        self._crash_armed = False
        if not self.alive:
            self.start()

    def stop(self) -> None:
        """A clean stop: everything is written, and flows are closed in order."""
        if not self.alive:
            return
        self.resume()
        last_turn = getattr(self.core, "stop", None)
        if last_turn is not None:
            self._special_turn(last_turn)
        self._log("stop")
        for disk in self._disks.values():
            disk.flush()
        for end in self.flows.values():
            end.close()
        self._tell_ended()
        self.state = DOWN
        self._reset()

    def crash(self) -> None:
        """The process is killed; the kernels of its peers notice when the paths allow it."""
        self._end(DOWN, "crash", silent=False)

    def power_off(self) -> None:
        """The machine loses power; its peers receive nothing."""
        self._end(DOWN, "power off", silent=True)
        if self.powered:
            self.powered = False
            self.world.network.power_changed()

    def crash_in_turn(self) -> None:
        """Crash between two steps of the next turn that has something to do."""
        self._crash_armed = self.alive

    def pause(self) -> None:
        """Pause the process as SIGSTOP does: clock and kernel continue, and arrivals wait."""
        if self.state == UP:
            self._log("pause")
            self.state = PAUSED
            self._turn_at = self._wake_for = NEVER

    def resume(self) -> None:
        if self.state != PAUSED:
            return
        self._log("resume")
        self.state = UP
        self._ran_late()
        unread, self._unread = self._unread, []
        for end, item in unread:
            if end is None:
                self.inbox.append(item)
            else:
                self.hear_stream(end, item)
        for worker in self.workers.values():
            worker.resume()
        turns, self._written_turns = self._written_turns, {}
        for store, turn in turns.items():
            self.written(turn, store)
        if self.state == UP:
            self._schedule()

    def _ran_late(self) -> None:
        """Like the real driver, inform the core how long ago its turn was due."""
        lagged = getattr(self.core, "lagged", None)
        if lagged is not None:
            lagged(max(0, self.now - self.core.next_deadline()))  # type: ignore[union-attr]  # it runs

    def _end(self, state: str, why: str, silent: bool) -> None:
        if not self.alive:
            return
        saved = sum(disk.crash() for disk in self._disks.values())
        self._log(f"{why}, {saved} unreported turns saved")
        self._die(state, self.reason, silent)

    def _die(self, state: str, reason: str, silent: bool = False) -> None:
        self._tell_ended()
        self.state = state
        self.reason = reason
        for end in self.flows.values():
            if isinstance(end, TcpEnd):
                end.abort(silent)
            else:
                end.open = False
        self._reset()

    def _tell_ended(self) -> None:
        for checker in self.world.checkers:
            checker.ended(self)

    def write_failed(self, error: HoldfastError, store: str = NODE_STORE) -> None:
        """A node that cannot write to its own store stops, because it can no longer keep its guarantees. Any other
        store fails its units."""
        if store != NODE_STORE:
            turns = getattr(self.core, "turns", None)
            if self.alive and turns is not None:
                self._log(f"store {store} failed: {error}")
                turns.fail_store(store, str(error))
                self._schedule()
        elif self.alive:
            self._log(f"store failed: {error}")
            self._die(STOPPED, f"store failed: {error}")

    # -- inputs --------------------------------------------------------------------------------------------------

    def give(self, unit: str, item: Any) -> bool:
        """An input for a unit, from the application or the driver; False if there is no process."""
        if self.state == UP:
            self.inbox.append((unit, item))
            if self._turn_at == NEVER:
                self._schedule()
            return True
        if self.state == PAUSED:
            self._unread.append((None, (unit, item)))
            return True
        return False

    def tell(self, item: Any) -> None:
        """An event of a flow."""
        self.give(ACCEPTOR, item)

    def flow_gone(self, closed: FlowClosed) -> None:
        self.flows.pop(closed.flow, None)
        self.give(ACCEPTOR, closed)

    def hear_datagrams(self, end: UdpEnd | MulticastEnd, packets: list[bytes]) -> None:
        """Datagrams carry the time at which the kernel received them, even if the process reads them late."""
        world = self.world
        running = self.state == UP
        if len(self.inbox if running else self._unread) >= self._packets_max:
            self.dropped_packets += len(packets)
            return
        views = [memoryview(packet) for packet in packets]
        item = (ACCEPTOR, Arrived(end.flow, views, world.now + self.clock_ns))
        if world.trace is not None:
            world.trace.line(world.now, self.name, f"hears udp {end.flow} {len(packets)}")
        if not running:
            self._unread.append((None, item))
            return
        self.inbox.append(item)
        if self._turn_at == NEVER:
            self._schedule()

    def hear_stream(self, end: TcpEnd, packets: list[bytes]) -> None:
        """A stream is read when the process runs; until then, the buffer of its sender fills."""
        if self.state != UP:
            self._unread.append((end, packets))
            return
        world = self.world
        if world.trace is not None:
            world.trace.line(world.now, self.name, f"hears tcp {end.flow} {len(packets)}")
        self._read.append((end.into, sum(map(len, packets)) + PREFIX * len(packets)))
        views = [memoryview(packet) for packet in packets]
        self.inbox.append((ACCEPTOR, Arrived(end.flow, views, world.now + self.clock_ns)))
        if self._turn_at == NEVER:
            self._schedule()

    def written(self, turn: int, store: str = NODE_STORE) -> None:
        if self.state == PAUSED:
            self._written_turns[store] = turn
            return
        assert self.core is not None
        self._log(f"written {turn} {store}".rstrip())
        if store == NODE_STORE:
            free = self.core.written(turn)
            if self._waits_for_disk:
                self._waits_for_disk, free = False, True
        else:
            free = self.core.written(turn, store)  # type: ignore[call-arg]  # a core with stores knows them
            free = self._make_way(store) or free
        if free:
            self._schedule()

    # -- for edges (`holdfast.subsystem.Port`) -------------------------------------------------------------------

    @property
    def config(self) -> NodeConfig:
        config: NodeConfig = self.core.config  # type: ignore[union-attr]  # a core with edges has one
        return config

    def clock(self) -> Nanos:
        return self.now

    def offer(self, unit: str, item: Any, size: int = 0, cls: int = 0) -> bool:
        return self.give(unit, item)

    def answer(self, unit: str, item: Any) -> None:
        self.give(unit, item)

    def answer_from_thread(self, unit: str, item: Any, patient: bool = False) -> None:
        self.give(unit, item)

    def expect_answers(self) -> None:
        """Applications of the simulator answer by themselves."""

    def use_store(self, store: str, writer: StoreWriter) -> None:
        self._writers[store] = writer

    def _submit(self, turn: int, store: str, writes: list[Any]) -> None:
        writer = self._writers.get(store)
        if writer is None:
            self.disk_of(store).submit(turn, writes)
        else:
            writer.submit(turn, writes)
        self._make_way(store)

    def _make_way(self, store: str) -> bool:
        """Let the units of a store run unless too much waits for it; True if some can continue."""
        writer = self._writers.get(store)
        full = self._disks[store].full_queue if writer is None else writer.full
        return bool(self.core.turns.block(store, blocked=full))  # type: ignore[union-attr]  # as above

    # -- turns ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Run a turn soon: after a short delay, occasionally after a longer one."""
        if self._turn_at != NEVER:
            return
        world = self.world
        bits = self._draw(32)
        late_ns = 1 + ((bits & 0xFFFF) * self._jitter_ns >> 16)
        if bits >> 16 < self._hiccups:
            late_ns += self._hiccup_ns()
        self._turn_at = at = world.now + late_ns
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self._turn, at))

    def _lateness_ns(self) -> Nanos:
        bits = self._draw(32)
        late_ns = 1 + ((bits & 0xFFFF) * self._jitter_ns >> 16)
        return late_ns if bits >> 16 >= self._hiccups else late_ns + self._hiccup_ns()

    def _hiccup_ns(self) -> Nanos:
        return self._draw(16) * self.profile.hiccup_ns >> 16

    def _turn(self, at: Nanos) -> None:
        if at == self._turn_at:
            self._run()

    def _wake(self, deadline: Nanos) -> None:
        """A deadline that was the next one when it was set; it may have moved since."""
        if deadline != self._wake_for or self.core is None:
            return
        self._wake_for = NEVER
        if self.core.next_deadline() > self.world.now + self.clock_ns:
            self._set_wake()
        else:
            self._run()

    def _run(self) -> None:
        core = self.core
        assert core is not None
        self._turn_at = NEVER
        if self.disk.outstanding_bytes > OUTSTANDING_MAX:
            self._waits_for_disk = True
            return
        for before_turn in self._before_turn:
            before_turn()
        inputs = self.inbox
        if self._read or len(inputs) > self._batch_limit:
            inputs = self._take()
        else:
            self.inbox = []
        try:
            result = core.turn(self.world.now + self.clock_ns, inputs)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not leave a node
            self._broken(error)
        self._carry_out(result)

    def _take(self) -> list[tuple[str, Any]]:
        """The inputs of one turn; sometimes only few of many, so that all batch sizes occur."""
        inputs = self.inbox
        if len(inputs) <= self._batch_limit:
            self.inbox = []
        else:
            self.inbox = inputs[self._batch_limit :]
            inputs = inputs[: self._batch_limit]
            self._batch_limit = self._random.randint(1, self.profile.batch_max)
        if self._read:
            read, self._read = self._read, []
            for pipe, size in read:
                pipe.taken(size)
        return inputs

    def _special_turn(self, turn: Callable[[Nanos], Result]) -> None:
        """The first turn of a process, or its last."""
        try:
            result = turn(self.now)
        except Exception as error:  # noqa: BLE001  # as above
            self._broken(error)
        self._carry_out(result)

    def _broken(self, error: Exception) -> NoReturn:
        self.world.fail("no exception leaves a node", f"{self.name}: {error!r}", error)

    def _carry_out(self, result: Result) -> None:
        """Execute the result of a turn, then wait for the next one."""
        world = self.world
        self.turns += 1
        if world.trace is not None:
            self._log(f"turn {result.number} {len(result.effects)} {len(result.writes)}")
        for check in world.turn_checks:
            check(self, result)
        if self._crash_armed and (result.effects or result.writes):
            self._crash_between(result)
            return
        if result.writes:
            self.disk.submit(result.number, result.writes)
        for store, writes in result.store_writes.items():
            self._submit(result.number, store, writes)
        handlers, flows = self._handlers, self.flows
        for effect in result.effects:
            if type(effect) is Transmit and handlers.plain:
                # The most frequent effect. A missing flow was closed meanwhile.
                end = flows.get(effect.flow)
                if end is not None:
                    end.send(effect.packets)
            else:
                handlers[type(effect)](effect)
        for after_turn in self._after_turn:
            after_turn()
        for failure in result.failures:
            for edge in self.edges:
                edge.unit_failed(failure)
        if result.facts and world.facts is not None:
            world.facts.record(self, result.facts)
        if result.more or self.inbox:
            self._schedule()
        self._set_wake()

    def _set_wake(self) -> None:
        assert self.core is not None
        deadline = self.core.next_deadline()
        if deadline >= self._wake_for:
            return  # the earlier wake-up checks again
        self._wake_for = deadline
        world = self.world
        at = max(deadline - self.clock_ns, world.now) + self._lateness_ns()
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self._wake, deadline))

    def _crash_between(self, result: Result) -> None:
        """Execute some of the steps of a turn, then crash. The disk may still lose the writes, so effects of an
        unwritten turn can be visible outside."""
        steps = [partial(self._handlers[type(effect)], effect) for effect in result.effects]
        for store, writes in result.store_writes.items():
            steps.insert(0, partial(self._submit, result.number, store, writes))
        if result.writes:
            steps.insert(0, partial(self.disk.submit, result.number, result.writes))
        done = self._random.randint(0, len(steps))
        for step in steps[:done]:
            step()
        self._log(f"crash after {done} of {len(steps)} steps")
        self.crash()

    def on(self, effect: type, callback: Callable[[Host, Any], None]) -> None:
        """Call the application for effects of this type, from the next start on. A callback that wants to stop its host
        asks the world to do it later: a turn is completed first."""
        self.callbacks[effect] = callback

    def next_flow(self) -> FlowId:
        self._flow += 1
        return FlowId(self._flow)

    def _log(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.line(self.world.now, self.name, text)


def make_sim_edges(subsystems: Sequence[Subsystem]) -> list[Edge]:
    """The edges of subsystems, as the simulator runs them."""
    named = [subsystem.sim_edge or subsystem.edge for subsystem in subsystems]
    return [resolve(edge)() for edge in named if edge]
