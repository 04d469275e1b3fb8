"""One node process of the demonstration: a node, its web page, a trader that sends orders on request, and the
services in `member_services`.

It ends on SIGTERM, and also when its standard input ends, so that nothing is left if the demonstration dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic_ns
from typing import Any

from holdfast.demo.member_services import MemberServices
from holdfast.demo.orderbook import OrderBook, make_order
from holdfast.node.config import split_address
from holdfast.runtime.loop import run as run_loop
from holdfast.runtime.node import Node
from holdfast.runtime.parts import load_config
from holdfast.web.server import WebServer

GROUP = "book"


class Trader:
    """Sends numbered orders at a steady rate, and never more than the group accepts."""

    def __init__(self, node: Node, seed: int) -> None:
        self.rate = 0
        self.sent = 0
        self._node = node
        self._rng = Random(seed)
        self.name = f"{node.config.name}/{node.incarnation}"

    async def run(self) -> None:
        group = self._node.group(GROUP)
        due = monotonic_ns()
        while True:
            if not self.rate:
                await asyncio.sleep(0.02)
                due = monotonic_ns()
                continue
            await group.send(make_order(self.name, self.sent + 1, self._rng))
            self.sent += 1
            due += 1_000_000_000 // self.rate
            ahead = due - monotonic_ns()
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)


def handlers(
    book: OrderBook, trader: Trader
) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    def load(request: dict[str, Any]) -> dict[str, Any]:
        trader.rate = int(request["rate"])
        return {"rate": trader.rate}

    def show(_: dict[str, Any]) -> dict[str, Any]:
        state = book.state
        return {
            "trader": trader.name,
            "sent": trader.sent,
            "orders": state.orders,
            "trades": state.trades,
            "volume": state.volume,
            "digest": f"{state.digest:08x}",
            "violations": state.violations,
            "last": dict(state.last),
        }

    return {"load": load, "book": show}


async def main(path: Path) -> None:
    config = load_config(path)
    book = OrderBook()
    node = Node(config, {GROUP: book})
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 1) else told.set())
    page: WebServer | None = None
    try:
        async with node:
            trader = Trader(node, seed=node.incarnation)
            services = MemberServices(node, book)
            node.answer({**handlers(book, trader), **services.handlers()})
            trading = asyncio.ensure_future(trader.run())
            serving = asyncio.ensure_future(services.run())
            if config.web.address:
                host, port = split_address(config.web.address, "[web] address")
                page = WebServer(host, port, node.status, None, tree=node.roles.walk_tree)
                await page.start()
            stopped = asyncio.ensure_future(node.wait_stopped())
            waiting = asyncio.ensure_future(told.wait())
            done, _ = await asyncio.wait(
                {stopped, waiting, trading, serving}, return_when=asyncio.FIRST_COMPLETED
            )
            trading.cancel()
            serving.cancel()
            for task in done:
                task.result()
    finally:
        if page is not None:
            await page.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run_loop(main(Path(sys.argv[1])))
