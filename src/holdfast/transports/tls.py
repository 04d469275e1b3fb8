"""TLS 1.3 with mutual authentication: both sides have a certificate signed by the authority of the domain.

A certificate names domain and node as `holdfast://<domain>/<name>`. It contains no addresses, so a node may move. It is
issued before the node first starts, so it does not contain the node id. `check_certificate` finds all errors in the
local files before a socket is opened.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdfast.errors import CertificateError
from holdfast.links.ports import Identity
from holdfast.transports.sockets import why

SCHEME: Final = "holdfast://"

Found = TypeVar("Found")


class Credentials(msgspec.Struct, frozen=True):
    """The files with which a node identifies itself and verifies others."""

    authority: str
    certificate: str
    key: str


class Tls(msgspec.Struct, frozen=True):
    """Verified and ready for use by a transport."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    domain: str
    valid_until: datetime


def uri_of(domain: str, name: str) -> str:
    """The URI of a node in a certificate."""
    return f"{SCHEME}{quote(domain, safe='')}/{quote(name, safe='')}"


def parse_uri(uri: str) -> tuple[str, str] | None:
    """Domain and name, or None if the URI is not ours. An authority has a domain and no name."""
    if not uri.startswith(SCHEME):
        return None
    domain, _, name = uri.removeprefix(SCHEME).partition("/")
    if not domain or "/" in name:
        return None
    return unquote(domain), unquote(name)


