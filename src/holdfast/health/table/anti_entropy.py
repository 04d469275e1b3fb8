"""Distribution of the table: changes along the neighbourhood, and digests that repair losses.

A state change is sent to every neighbour at once, and each forwards it if it was new; slowly changing figures go to the
neighbours only. Periodically a node sends one neighbour the digest of its table. If it differs, the neighbour answers
with what it holds of each listener, and each side sends what the other lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.health.frames import Edition, PathRow, PathRows, RowsRequest, TableDigest
from holdfast.health.table.path_table import PathTable, key_of, state_of
from holdfast.links.ports import SendChannel, link_unit
from holdfast.machine import Outbox
from holdfast.types import BULK, SYNC, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Frame

ROWS_PER_FRAME: Final = 200
EDITIONS_PER_FRAME: Final = 256
ROWS_TAKEN_MAX: Final = 10 * ROWS_PER_FRAME
"""Per frame: no node sends more, so the rest is ignored."""
ASKED_MAX: Final = 4 * EDITIONS_PER_FRAME
MEMBERS_PER_PERIOD: Final = 64
"""In a larger domain digests are longer, so they are sent less often."""

Neighbours = Callable[[], tuple[NodeId, ...]]


class AntiEntropy:
    """Sends and receives rows. The table decides what is new; this decides which nodes receive it."""

    def __init__(self, table: PathTable, neighbours: Neighbours, period_ns: Nanos) -> None:
        self.table = table
        self.up: dict[NodeId, bool] = {}
        """Peers with a session."""
        self.frames_sent = 0
        self.departed: list[Edition] = []
        """Listeners that are newly known to have left."""
        self._neighbours = neighbours
        self._period_ns = period_ns
        self._turn = 0
        self._rows: list[tuple[PathRow, NodeId | None]] = []
        """New rows, and the peer they came from."""
        self._editions: dict[bytes, tuple[Edition, NodeId | None]] = {}

    @property
    def period_ns(self) -> Nanos:
        return self._period_ns * max(1, len(self.table.listeners) // MEMBERS_PER_PERIOD)

    def targets(self) -> list[NodeId]:
        """Reachable neighbours; if there are none, any reachable peers."""
        return [peer for peer in self._neighbours() if peer in self.up] or list(self.up)

    # -- news ----------------------------------------------------------------------------------------------------

    def publish(self, rows: list[PathRow]) -> None:
        """Our own rows have changed (or, without rows, some are gone)."""
        self._rows += [(row, None) for row in rows]
        me = self.table.me
        pending = self._editions.get(me)
        some_gone = not rows or (pending is not None and pending[0].kept is not None)
        edition = self.table.kept(me) if some_gone else self.table.listeners[me].edition
        assert edition is not None, "our own rows are always complete"
        self._editions[me] = (edition, None)

    def announce(self, edition: Edition) -> None:
        """Distribute an edition that we issue for another node: it left."""
        self._editions[edition.listener] = (edition, None)

    def take(self, now: Nanos, peer: NodeId, frame: PathRows, out: Outbox) -> list[PathRow]:
        """Rows sent by a peer; returns those that were new."""
        table = self.table
        news: list[PathRow] = []
        touched: dict[bytes, bool] = {}
        for row in frame.rows[:ROWS_TAKEN_MAX]:
            if row.listener == table.me:
                continue
            before = table.rows.get(key_of(row))
            if not table.put(row, now):
                continue
            news.append(row)
            changed = before is None or state_of(before) != state_of(row)
            if changed and not frame.repair:
                self._rows.append((row, peer))
                touched[row.listener] = True
        for edition in frame.editions[:ROWS_TAKEN_MAX]:
            self._take_edition(peer, edition, frame.repair, edition.listener in touched, out)
        return news

    def _take_edition(
        self, peer: NodeId, edition: Edition, repair: bool, with_rows: bool, out: Outbox
    ) -> None:
        table, node = self.table, edition.listener
        if node == table.me:
            if table.outgrow(edition):
                self.publish([])
            return
        newer = table.claim(edition)
        if newer and edition.left:
            self.departed.append(edition)
        if newer and not repair and (with_rows or edition.left or edition.kept is not None):
            self._editions[node] = (edition, peer)
        listener = table.listeners.get(node)
        lacking = repair and listener is not None and listener.edition.n == edition.n
        if lacking and listener is not None and not listener.whole and listener.base:
            # Something older than what we requested is missing as well.
            listener.base = 0
            self._send(peer, RowsRequest(((node, edition.incarnation, 0),)), SYNC, out)

    def flush(self, out: Outbox) -> None:
        """At the end of a turn: new rows go to every neighbour that did not send them."""
        if not self._rows and not self._editions:
            return
        rows, self._rows = self._rows, []
        editions, self._editions = self._editions, {}
        sources = {source: True for _, source in rows}
        sources |= {source: True for _, source in editions.values()}
        everything: list[bytes] | None = None
        for peer in self.targets():
            if peer in sources:
                frames = self._frames(rows, editions, peer)
            else:
                frames = everything = everything or self._frames(rows, editions, None)
            self.frames_sent += len(frames)
            if frames:
                out.down(link_unit(peer), SendChannel(SYNC, frames), True)

    def _frames(
        self,
        rows: list[tuple[PathRow, NodeId | None]],
        editions: dict[bytes, tuple[Edition, NodeId | None]],
        peer: NodeId | None,
    ) -> list[bytes]:
        mine = [row for row, source in rows if peer is None or source != peer]
        concerned = [e for e, source in editions.values() if peer is None or source != peer]
        return [encode(frame) for frame in _split(mine, concerned, repair=False)]

    # -- repair --------------------------------------------------------------------------------------------------

    def joined(self, peer: NodeId, out: Outbox) -> None:
        """A session with a peer starts: compare tables."""
        self.up[peer] = True
        self._send(peer, TableDigest(self.table.digest), SYNC, out)

    def tick(self, out: Outbox) -> None:
        """Compare tables with the next neighbour."""
        targets = self.targets()
        if targets:
            self._turn += 1
            peer = targets[self._turn % len(targets)]
            self._send(peer, TableDigest(self.table.digest), SYNC, out)

    def compare(self, peer: NodeId, frame: TableDigest, out: Outbox) -> None:
        """A neighbour sends its digest, or what it holds."""
        if frame.editions or frame.first or frame.stop:
            self._compare_editions(peer, frame, out)
        elif frame.digest != self.table.digest or self._lacking():
            self._show(peer, out)

    def _lacking(self) -> bool:
        return any(not listener.whole for listener in self.table.listeners.values())

    def _show(self, peer: NodeId, out: Outbox) -> None:
        """Report what we hold of each listener, ordered by id."""
        nodes = sorted(self.table.listeners)
        starts = range(0, len(nodes), EDITIONS_PER_FRAME)
        for start in starts or (0,):
            part = [self.table.listeners[n] for n in nodes[start : start + EDITIONS_PER_FRAME]]
            after = start + EDITIONS_PER_FRAME
            frame = TableDigest(
                self.table.digest,
                # The ends are open, or listeners that only the other knows would be missed.
                nodes[start] if start else b"",
                nodes[after] if after < len(nodes) else b"\xff" * 17,
                tuple(listener.edition for listener in part),
                tuple(listener.base for listener in part),
            )
            self._send(peer, frame, BULK, out)

    def _compare_editions(self, peer: NodeId, frame: TableDigest, out: Outbox) -> None:
        table = self.table
        wanted: list[tuple[bytes, int, int]] = []
        lacking: list[tuple[bytes, int]] = []
        shown: dict[bytes, bool] = {}
        for edition, base in list(zip(frame.editions, frame.bases, strict=False))[:ASKED_MAX]:
            node = edition.listener
            shown[node] = True
            if node == table.me and table.outgrow(edition):
                self.publish([])
            mine = table.listeners.get(node)
            held = (mine.edition.incarnation, mine.base) if mine else (-1, 0)
            same_life = held[0] == edition.incarnation
            theirs = (edition.incarnation, base)
            if edition.left:
                self._departed(peer, edition)
            elif base == edition.n and theirs > held and node != table.me:
                wanted.append((node, edition.incarnation, held[1] if same_life else 0))
            elif mine is not None and mine.whole and theirs < (held[0], mine.edition.n):
                lacking.append((node, base if same_life else 0))
        lacking += [
            (node, 0)
            for node, listener in table.listeners.items()
            if frame.first <= node < frame.stop and node not in shown and listener.whole
        ]
        self._repair(peer, lacking, out)
        if wanted:
            self._send(peer, RowsRequest(tuple(wanted)), SYNC, out)

    def _departed(self, peer: NodeId, edition: Edition) -> None:
        if self.table.claim(edition):
            self.departed.append(edition)
            self._editions[edition.listener] = (edition, peer)

    def answer(self, peer: NodeId, frame: RowsRequest, out: Outbox) -> None:
        """A peer requests rows; answer for listeners of which we hold all rows."""
        lacking: list[tuple[bytes, int]] = []
        for node, incarnation, since in frame.wanted[:ASKED_MAX]:
            listener = self.table.listeners.get(node)
            if listener is not None:
                same_life = listener.edition.incarnation == incarnation
                lacking.append((node, since if same_life else 0))
        self._repair(peer, lacking, out)

    def _repair(self, peer: NodeId, lacking: list[tuple[bytes, int]], out: Outbox) -> None:
        """Send what is newer than what the peer has of some listeners, if we hold all of it."""
        rows: list[PathRow] = []
        editions: list[Edition] = []
        for node, since in lacking:
            edition = self.table.kept(node)
            if edition is not None:
                rows += self.table.rows_since(node, since)
                editions.append(edition)
        if editions:
            for frame in _split(rows, editions, repair=True):
                self._send(peer, frame, BULK, out)

    def _send(self, peer: NodeId, frame: Frame, channel: int, out: Outbox) -> None:
        self.frames_sent += 1
        out.down(link_unit(peer), SendChannel(channel, [encode(frame)]), True)


def _split(rows: list[PathRow], editions: list[Edition], repair: bool) -> list[PathRows]:
    """Frames of bounded size; the editions come with the last rows."""
    parts = [rows[at : at + ROWS_PER_FRAME] for at in range(0, len(rows), ROWS_PER_FRAME)] or [[]]
    frames = [PathRows(tuple(part), (), repair) for part in parts[:-1]]
    starts = range(0, len(editions), EDITIONS_PER_FRAME)
    claims = [tuple(editions[at : at + EDITIONS_PER_FRAME]) for at in starts] or [()]
    frames.append(PathRows(tuple(parts[-1]), claims[0], repair))
    frames += [PathRows((), claim, repair) for claim in claims[1:]]
    return [frame for frame in frames if frame.rows or frame.editions]
