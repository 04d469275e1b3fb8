"""`holdfast.Node`: a running node, as applications meet it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, Final, TypeVar

import msgspec

from holdfast import __version__
from holdfast.errors import (
    ChannelEnded,
    ConfigError,
    MisuseError,
    NodeStopped,
    NotAccepted,
    PeerUnknown,
    SourceEnded,
)
from holdfast.group.config import source_unit
from holdfast.group.ports import Output, Replica, SourceRoom, StopOutputs
from holdfast.group.source import SourceMachine
from holdfast.health.needs import Needs
from holdfast.links.directory import DIRECTORY
from holdfast.links.inlet import CHANNELS_MAX
from holdfast.links.ports import (
    DATAGRAMS,
    PORT_MIN,
    NeedLink,
    PortReady,
    PortRefused,
    PortRoom,
    SessionEnded,
)
from holdfast.machine import Failure
from holdfast.node.config import NodeConfig
from holdfast.node.core import NodeCore
from holdfast.runtime.control import ControlServer, Handler
from holdfast.runtime.driver import Driver
from holdfast.runtime.events import event_of
from holdfast.runtime.failures import write_down
from holdfast.runtime.handles import Channel, Datagrams, Group
from holdfast.runtime.health import Health
from holdfast.runtime.health_control import HealthControl
from holdfast.runtime.operating import ask_group
from holdfast.runtime.outputs import Answer, OutputDesk, is_async, refuse_awaitable
from holdfast.runtime.parts import (
    check_applications,
    load_application,
    load_config,
    make_transports,
    open_segments,
    open_store,
    open_tls,
)
from holdfast.runtime.stress import stress_handlers
from holdfast.runtime.worker import AppWorker
from holdfast.stores.identity import open_identity
from holdfast.stores.port import Store
from holdfast.stores.segments import SegmentWriter
from holdfast.stores.writer import StoreWriter
from holdfast.telemetry.facts import NodeFact
from holdfast.transports import (
    Faults,
    Rule,
)
from holdfast.types import CLASSES, MILLISECOND, NodeId

EVENTS_KEPT: Final = 200
PORTS_MAX: Final = CHANNELS_MAX - len(CLASSES)
"""Channels of applications to one peer; Holdfast's own come on top."""

log = logging.getLogger("holdfast")

Callback = Callable[[NodeId, list[memoryview]], object]
T = TypeVar("T")


