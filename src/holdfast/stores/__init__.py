"""Where a node keeps what must outlive it.

`port` says what a store is: tables of bytes to bytes, committed in batches. `memory` and `sqlite` are two of them;
`tests/conformance/test_stores.py` says when another one is right. `writer` puts a thread around a store, so that
one disk sync serves many turns. `identity` keeps who the node is and how often it has started.

Telemetry goes its own way, because it may be lost and must never hold up a node: `buffers` takes facts from the
node, `columns` makes Arrow tables of them, `framefile` appends them, `landing` keeps the sealed Parquet files, and
`segments` runs all four. It is not imported here: it loads pyarrow.
"""

from holdfast.stores.identity import Identity, open_identity
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.writer import StoreWriter

__all__ = ["Identity", "MemoryStore", "SqliteStore", "Store", "StoreWriter", "open_identity"]
