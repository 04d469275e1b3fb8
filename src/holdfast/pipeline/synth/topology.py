"""The synthetic network: nodes, adapters, subnets, realms, switch ports, and who hears whom."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

import msgspec

from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.transforms.risk_groups import ARROW, SEPARATOR, InventoryRow, RiskGroup

NODES_PER_PORT: Final = 2
"""Two nodes share a switch port, as blades of one chassis do: a port is not the same as an adapter."""


class Path(msgspec.Struct, frozen=True):
    """One adapter to another, one direction, one transport; nodes by number."""

    sender: int
    sender_adapter: int
    listener: int
    listener_adapter: int
    transport: str


class Topology:
    """Everything about the network that the options imply. Cheap to make, so every task makes its own."""

    def __init__(self, options: SynthOptions) -> None:
        self.options = options

    @cached_property
    def ids(self) -> tuple[str, ...]:
        seed = self.options.seed
        return tuple(
            hashlib.blake2b(f"{seed} node {i}".encode(), digest_size=16).hexdigest()
            for i in range(self.options.nodes)
        )

    def name(self, node: int) -> str:
        return f"n{node:04d}"

    def realm(self, node: int) -> str:
        return f"realm{node * self.options.realms // self.options.nodes}"

    def adapter(self, number: int) -> str:
        return f"eth{number}"

    def subnet(self, adapter: int) -> str:
        return f"lan{adapter % self.options.subnets}"

    def switch(self, node: int, adapter: int) -> str:
        return f"sw-{self.realm(node)}-{self.subnet(adapter)}"

    def port(self, node: int, adapter: int) -> str:
        turns = adapter // self.options.subnets
        return f"{turns * self.options.nodes // NODES_PER_PORT + node // NODES_PER_PORT}"

    def neighbours(self, node: int) -> tuple[int, ...]:
        count = self.options.nodes
        if self.options.neighbours == "ring":
            return tuple(sorted({(node - 1) % count, (node + 1) % count} - {node}))
        if self.options.neighbours == "hypercube":
            flipped = (node ^ (1 << bit) for bit in range(count.bit_length()))
            return tuple(sorted(peer for peer in flipped if peer < count and peer != node))
        return tuple(peer for peer in range(count) if peer != node)

    def paths_to(self, listener: int) -> list[Path]:
        """All paths that a node listens on, in a fixed order."""
        adapters = range(self.options.adapters)
        return [
            Path(peer, sender_adapter, listener, adapter, transport)
            for peer in self.neighbours(listener)
            for adapter in adapters
            for sender_adapter in adapters
            if self.subnet(adapter) == self.subnet(sender_adapter)
            for transport in self.options.transports
        ]

    def inventory(self) -> list[InventoryRow]:
        return [
            InventoryRow(
                self.ids[node],
                self.adapter(adapter),
                self.realm(node),
                self.switch(node, adapter),
                self.port(node, adapter),
            )
            for node in range(self.options.nodes)
            for adapter in range(self.options.adapters)
        ]

    def groups_of(self, path: Path) -> tuple[RiskGroup, ...]:
        """The risk groups of a path, under the names that localisation gives them."""
        send = self.adapter_name(path.sender, path.sender_adapter)
        receive = self.adapter_name(path.listener, path.listener_adapter)
        ends = ((path.sender, path.sender_adapter), (path.listener, path.listener_adapter))
        found = [
            RiskGroup("pair", send + ARROW + receive),
            RiskGroup("adapter_send", send),
            RiskGroup("adapter_receive", receive),
            RiskGroup("subnet", self.subnet(path.listener_adapter)),
        ]
        for node, adapter in ends:
            found += [
                RiskGroup("adapter", self.adapter_name(node, adapter)),
                RiskGroup("node", self.ids[node]),
                RiskGroup("port", self.port_name(node, adapter)),
                RiskGroup("switch", self.switch(node, adapter)),
                RiskGroup("realm", self.realm(node)),
            ]
        here, there = self.realm(path.sender), self.realm(path.listener)
        if here != there:
            found += [RiskGroup("uplink", here), RiskGroup("uplink", there)]
            found.append(RiskGroup("direction", here + ARROW + there))
        return tuple(found)

    def adapter_name(self, node: int, adapter: int) -> str:
        return self.ids[node] + SEPARATOR + self.adapter(adapter)

    def port_name(self, node: int, adapter: int) -> str:
        return self.switch(node, adapter) + SEPARATOR + self.port(node, adapter)
