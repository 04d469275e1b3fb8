"""Certificates: what is wrong with our own files is said before a socket opens; a peer's at the handshake, in words."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.unit.transports.harness import (
    LEFT,
    RIGHT,
    authority_in,
    credentials,
    dial,
    end,
    joined,
    on_loop,
    read_all,
    tls_for,
    with_patience,
)

from holdfast.errors import CertificateError
from holdfast.transports.authority import issue, load_authority, write_pair
from holdfast.transports.framing import EMPTY, frame
from holdfast.transports.tcp import TcpLimits, TcpTransport
from holdfast.transports.tls import (
    Credentials,
    Tls,
    check_certificate,
    identity_of,
    load_tls,
    parse_uri,
    uri_of,
)
from holdfast.types import MILLISECOND

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime.now(UTC) + timedelta(days=100)


# -- our own files -----------------------------------------------------------------------------------------------


def test_good_files_are_accepted_with_their_end(demo_ca: Path) -> None:
    files = credentials(demo_ca, "n1", days=30)
    left = check_certificate(files, "demo", "n1") - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert load_tls(files, "demo", "n1").domain == "demo"


def damage_missing(files: Credentials) -> None:
    Path(files.certificate).unlink()


def damage_text(files: Credentials) -> None:
    Path(files.certificate).write_text("not a certificate")


def damage_folder(files: Credentials) -> None:
    Path(files.certificate).unlink()
    Path(files.certificate).mkdir()


def damage_key_missing(files: Credentials) -> None:
    Path(files.key).unlink()


def damage_key_text(files: Credentials) -> None:
    Path(files.key).write_text("not a key")


def damage_key_other(files: Credentials) -> None:
    other = credentials(Path(files.authority).parent, "other")
    Path(files.key).write_bytes(Path(other.key).read_bytes())


def damage_authority_missing(files: Credentials) -> None:
    Path(files.authority).unlink()


def damage_authority_text(files: Credentials) -> None:
    Path(files.authority).write_text("")


def damage_authority_foreign(files: Credentials) -> None:
    """Same name, another key."""
    authority_in(Path(files.authority).parent)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_missing, "n1.pem is missing"),
        (damage_text, "n1.pem is damaged or not in PEM form"),
        (damage_folder, "n1.pem cannot be read: is a directory"),
        (damage_key_missing, "n1.key is missing"),
        (damage_key_text, "n1.key is damaged"),
        (damage_key_other, "n1.key does not match certificate"),
        (damage_authority_missing, "ca.pem is missing"),
        (damage_authority_text, "ca.pem contains no certificate"),
        (damage_authority_foreign, "was not signed by the authority"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_what_mends_it(
    tmp_path: Path, damage: Callable[[Credentials], None], says: str
) -> None:
    authority_in(tmp_path)
    files = credentials(tmp_path, "n1")
    check_certificate(files, "demo", "n1")
    damage(files)
    with pytest.raises(CertificateError) as caught:
        load_tls(files, "demo", "n1")
    text = str(caught.value)
    assert says in text
    assert "Nothing was started" in text
    if damage is not damage_folder and damage is not damage_authority_text:
        assert "holdfast ca" in text


@pytest.mark.parametrize(
    ("domain", "name", "now", "says"),
    [
        ("demo", "n1", LATER, "n1.pem expired on"),
        ("demo", "n1", LONG_AGO, "ca.pem is not valid before"),
        ("demo", "n2", None, "is for node 'n1', but this node is 'n2'"),
        ("prod", "n1", None, "is for domain 'demo', but this node is in 'prod'"),
    ],
)
def test_a_certificate_of_another_time_or_node_is_not_ours(
    demo_ca: Path, domain: str, name: str, now: datetime | None, says: str
) -> None:
    files = credentials(demo_ca, "n1")
    with pytest.raises(CertificateError) as caught:
        check_certificate(files, domain, name, now)
    assert says in str(caught.value)
    assert "holdfast ca" in str(caught.value)


def test_a_certificate_from_the_future_is_not_valid_yet(tmp_path: Path) -> None:
    authority_in(tmp_path)
    files = credentials(tmp_path, "n1", now=LATER)
    with pytest.raises(CertificateError, match=r"n1.pem is not valid before .* clock says"):
        check_certificate(files, "demo", "n1")


def test_an_authority_that_has_expired_is_named(tmp_path: Path) -> None:
    authority_in(tmp_path, now=LONG_AGO)
    files = credentials(tmp_path, "n1", now=LONG_AGO)
    far = LONG_AGO + timedelta(days=3651)
    with pytest.raises(CertificateError, match=r"authority .*ca.pem expired on"):
        check_certificate(files, "demo", "n1", far)


def test_the_certificate_of_the_authority_is_not_one_of_a_node(demo_ca: Path) -> None:
    files = Credentials(*[str(demo_ca / name) for name in ("ca.pem", "ca.pem", "ca.key")])
    with pytest.raises(CertificateError, match="does not name exactly one node"):
        check_certificate(files, "demo", "n1")


def test_two_authorities_in_one_file_allow_a_change_of_authority(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    authority_in(old)
    authority_in(new)
    files = credentials(old, "n1")
    Path(files.authority).write_bytes(
        (new / "ca.pem").read_bytes() + Path(files.authority).read_bytes()
    )
    check_certificate(files, "demo", "n1")


def test_names_survive_the_way_through_a_certificate() -> None:
    for domain, name in (("demo", "n1"), ("a.b-c", "x_y"), ("d/e", "ü n")):
        assert parse_uri(uri_of(domain, name)) == (domain, name)
    for foreign in ("https://demo/n1", "holdfast:///n1", "holdfast://demo/n1/more"):
        assert parse_uri(foreign) is None


def test_a_certificate_must_name_exactly_one_node() -> None:
    one = ("URI", "holdfast://demo/n1")
    assert identity_of({"subjectAltName": (one, ("DNS", "x"))}) is not None
    for names in ((), (one, one), (("DNS", "n1"),), (("URI", "holdfast://demo"),)):
        assert identity_of({"subjectAltName": names}) is None


# -- at the handshake --------------------------------------------------------------------------------------------


def tls_at(folder: Path, name: str, domain: str = "demo", days: int = 30) -> Tls:
    """Credentials that were good in 2020, loaded then."""
    pair = issue(load_authority(folder), name, days, LONG_AGO)
    certificate, key = write_pair(folder, name, pair, force=True)
    files = Credentials(str(folder / "ca.pem"), str(certificate), str(key))
    return load_tls(files, domain, name, LONG_AGO + timedelta(days=1))


@pytest.fixture
def old_ca(tmp_path: Path) -> Path:
    """An authority that is valid for long, so that only a node's certificate can be expired."""
    authority_in(tmp_path, now=LONG_AGO)
    return tmp_path


