"""Published tables for commands: a local output needs no engine, any other is read by Spark's Hadoop client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.pipeline.engine import SMALL_BYTES, check_engine, open_engine
from holdfast.pipeline.ingest import FACTS
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.storage.port import to_uri
from holdfast.pipeline.storage.stores import Stores, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def store_of(out: str, engine: str, session: SparkSession | None = None) -> Iterator[Stores]:
    """The store that an output is in. `session` is used instead of `engine`, and is not stopped."""
    check_engine(engine)
    if is_local(to_uri(out)):
        yield Stores()
    elif session is not None:
        yield _remote(session)
    else:
        with open_engine(engine) as opened:
            yield _remote(opened)


@contextlib.contextmanager
def tables_with_session(
    out: str, engine: str, session: SparkSession | None = None, with_facts: bool = False
) -> Iterator[tuple[Tables, SparkSession]]:
    """The newest tables, and a session that can ask them. No engine is started for a local directory without tables."""
    check_engine(engine)
    tables = open_tables(out) if is_local(to_uri(out)) else None
    size = _size_of(tables, with_facts) if tables else SMALL_BYTES + 1
    with contextlib.nullcontext(session) if session else open_engine(engine, None, size) as opened:
        yield tables or open_tables(out, _remote(opened)), opened


def _size_of(tables: Tables, with_facts: bool) -> int:
    """How much a question may have to read."""
    return sum(
        file.size
        for name, parts in tables.snapshot.tables.items()
        if with_facts or not name.startswith(FACTS)
        for part in parts.values()
        for file in part.files
    )


def _remote(session: SparkSession) -> Stores:
    from holdfast.pipeline.storage.hadoop import HadoopStore

    return Stores(remote=lambda: HadoopStore(session))
