"""The virtual network of overlay machines, for tests."""

from holdfast.sim.overlay_world import FAST, PORT, Host, Session, World, node_id

__all__ = ["FAST", "PORT", "Host", "Session", "World", "node_id"]
