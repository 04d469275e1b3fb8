"""What a node records (`facts`, the schema out) and what comes back to it (advice, the schema in).

Facts are part of a machine's outbox. Writing them is the driver's work: columnar, in segments, off the hot path.
The simulator writes the same facts, so one pipeline serves both.
"""
