"""Faults of paths: what they do, where, and how they are written."""
