"""Snapshots: taking, sending and installing them."""
