"""Message stability: when every member of a view has a message, so that buffers may forget it.

Four protocols behind one interface (`protocol`): `cube` gossips along a logical hypercube, `coord` asks through a
coordinator, `tree` through a tree, `full` lets all talk to all. `hypercube` has the geometry, `vectors` the numpy
arrays, `carrying` what survives a change of the view, `riding` the frames that travel with other traffic, `placement`
where members sit. `detector` is the component that a group owns; it knows nothing about groups.

Machines without IO: time is an argument, frames to send are appended to a list that the owner gives.
"""

from holdfast.stability.config import PROTOCOLS, StabilityConfig
from holdfast.stability.detector import Detector
from holdfast.stability.placement import PathQuality, Placer, seat_members
from holdfast.stability.ports import (
    APPLIED,
    HELD,
    ORDER_SLOTS,
    Blocker,
    Member,
    StabilityStatus,
    View,
)

__all__ = [
    "APPLIED",
    "HELD",
    "ORDER_SLOTS",
    "PROTOCOLS",
    "Blocker",
    "Detector",
    "Member",
    "PathQuality",
    "Placer",
    "StabilityConfig",
    "StabilityStatus",
    "View",
    "seat_members",
]
