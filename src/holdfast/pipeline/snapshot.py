"""The root snapshot: one numbered file that names the files of all tables.

    <root>/snapshots/00000042.json
    <root>/<table>/<attempt>/...parquet

A run writes its files into directories of its own (*attempts*), which no reader knows, and then creates the next
snapshot. Creation is exclusive, so of two runs that started from the same snapshot one wins, and the other discards
its work. Nothing is renamed or overwritten. A snapshot carries a checksum: one that its writer did not finish is
skipped, and readers stay with the one before it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.pipeline.storage.port import AlreadyThere, Missing, Store, for_people, join

VERSION: Final = 1
FOLDER: Final = "snapshots"
_DIGITS: Final = 8


class TableMissing(HoldfastError):
    """No run has published this table yet, or it is somewhere else."""


class TableDamaged(HoldfastError):
    """A snapshot, or a file that it names, is not there or not readable."""


class PipelineBusy(HoldfastError):
    """Another run published first, or holds the output directory. Nothing of this run is visible."""


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Relative to the root."""
    size: int
    rows: int = -1
    """-1 where it was not counted."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of one unit of a table."""

    files: tuple[TableFile, ...] = ()
    digest: str = ""
    """Of the rows, whatever their order; only where a run compares parts."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


Parts = dict[str, Part]
"""Unit to its part. A table that is rebuilt as a whole has one part, under the empty name."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a reader or the next run needs to know."""

    version: int = VERSION
    number: int = 0
    attempt: str = ""
    created_us: int = 0
    schema: int = 0
    """The schema of facts that the run knew: with a higher one, rejected files are examined again."""
    buckets: int = 1
    reconciled_us: int = 0
    """When all landing folders were last listed, not only the recent ones."""
    models_us: int = 0
    """When models were last made."""
    versions: dict[str, int] = {}
    """Table to the version of the transform that made it."""
    tables: dict[str, Parts] = {}
    stats: dict[str, int] = {}

    def parts(self, table: str) -> Parts:
        return self.tables.get(table, {})


class _Sealed(msgspec.Struct, frozen=True):
    sha256: str
    snapshot: msgspec.Raw


class Snapshots:
    """The snapshots under a root."""

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self.root = root
        self._folder = join(root, FOLDER)

    def latest(self) -> Snapshot | None:
        """The newest whole snapshot; None if there never was one. Raises `TableDamaged` if none is readable."""
        numbers = self.numbers()
        problems: list[str] = []
        for number in reversed(numbers):
            try:
                return self.load(number)
            except TableDamaged as damage:
                problems.append(str(damage))
            except Missing:
                continue  # It was removed in this moment: newer ones exist.
        if problems:
            raise TableDamaged(
                f"no snapshot under {for_people(self._folder)} is readable; nothing was changed. {problems[0]}. "
                f"Remove {for_people(self._folder)} and run the pipeline again: it rebuilds from the telemetry"
            )
        return None

    def load(self, number: int) -> Snapshot:
        """One snapshot; raises `Missing` or `TableDamaged`."""
        uri = self._uri(number)
        try:
            sealed = msgspec.json.decode(self._store.read(uri), type=_Sealed)
            if hashlib.sha256(sealed.snapshot).hexdigest() != sealed.sha256:
                raise TableDamaged(f"{for_people(uri)} does not match its checksum")
            snapshot = msgspec.json.decode(sealed.snapshot, type=Snapshot)
        except msgspec.DecodeError as damage:
            raise TableDamaged(f"{for_people(uri)} is not a whole snapshot: {damage}") from damage
        if snapshot.version != VERSION:
            raise TableDamaged(
                f"{for_people(uri)} has version {snapshot.version}, this Holdfast reads {VERSION}: "
                "use the version of Holdfast that ran the pipeline"
            )
        return snapshot

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Create the next snapshot; raises `PipelineBusy` if another run was first."""
        raw = msgspec.json.encode(snapshot)
        sealed = _Sealed(hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw))
        try:
            self._store.create(self._uri(snapshot.number), msgspec.json.encode(sealed) + b"\n")
        except AlreadyThere:
            raise PipelineBusy(
                f"another run published snapshot {snapshot.number} under {for_people(self.root)} first; "
                "nothing of this run is visible. Run again: it takes only what is still missing"
            ) from None
        return snapshot

    def numbers(self) -> list[int]:
        names = (stat.uri.rpartition("/")[2] for stat in self._store.files(self._folder))
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def next_number(self) -> int:
        """Above every number that was ever taken, also by a writer that did not finish."""
        return max(self.numbers(), default=0) + 1

    def remove(self, number: int) -> None:
        self._store.remove(self._uri(number))

    def _uri(self, number: int) -> str:
        return join(self._folder, f"{number:0{_DIGITS}d}.json")
