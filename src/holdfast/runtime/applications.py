"""Applications of groups: given by the program, or named in the configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from holdfast.errors import ConfigError
from holdfast.group.ports import Replica
from holdfast.group.section import GROUPS
from holdfast.subsystem import NodeConfig


def application_of(config: NodeConfig, group: str, applications: Mapping[str, Replica]) -> Replica:
    """The application of a group on this node; raises `ConfigError` when there is none."""
    if group in applications:
        return applications[group]
    for section in GROUPS.of(config):
        if section.name == group and section.application:
            return load_application(section.application)
    raise ConfigError(
        f'group {group!r} has no application: set application = "package.module:Class" or '
        "pass one to Node(); nothing was started"
    )


def load_application(name: str) -> Replica:
    """Import `package.module:Class` and create an instance."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f'application {name!r} is not of the form "package.module:Class"; nothing was started'
        )
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        # User code: it may raise anything, and its traceback shows where.
        raise ConfigError(
            f"application {name!r} cannot be loaded: {type(error).__name__}: {error}; nothing was started"
        ) from error
    if not isinstance(made, Replica):
        raise ConfigError(f"application {name!r} is not a holdfast.Replica; nothing was started")
    return made


def check_applications(config: NodeConfig, applications: Mapping[str, object]) -> None:
    """The applications passed to the node: each must belong to a configured group and be a Replica."""
    groups = [group.name for group in GROUPS.of(config)]
    for group, application in applications.items():
        if group not in groups:
            known = f"there are {', '.join(groups)}" if groups else "there are none"
            raise ConfigError(
                f"an application was given for group {group!r}, which the configuration does not "
                f"have; {known}; nothing was started"
            )
        if not isinstance(application, Replica):
            found = (
                f"the class {application.__name__}: give an instance"
                if isinstance(application, type)
                else f"of type {type(application).__name__}, which is not a holdfast.Replica: derive from "
                "that"
            )
            raise ConfigError(f"the application of group {group!r} is {found}; nothing was started")
