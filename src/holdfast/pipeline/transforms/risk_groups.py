"""Risk groups: the things whose fault would break several paths together.

Each path belongs to a few groups of each kind below. The inventory adds switch ports, switches and realms; without it
those kinds are missing and everything else works.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from holdfast.errors import MisuseError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    Indices = npt.NDArray[np.int64]

SEPARATOR: Final = "/"
ARROW: Final = ">"

PRIORS: Final[Mapping[str, float]] = {
    "pair": 5e-3,
    "adapter_send": 1e-3,
    "adapter_receive": 1e-3,
    "adapter": 1e-3,
    "port": 1e-3,
    "node": 5e-4,
    "direction": 3e-4,
    "uplink": 3e-4,
    "switch": 2e-4,
    "subnet": 1e-4,
    "realm": 1e-4,
}
"""Kinds of risk groups, most specific first, with the probability that one is faulty before anything was observed.

`pair` is one adapter to another in one direction; `adapter_send` and `adapter_receive` are one direction of an adapter,
`adapter` both; `direction` is from one realm to another, `uplink` everything across a realm's border.
"""

SIDE_COLUMNS: Final = ("realm", "switch", "port")
"""Columns of the inventory, present for both ends as `sender_*` and `listener_*`."""

_ADAPTER_COLUMNS: Final = ("node", "adapter")


class InventoryRow(msgspec.Struct, frozen=True):
    """Where an adapter is plugged in. An empty string means unknown."""

    node: str
    adapter: str
    realm: str = ""
    switch: str = ""
    port: str = ""


class RiskGroup(msgspec.Struct, frozen=True, order=True):
    """One thing that may be faulty."""

    kind: str
    name: str


def parse_inventory(lines: Iterable[str], names: Mapping[str, str]) -> list[InventoryRow]:
    """Rows of an inventory file (CSV: node, adapter, and any of realm, switch, port).

    `names` maps node names to ids; a node may be given by either. Raises `MisuseError` with the line that is wrong.
    """
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    missing = [name for name in _ADAPTER_COLUMNS if name not in columns]
    unknown = [name for name in columns if name not in InventoryRow.__struct_fields__]
    if missing or unknown:
        raise MisuseError(
            f"the inventory has the columns {', '.join(columns) or 'none'}; it needs node and adapter, and may have "
            "realm, switch and port. It was not used"
        )
    rows = [
        InventoryRow(
            **{name: (line.get(name) or "").strip() for name in InventoryRow.__struct_fields__}
        )
        for line in reader
    ]
    rows = [msgspec.structs.replace(row, node=names.get(row.node, row.node)) for row in rows]
    _check_unique(rows)
    return rows


def _check_unique(rows: Iterable[InventoryRow]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows, start=2):
        before = seen.setdefault((row.node, row.adapter), number)
        if before != number:
            raise MisuseError(
                f"the inventory names adapter {row.adapter} of node {row.node} in lines {before} and {number}; "
                "it was not used"
            )


def groups_of(paths: pd.DataFrame) -> Iterator[tuple[RiskGroup, Indices]]:
    """Every risk group of the given paths with the sorted indices of its members, in a fixed order.

    `paths` has the columns of a path and, from the inventory, `sender_realm`, `listener_realm` and so on.
    """
    send = _joined(paths["sender"], paths["sender_adapter"])
    receive = _joined(paths["listener"], paths["listener_adapter"])
    yield from _named("pair", send + ARROW + receive)
    yield from _named("adapter_send", send)
    yield from _named("adapter_receive", receive)
    yield from _either("adapter", send, receive)
    yield from _either("node", paths["sender"], paths["listener"])
    yield from _named("subnet", paths["subnet"])
    yield from _either("switch", paths["sender_switch"], paths["listener_switch"])
    yield from _either(
        "port",
        _joined(paths["sender_switch"], paths["sender_port"]),
        _joined(paths["listener_switch"], paths["listener_port"]),
    )
    yield from _realm_groups(paths["sender_realm"], paths["listener_realm"])


def _realm_groups(sender: pd.Series, listener: pd.Series) -> Iterator[tuple[RiskGroup, Indices]]:
    yield from _either("realm", sender, listener)
    crosses = (sender != listener) & (sender != "") & (listener != "")
    yield from _either("uplink", sender.where(crosses, ""), listener.where(crosses, ""))
    yield from _named("direction", (sender + ARROW + listener).where(crosses, ""))


def _joined(first: pd.Series, second: pd.Series) -> pd.Series:
    """`first/second`, empty where one of them is."""
    return (first + SEPARATOR + second).where((first != "") & (second != ""), "")


def _named(kind: str, names: pd.Series) -> Iterator[tuple[RiskGroup, Indices]]:
    members = {str(name): rows for name, rows in names.groupby(names.to_numpy()).indices.items()}
    for name in sorted(members):
        if name:
            yield RiskGroup(kind, name), np.sort(members[name]).astype(np.int64)


def _either(kind: str, one: pd.Series, other: pd.Series) -> Iterator[tuple[RiskGroup, Indices]]:
    """Groups that a path belongs to by either of its ends."""
    left = {group.name: members for group, members in _named(kind, one)}
    right = {group.name: members for group, members in _named(kind, other)}
    nothing = np.empty(0, dtype=np.int64)
    for name in sorted(left.keys() | right.keys()):
        yield (
            RiskGroup(kind, name),
            np.union1d(left.get(name, nothing), right.get(name, nothing)),
        )
