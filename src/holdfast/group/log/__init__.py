"""The replicated log: entries, the metadata derived from them, ordering, storage and garbage collection."""
