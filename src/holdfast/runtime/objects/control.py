"""What operators ask of objects through the control socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import MisuseError
from holdfast.runtime.admin.values import Evacuate
from holdfast.runtime.objects.download import Download
from holdfast.runtime.objects.jobs import Jobs, Report
from holdfast.subsystem import Control

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge


class ObjectControl:
    def __init__(self, edge: ObjectEdge) -> None:
        self._edge = edge
        self._jobs = Jobs(
            {
                "put": self._put,
                "get": self._get,
                "move": self._move,
                "delete": self._delete,
                "repair": self._repair,
                "drain": self._drain,
                "move-off": self._move_off,
                "move-replica": self._move_replica,
                "mkdir": self._mkdir,
            }
        )

    def handlers(self) -> Mapping[str, Control]:
        return {
            "object-start": self._jobs.start,
            "object-job": self._jobs.look,
            "object-stop": self._jobs.stop,
            "object-list": self.list_names,
            "object-where": self.where,
            "object-policy": self.policy,
        }

    # -- at once ---------------------------------------------------------------------------------------------------

    async def list_names(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"names": await self._edge.list(str(request.get("path", "/")))}

    async def where(self, request: dict[str, Any]) -> dict[str, Any]:
        return _plain(await self._edge.stat(_text(request, "path")))

    def policy(self, request: dict[str, Any]) -> dict[str, Any]:
        """Show what the policy sees, and switch it on or off."""
        watch = self._edge.conditions
        if watch is None:
            raise MisuseError("the node is not running")
        if "on" in request:
            watch.is_on = bool(request["on"])
        penalties = {self._edge.name_of(node): count for node, count in watch.penalties().items()}
        return {"on": watch.is_on, "drained": watch.policy.is_drained, "bad_paths": penalties}

    # -- jobs ------------------------------------------------------------------------------------------------------

    async def _put(self, request: dict[str, Any], report: Report) -> dict[str, Any]:
        """Content comes from a file that this process can read: the command runs on the same machine."""
        path, file = _text(request, "path"), Path(_text(request, "file"))
        size = await asyncio.to_thread(_size_of, file)
        mode, replicas = str(request.get("mode", "strict")), int(request.get("replicas", 0))
        resume = _resume_id(str(request.get("resume", "")))
        if request.get("overwrite"):
            edition = await self._edge.write(path, file, resume=resume, on_progress=report)
        else:
            made = await self._edge.create(
                path, file, replicas=replicas, mode=mode, resume=resume, on_progress=report
            )
            edition = made.edition
        return {"path": path, "edition": edition, "size": size}

    async def _get(self, request: dict[str, Any], report: Report) -> dict[str, Any]:
        path, file = _text(request, "path"), Path(_text(request, "file"))
        reading = Download(self._edge, path, file, resume=bool(request.get("resume")))
        size, edition = await reading.run(not request.get("near"), report)
        return {"path": path, "size": size, "edition": edition}

    async def _mkdir(self, request: dict[str, Any], _: Report) -> dict[str, Any]:
        await self._edge.mkdir(_text(request, "path"))
        return {"done": "created"}

    async def _move(self, request: dict[str, Any], _: Report) -> dict[str, Any]:
        await self._edge.move(_text(request, "source"), _text(request, "target"))
        return {"done": "moved"}

    async def _delete(self, request: dict[str, Any], _: Report) -> dict[str, Any]:
        await self._edge.delete(_text(request, "path"))
        return {"done": "deleted"}

    async def _repair(self, request: dict[str, Any], _: Report) -> dict[str, Any]:
        return _plain(await self._edge.repair(_text(request, "path")))

    async def _drain(self, request: dict[str, Any], report: Report) -> dict[str, Any]:
        """Move groups, dialogs and objects off a node."""
        node = _text(request, "node")
        if request.get("undo"):
            await self._edge.drain(node, undo=True)
            return {"steps": []}
        steps = await self._edge.admin.drain(
            node,
            dry_run=bool(request.get("dry_run")),
            skip_blocked=bool(request.get("skip_blocked")),
            dialogs_to=str(request.get("dialogs_to", "")),
            on_progress=report,
        )
        return {"steps": [_plain(step) for step in steps]}

    async def _move_off(self, request: dict[str, Any], report: Report) -> dict[str, Any]:
        """Move one group replica or dialog off a node, which carries it out itself."""
        node, kind, name = (_text(request, key) for key in ("node", "kind", "name"))
        target = str(request.get("target", ""))
        wish = Evacuate(kinds=(kind,), only=name, target=target, keep_serving=True)
        steps = await self._edge.admin.plan(node, wish)
        if not steps:
            raise MisuseError(f"{node} has no {kind} {name!r}; nothing was moved")
        if not request.get("dry_run"):
            steps = await self._edge.admin.evacuate(node, wish, report)
        return {"steps": [_plain(step) for step in steps]}

    async def _move_replica(self, request: dict[str, Any], _: Report) -> dict[str, Any]:
        steps = await self._edge.move_replica(
            _text(request, "path"),
            _text(request, "source"),
            str(request.get("target", "")),
            dry_run=bool(request.get("dry_run")),
        )
        return {"steps": [_plain(step) for step in steps]}


def _size_of(file: Path) -> int:
    if not file.is_file():
        raise MisuseError(f"there is no file {file}; nothing was written")
    return file.stat().st_size


def _resume_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise MisuseError(
            f"an id to resume with has 32 hex digits, not {text!r}; nothing was written"
        ) from None


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise MisuseError(f"the request needs {key!r}")
    return value


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
