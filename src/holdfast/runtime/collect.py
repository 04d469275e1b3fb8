"""The edge of the collection: serves this node's sealed segments, and collects those of all members on request.

Everything that touches files runs in a thread. One request is outstanding per peer, and each has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from holdfast.collect.frames import (
    PIECE_BYTES,
    AdviceTaken,
    ListSegments,
    OfferAdvice,
    ReadSegment,
    Reply,
    Request,
    SegmentList,
    SegmentPiece,
)
from holdfast.collect.ports import COLLECT, Answered, Asked, PeerGone, Say
from holdfast.errors import HoldfastError, MisuseError, NodeStopped
from holdfast.health.subsystem import ADVICE
from holdfast.links.subsystem import LinkService
from holdfast.runtime.driver import Driver
from holdfast.runtime.segment_files import (
    AdviceInbox,
    Refused,
    list_segments,
    put_whole,
    read_piece,
    segment_target,
)
from holdfast.runtime.threads import aside
from holdfast.subsystem import Control, Edge, EffectHandler, Port
from holdfast.types import NodeId

ANSWER_S: Final = 10.0
"""How long an answer of a peer may take."""
SEGMENT_BYTES_MAX: Final = 1 << 30

R = TypeVar("R", SegmentList, SegmentPiece, AdviceTaken)


class PeerFailed(HoldfastError):
    """A member did not answer, or refused."""


class CollectEdge(Edge):
    """Serves requests of peers, and answers the control request `collect`."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._landing: Path | None = None
        self._inbox: AdviceInbox | None = None
        self._numbers = count(1)
        self._waiting: dict[tuple[NodeId, int], asyncio.Future[Reply]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, port: Port) -> None:
        self._driver = cast("Driver", port)
        telemetry = port.config.telemetry_directory
        self._landing = Path(telemetry) / "landing" if telemetry else None
        advice = ADVICE.of(port.config)
        if advice.directory and advice.accept:
            self._inbox = AdviceInbox(Path(advice.directory))

    def effects(self) -> Mapping[type, EffectHandler]:
        return {Asked: self._asked, Answered: self._answered, PeerGone: self._gone}

    def control(self) -> Mapping[str, Control]:
        return {"collect": self._collect}

    def halt(self, error: HoldfastError) -> None:
        self._driver = None
        for task in self._tasks:
            task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NodeStopped("the node has stopped"))
        self._waiting.clear()

    # -- serving -------------------------------------------------------------------------------------------------

    def _asked(self, asked: Asked) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, asked: Asked) -> None:
        try:
            reply = await aside(partial(self._answer, asked.frame))
        except Exception as failure:  # noqa: BLE001 the peer must get an answer, whatever failed here
            reply = _failed(asked.frame, f"{type(failure).__name__}: {failure}")
        if self._driver is not None:
            self._driver.answer(COLLECT, Say(asked.peer, reply))

    def _answer(self, frame: Request) -> Reply:
        """In a thread: the reply to a peer."""
        try:
            if isinstance(frame, OfferAdvice):
                if self._inbox is None:
                    raise Refused("this node accepts no advice: set [advice] directory and accept")
                self._inbox.take(frame.name, frame.offset, frame.size, frame.data)
                return AdviceTaken(frame.n)
            if self._landing is None:
                raise Refused("this node records no telemetry")
            if isinstance(frame, ListSegments):
                return SegmentList(frame.n, *list_segments(self._landing, frame.after))
            return SegmentPiece(frame.n, read_piece(self._landing, frame.name, frame.offset))
        except Refused as refused:
            return _failed(frame, str(refused))

    # -- asking --------------------------------------------------------------------------------------------------

    def _answered(self, answered: Answered) -> None:
        future = self._waiting.get((answered.peer, answered.frame.n))
        if future is not None and not future.done():
            future.set_result(answered.frame)

    def _gone(self, gone: PeerGone) -> None:
        for (peer, _), future in list(self._waiting.items()):
            if peer == gone.peer and not future.done():
                future.set_exception(PeerFailed("the session with it ended"))

    async def _ask(self, peer: NodeId, make: Callable[[int], Request], kind: type[R]) -> R:
        driver = self._driver
        if driver is None:
            raise NodeStopped("the node has stopped")
        n = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[peer, n] = future
        try:
            driver.answer(COLLECT, Say(peer, make(n)))
            reply = await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            raise PeerFailed(f"no answer within {ANSWER_S:g} s") from None
        finally:
            self._waiting.pop((peer, n), None)
        if not isinstance(reply, kind):
            raise PeerFailed("an answer of the wrong kind")
        if reply.problem:
            raise PeerFailed(reply.problem)
        return reply

    # -- collecting ----------------------------------------------------------------------------------------------

    async def _collect(self, request: dict[str, Any]) -> dict[str, Any]:
        """`to`: where segments go; `advice`: an edition to hand out; `limit`: segments per member and call."""
        target, edition = request.get("to", ""), request.get("advice", "")
        limit = request.get("limit", 100)
        if not (isinstance(target, str) and isinstance(edition, str) and isinstance(limit, int)):
            raise MisuseError("collect needs texts `to` and `advice`, and a number `limit`")
        if not (target or edition):
            raise MisuseError("collect needs a directory `to`, an edition `advice`, or both")
        driver = self._driver
        assert driver is not None
        me, links = driver.core.me, driver.core.service(LinkService)
        members: list[dict[str, Any]] = []
        for member in links.members():
            row: dict[str, Any] = {"name": member.name, "node": member.node.hex()}
            try:
                if target:
                    take = self._take_own if member.node == me.node else self._take_from
                    row |= await take(NodeId(member.node), Path(target), limit)
                if edition and member.node != me.node:
                    row["advice"] = await self._hand_out(NodeId(member.node), Path(edition))
            except (PeerFailed, Refused, OSError) as failure:
                row["problem"] = str(failure)
            members.append(row)
        return {"members": members, "more": any(row.get("more") for row in members)}

    async def _take_own(self, me: NodeId, target: Path, limit: int) -> dict[str, Any]:
        if self._landing is None:
            return {"problem": "this node records no telemetry"}
        return await aside(partial(_copy_own, self._landing, target, me.hex(), limit))

    async def _take_from(self, peer: NodeId, target: Path, limit: int) -> dict[str, Any]:
        """Fetch segments that are not there yet, oldest name first."""
        taken = size = 0
        after, more = "", True
        while more:
            found = await self._ask(peer, partial(_list_after, after), SegmentList)
            more = found.more
            for name, length in found.files:
                after = name
                place = segment_target(target, peer.hex(), name)
                if await aside(place.exists):
                    continue
                if taken >= limit:
                    return {"segments": taken, "bytes": size, "more": True}
                content = await self._fetch(peer, name, length)
                await aside(partial(put_whole, place, content))
                taken, size = taken + 1, size + len(content)
        return {"segments": taken, "bytes": size, "more": False}

    async def _fetch(self, peer: NodeId, name: str, length: int) -> bytes:
        if not 0 < length <= SEGMENT_BYTES_MAX:
            raise PeerFailed(f"{name} has {length} bytes")
        content = bytearray()
        while len(content) < length:
            piece = await self._ask(peer, partial(_read_from, name, len(content)), SegmentPiece)
            if not piece.data:
                raise PeerFailed(f"{name} ended after {len(content)} of {length} bytes")
            content += piece.data
        return bytes(content)

    async def _hand_out(self, peer: NodeId, edition: Path) -> str:
        content = await aside(edition.read_bytes)
        for offset in range(0, len(content), PIECE_BYTES):
            data = content[offset : offset + PIECE_BYTES]
            offer = partial(_offer, edition.name, offset, len(content), data)
            await self._ask(peer, offer, AdviceTaken)
        return "taken"


def _copy_own(landing: Path, target: Path, node: str, limit: int) -> dict[str, Any]:
    taken = size = 0
    after, more = "", True
    while more:
        files, more = list_segments(landing, after)
        for name, _ in files:
            after = name
            try:
                place = segment_target(target, node, name)
            except Refused:
                continue  # of another node that records into the same directory
            if place.exists():
                continue
            if taken >= limit:
                return {"segments": taken, "bytes": size, "more": True}
            content = (landing / name).read_bytes()
            put_whole(place, content)
            taken, size = taken + 1, size + len(content)
    return {"segments": taken, "bytes": size, "more": False}


def _list_after(after: str, n: int) -> ListSegments:
    return ListSegments(n, after)


def _read_from(name: str, offset: int, n: int) -> ReadSegment:
    return ReadSegment(n, name, offset)


def _offer(name: str, offset: int, size: int, data: bytes, n: int) -> OfferAdvice:
    return OfferAdvice(n, name, offset, size, data)


def _failed(frame: Request, problem: str) -> Reply:
    if isinstance(frame, ListSegments):
        return SegmentList(frame.n, problem=problem)
    if isinstance(frame, ReadSegment):
        return SegmentPiece(frame.n, problem=problem)
    return AdviceTaken(frame.n, problem)
