"""Holdfast keeps a cluster of Python services talking when the network only half works.

The names here are what applications use; everything else is for those who read on.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.group.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
    from holdfast.group.loss import LossInfo
    from holdfast.group.ports import Batch, Context, Decision, Replica
    from holdfast.health.needs import Needs
    from holdfast.node.config import NodeConfig, parse_config
    from holdfast.runtime.node import Node

__all__ = [
    "DROP",
    "IGNORE",
    "RECOVER",
    "SUSPEND",
    "Action",
    "Batch",
    "Context",
    "Decision",
    "LossInfo",
    "Needs",
    "Node",
    "NodeConfig",
    "Replica",
    "__version__",
    "parse_config",
]

_WHERE = {
    "DROP": "holdfast.group.actions",
    "IGNORE": "holdfast.group.actions",
    "RECOVER": "holdfast.group.actions",
    "SUSPEND": "holdfast.group.actions",
    "Action": "holdfast.group.actions",
    "Batch": "holdfast.group.ports",
    "Context": "holdfast.group.ports",
    "Decision": "holdfast.group.ports",
    "LossInfo": "holdfast.group.loss",
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
