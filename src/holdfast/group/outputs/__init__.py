"""Outputs of the application: buffered by every replica, sent by the leader, received once."""
