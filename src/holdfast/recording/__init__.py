"""The telemetry writer: facts of a node on their way to disk.

Telemetry may be lost and must never delay a node. `buffers` takes facts from the node, `columns` makes Arrow
tables of them, `frame_file` appends them, `landing` keeps the sealed Parquet files, and `segment_writer` runs
all four. Nothing is imported here: these modules load pyarrow.
"""
