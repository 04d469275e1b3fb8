"""Probing: what is sent on each path, what arrives, and what one receiver concludes from it."""
