"""Delivery facts of an hour, reduced to what the audit compares: one pass over sorted columns with numpy.

| `what` | one row per | for |
| --- | --- | --- |
| `block` | replica life and 4 096 indexes of the log | comparing replicas by counts and hashes |
| `edge` | replica life | joining this hour to the next, totals |
| `break` | step that goes back, leaves a hole or repeats a message | violations, unless an event explains it |
| `stream` | replica life and stream | joining a stream's numbers to the next hour |
| `gap` | numbers of a stream that were passed over | drops that were not respected |

The digest in a fact is cumulative. Differences of consecutive digests are the digests of single entries, so one wrong
message is one difference, not a difference in everything after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import hour_column

BLOCK: Final = 4096
"""Indexes per block."""
DIGEST_MASK: Final = (1 << 32) - 1
"""Digests are sums of 32 bits."""

LIFE: Final = ("group", "epoch", "node", "incarnation", "hour")
_LIFE_DDL: Final = "`group` string, epoch bigint, node string, incarnation bigint, hour string"

DELIVERY_BLOCKS: Final = f"""what string, {_LIFE_DDL}, block bigint, entries bigint, messages bigint,
    index_min bigint, index_max bigint, position_min bigint, end_max bigint, entry_hash bigint, digest_hash bigint,
    digests bigint, claim string, stream string, n_before bigint, n bigint, ns_before bigint, now_ns bigint,
    index_before bigint, `index` bigint, end_before bigint, position bigint, term bigint, `first` bigint,
    `last` bigint, digest_before bigint, digest bigint"""

BACK: Final = "in order"
HOLE: Final = "no hole"
REPEAT: Final = "once"

_NUMBERS: Final = ("n", "now_ns", "index", "position", "term", "first", "last", "digest", "epoch")
Array = npt.NDArray[Any]


def delivery_blocks(delivery_facts: DataFrame) -> DataFrame:
    """The rows above for the facts of some hours."""
    key = ["group", "node", "incarnation", "epoch", "hour"]
    return (
        delivery_facts.withColumn("hour", hour_column())
        .withColumn("epoch", sf.coalesce("epoch", sf.lit(0)))
        .select(*key, "stream", *(name for name in _NUMBERS if name != "epoch"))
        .repartition(*key)
        .sortWithinPartitions(*key, "n")
        .mapInArrow(_Reducer(), DELIVERY_BLOCKS)
    )


def mix(left: Array, right: Array) -> Array:
    """A 64-bit hash of two integers (splitmix64), for exclusive-or sums."""
    with np.errstate(over="ignore"):
        value = left.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + right.astype(np.uint64)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def entry_hash(
    index: Array, term: Array, position: Array, stream: Array, first: Array, last: Array
) -> Array:
    """One hash for all that must be the same on every replica, without the content."""
    value = mix(index, term)
    for column in (position, stream, first, last):
        value = mix(value, column)
    return value


def stream_hash(names: list[str]) -> Array:
    """A number for each name, the same in every process."""
    from xxhash import xxh3_64_intdigest

    return np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)


class _Reducer:
    """Reduces the rows of one partition, life by life."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            table = pa.Table.from_batches(held).combine_chunks()
            starts = _life_starts(table)
            # The last life may go on in the next batch.
            whole = int(starts[-1])
            if whole:
                yield from _reduce(table.slice(0, whole), starts[:-1])
            held = table.slice(whole).to_batches()
        if held:
            table = pa.Table.from_batches(held).combine_chunks()
            if table.num_rows:
                yield from _reduce(table, _life_starts(table))


def _life_starts(table: pa.Table) -> Array:
    """Where each life (and hour) begins."""
    rows = table.num_rows
    changed = np.zeros(rows, bool)
    changed[:1] = True
    for name in LIFE:
        column = table[name].combine_chunks()
        if rows > 1:
            differs = pc.not_equal(column.slice(1), column.slice(0, rows - 1))
            changed[1:] |= differs.to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed)


def _reduce(table: pa.Table, starts: Array) -> Iterator[pa.RecordBatch]:
    ends = [*starts[1:].tolist(), table.num_rows]
    rows: list[dict[str, Any]] = []
    for begin, end in zip(starts.tolist(), ends, strict=True):
        rows += _reduce_life(table.slice(begin, end - begin))
        if len(rows) > 8192:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _reduce_life(table: pa.Table) -> list[dict[str, Any]]:
    life = {name: table[name][0].as_py() for name in LIFE}
    names = pc.dictionary_encode(table["stream"].combine_chunks())
    streams = names.dictionary.to_pylist()
    code = names.indices.to_numpy(zero_copy_only=False)
    c = {name: table[name].to_numpy() for name in _NUMBERS}
    end = c["position"] + c["last"] - c["first"] + 1
    goes_on = np.zeros(len(end), bool)
    goes_on[1:] = c["position"][1:] == end[:-1]
    delta = np.zeros(len(end), np.int64)
    delta[1:] = (c["digest"][1:] - c["digest"][:-1]) & DIGEST_MASK
    if c["position"][0] == 0:
        goes_on[0], delta[0] = True, c["digest"][0]  # The digest of a group starts at zero.
    hashes = entry_hash(
        c["index"], c["term"], c["position"], stream_hash(streams)[code], c["first"], c["last"]
    )
    return [
        *_blocks(life, c, end, hashes, goes_on, delta),
        _edge(life, c, end),
        *_breaks(life, c, end, streams, code),
        *_streams(life, c, streams, code),
    ]


