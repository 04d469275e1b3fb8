"""Faults of paths: effects, places and text form."""
