"""Replicated groups: all replicas process the same messages in the same order.

Sources send messages directly to all replicas (`source`), which buffer them (`stream_buffer`) and request missing ones
(`gap_recovery`). The leader turns contiguous messages into log entries, which are ranges of streams (`order`), and
replicates the log as in Raft (`replication`, `leader`). A follower appends an entry only when it holds every message in
it (`pending_entries`, `follower`). Entries of a majority are committed and passed to the application (`delivery`); what
every replica has applied is freed (`garbage_collection`). A replica that starts, or is far behind, installs a snapshot
of another one (`snapshot_install`, `snapshot`, `admission`). `leadership` decides which replica leads.

`replica` combines these into one machine, `config` defines a group, and `ports` is the interface to application and
driver.
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
