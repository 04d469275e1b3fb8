"""TLS without IO: two ends that exchange bytes by hand."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.unit.transports.harness import tls_for

from holdfast.transports.secure import Pipe


def carry(data: bytes, to: Pipe) -> None:
    while data:
        room = to.room()
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        to.feed(len(piece))


@pytest.fixture
def pipes(demo_ca: Path) -> tuple[Pipe, Pipe]:
    """Opener and acceptor after their handshake."""
    opener = Pipe(tls_for(demo_ca, "n1").client, server_side=False)
    acceptor = Pipe(tls_for(demo_ca, "n2").server, server_side=True)
    for _ in range(4):
        opener.handshake()
        carry(opener.outgoing(), acceptor)
        acceptor.handshake()
        carry(acceptor.outgoing(), opener)
    assert opener.ready
    assert acceptor.ready
    return opener, acceptor


def read(pipe: Pipe) -> bytes:
    data = b""
    room = memoryview(bytearray(32 * 1024))
    while got := pipe.read_into(room):
        data += room[:got]
    return data


def test_both_ends_know_each_other_and_what_is_sent_arrives(pipes: tuple[Pipe, Pipe]) -> None:
    opener, acceptor = pipes
    large = bytes(range(256)) * 400
    sealed = opener.seal(large)
    assert large[:256] not in sealed
    carry(sealed, acceptor)
    assert read(acceptor) == large
    carry(acceptor.seal(b"answer"), opener)
    assert read(opener) == b"answer"
    assert "n2" in str(opener.peer_certificate())
    assert "n1" in str(acceptor.peer_certificate())


def test_a_farewell_is_told_apart_from_a_cut(pipes: tuple[Pipe, Pipe]) -> None:
    opener, acceptor = pipes
    carry(opener.seal(b"last") + opener.farewell(), acceptor)
    room = memoryview(bytearray(1024))
    assert acceptor.read_into(room) == 4
    with pytest.raises(ssl.SSLZeroReturnError):
        acceptor.read_into(room)


def test_a_flipped_bit_is_noticed(pipes: tuple[Pipe, Pipe]) -> None:
    opener, acceptor = pipes
    sealed = bytearray(opener.seal(b"pay 10"))
    sealed[-1] ^= 1
    carry(bytes(sealed), acceptor)
    with pytest.raises(ssl.SSLError):
        acceptor.read_into(memoryview(bytearray(1024)))


def test_no_session_can_be_resumed(demo_ca: Path) -> None:
    """A resumed session would not look at the certificate again, and so would not see that it has expired."""
    assert tls_for(demo_ca, "n2").server.num_tickets == 0
