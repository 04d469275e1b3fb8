"""Trains: several datagrams in one call, each of which arrives, waits and is lost alone."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.transports.harness import End, joined, on_loop

from holdfast.transports import trains
from holdfast.transports.faults import Faults, Rule
from holdfast.transports.udp import UdpTransport

SIZE = 1000


class Watched:
    """A socket that counts calls, and fails to send trains if it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.calls: Counter[str] = Counter()
        self.error = 0

    def sendto(self, data: bytes, address: Any) -> int:
        self.calls["single"] += 1
        return self._sock.sendto(data, address)

    def sendmsg(self, packets: list[bytes], *rest: Any) -> int:
        self.calls["train"] += 1
        if self.error:
            raise OSError(self.error, "as if the kernel could not")
        return self._sock.sendmsg(packets, *rest)

    def recvmsg(self, *given: Any) -> Any:
        self.calls["received"] += 1
        return self._sock.recvmsg(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def watched(one: End) -> Watched:
    assert isinstance(one.transport, UdpTransport)
    assert one.transport._socket is not None
    sock = Watched(one.transport._socket)
    one.transport._socket = sock  # type: ignore[assignment]  # stands in for it
    return sock


def packets_of(*sizes: int) -> list[bytes]:
    return [bytes([n % 251]) * size for n, size in enumerate(sizes)]


@pytest.fixture(autouse=True)
def _kernel_cuts_trains() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if not (trains.can_send(sock) and trains.accept(sock)):
            pytest.skip("this kernel cannot cut UDP trains")


@on_loop
async def test_datagrams_of_one_size_take_one_call_and_arrive_as_they_were() -> None:
    async with joined("udp") as (left, right, flow, _):
        sending, receiving = watched(left), watched(right)
        sent = packets_of(*[SIZE] * 20, SIZE // 2)
        left.transport.transmit(flow, list(sent))
        await right.seen.until_count(1 + len(sent))
        assert right.seen.packets()[1:] == sent
        assert sending.calls == {"train": 1}
        assert receiving.calls["received"] <= 3, "far fewer calls than datagrams"
        assert left.transport.counters.packets_out >= len(sent)
        assert right.transport.counters.packets_in == 1 + len(sent)


@on_loop
async def test_datagrams_of_any_sizes_arrive_whole_and_in_order() -> None:
    async with joined("udp") as (left, right, flow, _):
        sent = packets_of(10, 10, 10, 500, 500, 20, 30, 30, *[8900] * 9, 1, 9000, 200, 200)
        left.transport.transmit(flow, list(sent))
        await right.seen.until_count(1 + len(sent))
        assert right.seen.packets()[1:] == sent


def test_a_train_is_bounded() -> None:
    assert trains.length(packets_of(*[100] * 200), 0) == trains.DATAGRAMS_MAX
    assert trains.length(packets_of(*[100] * 200), 190) == 10
    assert trains.length(packets_of(*[9000] * 20), 0) == trains.TRAIN_BYTES_MAX // 9000
    assert trains.length(packets_of(100, 100, 40, 40), 0) == 3
    assert trains.length(packets_of(100, 101), 0) == 1
    assert trains.length(packets_of(70_000, 70_000), 0) == 1


@pytest.mark.parametrize(
    ("error", "second"),
    [(errno.EIO, {"single": 6}), (errno.EMSGSIZE, {"train": 1, "single": 6})],
    ids=["device without checksums", "one datagram too large"],
)
@on_loop
async def test_a_train_that_cannot_be_sent_is_sent_one_by_one(
    error: int, second: dict[str, int]
) -> None:
    """A device that can never do it is not asked again."""
    async with joined("udp") as (left, right, flow, _):
        sending = watched(left)
        sending.error = error
        sent = packets_of(*[SIZE] * 6)
        left.transport.transmit(flow, list(sent))
        assert sending.calls == {"train": 1, "single": 6}
        sending.calls.clear()
        left.transport.transmit(flow, list(sent))
        assert sending.calls == second
        await right.seen.until_count(13)
        assert right.seen.packets()[1:] == [*sent, *sent]


@on_loop
async def test_faults_affect_single_datagrams_of_a_train() -> None:
    faults = Faults(seed=1)
    async with joined("udp", faults=faults) as (left, right, flow, _):
        faults.add(Rule("loss 30% only udp"))
        sent = [n.to_bytes(2, "big") * (SIZE // 2) for n in range(100)]
        left.transport.transmit(flow, list(sent))
        lost = sum(rule.hits for rule in faults.rules.values())
        await right.seen.until_count(1 + len(sent) - lost)
        assert 10 < lost < 60
        arrived = right.seen.packets()[1:]
        assert arrived == [packet for packet in sent if packet in set(arrived)]
        gaps = [b[0] * 256 + b[1] - a[0] * 256 - a[1] - 1 for a, b in pairwise(arrived)]
        assert max(gaps) < 10, "not whole trains"


def test_what_the_kernel_says_about_a_train_is_checked() -> None:
    data = bytes(range(10))
    size = (17, 104, (4).to_bytes(4, "little"))
    assert [bytes(one) for one in trains.cut(data, [size])] == [data[:4], data[4:8], data[8:]]
    for notes in ([], [(17, 104, b"\4")], [(1, 104, size[2])], [(17, 104, bytes(4))]):
        assert trains.cut(data, notes) == [data]
