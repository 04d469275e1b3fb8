"""How a subsystem plugs into a node: one declaration, which everything else iterates over.

A subsystem (links, health, groups, ...) is a package that declares itself once, in its module `subsystem`. The
declaration names its layers, configuration sections, frames, store tables, facts and metrics, and two things that run:

- a `Service`, the part without IO: it builds the machines of its units and describes them (`declaration`);
- an `Edge`, the part that faces applications and operators: it performs effects, answers the control socket and is the
  attribute that applications use on `Node` (`edge`).

`holdfast.node.subsystems` lists all declarations, lowest first. The node core, both drivers, the control socket, the
page, the metrics and the pipeline iterate over that list; none of them names a protocol.
`config` is the configuration of a node, with one typed `Section` for each part that a subsystem reads.
"""

from holdfast.subsystem.config import NodeConfig, Section
from holdfast.subsystem.declaration import (
    Assembly,
    Family,
    Route,
    Rows,
    Service,
    Subscribers,
    Subsystem,
    Table,
)
from holdfast.subsystem.edge import Control, Edge, EffectHandler, Port, TableReader
from holdfast.subsystem.local import LinkTiming, LocalNode

__all__ = [
    "Assembly",
    "Control",
    "Edge",
    "EffectHandler",
    "Family",
    "LinkTiming",
    "LocalNode",
    "NodeConfig",
    "Port",
    "Route",
    "Rows",
    "Section",
    "Service",
    "Subscribers",
    "Subsystem",
    "Table",
    "TableReader",
]
