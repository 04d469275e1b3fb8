"""Raft: election, leader and follower, replication, and stepping down."""
