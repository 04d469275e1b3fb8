"""What placement must know: free space, and the nodes whose paths have soft errors or are likely to.

With `policy` in the configuration, a node whose paths have been bad for long enough drains itself, and takes replicas
again when they have been good for as long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError
from holdfast.health.subsystem import HealthService
from holdfast.health.table.queries import bad_pairs
from holdfast.objects.config import ObjectsSection
from holdfast.objects.machine import POLICY
from holdfast.objects.ports import UNIT, Conditions
from holdfast.runtime.objects.files import ContentFiles
from holdfast.runtime.objects.policy import Policy
from holdfast.subsystem import Port
from holdfast.telemetry.advice import PPM
from holdfast.types import NEVER, Nanos

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge

EVERY_S: Final = 5.0
"""Interval between looks; a quarter of `policy_after_s` if that is shorter."""
log = logging.getLogger("holdfast")


class ConditionWatch:
    def __init__(
        self, edge: ObjectEdge, port: Port, section: ObjectsSection, files: ContentFiles | None
    ) -> None:
        self._edge = edge
        self._port = port
        self._files = files
        self._last: Conditions | None = None
        me = port.core.me.node
        self._every_s = min(EVERY_S, section.policy_after_s / 4)
        self._after_ns = int(section.policy_after_s * 1e9)
        self._again_at: Nanos = NEVER
        """When what the policy could not move is tried again."""
        self._loaded = False
        self.policy = Policy(me, self._after_ns)
        self.is_on = section.policy

    async def run(self) -> None:
        acting: asyncio.Future[None] | None = None
        try:
            while True:
                self.look()
                # A drain takes long: placement must know of the disk and the paths meanwhile.
                if self.is_on and (acting is None or acting.done()):
                    acting = asyncio.ensure_future(self._act())
                await asyncio.sleep(self._every_s)
        finally:
            if acting is not None:
                acting.cancel()

    def look(self) -> Conditions:
        """Report what has changed to the machine."""
        free = self._files.free_bytes() if self._files is not None else 0
        # Small changes are not worth telling all nodes.
        rounded = free >> 24 << 24
        found = Conditions(rounded, tuple(sorted(self.penalties().items())))
        if found != self._last:
            self._last = found
            self._port.answer(UNIT, found)
        return found

    def penalties(self) -> dict[bytes, int]:
        """Nodes by the number of other nodes to which a path has errors, in any direction and on any subnet, or is to
        be avoided by the pipeline's advice. A node that replicas should leave by that advice has the share of bad paths
        that the advice gives."""
        health = self._port.core.service(HealthService)
        # Not by incident: one of them explains all paths of a node that has a bad adapter.
        bad = [*bad_pairs(health.path_gossip), *self._advised()]
        pairs = {(min(pair), max(pair)): None for pair in bad}
        worse: dict[bytes, int] = {}
        for node in (node for pair in pairs for node in pair):
            worse[node] = worse.get(node, 0) + 1
        names = {m.node.hex(): m.node for m in self._edge.members()}
        others = len(self._edge.members()) - 1
        for node_hex, bad_ppm in health.placement.advised.unsound().items():
            member = names.get(node_hex)
            if member is not None:
                worse[member] = max(worse.get(member, 0), -(-bad_ppm * others // PPM))
        return worse

    def _advised(self) -> list[tuple[bytes, bytes]]:
        """The ends of the paths that the node's advice avoids."""
        health = self._port.core.service(HealthService)
        avoided = health.placement.advised.status(self._port.clock())["avoided"]
        names = {m.name: m.node for m in self._edge.members()}
        names |= {m.node.hex(): m.node for m in self._edge.members()}  # advice has ids
        ends = [(names.get(item["path"][0]), names.get(item["path"][2])) for item in avoided]
        return [(first, last) for first, last in ends if first and last]

    async def _act(self) -> None:
        try:
            await self._decide()
        except Exception:
            log.exception(
                "the policy failed; it looks again in %g s",
                self._every_s,
                extra=self._fields("policy_failed"),
            )

    async def _decide(self) -> None:
        now = self._port.clock()
        if not self._loaded and not self._resume():
            return
        members = [member.node for member in self._edge.members()]
        wish = self.policy.decide(now, self.penalties(), members)
        if wish is None and self.policy.is_drained and now >= self._again_at:
            wish = True
        if wish is not None:
            await (self._drain(now) if wish else self._undo())

    def _resume(self) -> bool:
        """Go on with what the policy of an earlier process began. False while the store is not read yet."""
        machine = self._edge.service.machine
        self._loaded = bool(machine.hub.disk) or not machine.hub.config.store
        if self._loaded and machine.members.drained_by == POLICY:
            self.policy.is_drained = True
            self._again_at = self._port.clock()
        return self._loaded

    async def _drain(self, now: Nanos) -> None:
        """Move away what can be moved. What could not is tried again after the same time."""
        name = self._port.config.name
        self._again_at = now + self._after_ns
        try:
            steps = await self._edge.admin.drain(name, skip_blocked=True, by_policy=True)
        except HoldfastError as error:
            extra = self._fields("policy_drain_failed") | {"error": str(error)}
            log.warning("policy: node %s was not drained: %s", name, error, extra=extra)
            return
        left = [step for step in steps if step.state != "done"]
        for step in left:
            extra = self._fields("policy_stays") | {
                "kind": step.kind,
                step.kind: step.name,
                "reason": step.reason,
            }
            log.warning("policy: %s %s stays: %s", step.kind, step.name, step.reason, extra=extra)
        if not left:
            self._again_at = NEVER
        moved = len(steps) - len(left)
        log.warning(
            "policy: %d of %d moved off node %s",
            moved,
            len(steps),
            name,
            extra=self._fields("policy_drained") | {"moved": moved, "planned": len(steps)},
        )

    async def _undo(self) -> None:
        name = self._port.config.name
        try:
            await self._edge.drain(name, undo=True, by_policy=True)
        except HoldfastError as error:
            self.policy.failed()
            extra = self._fields("policy_undo_failed") | {"error": str(error)}
            log.warning("policy: node %s does not take replicas yet: %s", name, error, extra=extra)
            return
        extra = self._fields("policy_undone")
        log.warning("policy: node %s takes replicas again", name, extra=extra)

    def _fields(self, event: str) -> dict[str, Any]:
        """What the log knows about every event of the policy."""
        config = self._port.config
        return {
            "event": event,
            "subsystem": "objects",
            "node": config.name,
            "domain": config.domain,
        }
