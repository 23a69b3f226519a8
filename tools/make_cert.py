"""Makes certificates for trying TLS on this machine: `make cert`, or

    python tools/make_cert.py [FOLDER] [--days N]

An authority of its own signs a server certificate apart from it, for localhost, 127.0.0.1 and ::1: the official
clients are given the authority and check the name. What is there already is kept as long as it is good for a day, so
that clients need not be told anew; it is made again, all of it, when a file is missing. Keys can be read by their owner
only. They are for trying things: nobody should trust this authority who is not told to.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOSTS = ("localhost",)
ADDRESSES = ("127.0.0.1", "::1")
DAYS = 365
KEPT_FOR = datetime.timedelta(days=1)


class Files(NamedTuple):
    """ca: what clients trust. cert, key: what the server shows."""

    ca: Path
    ca_key: Path
    cert: Path
    key: Path


def files_in(folder: Path) -> Files:
    return Files(folder / "ca.pem", folder / "ca-key.pem", folder / "server.pem", folder / "server-key.pem")


def make(folder: Path, days: int = DAYS, now: datetime.datetime | None = None) -> Files:
    """Writes authority and server certificate into the folder. Raises OSError."""
    now = now or datetime.datetime.now(datetime.UTC)
    files = files_in(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "segstore trial authority")])
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [*map(x509.DNSName, HOSTS), *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES)]
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOSTS[0])])
    server = (
        _certificate(server_name, ca_name, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    for path, owner in ((files.ca_key, ca_key), (files.key, key)):
        _write_secret(path, _pem(owner))
    for path, certificate in ((files.ca, ca), (files.cert, server)):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files


def is_good(files: Files, now: datetime.datetime) -> bool:
    """Whether all four are there, belong together and are valid for a while yet."""
    if not all(path.is_file() for path in files):
        return False
    try:
        ca, server = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (files.ca, files.cert))
        server.verify_directly_issued_by(ca)
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except Exception:  # noqa: BLE001 — whatever is wrong with them, they are made again
        return False
    until = now + KEPT_FOR
    belong = key.public_key() == server.public_key()
    return belong and min(ca.not_valid_after_utc, server.not_valid_after_utc) > until


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # for clocks that are behind
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # an existing file would keep its permissions
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def hint(files: Files) -> str:
    """How to use them, for a person."""
    ca = files.ca.resolve()
    return f"""\
start the store:     segstore serve --tls-cert {files.cert} --tls-key {files.key}
clients trust:       {ca}
Python, Rust:        pravega_client_tls_cert_path={ca}   (the environment; all in lower case)
                     controller "tls://localhost:9090"
Java:                ClientConfig.builder().controllerURI(URI.create("tls://localhost:9090")).trustStore("{ca}")
look at it:          openssl s_client -connect localhost:12345 -CAfile {ca}"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Certificates for trying TLS on this machine.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("certs"), help="where they go (default: certs)")
    parser.add_argument("--days", type=int, default=DAYS, help=f"how long they hold (default: {DAYS})")
    options = parser.parse_args(arguments)
    if options.days < 1:
        parser.error(f"--days is {options.days}; it is 1 or more")
    files = files_in(options.folder)
    try:
        if is_good(files, datetime.datetime.now(datetime.UTC)):
            print(f"kept what is in {options.folder}")
        else:
            make(options.folder, options.days)
            print(f"made an authority and a server certificate in {options.folder}")
    except OSError as error:
        print(f"make_cert: {error}", file=sys.stderr)
        return 1
    print(hint(files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