def trust_also(files: Credentials, folder: Path) -> None:
    both = Path(files.authority).read_bytes() + (folder / "ca.pem").read_bytes()
    Path(files.authority).write_bytes(both)


async def refused(opener: Tls | None, acceptor: Tls | None) -> tuple[str, str]:
    """Try to connect; gives what each side says."""
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("holdfast.transports")
    logger.addHandler(handler)
    try:
        async with end("tcp", LEFT, tls=opener) as left, end("tcp", RIGHT, tls=acceptor) as right:
            reason = await left.failure_to(right.host, right.port)
            assert left.seen.opens == []
            assert right.seen.opens == []
            # The acceptor may hear of it later than the opener.
            for _ in range(1000):
                if right.transport.counters.refused:
                    break
                await asyncio.sleep(0.001)
            assert right.transport.counters.refused == 1
    finally:
        logger.removeHandler(handler)
    assert "Traceback" not in "".join(log)
    return reason, "\n".join(log)


@on_loop
async def test_an_expired_opener_is_told_so(old_ca: Path) -> None:
    opener, acceptor = tls_at(old_ca, "n1"), tls_for(old_ca, "n2")
    reason, log = await refused(opener, acceptor)
    assert "does not accept this node's certificate: it has expired" in reason
    assert "adapter red: refused 127.0.0.1" in log
    assert "the peer's certificate has expired" in log


