"""Facts that a node records, and advice that comes back to it.

Facts are part of the outbox of a machine. The driver writes them: columnar, in segments, off the hot path. The
simulator writes the same facts, so one pipeline serves both.
"""
