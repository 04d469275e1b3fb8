"""The daemon's side: dialogs of this node for applications that connect through a Unix socket, send and exit.

An application has a session, which outlives its connection for a short time. Its requests have ids; their outcomes are
kept until the application confirms them, so a request that is repeated after a lost connection takes effect once. Each
dialog is leased to one application at a time.

| the connection is lost          | effect |
| ------------------------------- | ------ |
| before a commit was requested   | the transaction is aborted |
| after a commit was requested    | it is carried out; the outcome is kept |
| during a receive                | its messages wait for the next receive |
| during a send                   | it is carried out; the outcome is kept |
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.dialog.routes import service_of
from holdfast.errors import MisuseError
from holdfast.runtime.control import listen_at
from holdfast.runtime.dialogs.daemon_frames import (
    Announced,
    Happened,
    Hello,
    Welcome,
    framed,
    from_application,
    read_frame,
)
from holdfast.runtime.dialogs.daemon_session import Session

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.edge import DialogEdge

log = logging.getLogger("holdfast")

APPLICATIONS_MAX: Final = 256
GRACE_S: Final = 30.0
"""How long the session of a lost connection is kept."""
ORPHANS_MAX: Final = 4096
"""Dialogs with messages that came for a receive that was given up."""


class DialogDaemon:
    """The socket, and the sessions of all applications."""

    def __init__(self, edge: DialogEdge, path: Path) -> None:
        self.edge = edge
        self.path = path
        self.instance = secrets.token_bytes(8)
        self.leases: dict[tuple[str, bytes], Session] = {}
        self.services: dict[str, Session | None] = {}
        """The application that listens to each service; None: it has left, and the node still accepts dialogs."""
        self.orphans: dict[tuple[str, bytes], list[ports.Message]] = {}
        self.counts: dict[str, int] = {}
        self._sessions: dict[bytes, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._closed = False

    async def start(self) -> None:
        """Listen. Raises `SetupError` if the socket cannot be made."""
        listener = listen_at(self.path)
        self._inode = self.path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._welcome, sock=listener)
        self.edge.watchers.append(self._happened)

    def close(self) -> None:
        """The node stops: every application loses its connection."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
        with suppress(ValueError):
            self.edge.watchers.remove(self._happened)
        for session in self._sessions.values():
            session.drop()
        for task in self._tasks:
            task.cancel()

    def status(self) -> dict[str, Any]:
        connected = sum(session.connected for session in self._sessions.values())
        return {
            "applications": len(self._sessions),
            "connected": connected,
            "leases": len(self.leases),
            "counts": dict(self.counts),
        }

    # -- connections ---------------------------------------------------------------------------------------------

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        session: Session | None = None
        try:
            session = await self._greet(reader, writer)
            if session is not None:
                await session.serve(reader, writer)
        except (OSError, ValueError, msgspec.DecodeError, asyncio.CancelledError) as error:
            if not isinstance(error, asyncio.CancelledError):
                self.counts["refused"] = self.counts.get("refused", 0) + 1
                log.warning(
                    "an application's connection is closed: %s",
                    error,
                    extra={
                        "event": "connection_closed",
                        "subsystem": "dialog",
                        "error": repr(error),
                    },
                )
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if session is not None and session.lost(writer) and not self._closed:
                self._watch(session)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Session | None:
        data = await read_frame(reader)
        hello = from_application(data) if data is not None else None
        if self._closed or not isinstance(hello, Hello) or len(hello.application) != 16:
            return None
        session = self._sessions.get(hello.application)
        if session is None:
            if len(self._sessions) >= APPLICATIONS_MAX:
                raise ValueError(f"{APPLICATIONS_MAX} applications are connected")
            session = self._sessions[hello.application] = Session(self, hello.application)
        edge = self.edge
        stores = [
            (name, store.kind, store.dsn, edge.store_id(name))
            for name, store in edge.stores.configs.items()
        ]
        profiles = {name: dict(table) for name, table in edge.config.profile.items()}
        node = bytes(edge.running().core.me.node)
        writer.write(framed(Welcome(self.instance, node, edge.default_store, stores, profiles)))
        await writer.drain()
        return session

    def _watch(self, session: Session) -> None:
        """End the session if its application does not come back."""
        grace = 0.0 if session.finished else GRACE_S
        loop = asyncio.get_running_loop()
        loop.call_later(grace, self._end_if_lost, session, session.connections)

    def _end_if_lost(self, session: Session, connections: int) -> None:
        if session.connected or session.connections != connections or self._closed:
            return
        self._sessions.pop(session.application, None)
        session.end()
        for key, owner in list(self.leases.items()):
            if owner is session:
                del self.leases[key]
        for service, listener in list(self.services.items()):
            if listener is session:
                self.services[service] = None

    # -- what applications share ---------------------------------------------------------------------------------

    def lease(self, session: Session, store: str, dialog: bytes) -> None:
        """One application at a time has a dialog."""
        owner = self.leases.setdefault((store, dialog), session)
        # rule: D-12d
        if owner is not session:
            raise MisuseError(
                "another application uses this dialog; nothing was done; it is free when that one has exited"
            )

    async def listen(self, session: Session, request: ports.Listen) -> None:
        """The node listens from now on, also when the application has exited."""
        service = request.service
        owner = self.services.get(service)
        if owner is not None and owner is not session:
            raise MisuseError(f"another application listens to {service!r}; nothing was changed")
        known = self.edge.listening.get(service)
        if known is not None and service in self.services and not _same(known, request):
            await self.edge.unlisten(service)
            known = None
        if known is None:
            values = msgspec.structs.asdict(request.settings)
            await self.edge.listen(service, automatic=request.automatic, **values)
        elif service not in self.services and not self._configured(service):
            raise MisuseError(
                f"the node's own application listens to {service!r}; nothing was changed"
            )
        self.services[service] = session
        store = self.edge.listening[service].settings.store
        for dialog, uri in self._unclaimed(store, service):
            session.push(Announced(service, "opened", dialog, uri))

    def _configured(self, service: str) -> bool:
        return any(each.name == service for each in self.edge.config.service)

    def _unclaimed(self, store: str, service: str) -> list[tuple[bytes, str]]:
        """Dialogs that partners opened while no application was there."""
        manager = self.edge.service.manager(store)
        if manager is None:
            return []
        return [
            (dialog, uri)
            for dialog, uri in manager.accepted()
            if service_of(uri) == service and (store, dialog) not in self.leases
        ]

    async def unlisten(self, session: Session, service: str) -> None:
        if self.services.get(service) is session:
            del self.services[service]
            await self.edge.unlisten(service)

    def _happened(self, store: str, event: ports.Event) -> None:
        if event.kind == "available":
            return
        owner = self.leases.get((store, event.dialog))
        if owner is not None:
            owner.push(Happened(store, event))
            if event.kind in ("completed", "terminated", "moved"):
                del self.leases[store, event.dialog]
        if event.kind == "requested" or (event.kind == "opened" and event.accepted):
            listener = self.services.get(service_of(event.uri))
            if listener is not None:
                announced = Announced(service_of(event.uri), event.kind, event.dialog, event.uri)
                listener.push(announced)

    def take_orphans(
        self, session: Session, store: str, dialog: bytes, number: int
    ) -> ports.Taken | None:
        """Messages of an earlier receive that was given up; of any dialog that the session may use if none is named."""
        for key in [(store, dialog)] if dialog else list(self.orphans):
            free = self.leases.get(key, session) is session
            if key in self.orphans and key[0] == store and free:
                messages = self.orphans.pop(key)
                if messages[number:]:
                    self.orphans[key] = messages[number:]
                return ports.Taken(key[1], messages[:number])
        return None

    def keep_orphans(self, store: str, taken: ports.Taken, first: bool = False) -> None:
        """Messages that came for a receive that was given up: the next receive of the dialog gets them."""
        if len(self.orphans) >= ORPHANS_MAX and (store, taken.dialog) not in self.orphans:
            self.counts["orphans_lost"] = self.counts.get("orphans_lost", 0) + len(taken.messages)
            log.error(
                "%d messages of a lost application were dropped: %d dialogs have such messages already",
                len(taken.messages),
                ORPHANS_MAX,
                extra={"event": "messages_dropped", "subsystem": "dialog", "store": store},
            )
        else:
            messages = [
                ports.Message(m.number, memoryview(bytes(m.body)), m.attempt)
                for m in taken.messages
            ]
            kept = self.orphans.setdefault((store, taken.dialog), [])
            kept[:0] = messages if first else []
            kept += [] if first else messages


def _same(known: ports.Listen, asked: ports.Listen) -> bool:
    return known.settings == asked.settings and known.automatic == asked.automatic
