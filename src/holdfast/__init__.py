"""Holdfast keeps a cluster of Python services communicating when the network is only partly working.

This module exports the public API for applications.
"""

from typing import TYPE_CHECKING, Any

from holdfast import accelerator

__version__ = "0.1.0"

accelerator.install()  # before anything that it may replace is imported

if TYPE_CHECKING:
    from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
    from holdfast.group.loss.loss_info import LossInfo
    from holdfast.group.ports import Batch, Context, Decision, Replica
    from holdfast.group.services.fence import Fence
    from holdfast.health.placement.needs import Needs
    from holdfast.node.config import NodeConfig, parse_config
    from holdfast.runtime.dialogs.remote import connect_dialogs
    from holdfast.runtime.logs import JsonFormatter
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
    "Fence",
    "JsonFormatter",
    "LossInfo",
    "Needs",
    "Node",
    "NodeConfig",
    "Replica",
    "__version__",
    "connect_dialogs",
    "parse_config",
]

_WHERE = {
    "DROP": "holdfast.group.loss.actions",
    "IGNORE": "holdfast.group.loss.actions",
    "RECOVER": "holdfast.group.loss.actions",
    "SUSPEND": "holdfast.group.loss.actions",
    "Action": "holdfast.group.loss.actions",
    "Batch": "holdfast.group.ports",
    "Context": "holdfast.group.ports",
    "Decision": "holdfast.group.ports",
    "Fence": "holdfast.group.services.fence",
    "JsonFormatter": "holdfast.runtime.logs",
    "LossInfo": "holdfast.group.loss.loss_info",
    "Needs": "holdfast.health.placement.needs",
    "Node": "holdfast.runtime.node",
    "NodeConfig": "holdfast.node.config",
    "Replica": "holdfast.group.ports",
    "connect_dialogs": "holdfast.runtime.dialogs.remote",
    "parse_config": "holdfast.node.config",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `holdfast --help` and the simulator do not load sockets.
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
