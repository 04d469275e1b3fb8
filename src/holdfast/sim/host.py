"""A simulated machine that runs one core, as late, as batched and as mortal as a real one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.errors import MisuseError, StoreError
from holdfast.group.ports import Replica
from holdfast.links.ports import DOOR, Arrived, FlowClosed, Transmit
from holdfast.machine import Result
from holdfast.sim.application import Worker
from holdfast.sim.disk import OUTSTANDING_MAX, Disk, DiskStore
from holdfast.sim.effects import Handlers, handlers_of
from holdfast.sim.multicast import MulticastEnd
from holdfast.sim.port import Boot, Core, HostContext
from holdfast.sim.profile import HostProfile
from holdfast.sim.seeds import chance
from holdfast.sim.tcp import PREFIX, Pipe, TcpEnd
from holdfast.sim.udp import UdpEnd
from holdfast.types import NEVER, SECOND, FlowId, Nanos

if TYPE_CHECKING:
    from holdfast.sim.network import Adapter
    from holdfast.sim.world import World

EPOCH_NS: Final = 1_893_456_000 * SECOND
"""The time of day at which every world begins: 2030-01-01 UTC."""

DOWN: Final = "down"
UP: Final = "up"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"
"""By itself, for a reason that it gives; `start` starts it again."""


class Host:
    """One machine: a process that may crash, pause and restart, a disk that stays, adapters on the network."""

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
        """What each job of the application takes longer than usual."""
        self._boot = boot
        self.application = application
        random = chance(world.seed, "host", name)
        self._random = random
        self._draw = random.getrandbits
        self._jitter_ns = profile.turn_jitter_ns
        self._hiccups = profile.hiccup_ppm * 65_536 // 1_000_000
        """Of 65536 turns; attributes here are read in every turn."""
        self._packets_max = profile.packets_max
        self._skew_ns = random.randint(-profile.wall_skew_ns, profile.wall_skew_ns)
        self.clock_ns = random.getrandbits(44)
        """The host's monotonic time is the world's plus this."""
        self.disk = Disk(
            world, chance(world.seed, "disk", name), profile.disk_lag_ns, profile.disk_jitter_ns
        )
        self.callbacks: dict[type, Callable[[Host, Any], None]] = {}
        self._handlers: Handlers = Handlers({})
        self._reset()

    def _reset(self) -> None:
        """Everything that dies with a process."""
        self.core = None
        self.inbox: list[tuple[str, Any]] = []
        self._unread: list[tuple[TcpEnd | None, Any]] = []
        self._read: list[tuple[Pipe, int]] = []
        self._written_turn = 0
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

    @property
    def alive(self) -> bool:
        """There is a process, even if it does not run at the moment."""
        return self.state in (UP, PAUSED)

    @property
    def paused(self) -> bool:
        return self.state == PAUSED

    @property
    def now(self) -> Nanos:
        """The host's own monotonic time."""
        return self.world.now + self.clock_ns

    @property
    def wall_offset_ns(self) -> Nanos:
        """Added to the host's monotonic time it gives the host's (wrong) time of day."""
        return EPOCH_NS + self._skew_ns - self.clock_ns

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot the process from what is on the disk."""
        if self.alive:
            raise MisuseError(f"host {self.name} runs already; nothing was started")
        if not self.powered:
            # The machine itself starts again, so its monotonic clock begins anew.
            self.powered = True
            self.clock_ns = self._random.getrandbits(36) - self.world.now
            self.world.network.power_changed()
        self._reset()
        self.boots += 1
        self.reason = ""
        self._log(f"start {self.boots}")
        context = HostContext(
            self.world.seed, self.name, self.boots, DiskStore(self.disk), self.wall_offset_ns
        )
        self.disk.on_written = self._on_written
        self.disk.on_failed = self._on_store_failed
        try:
            self.core = self._boot(context)
        except StoreError as error:
            self._die(STOPPED, str(error))
            return
        self.state = UP
        self._handlers = handlers_of(self)
        for checker in self.world.checkers:
            checker.booted(self)
        self._special_turn(self.core.start)

    def start_again(self) -> None:
        """Start it unless it runs; a crash that was meant for one of its turns does not come any more."""
        self._crash_armed = False
        if not self.alive:
            self.start()

    def stop(self) -> None:
        """A clean stop: everything is written, flows are closed in good order."""
        if not self.alive:
            return
        self.resume()
        last_turn = getattr(self.core, "stop", None)
        if last_turn is not None:
            self._special_turn(last_turn)
        self._log("stop")
        self.disk.flush()
        for end in self.flows.values():
            end.close()
        self._tell_ended()
        self.state = DOWN
        self._reset()

    def crash(self) -> None:
        """The process is killed; the kernels of its peers learn of it when the paths let them."""
        self._end(DOWN, "crash", silent=False)

    def power_off(self) -> None:
        """The machine loses power: nobody is told anything."""
        self._end(DOWN, "power off", silent=True)
        if self.powered:
            self.powered = False
            self.world.network.power_changed()

    def crash_in_turn(self) -> None:
        """Crash between two steps of the next turn that has something to do."""
        self._crash_armed = self.alive

    def pause(self) -> None:
        """Stop the process as SIGSTOP does: the clock and the kernel go on, what arrives waits."""
        if self.state == UP:
            self._log("pause")
            self.state = PAUSED
            self._turn_at = self._wake_for = NEVER

    def resume(self) -> None:
        if self.state != PAUSED:
            return
        self._log("resume")
        self.state = UP
        unread, self._unread = self._unread, []
        for end, item in unread:
            if end is None:
                self.inbox.append(item)
            else:
                self.hear_stream(end, item)
        for worker in self.workers.values():
            worker.resume()
        if self._written_turn:
            turn, self._written_turn = self._written_turn, 0
            self._on_written(turn)
        if self.state == UP:
            self._schedule()

    def _end(self, state: str, why: str, silent: bool) -> None:
        if not self.alive:
            return
        saved = self.disk.crash()
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

    def _on_store_failed(self, error: StoreError) -> None:
        """A node whose write failed stops: it can promise nothing any more."""
        if self.alive:
            self._log(f"store failed: {error}")
            self._die(STOPPED, f"store failed: {error}")

    # -- what comes in -------------------------------------------------------------------------------------------

    def give(self, unit: str, item: Any) -> bool:
        """An input for a unit, from the application or the driver; False when there is no process."""
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
        """Something about a flow."""
        self.give(DOOR, item)

    def flow_gone(self, closed: FlowClosed) -> None:
        self.flows.pop(closed.flow, None)
        self.give(DOOR, closed)

    def hear_datagrams(self, end: UdpEnd | MulticastEnd, packets: list[bytes]) -> None:
        """Datagrams carry the time at which the kernel got them, also when the process reads them late."""
        world = self.world
        running = self.state == UP
        if len(self.inbox if running else self._unread) >= self._packets_max:
            self.dropped_packets += len(packets)
            return
        views = [memoryview(packet) for packet in packets]
        item = (DOOR, Arrived(end.flow, views, world.now + self.clock_ns))
        if world.trace is not None:
            world.trace.line(world.now, self.name, f"hears udp {end.flow} {len(packets)}")
        if not running:
            self._unread.append((None, item))
            return
        self.inbox.append(item)
        if self._turn_at == NEVER:
            self._schedule()

    def hear_stream(self, end: TcpEnd, packets: list[bytes]) -> None:
        """A stream is read when the process runs; until then its sender's buffer fills."""
        if self.state != UP:
            self._unread.append((end, packets))
            return
        world = self.world
        if world.trace is not None:
            world.trace.line(world.now, self.name, f"hears tcp {end.flow} {len(packets)}")
        self._read.append((end.into, sum(map(len, packets)) + PREFIX * len(packets)))
        views = [memoryview(packet) for packet in packets]
        self.inbox.append((DOOR, Arrived(end.flow, views, world.now + self.clock_ns)))
        if self._turn_at == NEVER:
            self._schedule()

    def _on_written(self, turn: int) -> None:
        if self.state == PAUSED:
            self._written_turn = turn
            return
        assert self.core is not None
        self._log(f"written {turn}")
        if self.core.written(turn) or self._waits_for_disk:
            self._waits_for_disk = False
            self._schedule()

    # -- turns ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Run a turn soon: after a little while, now and then after a longer one."""
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
        """A deadline that was the next one when it was set; it may have moved away since."""
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
        """The inputs of one turn; of many that wait sometimes few, so that every size of a batch is seen."""
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
        """Do what a turn asks for, then wait for the next one."""
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
        handlers, flows = self._handlers, self.flows
        for effect in result.effects:
            if type(effect) is Transmit and handlers.plain:
                # Most of what is ever asked for. A flow that is not there was closed meanwhile.
                end = flows.get(effect.flow)
                if end is not None:
                    end.send(effect.packets)
            else:
                handlers[type(effect)](effect)
        if result.facts and world.facts is not None:
            world.facts.record(self, result.facts)
        if result.more or self.inbox:
            self._schedule()
        self._set_wake()

    def _set_wake(self) -> None:
        assert self.core is not None
        deadline = self.core.next_deadline()
        if deadline >= self._wake_for:
            return  # The earlier wake-up looks again.
        self._wake_for = deadline
        world = self.world
        at = max(deadline - self.clock_ns, world.now) + self._lateness_ns()
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self._wake, deadline))

    def _crash_between(self, result: Result) -> None:
        """Do some of the steps of a turn, then crash. What the disk got it may still lose, so effects can be seen
        outside whose turn was never written."""
        steps = [partial(self._handlers[type(effect)], effect) for effect in result.effects]
        if result.writes:
            steps.insert(0, partial(self.disk.submit, result.number, result.writes))
        done = self._random.randint(0, len(steps))
        for step in steps[:done]:
            step()
        self._log(f"crash after {done} of {len(steps)} steps")
        self.crash()

    def on(self, effect: type, callback: Callable[[Host, Any], None]) -> None:
        """Call the application's side for effects of this type, from the next start on. A callback that wants to
        stop its host asks the world to do it later: a turn is carried out to its end."""
        self.callbacks[effect] = callback

    def next_flow(self) -> FlowId:
        self._flow += 1
        return FlowId(self._flow)

    def _log(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.line(self.world.now, self.name, text)
