"""The certificate authority of a domain: one key that signs the certificates of all nodes. ECDSA on P-256."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.errors import CertificateError, MisuseError
from holdfast.transports.sockets import why
from holdfast.transports.tls import SCHEME, names_of, uri_of

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
BACKDATED: Final = timedelta(minutes=5)
"""Certificates are valid from a little before their creation, because clocks differ."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, in PEM form."""

    certificate: bytes
    key: bytes
    valid_until: datetime


class Authority(msgspec.Struct, frozen=True):
    """An authority with its key."""

    domain: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Seen(msgspec.Struct, frozen=True):
    """The contents of a certificate as printed by `holdfast ca show`."""

    is_authority: bool
    domain: str
    name: str
    serial: str
    valid_from: datetime
    valid_until: datetime


def make_authority(domain: str, days: int, now: datetime | None = None) -> Pair:
    """Create a new authority for a domain."""
    check_name("domain", domain)
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(domain, "Holdfast authority")
    ends = now + timedelta(days=days)
    builder = (
        _builder(subject, subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(_uri(SCHEME + domain), critical=False)
        .add_extension(_issuer_id(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Authority, name: str, days: int, now: datetime | None = None) -> Pair:
    """Issue a certificate for a node. It expires no later than the authority."""
    check_name("name", name)
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    subject = _subject(authority.domain, name)
    builder = (
        _builder(authority.certificate.subject, subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_uri(uri_of(authority.domain, name)), critical=False)
        .add_extension(_issuer_id(authority.key.public_key()), critical=False)
    )
    return _pair(builder.sign(authority.key, hashes.SHA256()), key)


def load_authority(folder: Path) -> Authority:
    """Load the authority in a folder. Raises `CertificateError`."""
    made_by = f"create one with `holdfast ca init --domain DOMAIN --dir {folder}`"
    certificate = _read(folder / CA_CERTIFICATE, made_by)
    key = _read(folder / CA_KEY, made_by)
    try:
        found = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"the authority in {folder} cannot be read: {error}; nothing was created"
        ) from None
    names = names_of(found)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or len(names) != 1 or names[0][1]:
        raise CertificateError(
            f"the authority in {folder} was not created by Holdfast; {made_by} in another folder. "
            "Nothing was created."
        )
    if private.public_key() != found.public_key():
        raise CertificateError(
            f"{CA_KEY} and {CA_CERTIFICATE} in {folder} do not belong together; nothing was created"
        )
    return Authority(names[0][0], found, private)


def look_at(path: Path) -> list[Seen]:
    """The contents of the certificates in a file. Raises `CertificateError`."""
    data = _read(path, "give a file that ends in .pem")
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise CertificateError(f"{path} contains no certificate in PEM form") from None
    return [_seen(certificate) for certificate in found]


def write_pair(folder: Path, name: str, pair: Pair, force: bool) -> tuple[Path, Path]:
    """Write NAME.pem and NAME.key (readable by its owner only). Refuses to overwrite without `force`."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    if not force:
        for path in (certificate, key):
            if path.exists():
                raise MisuseError(f"{path} exists; add --force to replace it. Nothing was written.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(key, pair.key, 0o600)
        _write(certificate, pair.certificate, 0o644)
    except OSError as error:
        raise CertificateError(
            f"cannot write {error.filename or folder}: {why(error)}; the files in {folder} may "
            "not belong together: fix the cause and issue again"
        ) from None
    return certificate, key


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise MisuseError(
            f"{what} {name!r} is invalid: use 1 to 63 letters, digits, dots, dashes or "
            "underscores, starting with a letter or digit. Nothing was created."
        )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _subject(domain: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, domain),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _uri(uri: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])


def _issuer_id(public: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), private, certificate.not_valid_after_utc)


def _seen(certificate: x509.Certificate) -> Seen:
    names = names_of(certificate)
    domain, name = names[0] if len(names) == 1 else ("", "")
    return Seen(
        is_authority=bool(domain) and not name,
        domain=domain,
        name=name or certificate.subject.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        valid_from=certificate.not_valid_before_utc,
        valid_until=certificate.not_valid_after_utc,
    )


def _read(path: Path, mend: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CertificateError(f"{path} is missing; {mend}. Nothing was created.") from None
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read: {why(error)}. Nothing was created."
        ) from None


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace the file atomically: readers see the old file or the new one."""
    half = path.with_name(path.name + ".new")
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
