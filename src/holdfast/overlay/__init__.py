"""Roles, trees and realms: location-independent addresses on a mesh of links.

`mesh` says which links a node keeps, `topology` is the map of them. `search` knows where the first instance of a
role is. `registrar` publishes, `builder` keeps routes by the forwarding `rules`, `waves` count answers, `recovery`
rebuilds what a message needs. `router` forwards messages and adds up replies; `cycles`, `grants`, `listeners`,
`direct` and `partition` each add one thing to that. `machine` is the unit that ties them together.
"""

from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.ids import tree_id
from holdfast.overlay.machine import OverlayMachine
from holdfast.overlay.ports import OVERLAY

__all__ = ["OVERLAY", "OverlayConfig", "OverlayMachine", "tree_id"]
