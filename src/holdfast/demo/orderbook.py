"""The application of the demonstration: a small limit order book, the same on every replica.

Orders come from traders on all nodes. The book matches them in the order of the group, so every replica makes the same
trades. Each trader numbers its orders, so the book can detect lost, duplicated and reordered orders.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from zlib import crc32

import msgspec

from holdfast.group.ports import Batch, Context, Replica


class Order(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Buy (or sell) `quantity` at `price` or better. `number` counts the orders of one trader from 1."""

    trader: str
    number: int
    buy: bool
    price: int
    quantity: int
    note: bytes = b""
    """Creates orders of different sizes."""


class State(msgspec.Struct):
    """The complete state of the book."""

    bids: list[tuple[int, int, int]] = []
    """(minus price, sequence, remaining quantity): a heap with the best bid on top."""
    asks: list[tuple[int, int, int]] = []
    orders: int = 0
    trades: int = 0
    volume: int = 0
    last: dict[str, int] = {}
    """The last number of each trader."""
    violations: int = 0
    digest: int = 0
    """Digest of every trade so far, in order: two books with the same digest made the same trades."""


_orders = msgspec.msgpack.Decoder(Order)
_state = msgspec.msgpack.Decoder(State)


class OrderBook(Replica):
    """The replicated application."""

    def __init__(self) -> None:
        self.state = State()

    def apply(self, batch: Batch, context: Context) -> None:
        for message in batch.messages:
            order = _orders.decode(message)
            state = self.state
            if order.number != state.last.get(order.trader, 0) + 1:
                state.violations += 1
            state.last[order.trader] = order.number
            state.orders += 1
            self._match(order)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, state: bytes) -> None:
        self.state = _state.decode(state)

    def _match(self, order: Order) -> None:
        """Trade against the other side while prices match; the rest waits in the book."""
        state = self.state
        mine, others = (state.bids, state.asks) if order.buy else (state.asks, state.bids)
        sign = 1 if order.buy else -1
        left = order.quantity
        while left and others and sign * (order.price - abs(others[0][0])) >= 0:
            price, sequence, waiting = heappop(others)
            traded = min(left, waiting)
            left -= traded
            state.trades += 1
            state.volume += traded
            fact = f"{order.trader}/{order.number}:{abs(price)}x{traded}"
            state.digest = crc32(fact.encode(), state.digest)
            if waiting > traded:
                heappush(others, (price, sequence, waiting - traded))
        if left:
            heappush(mine, (-order.price if order.buy else order.price, state.orders, left))


def make_order(trader: str, number: int, rng: Random) -> bytes:
    """A plausible order near a price of 1000."""
    buy = rng.random() < 0.5
    price = 1000 + rng.randrange(-20, 21) + (2 if buy else -2)
    note = bytes(rng.randrange(20, 1400))
    return msgspec.msgpack.encode(Order(trader, number, buy, price, rng.randrange(1, 50), note))
