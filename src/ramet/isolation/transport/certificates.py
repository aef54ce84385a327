"""The kernel's identity for the machines that dial it: a certificate, and the only authority that they trust."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.core.errors import InvalidValue
from ramet.disk.installation import missing_extra
from ramet.disk.regular_files import read_regular

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CA_DAYS, _DAYS, _SKEW_DAYS = 3650, 825, 1  #: the validity begins a day early, for machines with slow clocks


@dataclass(frozen=True, kw_only=True)
class ServerIdentity:
    """The listener's TLS context, and the certificate that the machines get."""

    context: ssl.SSLContext  #: for a server; TLS 1.2 or later
    ca: str  #: the authority's certificate, in PEM: no secret


def from_files(certificate: Path, key: Path, ca: Path) -> ServerIdentity:
    """Load the operator's own identity: a chain, its key, and the authority that signed it, each in PEM.

    Raises InvalidValue for an invalid file, or files that do not match.
    """
    try:
        authority = ca.read_text()
        client_context(authority)
        return ServerIdentity(context=_server_context(certificate, key), ca=authority)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidValue(
            "certificate", str(certificate), f"a certificate, its key, and its CA in PEM: {error}"
        ) from None


def make(names: Sequence[str], folder: Path | None = None) -> ServerIdentity:
    """Create a kernel's own authority, and a certificate signed by it for these names and addresses.

    With `folder`, a later kernel there uses the same authority, so that machines still trust it. Without `folder`, the
    authority's key is gone when this returns. Raises MissingExtra, and InvalidValue without names.
    """
    import tempfile  # Imported here: a machine's start imports this module, too.

    try:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate
    except ImportError:
        raise missing_extra("a certificate of the kernel's own", "kubernetes") from None
    if not names:
        raise InvalidValue("names", names, "the names or addresses by which machines reach the kernel")
    authority_file = folder / "authority.pem" if folder is not None else None
    if authority_file is not None and authority_file.exists():
        pem = read_regular(authority_file, limit=1 << 16)
        ca = load_pem_x509_certificate(pem)
        ca_key = load_pem_private_key(pem, None)
    else:
        ca, ca_key = _authority()
        if authority_file is not None:
            _write(authority_file, _pem(ca) + _key_pem(ca_key))
    certificate, key = _issue(names, ca, ca_key)  # type: ignore[arg-type]  # the type of `_authority`'s key
    with tempfile.TemporaryDirectory(prefix="ramet-tls-", dir=folder) as temporary:  # ssl reads keys from files only
        combined_file = Path(temporary, "tls.pem")
        _write(combined_file, _pem(certificate) + _key_pem(key))
        return ServerIdentity(context=_server_context(combined_file, combined_file), ca=_pem(ca).decode())


def client_context(ca: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only this authority, and checks the server's name or address.

    Raises ssl.SSLError, ValueError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    return context


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # A machine that reconnects has a key; there is no session to resume.
    context.load_cert_chain(certificate, key)
    return context


def _authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return _build("ramet kernel authority", key.public_key(), "ramet kernel authority", key, (), _CA_DAYS), key


def _issue(
    names: Sequence[str], ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = ca.subject.rfc4514_string().removeprefix("CN=")
    return _build("ramet kernel", key.public_key(), issuer, ca_key, names, _DAYS), key


def _build(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    signing: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    days: int,
) -> x509.Certificate:
    """Build an authority's certificate if there are no names, else a server's certificate."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    is_ca = not names
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_SKEW_DAYS))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if names:
        alternative_names = x509.SubjectAlternativeName([_general(name) for name in names])
        builder = builder.add_extension(alternative_names, critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(signing, hashes.SHA256())


def _general(name: str) -> x509.GeneralName:
    import ipaddress

    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, data: bytes) -> None:
    """Write a file atomically, readable only by its owner at any moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
