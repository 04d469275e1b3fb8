"""`holdfast.Node`: a running node, for applications."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, TypeVar

from holdfast import __version__
from holdfast.errors import MisuseError, NodeStopped, RoleNotFound
from holdfast.group.ports import Output, Replica
from holdfast.health.placement.needs import Needs
from holdfast.links.ports import PORT_MIN
from holdfast.machine import Failure
from holdfast.node.core import NodeCore
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.overlay.ports import Location
from holdfast.runtime.applications import check_applications
from holdfast.runtime.control import ControlServer
from holdfast.runtime.dialogs.edge import DialogEdge
from holdfast.runtime.driver import Driver
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.groups import GroupEdge
from holdfast.runtime.handles import Channel, Datagrams, Group
from holdfast.runtime.health import Health
from holdfast.runtime.lab import LabEdge
from holdfast.runtime.links import Callback, LinkEdge
from holdfast.runtime.objects.edge import ObjectEdge
from holdfast.runtime.parts import (
    load_config,
    make_transports,
    open_segments,
    open_store,
    open_tls,
)
from holdfast.runtime.roles import DEFAULT_TREE, NEIGHBOURHOOD, Roles
from holdfast.runtime.roles_handles import DirectTree
from holdfast.runtime.threads import aside, to_its_end
from holdfast.runtime.tracing import Traced, find_tracing
from holdfast.stores.identity import open_identity
from holdfast.stores.port import Store
from holdfast.stores.writer import StoreWriter
from holdfast.subsystem import Control, Edge, NodeConfig, Subsystem
from holdfast.subsystem.resolve import make_edges
from holdfast.telemetry.facts import NodeFact
from holdfast.transports import TcpTransport
from holdfast.types import MILLISECOND, NodeId

E = TypeVar("E", bound=Edge)

log = logging.getLogger("holdfast")


class Node:
    """A node of a domain. Use it as an async context manager, or call `start` and `stop`."""

    health: Health
    """The health of all paths of the domain."""
    roles: Roles
    """Location-independent addresses: publish, send, find, connect."""
    objects: ObjectEdge
    """Storage objects with replicas: create, read, write, move, watch."""
    dialogs: DialogEdge
    """Reliable sessions between two applications, with any assurance, on any store."""

    def __init__(
        self,
        config: NodeConfig | str | Path,
        applications: Mapping[str, Replica] | None = None,
        subsystems: Sequence[Subsystem] = SUBSYSTEMS,
    ) -> None:
        """`config` is a checked configuration or the path of a TOML file; `applications` maps groups to replicas."""
        self.config = config if isinstance(config, NodeConfig) else load_config(config, subsystems)
        self._applications = dict(applications or {})
        self._subsystems = tuple(subsystems)
        self._lab = LabEdge(self.config.lab.faults)
        self._edges: tuple[Edge, ...] = (*make_edges(subsystems), self._lab)
        for edge in self._edges:
            edge.meet(self._edges)
            if edge.name:
                setattr(self, edge.name, edge)
        self._links = self._edge(LinkEdge)
        self._groups = self._edge(GroupEdge)
        self._groups.applications = self._applications
        self._driver: Driver | None = None
        self._core: NodeCore | None = None
        self._store: Store | None = None
        self._writer: StoreWriter | None = None
        self._control: ControlServer | None = None
        self._log = EventLog(self.config)
        self._alive = False
        """From the beginning of a start to the end of the following stop."""
        self._begun = asyncio.Event()
        """The start has succeeded or failed: a stop must wait for it."""
        self._stopping: asyncio.Task[None] | None = None
        self._stopped: asyncio.Future[BaseException | None] | None = None
        self._failure: BaseException | None = None
        """The error that stopped the node."""
        self._applied = False
        """Whether the given applications may have been called."""
        self._started_ns = 0

    def _edge(self, kind: type[E]) -> E:
        return next(edge for edge in self._edges if isinstance(edge, kind))

    # -- start and stop ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen on every adapter, join the domain. Raises `SetupError`, or `StoreError` if the store
        cannot be used (`StoreLocked`, `StoreFull`, `StoreDamaged`); nothing is running then."""
        name = self.config.name
        if self._alive:
            raise MisuseError(
                f"node {name} is running, or was not stopped after it failed: await stop() first; "
                "nothing was changed"
            )
        if self._applied:
            raise MisuseError(
                f"node {name} has already run its applications, which keep their state: create a new "
                "Node with new applications; nothing was started"
            )
        self._alive = True
        self._begun = asyncio.Event()
        self._stopped = asyncio.get_running_loop().create_future()
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
                extra=self._log.fields("plain_mode"),
            )
        store, core = await to_its_end(self._load)
        driver = self._driver = Driver(
            core, self._log.record, self._fail, self._unit_failed, self._edges
        )
        tracing = find_tracing(node=config.name, domain=config.domain)
        for edge in self._edges:
            if isinstance(edge, Traced):
                edge.tracing = tracing
        self._writer = StoreWriter(store, driver.written, driver.write_failed)
        driver.use_writer(self._writer)
        for edge in self._edges:
            edge.attach(driver)
        driver.transports.update(make_transports(config, driver, tls, self._lab.faults))
        for transport in driver.transports.values():
            await transport.start()
        if config.data:
            self._control = ControlServer(Path(config.data) / "control.sock", self._handlers())
            await self._control.start()
        self._applied = bool(self._applications)
        driver.start()

    def _load(self) -> tuple[Store, NodeCore]:
        """In a thread: a store may be large, and the event loop has other work. The core is not shared yet."""
        config = self.config
        store = self._store = self._open_store()
        identity = open_identity(store, lambda: secrets.token_bytes(16))
        self._started_ns = monotonic_ns()
        wall_offset_ns = self._log.wall_offset_ns = time_ns() - self._started_ns
        core = self._core = NodeCore(
            config,
            identity.node,
            identity.incarnation,
            secrets.randbits(64),
            os.urandom,
            {table: store.load(table) for table in NodeCore.tables(config, self._subsystems)},
            self._started_ns,
            wall_offset_ns=wall_offset_ns,
            subsystems=self._subsystems,
        )
        self._log.segments = open_segments(
            config, identity.node.hex(), identity.incarnation, wall_offset_ns
        )
        return store, core

    async def stop(self) -> None:
        """Stop listening and close everything. Data that was reported as durable is safe. Messages that have not been
        sent are discarded: call `flush` of a group handle first if they matter. Cancelling this call only stops waiting
        for it."""
        if self._alive and self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._tear_down())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _tear_down(self) -> None:
        """Inform peers first. Then release what others may need: sockets and the store. Applications that take long
        come last. A failing step does not prevent the others."""
        await self._begun.wait()
        driver, self._driver = self._driver, None
        if driver is not None:
            with self._going_on("its links"):
                driver.leave()
            # Events during the stop are not recorded.
            driver.halt()
            if driver.started:
                with self._going_on("its telemetry"):
                    self._log.record(
                        [NodeFact(monotonic_ns(), "stop", f"incarnation {self.incarnation}")]
                    )
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        self._halt_edges(f"node {self.config.name} has stopped; nothing was sent")
        if self._control is not None:
            with self._going_on("its control socket"):
                await self._control.close()
            self._control = None
        if driver is not None:
            with self._going_on("its sockets"):
                await driver.stop()
        with self._going_on("its store"):
            await aside(self._close_files)
        with self._going_on("its applications"):
            await aside(self._close_edges)
        await self._log.settle()
        self._alive, self._stopping = False, None

    def _close_files(self) -> None:
        """In one thread: nothing may be closed while something else still writes to it."""
        for part in (self._writer, self._log.segments, self._store):
            if part is not None:
                with self._going_on(f"its {type(part).__name__}"):
                    part.close()
        self._writer = self._log.segments = self._store = None

    def _close_edges(self) -> None:
        for edge in self._edges:
            with self._going_on(type(edge).__name__):
                edge.close()

    def _halt_edges(self, why: str) -> None:
        """End every handle of applications."""
        for edge in self._edges:
            with self._going_on(type(edge).__name__):
                edge.halt(NodeStopped(why))

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """A failing step of a stop must not prevent the next."""
        try:
            yield
        except (Exception, asyncio.CancelledError):
            log.exception(
                "node %s stops: closing %s failed; the rest is closed",
                self.config.name,
                what,
                extra=self._log.fields("close_failed"),
            )

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait_stopped(self) -> None:
        """Wait until the node stops or begins to; raises the error that stopped it, such as a failed write."""
        assert self._stopped is not None, "not started"
        error = await asyncio.shield(self._stopped)
        if error is not None:
            raise error

    def _fail(self, error: BaseException) -> None:
        """An error after which a node cannot continue: above all a failed write."""
        extra = self._log.fields("node_failed") | {"error": str(error)}
        log.error("node %s stops: %s", self.config.name, error, extra=extra)
        self._failure = error
        if self._driver is not None:
            self._driver.halt()
        self._halt_edges(f"node {self.config.name} has stopped: {error}; nothing was sent")
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(error)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _open_store(self) -> Store:
        return open_store(self.config)

    # -- the driver's callbacks ----------------------------------------------------------------------------------

    def _unit_failed(self, failure: Failure) -> None:
        self._log.unit_failed(failure)
        for edge in self._edges:
            edge.unit_failed(failure)

    # -- for applications ----------------------------------------------------------------------------------------

    @property
    def id(self) -> NodeId:
        return self._running().me.node

    @property
    def incarnation(self) -> int:
        return self._running().me.incarnation

    async def until_up(self, *names: str, timeout_s: float = 10.0) -> None:
        """Wait until there is a session with each of these members; raises `NotAccepted` on timeout, and `NodeStopped`
        if this node stops."""
        self._drive()
        await self._links.until_up(*names, timeout_s=timeout_s)

    def peer(self, name: str) -> NodeId:
        """The id of the member `name`."""
        return self._links.peer(name)

    async def renew_credentials(self) -> None:
        """Read the certificate files again, and use them for new connections; existing ones continue. Raises
        `CertificateError` if the files are invalid; nothing is changed then."""
        driver = self._drive()
        tls = await asyncio.to_thread(open_tls, self.config)
        if tls is None:
            raise MisuseError("a node in plain mode has no certificate; nothing was changed")
        for transport in driver.transports.values():
            if isinstance(transport, TcpTransport):
                transport.use_tls(tls)

    def channel(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Channel:
        """A reliable, ordered stream of messages to a port of `peer`, on a path that meets its `needs`."""
        return self._links.channel(peer, port, needs)

    def datagrams(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Datagrams:
        """Messages to a port of `peer` that may be lost, on a path that meets their needs."""
        return self._links.datagrams(peer, port, needs)

    def listen(self, port: int, callback: Callback, channel: bool = True) -> None:
        """Call `callback(peer, messages)`, a plain function, with messages for `port`, on the event loop."""
        self._links.listen(port, callback, channel)

    async def search(self, role: str, tree: str | bytes = DEFAULT_TREE) -> str | None:
        """The name of the node where the first instance of a role is registered; None if the role has no instance."""
        return await self.roles.search(role, tree)

    async def connect(
        self,
        what: str | Sequence[Location],
        tree: str | bytes = DEFAULT_TREE,
        *,
        realm_only: bool = False,
        neighbourhood: int = NEIGHBOURHOOD,
    ) -> DirectTree:
        """One-hop connections to all instances of a role, or to the locations that `roles.find` returned on this node
        or another. Locations of several finds become one tree. Raises `RoleNotFound` if a role has no instance."""
        if not isinstance(what, str):
            return await self.roles.connect(tuple(what), neighbourhood)
        places = await self.roles.find(what, tree, realm_only)
        if not places:
            raise RoleNotFound(f"no instance of role {what!r} was found; nothing was connected")
        return await self.roles.connect(places, neighbourhood)

    def group(self, name: str) -> Group:
        """A handle for sending messages to the group `name`."""
        return self._groups.group(name)

    def on_outputs(self, group: str, callback: Callable[[Output], None]) -> None:
        """Call `callback(output)` with outputs of the application of `group` for `node:` and the name of this node:
        each once and in order, on the event loop."""
        self._groups.on_outputs(group, callback)

    def send_outputs(self, group: str, send: Callable[[Output], Awaitable[None]]) -> None:
        """While this node leads `group`, await `send(output)` for outputs to destinations that are not nodes: in order
        per destination, at least once, and again after it raised or the leader changed."""
        self._groups.send_outputs(group, send)

    def status(self) -> dict[str, Any]:
        """The complete status, as plain values."""
        core, now = self._running(), monotonic_ns()
        started = datetime.fromtimestamp((self._started_ns + self._log.wall_offset_ns) / 1e9, UTC)
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
            "queues": {
                "intake": self._driver.intake.waiting if self._driver else 0,
                "loop_lag_ms_max": self._driver.lag_ns_max // MILLISECOND if self._driver else 0,
            },
            **self._log.status(),
        }

    # -- control -------------------------------------------------------------------------------------------------

    def answer(self, handlers: Mapping[str, Control]) -> None:
        """Add handlers of an application to the control socket, by request name."""
        if self._control is None:
            raise MisuseError("a node without a data directory has no control socket")
        self._control.add(handlers)

    def _handlers(self) -> dict[str, Control]:
        handlers: dict[str, Control] = {
            "status": lambda _: self.status(),
            "seal": self._seal,
            "renew-credentials": self._renew,
        }
        for edge in self._edges:
            handlers.update(edge.control())
        return handlers

    async def _renew(self, _request: dict[str, Any]) -> dict[str, Any]:
        await self.renew_credentials()
        return {"done": "renewed"}

    async def _seal(self, _: dict[str, Any]) -> dict[str, Any]:
        """Seal the telemetry now, for a reader that must not wait for the next regular seal."""
        segments = self._log.segments
        if segments is None:
            raise MisuseError("this node records no telemetry; nothing was sealed")
        until_ns = await asyncio.to_thread(segments.seal)
        return {"name": self.config.name, "until_ns": until_ns, "problem": segments.problem}

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