def load_tls(files: Credentials, domain: str, name: str, now: datetime | None = None) -> Tls:
    """Check the files and create the contexts for both directions. Raises `CertificateError`."""
    valid_until = check_certificate(files, domain, name, now)
    server = _context(files, ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0  # a resumed session would not verify the certificate again
    client = _context(files, ssl.PROTOCOL_TLS_CLIENT)
    return Tls(server, client, domain, valid_until)


def check_certificate(
    files: Credentials, domain: str, name: str, now: datetime | None = None
) -> datetime:
    """Check the files of a node. Raises `CertificateError`, or returns until when they are valid."""
    now = now or datetime.now(UTC)
    home = Path(files.authority).parent
    issue = (
        f"`holdfast ca issue {name} --dir {home} --out {Path(files.certificate).parent} --force`"
    )
    init = f"`holdfast ca init --domain {domain} --dir {home}`"
    authorities = _load_authorities(files.authority, init)
    certificate = _load_certificate(files.certificate, issue)
    _check_key(files, certificate, issue)
    issuer = next((a for a in authorities if _signed(certificate, a)), None)
    if issuer is None:
        raise CertificateError(
            f"certificate {files.certificate} was not signed by the authority in "
            f"{files.authority}; use files of one authority, or issue it again: {issue}. Nothing "
            "was started."
        )
    _check_time(f"authority {files.authority}", issuer, now, f"{init} --force and issue all again")
    _check_time(f"certificate {files.certificate}", certificate, now, f"issue it again: {issue}")
    _check_names(files.certificate, certificate, domain, name, issue)
    return min(issuer.not_valid_after_utc, certificate.not_valid_after_utc)


def identity_of(certificate: dict[str, Any]) -> Identity | None:
    """The identity in a verified certificate, as `ssl` returns it; None if it does not name exactly one node."""
    names = certificate.get("subjectAltName", ())
    uris = [parse_uri(value) for kind, value in names if kind == "URI"]
    found = [uri for uri in uris if uri is not None]
    if len(found) != 1 or not found[0][1]:
        return None
    domain, name = found[0]
    return Identity(b"", name, domain)


def names_of(certificate: x509.Certificate) -> list[tuple[str, str]]:
    """All (domain, name) pairs in a certificate; the name is empty for an authority."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    return [found for found in map(parse_uri, uris) if found is not None]


# -- errors of a peer --------------------------------------------------------------------------------------------

_OURS_REFUSED: Final = "the peer does not accept this node's certificate: "
_VERIFY: Final = {
    9: "the peer's certificate is not valid yet (or a clock is wrong)",
    10: "the peer's certificate has expired",
    18: "the peer's certificate is self-signed, not signed by the domain's authority",
    19: "the peer's certificate comes from another authority",
    20: "the peer's certificate comes from another authority",
    21: "the peer's certificate comes from another authority",
    26: "the peer's certificate was not issued for nodes",
}
_NO_CERTIFICATE: Final = (
    "the peer requires a certificate and got none",
    "the peer has no certificate",
)
_REASONS: Final = {
    "CERTIFICATE_EXPIRED": _OURS_REFUSED + "it has expired according to the peer's clock",
    "UNKNOWN_CA": _OURS_REFUSED + "the peer trusts another authority",
    "CERTIFICATE_UNKNOWN": _OURS_REFUSED + "see the peer's log",
    "BAD_CERTIFICATE": _OURS_REFUSED + "see the peer's log",
    "UNSUPPORTED_CERTIFICATE": _OURS_REFUSED + "it was not issued for nodes",
    "CERTIFICATE_REQUIRED": "the peer requires a certificate and got none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "PROTOCOL_VERSION": "the peer does not support TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "the peer does not support TLS 1.3",
    "WRONG_VERSION_NUMBER": "the peer does not use TLS: is it a node in plain mode?",
    "HTTP_REQUEST": "the peer uses HTTP, not TLS",
    "RECORD_LAYER_FAILURE": "the peer does not use TLS: is it a node in plain mode?",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "a TLS record was damaged in transit",
}


def why_tls(error: BaseException) -> str:
    """The reason for a TLS failure, in words."""
    if isinstance(error, ssl.SSLZeroReturnError):
        return "the peer closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, f"the peer's certificate: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        reason = str(error.reason or "unknown")
        for ending, text in _REASONS.items():
            if reason.endswith(ending):
                return text
        return f"TLS failed: {reason.lower().replace('_', ' ')}"
    return why(error)


def is_credentials(reason: str) -> bool:
    """Whether a reason of `why_tls` is that a certificate was not accepted."""
    return reason.startswith((_OURS_REFUSED, "the peer's certificate")) or reason in _NO_CERTIFICATE


# -- our own files -----------------------------------------------------------------------------------------------


def _context(files: Credentials, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = (
        False  # certificates name nodes, not hosts; the transport checks the name
    )
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cafile=files.authority)
        context.load_cert_chain(files.certificate, files.key)
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(
            f"cannot use {files.certificate} with {files.key}: {why_tls(error)}. Nothing was started."
        ) from None
    return context


def _read(path: str, what: str, mend: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise CertificateError(f"{what} {path} is missing; {mend}. Nothing was started.") from None
    except OSError as error:
        raise CertificateError(
            f"{what} {path} cannot be read: {why(error)}; make it readable for the user that runs "
            "the node. Nothing was started."
        ) from None


def _load_authorities(path: str, init: str) -> list[x509.Certificate]:
    data = _read(path, "authority", f"copy ca.pem of the domain there, or create one: {init}")
    found = _parse(x509.load_pem_x509_certificates, data)
    if not found:
        raise CertificateError(
            f"authority {path} contains no certificate; copy ca.pem of the domain there. Nothing "
            "was started."
        )
    return found


def _load_certificate(path: str, issue: str) -> x509.Certificate:
    data = _read(path, "certificate", f"make it: {issue}")
    found = _parse(x509.load_pem_x509_certificate, data)
    if found is None:
        raise CertificateError(
            f"certificate {path} is damaged or not in PEM form; issue it again: {issue}. "
            "Nothing was started."
        )
    return found


def _parse(load: Callable[[bytes], Found], data: bytes) -> Found | None:
    try:
        return load(data)
    except ValueError:
        return None


def _check_key(files: Credentials, certificate: x509.Certificate, issue: str) -> None:
    data = _read(files.key, "key", f"create it together with its certificate: {issue}")
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise CertificateError(
            f"key {files.key} is protected by a passphrase, which is not supported; issue one "
            f"without: {issue}. Nothing was started."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(
            f"key {files.key} is damaged or not in PEM form; issue it again: {issue}. "
            "Nothing was started."
        ) from None
    if key.public_key() != certificate.public_key():
        raise CertificateError(
            f"key {files.key} does not match certificate {files.certificate}; use the two that "
            f"were issued together, or issue both again: {issue}. Nothing was started."
        )


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_time(what: str, certificate: x509.Certificate, now: datetime, mend: str) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        raise CertificateError(
            f"{what} expired on {ends:%Y-%m-%d %H:%M} UTC; {mend}. Nothing was started."
        )
    if now < begins:
        raise CertificateError(
            f"{what} is not valid before {begins:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}; set the clock, or {mend}. Nothing was started."
        )


def _check_names(
    path: str, certificate: x509.Certificate, domain: str, name: str, issue: str
) -> None:
    names = names_of(certificate)
    if len(names) != 1 or not names[0][1]:
        raise CertificateError(
            f"certificate {path} does not name exactly one node; issue it again: {issue}. Nothing "
            "was started."
        )
    its_domain, its_name = names[0]
    if its_domain != domain:
        raise CertificateError(
            f"certificate {path} is for domain {its_domain!r}, but this node is in {domain!r}; "
            f"use the authority of {domain!r}: {issue}. Nothing was started."
        )
    if its_name != name:
        raise CertificateError(
            f"certificate {path} is for node {its_name!r}, but this node is {name!r}; issue one "
            f"for it: {issue}. Nothing was started."
        )
