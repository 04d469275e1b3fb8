"""Replicated groups: all replicas process the same messages in the same order.

The order is a log as in Raft. Messages do not travel in the log: a source sends them directly to all replicas, an entry
names ranges of them, and a follower appends an entry only when it holds every message in it.

    consensus    election, leader, follower, replication, commit, step_down
    log          replicated_log, entries, journal (on disk), order (from messages to entries), pending_entries,
                 garbage_collection
    membership   view_changes, bootstrap of a new group, relay_tree of large groups
    transfer     snapshot, snapshot_install, checkpoint
    streams      source, stream_buffer, gap_recovery, message_log: how messages reach replicas
    loss         decisions about messages that cannot be obtained
    outputs      messages of the application to the outside
    services     locks, barriers and zones

`replica` combines these into one machine, and `inbound` hands it frames. `delivery` passes committed entries to the
application. `config` defines a group, and `ports` is the interface to application and driver.
"""

from holdfast.group.config import GroupConfig, replica_unit, source_unit, units_for
from holdfast.group.frames import GROUP_FRAMES
from holdfast.group.replica import ReplicaMachine
from holdfast.group.streams.source import SourceMachine

__all__ = [
    "GROUP_FRAMES",
    "GroupConfig",
    "ReplicaMachine",
    "SourceMachine",
    "replica_unit",
    "source_unit",
    "units_for",
]
