"""Durable storage of a node.

`port` defines a store: tables of bytes to bytes, committed in batches. `memory` and `sqlite` implement it;
`tests/conformance/test_stores.py` tests further implementations. `writer` runs a store in a thread, so that one disk
sync serves many turns. `identity` stores the node id and the incarnation.

Telemetry is separate, because it may be lost and must never delay a node: `buffers` takes facts from the node,
`columns` converts them to Arrow tables, `frame_file` appends them, `landing` keeps the sealed Parquet files, and
`segment_writer` runs all four. It is not imported here, because it loads pyarrow.
"""

from holdfast.stores.identity import Identity, open_identity
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.writer import StoreWriter

__all__ = ["Identity", "MemoryStore", "SqliteStore", "Store", "StoreWriter", "open_identity"]
