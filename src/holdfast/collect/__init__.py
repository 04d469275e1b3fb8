"""Telemetry to the pipeline and advice back to the nodes, over the links of the domain itself.

A node that an operator asks (`holdfast pipeline collect`) fetches sealed segments of every member, piece by piece on
the bulk channel, and sends the newest advice to members that accept it. Files are the business of the edge
(`holdfast.runtime.collect`); the unit here only carries frames. Where nodes and pipeline share a store, none of this is
needed.
"""