@on_loop
async def test_an_expired_acceptor_is_not_believed(old_ca: Path) -> None:
    opener, acceptor = tls_for(old_ca, "n1"), tls_at(old_ca, "n2")
    reason, log = await refused(opener, acceptor)
    assert reason == "the peer's certificate has expired"
    assert "it has expired according to the peer's clock" in log


@on_loop
async def test_a_foreign_authority_is_not_believed(demo_ca: Path, tmp_path: Path) -> None:
    authority_in(tmp_path)
    reason, log = await refused(tls_for(tmp_path, "n1"), tls_for(demo_ca, "n2"))
    assert reason == "the peer's certificate comes from another authority"
    assert "the peer trusts another authority" in log


@on_loop
async def test_an_opener_with_a_foreign_authority_is_told_so(demo_ca: Path, tmp_path: Path) -> None:
    """It believes the acceptor (it has both authorities), but the acceptor does not believe it."""
    authority_in(tmp_path)
    files = credentials(tmp_path, "n1")
    trust_also(files, demo_ca)
    reason, log = await refused(load_tls(files, "demo", "n1"), tls_for(demo_ca, "n2"))
    assert "the peer trusts another authority" in reason
    assert "comes from another authority" in log


@on_loop
async def test_a_node_of_another_domain_is_refused_though_the_authority_is_the_same(
    demo_ca: Path,
) -> None:
    twin = msgspec.structs.replace(load_authority(demo_ca), domain="prod")
    certificate, key = write_pair(demo_ca, "n1", issue(twin, "n1", 30), force=True)
    files = Credentials(str(demo_ca / "ca.pem"), str(certificate), str(key))
    reason, log = await refused(load_tls(files, "prod", "n1"), tls_for(demo_ca, "n2"))
    assert reason == "the peer 'n2' is a node of domain 'demo', but this is domain 'prod'"
    assert "refused" in log


