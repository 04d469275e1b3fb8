"""Replicated groups: every replica processes the same messages in the same order.

Sources send messages straight to all replicas (`source`), who hold them (`streams`) and ask again for what is missing
(`recovery`). The leader turns what has arrived without a gap into entries of a log, ranges of streams (`order`), and
replicates the log as Raft does (`progress`, `leading`). A follower appends an entry only when it holds every message
in it (`waiting`, `following`). What a majority has appended is committed and handed to the application (`delivery`);
what every replica has applied is forgotten everywhere (`freeing`). A replica that starts, or fell far behind, takes a
state from another (`joining`, `transfer`, `admission`). Who leads is decided in `leadership` and nowhere else.

`replica` wires these into one machine, `config` sets a group up, `ports` is the border to application and driver.
"""

from holdfast.group.config import GROUP_FRAMES, GroupConfig, replica_unit, source_unit, units_for
from holdfast.group.replica import ReplicaMachine
from holdfast.group.source import SourceMachine

__all__ = [
    "GROUP_FRAMES",
    "GroupConfig",
    "ReplicaMachine",
    "SourceMachine",
    "replica_unit",
    "source_unit",
    "units_for",
]
