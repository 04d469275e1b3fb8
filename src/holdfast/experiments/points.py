"""One experiment as a value: a point of a sweep, and its result."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.stability.config import CUBE, PROTOCOLS
from holdfast.stability.hypercube import neighbours
from holdfast.types import Nanos

SENDERS_MAX: Final = 50
"""Groups of more members have this many that send; the array of numbers has one entry for each of them."""
HEADER_BYTES: Final = 32
NUMBER_BYTES: Final = 4
LINK_BITS_PER_S: Final = 100_000_000
DELAY_NS_MAX: Final = 1_000_000
NODES_MAX: Final = 1_000_000

PAPER_NAMES: Final = {
    "cube": "CubeFullDist",
    "coord": "Coord",
    "full": "FullDist",
    "tree": "S_Coord",
}


class Network(msgspec.Struct, frozen=True):
    """The parameters of a random topology."""

    nodes: int
    probability: float
    seed: int
    loss: float = 0.0
    joined: bool = True


class Point(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="round",
    tag_field="kind",
    omit_defaults=True,
):
    """One cold round of one protocol on one random topology. The defaults follow the paper."""

    protocol: str = CUBE
    nodes: int
    edge_probability: float = 0.0
    """Of each pair of nodes; 0 when `mean_degree` gives it."""
    mean_degree: float = 0.0
    """Links per node: the edge probability falls as the network grows."""
    seed: int = 1
    """Draws the topology, the delays, the failed nodes and the losses."""
    failed: int = 0
    """Failed neighbours of node 0 on the cube: silent from the start, excused by the others."""
    routers_down: bool = False
    """Failed nodes do not route either."""
    bitmap: bool = False
    """Messages carry the bitmap G, which the paper's message sizes leave out."""
    confirm: bool = False
    """Members of `coord` and `tree` confirm the result. Reliable channels need no confirmation."""
    one_starts: bool = False
    """Only node 0 starts the round of the cube; each other member starts with the first message of a neighbour."""
    loss: float = 0.0
    """Probability that a link loses a packet. Frames are then repeated by the production timers."""
    joined: bool = True
    """Connect the components of a random graph that is not connected."""
    model: str = "machines"
    """`machines`: the production protocol code. `compiled`: a compiled copy of its control flow."""

    def network(self) -> Network:
        """The topology to draw."""
        return Network(self.nodes, self.probability, self.seed, self.loss, self.joined)

    @property
    def probability(self) -> float:
        if self.mean_degree:
            return min(1.0, self.mean_degree / (self.nodes - 1))
        return self.edge_probability

    @property
    def senders(self) -> int:
        return min(self.nodes, SENDERS_MAX)

    @property
    def density(self) -> str:
        """How the topology was drawn, for tables and legends."""
        if self.mean_degree:
            return f"degree {self.mean_degree:g}"
        return f"p = {self.edge_probability:g}"

    @property
    def key(self) -> str:
        """The key of the point in a journal: equal points have equal keys."""
        return msgspec.json.encode(self).decode()

    def check(self) -> None:
        """Raise `MisuseError` if the point is invalid."""
        if self.protocol not in PROTOCOLS:
            near = get_close_matches(self.protocol, PROTOCOLS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise MisuseError(
                f"{self.protocol!r} is not a protocol, use one of {', '.join(PROTOCOLS)}{hint}"
            )
        if not 2 <= self.nodes <= NODES_MAX:
            raise MisuseError(f"{self.nodes} nodes: a round needs 2 to {NODES_MAX} nodes")
        if bool(self.edge_probability) == bool(self.mean_degree):
            raise MisuseError("a point needs either an edge probability or a mean degree")
        if not 0 < self.probability <= 1 or not 0 <= self.loss < 1:
            raise MisuseError("an edge probability is in (0, 1], a loss probability in [0, 1)")
        if self.model not in ("machines", "compiled"):
            raise MisuseError(f"{self.model!r} is not a model, use machines or compiled")
        self._check_failed()
        self._check_model()

    def _check_failed(self) -> None:
        if self.failed and self.protocol != CUBE:
            raise MisuseError(f"only the cube runs with failed members, not {self.protocol!r}")
        degree = len(neighbours(self.nodes, 0))
        if not 0 <= self.failed < degree:
            raise MisuseError(
                f"{self.failed} failed neighbours of {degree}: at least one must be left"
            )

    def _check_model(self) -> None:
        if self.model == "compiled" and (
            self.protocol == "full" or self.loss or self.confirm or self.one_starts
        ):
            raise MisuseError(
                "the compiled model supports cube, coord and tree, without loss and confirmations"
            )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The indices of the paper for one round, and properties of the topology."""

    first_ns: Nanos
    """When the first member knew what is stable."""
    last_ns: Nanos
    load: float
    """Packets in the network, sampled every millisecond of the round and averaged."""
    load_fine: float
    """The same, sampled twenty times as often."""
    longest_queue: int
    """Packets that waited for one direction of one link, the one in transmission not counted."""
    hops: int
    messages: int
    lost: int = 0
    links: int
    joins: int
    """Links that were added to connect the topology."""
    mean_hops: float
    """Per message that was sent."""
    seconds: float = 0.0
    """CPU time of the run. The only field that differs between two runs of a point."""

    def without_time(self) -> Outcome:
        return msgspec.structs.replace(self, seconds=0.0)


def transmission_ns(size_bytes: int) -> Nanos:
    return size_bytes * 8 * 1_000_000_000 // LINK_BITS_PER_S
