"""Moving replicas off a node, by a plan: shown before it is carried out, one object at a time, stoppable.

Every step adds a replica before it removes one, so the number of replicas never falls.
"""

from __future__ import annotations

import msgspec

from holdfast.objects import ports
from holdfast.objects.directories import Directories
from holdfast.objects.frames import Administer, Administered, Done, Held, Inventory, SetDraining
from holdfast.objects.parts import Parts
from holdfast.objects.ports import Plan, Progress, Step
from holdfast.objects.reading import read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.replacing import add_replica, remove_replica
from holdfast.objects.tasks import Procedure, Task, gather
from holdfast.objects.values import Value

replace = msgspec.structs.replace


class Draining:
    def __init__(self, parts: Parts, directories: Directories) -> None:
        self._parts = parts
        self._directories = directories

    def drain(self, task: Task, request: ports.Drain) -> Procedure[Plan]:
        """Move every replica off a node. The node takes no new ones, before and after."""
        node = request.node
        if request.undo:
            yield from self._set_draining(task, request, False)
            return Plan(())
        if request.mark:
            yield from self._set_draining(task, request, True)
            return Plan(())
        values = yield from self._inventory(task, node)
        steps = tuple(self._step(value, node) for value in values)
        if request.dry_run:
            return Plan(steps)
        blocked = [step for step in steps if step.state == "blocked"]
        if blocked and not request.skip_blocked:
            raise Refusal("blocked", _blocked(blocked))
        yield from self._set_draining(task, request, True)
        done: list[Step] = []
        while values:
            for value in values:
                step = self._step(value, node)
                total = len(done) + len(values)
                self._parts.hub.effect(Progress(task.op, len(done), total, step.name))
                if step.state == "planned":
                    step = yield from self._carry_out(task, step, value)
                done.append(step)
            # Objects that were created on the node before all nodes knew of the mark.
            seen = {step.object: None for step in done}
            found = yield from self._inventory(task, node)
            values = [value for value in found if value.object not in seen]
        return Plan(tuple(done))

    def move_replica(self, task: Task, request: ports.MoveReplica) -> Procedure[Plan]:
        value, _ = yield from self._directories.find(task, request.path, request.object)
        if request.source not in value.nodes:
            raise Refusal(
                "misuse", f"{request.path!r} has no replica on that node; nothing was moved"
            )
        if request.target and request.target in value.nodes:
            raise Refusal(
                "misuse", f"{request.path!r} has a replica on the target; nothing was moved"
            )
        step = self._step(value, request.source, request.target)
        if request.dry_run:
            return Plan((step,))
        if step.state == "blocked":
            raise Refusal("blocked", _blocked([step]))
        return Plan(((yield from self._carry_out(task, step, value)),))

    def ask_node(self, task: Task, request: ports.AskNode) -> Procedure[bytes]:
        """Ask the administration of a node; the body of its answer."""
        ask = lambda call: Administer(call, request.verb, request.body)
        replies = yield from gather(task, {request.node: ask}, self._parts.config.chunk_ns)
        reply = replies[request.node]
        if not isinstance(reply, Administered):
            raise Refusal("unreachable", "the node does not answer; ask again to go on")
        if reply.reason:
            raise Refusal("refused", reply.reason)
        return bytes(reply.body)

    def _inventory(self, task: Task, node: bytes) -> Procedure[list[Value]]:
        values: list[Value] = []
        after, more = b"", True
        while more:
            ask = lambda call, after=after: Inventory(call, after)
            replies = yield from gather(task, {node: ask}, self._parts.config.call_ns)
            reply = replies[node]
            if not isinstance(reply, Held):
                raise Refusal(
                    "unreachable",
                    "the node does not answer; nothing was moved. Replicas of a dead node are restored by themselves",
                )
            values += [value for value in reply.objects if not value.deleted]
            more = reply.more and bool(reply.objects)
            after = reply.objects[-1].object if reply.objects else b""
        return values

    def _step(self, value: Value, node: bytes, target: bytes = b"") -> Step:
        step = Step(value.object, value.name or "/", target, node, value.content.size)
        if not target:
            others = [n for n in value.nodes if n != node]
            chosen = self._parts.members.place(value.object, 1, value.content.size, others, [node])
            if not chosen:
                if len(others) >= value.wanted:
                    return step
                reason = (
                    f"{len(others)} of {value.wanted} replicas would be left, and no other node that is reachable "
                    "takes replicas and has space"
                )
                return replace(step, state="blocked", reason=reason)
            step = replace(step, add=chosen[0])
        elif self._parts.members.ref(target) is None:
            return replace(
                step, state="blocked", reason="the target holds no replicas, or is not reachable"
            )
        return step

    def _carry_out(self, task: Task, step: Step, value: Value) -> Procedure[Step]:
        parts = self._parts
        try:
            value, _ = yield from read_register(task, parts, value.object, value.nodes)
            gone = next((r for r in value.replicas if r.node == step.remove), None)
            if gone is None or value.deleted:
                return replace(step, state="done", reason="it was moved or deleted meanwhile")
            if step.add:
                # rule: R-10f
                value = yield from add_replica(task, parts, value, step.add)
            yield from remove_replica(
                task, parts, value, gone, min(value.wanted, len(value.replicas) - 1)
            )
        except Refusal as refusal:
            return replace(step, state="failed", reason=refusal.text)
        return replace(step, state="done")

    def _set_draining(self, task: Task, request: ports.Drain, draining: bool) -> Procedure[None]:
        node = request.node
        ask = lambda call: SetDraining(call, draining, request.by_policy)
        replies = yield from gather(task, {node: ask}, self._parts.config.call_ns)
        if not isinstance(replies[node], Done):
            raise Refusal("unreachable", "the node does not answer; nothing was changed")


def _blocked(steps: list[Step]) -> str:
    first = steps[0]
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    return f"object {first.name!r}{more} cannot be moved: {first.reason}; nothing was moved"
