"""The subsystems that make a node, lowest first: the one list that everything iterates over.

The order is that of the import contract, and of the layers in a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.collect.subsystem import COLLECT_SUBSYSTEM
from holdfast.dialog.subsystem import DIALOG_SUBSYSTEM
from holdfast.group.subsystem import GROUP_SUBSYSTEM
from holdfast.health.subsystem import HEALTH_SUBSYSTEM
from holdfast.links.subsystem import LINK_SUBSYSTEM
from holdfast.objects.subsystem import OBJECT_SUBSYSTEM
from holdfast.overlay.subsystem import OVERLAY_SUBSYSTEM
from holdfast.subsystem import Subsystem
from holdfast.telemetry.facts import KINDS, Fact

SUBSYSTEMS: Final[tuple[Subsystem, ...]] = (
    LINK_SUBSYSTEM,
    HEALTH_SUBSYSTEM,
    OVERLAY_SUBSYSTEM,
    GROUP_SUBSYSTEM,
    DIALOG_SUBSYSTEM,
    OBJECT_SUBSYSTEM,
    COLLECT_SUBSYSTEM,
)


def fact_types(subsystems: Sequence[Subsystem] = SUBSYSTEMS) -> tuple[type[Fact], ...]:
    """Every kind of fact that nodes record: the only list that writers, pipeline and reference use."""
    declared = (fact for subsystem in subsystems for fact in subsystem.facts)
    return tuple(dict.fromkeys((*KINDS, *declared)))
