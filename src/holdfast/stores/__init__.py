"""Durable storage of a node.

`port` defines a store: tables of bytes to bytes, committed in batches. `memory` and `sqlite` implement it;
`tests/conformance/test_stores.py` tests further implementations. `writer` runs a store in a thread, so that one disk
sync serves many turns. `identity` stores the node id and the incarnation.

`dialogs` contains the stores of dialogs. Telemetry is in `holdfast.recording`: it may be lost, and must never delay a
node.
"""

from holdfast.stores.identity import Identity, open_identity
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.writer import StoreWriter

__all__ = ["Identity", "MemoryStore", "SqliteStore", "Store", "StoreWriter", "open_identity"]
