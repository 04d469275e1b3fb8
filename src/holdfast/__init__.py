"""Holdfast keeps a cluster of Python services talking when the network only half works.

The names here are what applications use; everything else is for those who read on.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.group.ports import Batch, Context, Replica
    from holdfast.health.needs import Needs
    from holdfast.node.config import NodeConfig, parse_config
    from holdfast.runtime.node import Node

__all__ = [
    "Batch",
    "Context",
    "Needs",
    "Node",
    "NodeConfig",
    "Replica",
    "__version__",
    "parse_config",
]

_WHERE = {
    "Batch": "holdfast.group.ports",
    "Context": "holdfast.group.ports",
    "Needs": "holdfast.health.needs",
    "Node": "holdfast.runtime.node",
    "NodeConfig": "holdfast.node.config",
    "Replica": "holdfast.group.ports",
    "parse_config": "holdfast.node.config",
}


def __getattr__(name: str) -> Any:
    # Imported when first used: `holdfast --help` and the simulator need no sockets.
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