class Node:
    """A node of a domain. Use it as an async context manager, or call `start` and `stop`."""

    def __init__(
        self,
        config: NodeConfig | str | Path,
        applications: Mapping[str, Replica] | None = None,
    ) -> None:
        """`config` is a checked configuration or the path of a TOML file; `applications` maps groups to replicas."""
        self.config = config if isinstance(config, NodeConfig) else load_config(config)
        self._applications = dict(applications or {})
        self._driver: Driver | None = None
        self._core: NodeCore | None = None
        self._store: Store | None = None
        self._writer: StoreWriter | None = None
        self._segments: SegmentWriter | None = None
        self._control: ControlServer | None = None
        self._faults = Faults() if self.config.lab.faults else None
        self._handles: deque[Channel | Datagrams | Group] = deque()
        self._channels: dict[tuple[NodeId, int], Channel] = {}
        self._datagrams: dict[tuple[NodeId, int], Datagrams] = {}
        self._groups: dict[str, Group] = {}
        self._outputs = OutputDesk(self._answer_outputs)
        self._callbacks: dict[tuple[int, bool], Callback] = {}
        self._events: deque[dict[str, str]] = deque(maxlen=EVENTS_KEPT)
        self._alive = False
        """From the beginning of a start to the end of the stop after it."""
        self._begun = asyncio.Event()
        """The start has succeeded or failed: nobody stops what is not there yet."""
        self._stopping: asyncio.Task[None] | None = None
        self._stopped: asyncio.Future[BaseException | None] | None = None
        self._dumps: set[asyncio.Future[None]] = set()
        """Of units that failed; they are being written."""
        self._failure: BaseException | None = None
        """What has stopped the node."""
        self._applied = False
        """Whether the applications that it was given may have been called."""
        self._link_changed = asyncio.Event()
        """A link came or went, or the node has ended."""
        self._started_ns = 0
        self._wall_offset_ns = 0
        self.health = Health()
        """What is known of every path of the domain."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen on every adapter, join the domain. Raises `SetupError`, or `StoreError` when the store
        cannot be used (`StoreLocked`, `StoreFull`, `StoreDamaged`); then nothing is running."""
        name = self.config.name
        if self._alive:
            raise MisuseError(
                f"node {name} is running, or was not stopped after it failed: await stop() first; nothing was changed"
            )
        if self._applied:
            raise MisuseError(
                f"node {name} has run applications, which keep the state of that life: make a new Node "
                "with new applications; nothing was started"
            )
        self._alive = True
        self._begun = asyncio.Event()
        self._stopped = asyncio.get_running_loop().create_future()
        self._link_changed = asyncio.Event()
        self._outputs.open()
        self._failure = None
        try:
            await self._start()
        except BaseException:
            self._begun.set()
            await self.stop()
            raise
        self._begun.set()

    async def _start(self) -> None:
        config = self.config
        check_applications(config, self._applications)
        tls = open_tls(config)
        if tls is None:
            log.warning(
                "PLAIN MODE: node %s neither authenticates nor encrypts; for loopback only",
                config.name,
            )
        store, core = await _to_its_end(self._load)
        driver = self._driver = Driver(
            core,
            self._record,
            self._deliver,
            self._room,
            self._session_ended,
            self._outputs.take,
            self._fail,
            self._unit_failed,
        )
        self._writer = StoreWriter(store, driver.written, driver.write_failed)
        driver.use_writer(self._writer)
        driver.before_turn = self._hand_over
        self.health.attach(core, driver, self._wall_offset_ns)
        for group in core.groups.values():
            if config.name in (*group.voters, *group.learners):
                unit = f"replica/{group.name}"
                driver.workers[unit] = AppWorker(
                    group.name, self._application(group.name), _answers(driver, unit)
                )
        driver.transports.update(make_transports(config, driver, tls, self._faults))
        for transport in driver.transports.values():
            await transport.start()
        if config.data:
            self._control = ControlServer(Path(config.data) / "control.sock", self._handlers())
            await self._control.start()
        self._applied = bool(self._applications)
        driver.start()

    def _load(self) -> tuple[Store, NodeCore]:
        """In a thread: a store may be large, and others live on this event loop. A core is plain Python that belongs
        to nobody yet."""
        config = self.config
        store = self._store = self._open_store()
        identity = open_identity(store, lambda: secrets.token_bytes(16))
        self._started_ns = monotonic_ns()
        self._wall_offset_ns = time_ns() - self._started_ns
        core = self._core = NodeCore(
            config,
            identity.node,
            identity.incarnation,
            secrets.randbits(64),
            os.urandom,
            {table: store.load(table) for table in NodeCore.tables(config)},
            self._started_ns,
            wall_offset_ns=self._wall_offset_ns,
        )
        self._segments = open_segments(
            config, identity.node.hex(), identity.incarnation, self._wall_offset_ns
        )
        return store, core

    async def stop(self) -> None:
        """Stop listening, close everything. Nothing that was reported durable is lost; what was sent a moment ago may
        not have left yet, and then it does not: `flush` a group's handle first, if it matters. Whoever is cancelled
        here only stops waiting for it."""
        if self._alive and self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._tear_down())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _tear_down(self) -> None:
        """Everybody is told first. Then what others may want to have: sockets, and the store. An application that
        takes its time comes last. Whatever fails, the rest is closed all the same."""
        await self._begun.wait()
        driver, self._driver = self._driver, None
        with self._going_on("its outputs"):
            self._outputs.close()
        if driver is not None:
            with self._going_on("its links"):
                driver.leave()
            # What happens while this node goes is not worth recording.
            driver.halt()
            if driver.started:
                with self._going_on("its telemetry"):
                    self._record(
                        [NodeFact(monotonic_ns(), "stop", f"incarnation {self.incarnation}")]
                    )
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        with self._going_on("its handles"):
            self._end_handles(f"node {self.config.name} has stopped; nothing was sent")
            self.health.detach()
        if self._control is not None:
            with self._going_on("its control socket"):
                await self._control.close()
            self._control = None
        if driver is not None:
            with self._going_on("its sockets"):
                await driver.stop()
        with self._going_on("its store"):
            await _aside(self._close_files)
        if driver is not None:
            with self._going_on("its applications"):
                await _aside(driver.close_workers)
        if self._dumps:
            await asyncio.wait(self._dumps)
        self._alive, self._stopping = False, None

    def _close_files(self) -> None:
        """In a thread, and in one: nothing may be closed while something else still writes to it."""
        for part in (self._writer, self._segments, self._store):
            if part is not None:
                with self._going_on(f"its {type(part).__name__}"):
                    part.close()
        self._writer = self._segments = self._store = None

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """No step of a stop may keep the next from running."""
        try:
            yield
        except (Exception, asyncio.CancelledError):
            log.exception(
                "node %s stops: closing %s failed; the rest is closed", self.config.name, what
            )

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait_stopped(self) -> None:
        """Wait until the node stops, or begins to; raises what stopped it (a store that cannot write, for one)."""
        assert self._stopped is not None, "not started"
        error = await asyncio.shield(self._stopped)
        if error is not None:
            raise error

    def _fail(self, error: BaseException) -> None:
        """Something that a node cannot go on after: above all a write that failed."""
        log.error("node %s stops: %s", self.config.name, error)
        self._failure = error
        if self._driver is not None:
            self._driver.halt()
        self._outputs.close()
        self.health.detach()
        self._end_handles(f"node {self.config.name} has stopped: {error}; nothing was sent")
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(error)

    def _end_handles(self, why: str) -> None:
        """Whoever sends, or waits to, is told; the next start makes others."""
        self._link_changed.set()
        for handle in self._handles:
            handle.end(NodeStopped(why))
        self._handles.clear()
        self._channels.clear()
        self._datagrams.clear()
        self._groups.clear()

    # -- parts ---------------------------------------------------------------------------------------------------

    def _open_store(self) -> Store:
        return open_store(self.config)

    def _application(self, group: str) -> Replica:
        if group in self._applications:
            return self._applications[group]
        for section in self.config.group:
            if section.name == group and section.application:
                return load_application(section.application)
        raise ConfigError(
            f'group {group!r} has no application: set application = "package.module:Class" or give one to Node()'
        )

    # -- the driver's callbacks ----------------------------------------------------------------------------------

    def _record(self, facts: list[Any]) -> None:
        if self._segments is not None:
            self._segments.record(facts)
        for fact in facts:
            if fact.kind == "link":
                self._link_changed.set()
            text = event_of(fact)
            if text:
                at = datetime.fromtimestamp((fact.now_ns + self._wall_offset_ns) / 1e9, UTC)
                self._events.appendleft(
                    {"at": at.isoformat(timespec="milliseconds"), "kind": fact.kind, "text": text}
                )
                log.info("%s: %s", self.config.name, text)

    def _unit_failed(self, failure: Failure) -> None:
        log.error(
            "unit %s failed%s: %r",
            failure.unit,
            " and is stopped" if failure.stopped else "",
            failure.error,
        )
        self._source_failed(failure)
        if failure.stopped:
            self._outputs.take(StopOutputs(failure.unit))  # a replica cannot say it any more
        if self.config.data:
            directory = Path(self.config.data) / "failures"
            dump = asyncio.ensure_future(_aside(partial(write_down, directory, failure)))
            self._dumps.add(dump)
            dump.add_done_callback(self._dumps.discard)

    def _deliver(self, ready: PortReady) -> None:
        callback = self._callbacks.get((ready.port, ready.channel))
        if callback is None:
            return
        try:
            refuse_awaitable(callback(ready.peer, ready.messages))
        except (Exception, asyncio.CancelledError):
            log.exception(
                "the callback of port %d failed with %d messages", ready.port, len(ready.messages)
            )

    def _room(self, room: PortRoom | PortRefused | SourceRoom) -> None:
        if isinstance(room, PortRefused):
            datagrams = self._datagrams.get((room.peer, room.port))
            if datagrams is not None:
                datagrams.refuse(room.count, room.reason)
        elif isinstance(room, PortRoom):
            channel = self._channels.get((room.peer, room.port))
            if channel is not None:
                channel.queued(room.queued, room.taken)
        else:
            group = self._groups.get(room.unit)
            if group is not None:
                group.queued(room.held, room.taken)
                group.settled(room.settled)

    def _session_ended(self, ended: SessionEnded) -> None:
        """Every channel to that peer is over; whoever holds one learns it at the next send."""
        for key, channel in list(self._channels.items()):
            if key[0] == ended.peer:
                del self._channels[key]
                self._handles.remove(channel)
                name = self._running().directory.name_of(ended.peer)
                channel.end(
                    ChannelEnded(
                        f"the channel to {name}, port {channel.port}, ended: {ended.reason}; up to "
                        f"{ended.unacked + channel.unseen} bytes may not have arrived; ask the node for a new channel "
                        "when the peer is back"
                    )
                )

    def _source_failed(self, failure: Failure) -> None:
        """What a source held is gone with it: whoever sends with it learns that."""
        group = self._groups.pop(failure.unit, None)
        if group is not None:
            self._handles.remove(group)
            what = (
                "restart the node"
                if failure.stopped
                else "ask the node for the group again, and send what must not be lost once more"
            )
            group.end(
                SourceEnded(
                    f"the source of group {group.name} failed: {failure.error!r}; up to {group.pending} bytes of "
                    f"messages that it had accepted may be lost; {what}"
                )
            )

    def _answer_outputs(self, unit: str, answer: Answer) -> None:
        if self._driver is not None:
            self._driver.answer(unit, answer)

    def _hand_over(self) -> None:
        for handle in self._handles:
            handle.hand_over()
        self._handles.rotate()  # where there is not room for all, each is the first in turn

    # -- what applications use -----------------------------------------------------------------------------------

    @property
    def id(self) -> NodeId:
        return self._running().me.node

    @property
    def incarnation(self) -> int:
        return self._running().me.incarnation

    async def until_up(self, *names: str, timeout_s: float = 10.0) -> None:
        """Wait until there is a session with each of these members; raises `NotAccepted` when it takes too long, and
        `NodeStopped` when this node stops meanwhile."""
        missing: list[str] = []
        asked: dict[str, bool] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [name for name in names if not self._is_up(name)]:
                    self._drive()
                    self._ask_for_links(missing, asked)
                    self._link_changed.clear()
                    await self._link_changed.wait()
        except TimeoutError:
            raise NotAccepted(
                f"no session with {', '.join(missing)} within {timeout_s:g} s"
            ) from None

    def _ask_for_links(self, names: list[str], asked: dict[str, bool]) -> None:
        """In a large domain there are links to neighbours only, until somebody wants one."""
        for node, member in self._running().directory.members.items():
            if member.name in names and member.name not in asked:
                asked[member.name] = True
                self._need(node)

    def _need(self, node: NodeId) -> None:
        if self._running().neighbourhood.sparse:
            self._drive().offer(DIRECTORY, NeedLink(node))

    def _is_up(self, name: str) -> bool:
        core = self._running()
        for node, member in core.directory.members.items():
            link = core.link(node)
            if member.name == name and link is not None and link.up_since is not None:
                return True
        return False

    def peer(self, name: str) -> NodeId:
        """The id of the member called `name`."""
        for node, member in self._running().directory.members.items():
            if member.name == name:
                return node
        raise PeerUnknown(
            f"no member of domain {self.config.domain!r} is called {name!r}; nothing was sent"
        )

    def channel(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Channel:
        """A reliable, ordered stream of messages to a port of `peer`, on a path that gives what it `needs`."""
        _check_port(port)
        node = self.peer(peer) if isinstance(peer, str) else peer
        self._need(node)
        link = self._running().link(node)
        if link is None or link.up_since is None:
            raise NotAccepted(
                f"there is no session with {peer!r} now; nothing was sent; wait with until_up()"
            )
        key = (node, port)
        if key not in self._channels:
            if sum(1 for other, _ in self._channels if other == node) >= PORTS_MAX:
                raise MisuseError(
                    f"there are {PORTS_MAX} channels to {peer!r} already, and a peer takes no more; nothing was opened"
                )
            channel = self._channels[key] = Channel(self._drive(), node, port, needs)
            self._handles.append(channel)
        elif needs is not None:
            self._channels[key].needs = needs
        return self._channels[key]

    def datagrams(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Datagrams:
        """Messages to a port of `peer` that may be lost, on a path that gives what they need."""
        _check_port(port)
        node = self.peer(peer) if isinstance(peer, str) else peer
        self._need(node)
        key = (node, port)
        if key not in self._datagrams:
            datagrams = self._datagrams[key] = Datagrams(self._drive(), node, port, needs)
            self._handles.append(datagrams)
        elif needs is not None:
            self._datagrams[key].needs = needs
        return self._datagrams[key]

    def listen(self, port: int, callback: Callback, channel: bool = True) -> None:
        """Call `callback(peer, messages)`, a plain `def`, with what arrives at `port`, on the event loop."""
        _check_port(port)
        if is_async(callback):
            raise MisuseError(
                f"who listens to port {port} has to be a plain `def`: nobody awaits it; nothing has changed. Let it "
                "put messages into an `asyncio.Queue`, or begin a task."
            )
        self._callbacks[(port, channel)] = callback

    def on_outputs(self, group: str, callback: Callable[[Output], None]) -> None:
        """Call `callback(output)` with what the application of `group` says to `node:` and this node's name: each
        output once and in order, on the event loop."""
        self._outputs.listen(group, callback)

    def send_outputs(self, group: str, send: Callable[[Output], Awaitable[None]]) -> None:
        """While this node leads `group`, await `send(output)` for what its application says to destinations that are
        no nodes: in order for each, at least once, again after it raised or another node leads."""
        self._outputs.send_with(group, send)

    def group(self, name: str) -> Group:
        """A source of messages to the group `name`."""
        if name not in self._running().groups:
            raise MisuseError(f"this node's configuration has no group {name!r}")
        unit = source_unit(name)
        if unit not in self._groups:
            core = self._running()
            if (failure := core.turns.stopped.get(unit)) is not None:
                raise SourceEnded(
                    f"the source of group {name} failed twice and is stopped: {failure.error!r}; nothing was sent; "
                    "restart the node"
                )
            source = core.turns.machine(unit)
            assert isinstance(source, SourceMachine)
            group = Group(self._drive(), core.groups[name], source.stream.stream)
            self._groups[unit] = group
            self._handles.append(group)
        return self._groups[unit]

    def status(self) -> dict[str, Any]:
        """Everything there is to see, as plain values."""
        core, now = self._running(), monotonic_ns()
        started = datetime.fromtimestamp((self._started_ns + self._wall_offset_ns) / 1e9, UTC)
        body = core.status(now)
        stopped_units = body.pop("stopped_units")
        return {
            "schema": 1,
            "node": {
                "id": core.me.node.hex(),
                "name": core.me.name,
                "domain": core.me.domain,
                "incarnation": core.me.incarnation,
                "started_at": started.isoformat(timespec="seconds"),
                "uptime_s": round((now - self._started_ns) / 1e9, 1),
                "security": self.config.security.mode,
                "version": __version__,
                "stopped_units": stopped_units,
                "stopped": str(self._failure) if self._failure is not None else "",
            },
            **body,
            "events": list(self._events),
            "queues": {
                "intake": self._driver.intake.waiting if self._driver else 0,
                "loop_lag_ms_max": self._driver.lag_ns_max // MILLISECOND if self._driver else 0,
            },
            "telemetry": {
                "facts": self._segments.facts if self._segments else 0,
                "lost": self._segments.lost if self._segments else 0,
            },
        }

    # -- control -------------------------------------------------------------------------------------------------

    def answer(self, handlers: Mapping[str, Handler]) -> None:
        """Let the node's control socket do more: `handlers` of an application, by what they are asked to do."""
        if self._control is None:
            raise MisuseError("a node without a data directory has no control socket")
        self._control.add(handlers)

    def _handlers(self) -> dict[str, Handler]:
        return {
            "status": lambda _: self.status(),
            "fault": self._add_fault,
            "heal": self._remove_faults,
            "group": lambda request: ask_group(self._drive(), request),
            "health": HealthControl(self.health).answer,
            **stress_handlers(self._running, self._drive),
        }

    def _add_fault(self, request: dict[str, Any]) -> dict[str, Any]:
        faults = self._lab()
        fields = {key: value for key, value in request.items() if key != "do"}
        try:
            Rule(**fields)  # has no other fields
            rule = msgspec.convert(fields, Rule)
        except (TypeError, msgspec.ValidationError) as error:
            raise MisuseError(f"not a fault: {error}; nothing was changed") from None
        return {"id": faults.add(rule), "faults": faults.describe()}

    def _remove_faults(self, request: dict[str, Any]) -> dict[str, Any]:
        faults = self._lab()
        if "id" in request:
            try:
                number = int(request["id"])
            except (TypeError, ValueError, OverflowError):
                raise MisuseError(
                    f"a fault's id is a number, not {request['id']!r}; nothing was changed"
                ) from None
            faults.remove(number)
        else:
            faults.clear()
        return {"faults": faults.describe()}

    def _lab(self) -> Faults:
        if self._faults is None:
            raise MisuseError(
                "this node does not take faults; set [lab] faults = true; nothing was changed"
            )
        return self._faults

    def _running(self) -> NodeCore:
        if self._core is None:
            raise NodeStopped("the node is not running; nothing was sent")
        return self._core

    def _drive(self) -> Driver:
        self._running()
        if self._driver is None or self._failure is not None:
            why = f": {self._failure}" if self._failure is not None else ""
            raise NodeStopped(f"node {self.config.name} has stopped{why}; nothing was sent")
        return self._driver


def _check_port(port: object) -> None:
    """Others mean something else on the wire, or cannot be written there."""
    if type(port) is not int or not PORT_MIN <= port < DATAGRAMS:
        raise MisuseError(
            f"port {port!r}: applications have the integers {PORT_MIN} to {DATAGRAMS - 1}, those below are Holdfast's "
            "own; nothing was opened"
        )


def _answers(driver: Driver, unit: str) -> Callable[[Any], None]:
    return lambda item: driver.answer_from_thread(unit, item)


async def _aside(call: Callable[[], T]) -> T:
    """Run it in a thread of its own: those of the event loop may all be busy with what an application does there."""
    executor = ThreadPoolExecutor(1, "holdfast-node")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)


async def _to_its_end(call: Callable[[], T]) -> T:
    """Run it in a thread, and do not go away before it is done: what it opens must be closed by somebody."""
    task = asyncio.ensure_future(_aside(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # who says it twice waits as well
                await asyncio.wait([task])
        raise