def _blocks(
    life: dict[str, Any], c: dict[str, Array], end: Array, hashes: Array, known: Array, delta: Array
) -> list[dict[str, Any]]:
    block = c["index"] // BLOCK
    order = np.argsort(block, kind="stable")
    sorted_block = block[order]
    at = np.flatnonzero(np.r_[True, sorted_block[1:] != sorted_block[:-1]])
    take = lambda values, ufunc: ufunc.reduceat(values[order], at)
    messages = c["last"] - c["first"] + 1
    digest = np.where(known, mix(c["index"], delta), np.uint64(0))
    columns = {
        "block": sorted_block[at],
        "entries": np.diff(np.r_[at, len(order)]),
        "messages": take(messages, np.add),
        "index_min": take(c["index"], np.minimum),
        "index_max": take(c["index"], np.maximum),
        "position_min": take(c["position"], np.minimum),
        "end_max": take(end, np.maximum),
        "entry_hash": take(hashes, np.bitwise_xor).view(np.int64),
        "digest_hash": take(digest, np.bitwise_xor).view(np.int64),
        "digests": take(known.astype(np.int64), np.add),
    }
    lists = {name: values.tolist() for name, values in columns.items()}
    return [
        {"what": "block", **life, **{name: values[i] for name, values in lists.items()}}
        for i in range(len(at))
    ]


def _edge(life: dict[str, Any], c: dict[str, Array], end: Array) -> dict[str, Any]:
    """`*_before` are the first fact of the hour, the others the last."""
    one = lambda name, at: int(c[name][at])
    return {
        "what": "edge",
        **life,
        "n_before": one("n", 0), "ns_before": one("now_ns", 0), "index_before": one("index", 0),
        "digest_before": one("digest", 0), "position": one("position", 0),
        "n": one("n", -1), "now_ns": one("now_ns", -1), "index": one("index", -1),
        "digest": one("digest", -1), "end_before": int(end[-1]), "end_max": int(end.max()),
        "term": one("term", -1), "entries": len(end),
        "messages": int((c["last"] - c["first"] + 1).sum()), "index_min": int(c["index"].min()),
        "index_max": int(c["index"].max()), "position_min": int(c["position"].min()),
    }  # fmt: skip


def _breaks(
    life: dict[str, Any], c: dict[str, Array], end: Array, streams: list[str], code: Array
) -> list[dict[str, Any]]:
    back = c["index"][1:] <= c["index"][:-1]
    # After a step back the replica is not missing what it has delivered before.
    hole = (c["position"][1:] > np.maximum.accumulate(end)[:-1]) & ~back
    return [
        _break(life, claim, c, end, streams[code[at]], at - 1, at)
        for claim, mask in ((BACK, back), (HOLE, hole))
        for at in (np.flatnonzero(mask) + 1).tolist()
    ]


def _break(
    life: dict[str, Any],
    claim: str,
    c: dict[str, Array],
    end: Array,
    stream: str,
    before: int,
    at: int,
) -> dict[str, Any]:
    one = lambda name, place: int(c[name][place])
    return {
        "what": "break", **life, "claim": claim, "stream": stream,
        "n_before": one("n", before), "n": one("n", at),
        "ns_before": one("now_ns", before), "now_ns": one("now_ns", at),
        "index_before": one("index", before), "index": one("index", at),
        "end_before": int(end[before]), "position": one("position", at),
        "term": one("term", at), "first": one("first", at), "last": one("last", at),
    }  # fmt: skip


def _streams(
    life: dict[str, Any], c: dict[str, Array], streams: list[str], code: Array
) -> list[dict[str, Any]]:
    """Per stream: its range, repeated numbers, numbers that were passed over."""
    rows: list[dict[str, Any]] = []
    order = np.argsort(code, kind="stable")
    at = np.flatnonzero(np.r_[True, code[order][1:] != code[order][:-1]])
    end = c["position"] + c["last"] - c["first"] + 1
    for mine in np.split(order, at[1:]):
        name = streams[code[mine[0]]]
        first, last = c["first"][mine], c["last"][mine]
        furthest = np.maximum.accumulate(last)
        rows += [
            _break(life, REPEAT, c, end, name, int(mine[place - 1]), int(mine[place]))
            for place in (np.flatnonzero(first[1:] <= furthest[:-1]) + 1).tolist()
        ]
        rows += [
            {
                "what": "gap", **life, "stream": name, "index": int(c["index"][mine[place]]),
                "first": int(furthest[place - 1]) + 1, "last": int(first[place]) - 1,
            }
            for place in (np.flatnonzero(first[1:] > furthest[:-1] + 1) + 1).tolist()
        ]  # fmt: skip
        rows.append(
            {
                "what": "stream", **life, "stream": name,
                "first": int(first[0]), "last": int(furthest[-1]), "entries": len(mine),
                "n_before": int(c["n"][mine[0]]), "n": int(c["n"][mine[-1]]),
                "ns_before": int(c["now_ns"][mine[0]]), "now_ns": int(c["now_ns"][mine[-1]]),
                "index_before": int(c["index"][mine[0]]), "index": int(c["index"][mine[-1]]),
                "position": int(c["position"][mine[0]]), "end_before": int(end[mine[0]]),
                "term": int(c["term"][mine[0]]),
            }
        )  # fmt: skip
    return rows


_ARROW: Final = {"string": pa.string(), "bigint": pa.int64()}
_SCHEMA: Final = pa.schema(
    [
        (name.strip("`"), _ARROW[kind])
        for name, kind in (part.split() for part in DELIVERY_BLOCKS.replace("\n", " ").split(","))
    ]
)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)
