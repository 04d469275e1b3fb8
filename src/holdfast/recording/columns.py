"""Facts as Arrow columns: the schema of each kind, derived from its struct, and the way from structs to tables.

An open segment holds only what differs from fact to fact (`n` and the fact's own fields). What all facts of a node's
life have in common is stored once, in its `Origin`, and becomes columns when the segment is sealed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple, fields

from holdfast.errors import MisuseError
from holdfast.node.subsystems import fact_types
from holdfast.telemetry.facts import SCHEMA, Fact


class LostFact(Fact, frozen=True, gc=False):
    """Facts `first` to `last` of a kind are not there, and why."""

    kind: ClassVar[str] = "lost"
    lost_kind: str
    """The kind of facts."""
    first: int
    """The first number that is missing."""
    last: int
    """The last one; -1 when the count is not known."""
    reason: str
    """Why, in words."""
    lost_incarnation: int
    """Whose facts: a node also reports what an earlier life of it left torn, and old segments that it removed."""


class Origin(msgspec.Struct, frozen=True):
    """What all facts of one life of a node have in common, and the number of the first one in this segment."""

    node: str
    name: str
    incarnation: int
    wall_offset_ns: int
    """UTC nanoseconds at the zero of the node's own clock."""
    first: int = 0
    schema: int = SCHEMA


_INT64: Final = pa.int64()
_ARROW: Final = {str: pa.string(), int: _INT64, bool: pa.bool_()}
_COMMON: Final = (
    ("schema", pa.int32()),
    ("node", pa.string()),
    ("name", pa.string()),
    ("incarnation", pa.int64()),
    ("n", pa.int64()),
    ("at", pa.timestamp("us", tz="UTC")),
)
_ORIGIN: Final = b"holdfast"
_KIND: Final = re.compile("[a-z][a-z0-9_]*")

# What a fact with a value of the wrong type, or an integer above 64 bits, makes pyarrow raise.
NOT_PLAIN: Final = (TypeError, ValueError, OverflowError)


class Layout:
    """The columns of one kind of fact."""

    __slots__ = ("_types", "kind", "schema")

    def __init__(self, fact: type[Fact]) -> None:
        self.kind = fact.kind
        if not _KIND.fullmatch(self.kind):
            raise MisuseError(f"a kind of facts is a lower-case word, not {self.kind!r}")
        own = []
        for field in fields(fact):
            if field.type not in _ARROW:
                raise MisuseError(
                    f"{fact.__name__}.{field.name}: a fact holds str, int and bool only, not {field.type}"
                )
            own.append((field.name, _ARROW[field.type]))
        self._types = [arrow for _, arrow in own]
        self.schema = pa.schema([("n", pa.int64()), *own])

    @property
    def names(self) -> list[str]:
        """The columns of the fact itself."""
        return [str(name) for name in self.schema.names[1:]]

    def encode(self, first: int, facts: Sequence[Fact]) -> pa.RecordBatch:
        """Facts numbered from `first` as a batch; raises one of `NOT_PLAIN`."""
        columns = [pa.array(np.arange(first, first + len(facts), dtype=np.int64))]
        # One flat list, so that no more than one tuple lives at a time: a thousand would start the garbage collector.
        flat = list(chain.from_iterable(map(astuple, facts)))
        width = len(self._types)
        columns += [_column(flat[at::width], arrow) for at, arrow in enumerate(self._types)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def encode_most(
        self, first: int, facts: Sequence[Fact]
    ) -> Iterator[pa.RecordBatch | tuple[int, str]]:
        """Batches of all facts that can be written, and `(n, reason)` of each that cannot."""
        try:
            yield self.encode(first, facts)
        except NOT_PLAIN as error:
            if len(facts) == 1:
                yield first, f"not writable: {error}"
                return
            middle = len(facts) // 2
            yield from self.encode_most(first, facts[:middle])
            yield from self.encode_most(first + middle, facts[middle:])


def _column(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Most columns of facts hold one value for a while; repeating it costs a fifth of converting each."""
    first = values[0]
    if values[-1] is first and values.count(first) == len(values):
        return _repeated(first, arrow, len(values))
    if arrow is _INT64:
        return _integers(values)
    return pa.array(values, arrow)


@lru_cache(maxsize=128, typed=True)
def _repeated(value: Any, arrow: pa.DataType, rows: int) -> pa.Array:
    """Under load all frames have the same length, and constant columns keep their value from frame to frame."""
    if arrow is _INT64:
        _refuse_fractions([value])
    return pa.repeat(pa.scalar(value, arrow), rows)


def _integers(values: list[Any]) -> pa.Array:
    """`struct` refuses all that is not an integer of 64 bits, at a third of pyarrow's cost."""
    try:
        packed = struct.pack(f"={len(values)}q", *values)
    except struct.error:
        _refuse_fractions(values)
        return pa.array(values, _INT64)  # raises and says which value it is, or finds a null
    return pa.Array.from_buffers(_INT64, len(values), [None, pa.py_buffer(packed)])


def _refuse_fractions(values: list[Any]) -> None:
    """pyarrow would cut them off without a word."""
    for value in values:
        if isinstance(value, float):
            raise TypeError(f"{value} is not an integer")


_FACTS: Final[tuple[type[Fact], ...]] = (*fact_types(), LostFact)
_LAYOUTS: Final = {fact.kind: Layout(fact) for fact in _FACTS}


def arrow_schema(kind: str) -> pa.Schema:
    """The columns of a sealed segment of `kind`, in order."""
    if kind not in _LAYOUTS:
        raise MisuseError(f"no kind of facts is called {kind!r}; there are {', '.join(_LAYOUTS)}")
    return _sealed(_LAYOUTS[kind].schema)


def with_origin(schema: pa.Schema, origin: Origin) -> pa.Schema:
    """The schema of an open segment, which carries the origin of its facts."""
    return schema.with_metadata({_ORIGIN: msgspec.json.encode(origin)})


def origin_of(schema: pa.Schema) -> Origin:
    """What `with_origin` put in."""
    return msgspec.json.decode(schema.metadata[_ORIGIN], type=Origin)


def complete(batches: Sequence[pa.RecordBatch], schema: pa.Schema, origin: Origin) -> pa.Table:
    """The table of a sealed segment: the common columns, then the facts' own."""
    table = pa.Table.from_batches(batches, schema.remove_metadata())
    rows = table.num_rows
    wall_ns = pc.add(table["now_ns"], origin.wall_offset_ns)
    at = pc.divide(wall_ns, 1000).cast(pa.timestamp("us", tz="UTC"))
    columns = [
        pa.repeat(pa.scalar(origin.schema, pa.int32()), rows),
        pa.repeat(pa.scalar(origin.node), rows),
        pa.repeat(pa.scalar(origin.name), rows),
        pa.repeat(pa.scalar(origin.incarnation, pa.int64()), rows),
        table["n"],
        at,
        *table.columns[1:],
    ]
    return pa.Table.from_arrays(columns, schema=_sealed(schema))


def _sealed(own: pa.Schema) -> pa.Schema:
    return pa.schema([*_COMMON, *((field.name, field.type) for field in own if field.name != "n")])
