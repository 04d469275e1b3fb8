"""Membership: bootstrap of a group, and view changes."""
