"""Objects on processes that are killed with SIGKILL during writes and moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.object_nodes import Process, config_text, eventually, object_port, until

from holdfast import Node, parse_config
from holdfast.errors import HoldfastError, ObjectConflict, ObjectNotFound

PATIENCE_S = 180.0
"""A busy machine takes long to start a process."""


class Story:
    def __init__(self, node: Node, processes: dict[str, Process]) -> None:
        self.node = node
        self.processes = processes
        self.acknowledged = b"start"
        self.doubtful: list[bytes] = []
        self.writes = 0

    async def write(self) -> None:
        self.writes += 1
        data = f"write {self.writes}".encode().ljust(1_300_000, b".")
        try:
            await self.node.objects.write(await self.path(), data)
        except (HoldfastError, TimeoutError):
            self.doubtful.append(data)
        else:
            self.acknowledged, self.doubtful = data, []

    async def path(self) -> str:
        for path in ("/p/x", "/q/x"):
            try:
                await self.node.objects.open(path)
            except ObjectNotFound:
                continue
            return path
        raise ObjectNotFound("the object has no name")

    async def check(self) -> None:
        data = await self.node.objects.read(await self.path())
        assert data in (self.acknowledged, *self.doubtful), "an acknowledged write is lost"

    async def move(self) -> None:
        source = await self.path()
        target = "/q/x" if source == "/p/x" else "/p/x"
        await self.node.objects.move(source, target)

    async def kill_during(self, name: str, work: asyncio.Task[None]) -> None:
        """Kill a node while the work is in progress, and start it again."""
        await asyncio.sleep(0)
        self.processes[name].kill()
        await asyncio.wait((work,))
        if not work.cancelled() and work.exception() is not None:
            assert isinstance(work.exception(), HoldfastError), work.exception()
        await self.settled()
        self.processes[name].start()
        await self.node.until_up(name, timeout_s=PATIENCE_S)

    async def settled(self) -> None:
        """The object can be read: a majority is there."""

        async def readable() -> bool:
            await self.check()
            return True

        await eventually(readable, PATIENCE_S)


@pytest.mark.slow
def test_nothing_is_lost_when_nodes_are_killed_during_writes_and_moves(tmp_path: Path) -> None:
    async def story() -> None:
        port = object_port()
        processes = {
            name: Process(tmp_path, name, config_text(tmp_path, name, number, port, "abc"))
            for number, name in enumerate("abc", 1)
        }
        for process in processes.values():
            process.start()
        text = config_text(tmp_path, "d", 4, port, "abc")
        try:
            async with Node(parse_config(text)) as node:
                await node.until_up("a", "b", "c", timeout_s=PATIENCE_S)
                members = node.objects.service.machine.members
                await until(lambda: len(members.offers) == 4, PATIENCE_S)
                await run(Story(node, processes))
        finally:
            for process in processes.values():
                process.kill()

    async def run(story: Story) -> None:
        objects = story.node.objects
        for directory in ("/p", "/q"):
            await objects.mkdir(directory)
        await objects.create("/p/x", b"start", nodes=("a", "b", "c"))
        for name in "abc":
            await story.write()
            await story.kill_during(name, asyncio.create_task(story.write()))
        for name in "ab":
            await story.kill_during(name, asyncio.create_task(story.move()))
        await story.check()
        names = [await objects.list("/p"), await objects.list("/q")]
        assert sorted(names) == [[], ["x"]], "exactly one name"
        with pytest.raises(ObjectConflict):
            await objects.write(await story.path(), b"late", edition=1)
        path = await story.path()

        async def restored() -> bool:
            return [r.state for r in (await objects.stat(path)).replicas] == ["sound"] * 3

        await eventually(restored, PATIENCE_S)

    asyncio.run(story())
