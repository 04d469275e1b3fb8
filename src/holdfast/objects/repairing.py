"""Repair on request: verify every replica of an object, byte by byte, and repair what is late or damaged."""

from __future__ import annotations

from holdfast.objects import ports
from holdfast.objects.changing import sound_nodes
from holdfast.objects.directories import Directories
from holdfast.objects.frames import Done, Inspect, Look
from holdfast.objects.parts import Parts
from holdfast.objects.reading import counts, read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.replacing import pull
from holdfast.objects.tasks import Procedure, Task, gather
from holdfast.objects.values import Value
from holdfast.objects.writing import announce
from holdfast.types import SECOND

INSPECT_NS_PER_MB = SECOND // 10


class Repairing:
    def __init__(self, parts: Parts, directories: Directories) -> None:
        self._parts = parts
        self._directories = directories

    def repair(self, task: Task, request: ports.Repair) -> Procedure[ports.Description]:
        value, _ = yield from self._directories.find(task, request.path, request.object)
        announce(self._parts, value, value.nodes)
        damaged = yield from self._inspect(task, value)
        value, states = yield from read_register(task, self._parts, value.object, value.nodes)
        before = [
            ports.ReplicaState(node, state) for node, state in damaged.items() if state != "sound"
        ]
        for replica in before:
            if replica.state != "damaged":
                continue
            sources = [n for n in sound_nodes(value, states, self._parts) if n not in damaged]
            sources += [n for n in value.nodes if damaged.get(n) == "sound" and n not in sources]
            if not sources:
                raise Refusal(
                    "damaged", f"no replica of {request.path!r} is sound; nothing was repaired"
                )
            yield from pull(task, self._parts, value, value.content, replica.node, sources)
        return (yield from self._describe(task, value, before))

    def _inspect(self, task: Task, value: Value) -> Procedure[dict[bytes, str]]:
        timeout = self._parts.config.chunk_ns + (value.content.size >> 20) * INSPECT_NS_PER_MB
        ask = lambda call: Inspect(call, value.object)
        replies = yield from gather(task, dict.fromkeys(value.nodes, ask), timeout)
        found: dict[bytes, str] = {}
        for node, reply in replies.items():
            if not isinstance(reply, Done):
                found[node] = "unreachable"
            elif reply.reason == "unknown":
                found[node] = "emptied"
            else:
                found[node] = "damaged" if reply.reason else "sound"
        return found

    def _describe(
        self, task: Task, value: Value, before: list[ports.ReplicaState]
    ) -> Procedure[ports.Description]:
        ask = lambda call: Look(call, value.object)
        replies = yield from gather(
            task, dict.fromkeys(value.nodes, ask), self._parts.config.call_ns
        )
        states = []
        repaired = [replica.node for replica in before if replica.state == "damaged"]
        for node in value.nodes:
            reply = replies[node]
            if not counts(reply):
                states.append(
                    ports.ReplicaState(node, "unreachable" if reply is None else "emptied")
                )
                continue
            version = reply.decided.version if reply.decided is not None else 0
            state = "damaged" if not reply.sound else "repaired" if node in repaired else "sound"
            states.append(ports.ReplicaState(node, state, version))
        return ports.Description(value, tuple(states), 0, value.content.size)
