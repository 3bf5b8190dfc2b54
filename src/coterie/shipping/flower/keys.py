"""Makes the keys of a federation: a certificate for the server, and a key pair for each client.

The certificate is signed by an authority made for it alone, whose private key is never stored: nobody can make a
second certificate that the clients would trust. The formats are those that Flower reads: X.509 in PEM for TLS,
elliptic curve P-384 in OpenSSH's format for the nodes.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import BadInput
from coterie.runs.schema.sections import RESERVED
from coterie.runtime.flower import require

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY, CERTIFICATE, SERVER_KEY = "ca.crt", "server.pem", "server.key"
"""The authority's certificate, by which clients check the server; the server's own, and its private key."""

HOSTS = ("localhost", "127.0.0.1")
"""Names of the server on its own machine; they are in every certificate."""

DAYS = 3650
"""For which the certificates are valid. None can be renewed alone, because the authority's key is not stored."""

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")
_CLIENT = re.compile(rf"(?!{RESERVED})[A-Za-z0-9][A-Za-z0-9_.-]{{0,79}}")


def make_keys(folder: Path, hosts: Sequence[str] = (), clients: Sequence[str] = ()) -> list[Path]:
    """Write the certificates and the key pairs of a federation; no file is ever overwritten.

    The certificate and its key are made where `folder` has none, or where hosts are named; so more clients can be
    given their keys later. A client's private key is the file of its name, the public one that name and `.pub`.
    Private keys can be read by their owner alone.

    Args:
        folder: where the files go; it is made where it does not exist.
        hosts: names and addresses under which clients reach the server, beside `HOSTS`.
        clients: a name for each client, which becomes that of its key.

    Returns:
        The files that were written.

    Raises:
        BadInput: Flower is not installed, a name is not possible, or a file is there already.
    """
    require("making keys")
    certify = bool(hosts) or not (folder / AUTHORITY).exists()
    names = [AUTHORITY, CERTIFICATE, SERVER_KEY] if certify else []
    clients = list(dict.fromkeys(clients))
    names += [file for client in clients for file in (client, f"{client}.pub")]
    if problems := _find_problems(folder, hosts, clients, names):
        raise BadInput(problems)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if certify:
        _make_certificates(folder, [*HOSTS, *(host for host in hosts if host not in HOSTS)])
    for client in clients:
        _make_key_pair(folder / client)
    return [folder / name for name in names]


def _find_problems(folder: Path, hosts: Sequence[str], clients: Sequence[str], names: Sequence[str]) -> list[str]:
    problems = [
        f"host = {host!r} is not possible; write a host name or an address, without port"
        for host in hosts
        if _parse_address(host) is None and not _HOST.fullmatch(host)
    ]
    taken = (AUTHORITY, CERTIFICATE, SERVER_KEY)
    problems += [
        f"client = {client!r} is not possible; it names a file: write letters, digits, '-', '_' or '.', "
        f"begin with a letter or a digit, and avoid {', '.join(taken)}, *.pub and what Windows reserves, as con"
        for client in clients
        if not _CLIENT.fullmatch(client) or client in taken or client.endswith(".pub")
    ]
    there = [name for name in names if (folder / name).exists()]
    if there:
        problems.append(
            f"{str(folder)!r} has {', '.join(there)} already, and keys are never overwritten; name another folder, "
            "or remove them first"
        )
    return problems


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Make an authority, and the certificate that it signs for the server."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    authority = _sign(
        "coterie authority",
        authority_key,
        "coterie authority",
        authority_key,
        [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (signs, True),
            (x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False),
        ],
    )
    certificate = _sign(
        "coterie server",
        key,
        "coterie authority",
        authority_key,
        [
            (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
        ],
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(folder / SERVER_KEY, secret, secret=True)
    _write(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    _write(folder / AUTHORITY, authority.public_bytes(Encoding.PEM))


def _sign(
    subject: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    """Sign a certificate for `subject`, valid for `DAYS` from now. It begins a day ago, for slow clocks."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + DAYS * day)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    address = _parse_address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _make_key_pair(path: Path) -> None:
    """Write a client's private key and, beside it, the public one that is registered at the server."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path.with_name(f"{path.name}.pub"), public + b"\n")


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """Write a new file; a secret one can be read by its owner alone, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)
