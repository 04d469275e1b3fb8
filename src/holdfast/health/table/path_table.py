"""The path table: for every path, the report of its listener. All nodes hold the same after a quiet period.

A row belongs to its listener, which alone changes it. Each change creates a new *edition* of the rows of the listener:
an increasing number, which is also the version of the changed row, and a digest of all its rows. Every node can
therefore tell whether its copy of the rows of a listener is complete, and request missing rows from any node with a
complete copy.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from holdfast.health.frames import Edition, PathRow
from holdfast.health.verdict import LOSSY_PPM
from holdfast.types import MICROSECOND, Nanos
from holdfast.wire.codec import encode

ROWS_MAX: Final = 200_000
LISTENERS_MAX: Final = 10_000
NAME_MAX: Final = 64
PATTERNS_MAX: Final = 64
_LEAVE_STEP: Final = 1 << 40
"""A node that issues a 'left' edition for another may not know its last edition, and must exceed it."""

RowKey = tuple[bytes, str, bytes, str, str]
PathKey = tuple[bytes, str, bytes, str]
"""Sender, its adapter, listener, its adapter: one direction."""


def key_of(row: PathRow) -> RowKey:
    return row.sender, row.sender_adapter, row.listener, row.listener_adapter, row.transport


def state_of(row: PathRow) -> tuple[object, ...]:
    """The fields of a row without slowly changing figures: a change of these is distributed to all nodes."""
    return (
        row.alive,
        row.size,
        row.size_max,
        row.holes,
        row.patterns,
        row.bad_patterns,
        row.flows,
        row.flows_bad,
        row.loss_ppm >= LOSSY_PPM,
        row.delay_us > 0,
        row.rate_limit_kbps > 0,
        row.data_lost,
        row.outage_ms > 0,
    )


def digest_of(row: PathRow) -> int:
    return int.from_bytes(blake2b(encode(row), digest_size=8).digest(), "big")


def _plausible(row: PathRow) -> bool:
    """Whether a row is valid: stored rows of other nodes must have a bounded size."""
    names = (row.sender_adapter, row.listener_adapter, row.transport)
    lists = (row.patterns, row.bad_patterns, row.holes)
    return (
        len(row.sender) == len(row.listener) == 16
        and max(map(len, names)) <= NAME_MAX
        and max(map(len, lists)) <= PATTERNS_MAX
        and all(len(pattern) <= NAME_MAX for pattern in row.patterns + row.bad_patterns)
        and 0 <= row.n < 1 << 63
        and 0 <= row.incarnation < 1 << 63
    )


class Listener:
    """Everything held of one listener: its rows, the newest known edition, and how complete they are."""

    __slots__ = ("base", "digest", "edition", "rows")

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.rows: dict[RowKey, int] = {}
        """The contribution of each row to the digest."""
        self.digest = 0
        self.base = 0
        """The last edition of which we held everything."""

    @property
    def whole(self) -> bool:
        return self.digest == self.edition.digest


class PathTable:
    """Rows by path, in the order in which they were first received."""

    def __init__(self, me: bytes = b"", incarnation: int = 0, rows_max: int = ROWS_MAX) -> None:
        """`me` is the listener whose rows are issued here; rows of others are added with `put` too."""
        self.rows_max = rows_max
        self.me = me
        self.incarnation = incarnation
        self.rows: dict[RowKey, PathRow] = {}
        self.since: dict[RowKey, Nanos] = {}
        """When this node learnt of the current state of a path."""
        self.listeners: dict[bytes, Listener] = {}
        self.fresh: list[tuple[PathRow | None, PathRow | None]] = []
        """Changes (before, after) that the gossip has not seen yet."""
        self.digest = 0
        """Of all editions: two nodes with the same hold the same table, if both are whole."""
        self._living: dict[bytes, bool] | None = None
        """What `living` found, until a path dies or comes back."""
        if me:
            self._listener(me, incarnation)

    # -- rows ----------------------------------------------------------------------------------------------------

    def put(self, row: PathRow, now: Nanos = 0) -> bool:
        """Add a row if it is newer than ours; True if it was. A row of our own creates a new edition."""
        if not _plausible(row):
            return False
        listener = self._listener(row.listener, row.incarnation)
        if listener is None:
            return False
        key = key_of(row)
        known = self.rows.get(key)
        if known is None and len(self.rows) >= self.rows_max:
            return False
        own = row.listener == self.me
        if own:
            # The report of the listener itself is always the newest; withdrawn rows may have used up the version.
            row = msgspec.structs.replace(row, n=max(row.n, listener.edition.n + 1))
        elif known is not None and (row.incarnation, row.n) <= (known.incarnation, known.n):
            return False
        elif row.n <= listener.base:
            return False  # outdated: everything that was left of it at that edition was here
        self._set(listener, key, row, now)
        if own:
            self._issue(listener, row.n)
        return True

    def _set(self, listener: Listener, key: RowKey, row: PathRow, now: Nanos) -> None:
        known = self.rows.get(key)
        share = digest_of(row)
        listener.digest ^= listener.rows.get(key, 0) ^ share
        listener.rows[key] = share
        self.rows[key] = row
        if known is None or known.alive != row.alive:
            self._living = None
        if known is None or state_of(known) != state_of(row):
            self.since[key] = now
        self.fresh.append((known, row))

    def _remove(self, listener: Listener, key: RowKey) -> None:
        listener.digest ^= listener.rows.pop(key)
        self._living = None
        self.fresh.append((self.rows.pop(key), None))
        del self.since[key]

    def _listener(self, node: bytes, incarnation: int) -> Listener | None:
        """What is held of this incarnation of a listener; None for an earlier one, or beyond the limit."""
        listener = self.listeners.get(node)
        if listener is not None and listener.edition.incarnation >= incarnation:
            return listener if listener.edition.incarnation == incarnation else None
        if listener is None and len(self.listeners) >= LISTENERS_MAX:
            return None
        edition = Edition(node, incarnation, 0, 0)
        if listener is None:
            self.listeners[node] = listener = Listener(edition)
            self.digest ^= _share(edition)
            return listener
        for key in list(listener.rows):
            self._remove(listener, key)
        listener.base = 0
        self._adopt(listener, edition)
        return listener

    # -- our own rows --------------------------------------------------------------------------------------------

    def withdraw(self, sender: bytes, now: Nanos) -> bool:
        """We withdraw our reports about the paths from `sender`: it left, or they are not measured. False if there were
        none."""
        mine = self.listeners[self.me]
        gone = [key for key in mine.rows if key[0] == sender]
        if not gone:
            return False
        for key in gone:
            self._remove(mine, key)
        self._issue(mine, max(mine.edition.n + 1, now // MICROSECOND))
        return True

    def outgrow(self, edition: Edition) -> bool:
        """A peer claims to know a later edition of ours than we do (we were rebuilt, or are said to have left): issue a
        later one. True if that was necessary."""
        mine = self.listeners[self.me]
        if edition.incarnation != self.incarnation or (edition.n, edition.digest) == (
            mine.edition.n,
            mine.edition.digest,
        ):
            return False
        if edition.n < mine.edition.n or edition.n >= 1 << 62:
            return False
        self._issue(mine, edition.n + 1)
        return True

    def _issue(self, mine: Listener, n: int) -> None:
        self._adopt(mine, Edition(self.me, self.incarnation, n, mine.digest))
        mine.base = n

    # -- editions ------------------------------------------------------------------------------------------------

    def claim(self, edition: Edition) -> bool:
        """Record an edition of a listener; True if it is newer than the known one. Removes rows that it does not
        contain."""
        if edition.listener == self.me or len(edition.listener) != 16:
            return False
        if not (0 <= edition.n < 1 << 63 and 0 <= edition.incarnation < 1 << 63):
            return False
        listener = self._listener(edition.listener, edition.incarnation)
        if listener is None or edition.n < listener.edition.n:
            return False
        newer = edition.n > listener.edition.n
        if newer:
            self._adopt(listener, msgspec.structs.replace(edition, kept=None))
        elif edition.digest != listener.edition.digest:
            return False
        if edition.left:
            for key in list(listener.rows):
                self._remove(listener, key)
        elif edition.kept is not None:
            self._keep_only(listener, edition)
        self.settle(edition.listener)
        return newer

    def _keep_only(self, listener: Listener, edition: Edition) -> None:
        assert edition.kept is not None
        kept = frozenset(edition.kept)
        for key in list(listener.rows):
            n = self.rows[key].n
            if n <= edition.n and n not in kept:
                self._remove(listener, key)

    def settle(self, node: bytes) -> bool:
        """Rows arrived: whether all rows of this listener are here now."""
        listener = self.listeners.get(node)
        if listener is None or not listener.whole:
            return False
        listener.base = listener.edition.n
        return True

    def left(self, node: bytes, incarnation: int) -> Edition | None:
        """A node told us that it leaves: an edition that tells all others. None if that was known."""
        listener = self._listener(node, incarnation)
        if node == self.me or listener is None or listener.edition.left:
            return None
        edition = Edition(node, incarnation, listener.edition.n + _LEAVE_STEP, 0, True)
        self.claim(edition)
        return edition

    def _adopt(self, listener: Listener, edition: Edition) -> None:
        self.digest ^= _share(listener.edition) ^ _share(edition)
        listener.edition = edition

    # -- after a failure -----------------------------------------------------------------------------------------

    def repair(self, now: Nanos) -> None:
        """A unit raised in the middle of an update: compute everything again that follows from rows and editions."""
        self.digest = 0
        for listener in self.listeners.values():
            listener.rows.clear()
            listener.digest = 0
            self.digest ^= _share(listener.edition)
        for key, row in list(self.rows.items()):
            known = self.listeners.get(row.listener)
            if known is None or known.edition.incarnation != row.incarnation:
                del self.rows[key]
                continue
            share = digest_of(row)
            known.rows[key] = share
            known.digest ^= share
        self.since = {key: self.since.get(key, now) for key in self.rows}
        mine = self.listeners.get(self.me)
        if mine is not None and not mine.whole:
            newest = max((self.rows[key].n for key in mine.rows), default=0)
            self._issue(mine, max(mine.edition.n + 1, newest))

    # -- for asking ----------------------------------------------------------------------------------------------

    def rows_since(self, node: bytes, n: int) -> list[PathRow]:
        """The rows of a listener that are newer than `n`, oldest first."""
        listener = self.listeners.get(node)
        if listener is None:
            return []
        rows = [self.rows[key] for key in listener.rows]
        return sorted((row for row in rows if row.n > n), key=_version)

    def kept(self, node: bytes) -> Edition | None:
        """The edition of a listener with the versions of all its rows; None while we do not hold all of them."""
        listener = self.listeners.get(node)
        if listener is None or not listener.whole:
            return None
        versions = tuple(sorted(self.rows[key].n for key in listener.rows))
        return msgspec.structs.replace(listener.edition, kept=versions)

    def living(self) -> dict[bytes, bool]:
        """The nodes that are alive: this node, those it hears, those they hear, and so on. Rows of a listener that
        no live node hears are out of date, and two that died together must not vouch for each other."""
        if self._living is not None:
            return self._living
        heard: dict[bytes, list[bytes]] = {}
        for key, row in self.rows.items():
            if row.alive:
                heard.setdefault(key[2], []).append(key[0])
        alive = {self.me: True}
        waiting = [self.me]
        while waiting:
            for node in heard.get(waiting.pop(), ()):
                if node not in alive:
                    alive[node] = True
                    waiting.append(node)
        self._living = alive
        return alive

    def forget(self, listener: bytes, before_incarnation: int) -> None:
        """Drop the rows of an earlier incarnation of a listener, and accept no more of them."""
        self._listener(listener, before_incarnation)


def _share(edition: Edition) -> int:
    """The contribution of one edition to the digest of the table."""
    text = b"%b%d/%d/%d/%d" % (
        edition.listener,
        edition.incarnation,
        edition.n,
        edition.digest,
        edition.left,
    )
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _version(row: PathRow) -> int:
    return row.n
