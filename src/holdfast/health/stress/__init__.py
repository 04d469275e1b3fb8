"""Stress runs: every combination of attributes between nodes, before production starts."""
