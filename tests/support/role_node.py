"""A node process that serves a role: `python -m tests.support.role_node CONFIG [ROLE]`."""

from __future__ import annotations

import asyncio
import sys

from holdfast.runtime.node import Node
from holdfast.runtime.roles_handles import RoleMessage


async def main(config: str, role: str) -> None:
    async with Node(config) as node:
        name = node.config.name.encode()

        def answer(message: RoleMessage) -> bytes | None:
            return None if message.data == b"never" else name

        if role:
            await node.roles.serve(role, answer)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