@on_loop
async def test_the_acceptor_too_looks_at_the_domain(
    demo_ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the opener would have believed."""
    twin = msgspec.structs.replace(load_authority(demo_ca), domain="prod")
    certificate, key = write_pair(demo_ca, "n1", issue(twin, "n1", 30), force=True)
    files = Credentials(str(demo_ca / "ca.pem"), str(certificate), str(key))
    careless = msgspec.structs.replace(load_tls(files, "prod", "n1"), domain="demo")
    reason, log = await refused(careless, tls_for(demo_ca, "n2"))
    assert "before the handshake was complete" in reason
    assert "the peer 'n1' is a node of domain 'prod', but this is domain 'demo'" in log


@on_loop
async def test_a_plain_opener_gets_nothing_from_a_tls_port(
    demo_ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with end("tcp", RIGHT, tls=tls_for(demo_ca, "n2")) as right:
        stranger = dial(right)
        stranger.sendall(frame([b"a packet in plain text"]))
        assert EMPTY not in await read_all(stranger)
        assert "does not use TLS: is it a node in plain mode?" in caplog.text
        assert right.seen.opens == []
        assert right.transport.counters.refused == 1
        stranger.close()


@on_loop
async def test_a_tls_opener_says_that_a_plain_port_is_plain(demo_ca: Path) -> None:
    async with end("tcp", LEFT, tls=tls_for(demo_ca, "n1")) as left, end("tcp", RIGHT) as right:
        reason = await left.failure_to(right.host, right.port)
        assert "the peer closed the connection, before the handshake was complete" in reason
        assert right.seen.closes[0].reason == "the peer uses TLS and this node is in plain mode"


@on_loop
async def test_a_plain_opener_that_a_tls_port_drops_says_that_it_is_plain(demo_ca: Path) -> None:
    async with end("tcp", LEFT) as left, end("tcp", RIGHT, tls=tls_for(demo_ca, "n2")) as right:
        left.ask(right.host, right.port)
        await left.seen.until(lambda: left.seen.opens, "opened")
        flow = left.seen.opens[0].flow
        left.transport.transmit(flow, [b"a packet in plain text"])
        await left.seen.until(lambda: left.seen.closes, "closed")
        assert "does the peer use TLS? This node is in plain mode" in left.seen.closes[0].reason


async def knock(folder: Path, context: ssl.SSLContext) -> tuple[str, int]:
    """A stranger with a TLS context of its own; gives what the node logged and how many flows it opened."""
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("holdfast.transports")
    logger.addHandler(handler)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stranger = context.wrap_bio(incoming, outgoing)
    loop = asyncio.get_running_loop()
    async with end("tcp", RIGHT, tls=tls_for(folder, "n2")) as right:
        sock = dial(right)
        while True:
            try:
                stranger.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                break
            if outgoing.pending:
                await loop.sock_sendall(sock, outgoing.read())
            if done:
                break
            piece = await with_patience(loop.sock_recv(sock, 65536), "answer")
            if not piece:
                break
            incoming.write(piece)
        await read_all(sock)
        sock.close()
        opened = len(right.seen.opens)
    logger.removeHandler(handler)
    return "\n".join(log), opened


@on_loop
async def test_a_peer_without_a_certificate_is_refused(demo_ca: Path) -> None:
    log, opened = await knock(demo_ca, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert "the peer has no certificate" in log
    assert opened == 0


@on_loop
async def test_an_older_tls_is_refused(demo_ca: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    log, opened = await knock(demo_ca, context)
    assert "does not support TLS 1.3" in log
    assert opened == 0


@on_loop
async def test_a_handshake_that_is_never_finished_ends_at_its_time(demo_ca: Path) -> None:
    limits = TcpLimits(handshake_ns=20 * MILLISECOND)
    async with end("tcp", RIGHT, tls=tls_for(demo_ca, "n2"), limits=limits) as right:
        stranger = dial(right)
        assert await read_all(stranger) == b""
        assert right.transport.counters.refused == 1
        assert right.seen.opens == []
        stranger.close()


@on_loop
async def test_an_acceptor_that_never_answers_ends_the_opening_at_its_time(demo_ca: Path) -> None:
    limits = TcpLimits(handshake_ns=20 * MILLISECOND)
    with socket.socket() as deaf:
        deaf.bind((RIGHT, 0))
        deaf.listen()
        async with end("tcp", LEFT, tls=tls_for(demo_ca, "n1"), limits=limits) as left:
            reason = await left.failure_to(*deaf.getsockname())
            assert "did not finish the handshake within 0.02 s" in reason


@on_loop
async def test_unfinished_handshakes_are_bounded(demo_ca: Path) -> None:
    limits = TcpLimits(newcomers_max=2)
    async with end("tcp", RIGHT, tls=tls_for(demo_ca, "n2"), limits=limits) as right:
        strangers = [dial(right) for _ in range(6)]
        for stranger in strangers[:4]:
            assert await read_all(stranger) == b""
        assert right.transport.counters.evicted == 4
        async with end("tcp", LEFT, tls=tls_for(demo_ca, "n1")) as left:
            await left.open_to(right)
        for stranger in strangers:
            stranger.close()


@on_loop
async def test_garbage_in_a_tls_stream_closes_the_flow_in_words(demo_ca: Path) -> None:
    tls = tls_for(demo_ca, "n1"), tls_for(demo_ca, "n2")
    async with joined("tcp", tls=tls) as (left, right, flow, _):
        assert isinstance(left.transport, TcpTransport)
        left.transport._flows[flow]._put(b"\x17\x03\x03\x00\x20" + bytes(32))
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert right.seen.packets() == [b"first"]
        assert "damaged in transit" in right.seen.closes[0].reason
