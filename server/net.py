"""Network addresses: endpoints, the host that clients are sent to, TLS files, ports that cannot be listened on, resets,
and the number of connections.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import ssl
import struct
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    import asyncio

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


def address_text(endpoint: Endpoint | None) -> str | None:
    """Returns the text of an endpoint, or None."""
    return None if endpoint is None else str(endpoint)


def public_host(host: str, *, tls: bool) -> str:
    """Returns the host name for clients of a server that listens on `host`.

    Under TLS, a loopback address becomes "localhost", because a certificate names hosts. An address that stands for all
    interfaces becomes the loopback address.
    """
    if tls and (host.startswith("127.") or host == "::1"):
        return "localhost"
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def end_by_reset(transport: asyncio.Transport) -> None:
    """Makes a socket close with a reset: data that the peer has not read by then is lost."""
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def most_connections() -> int:
    """The connections that the stores of this process may have: half of its file descriptors."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2


class CannotListen(OSError):
    """A port cannot be listened on; the text is one sentence with the reason.

    Attributes:
        host, port: the address.
    """

    def __init__(self, message: str, host: str, port: int, number: int | None = None) -> None:
        super().__init__(number, message)
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return str(self.strerror)


class AddressInUse(CannotListen):
    """The port is taken; the text names it and suggests a remedy."""

    def __init__(self, host: str, port: int, use: str = "", option: str = "") -> None:
        """use, option: in a process with several ports, the port's purpose, and the option that sets it."""
        whose = f"port {port} on {host}, for {use}," if use else f"port {port} on {host}"
        other = f"choose another with {option}" if option else "choose another"
        message = f"{whose} is taken by another process; {other}, or 0 for a free one"
        super().__init__(message, host, port, errno.EADDRINUSE)


@contextlib.contextmanager
def listening_on(host: str, port: int, use: str = "", option: str = "") -> Iterator[None]:
    """Raises an OSError of its body as AddressInUse or CannotListen. use, option: as in `AddressInUse`."""
    try:
        yield
    except CannotListen:
        raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(host, port, use, option) from error
        whose = f"{host} port {port} for {use}" if use else f"{host} port {port}"
        raise CannotListen(f"cannot listen on {whose}: {error.strerror or error}", host, port, error.errno) from error


def trusting(authorities: Path | None) -> tuple[ssl.SSLContext, bytes]:
    """Returns, for connecting to peers, the TLS context and the trusted authorities (PEM) for gRPC.

    authorities: file of the authorities (PEM), which is read once; None for the system's authorities, then the second
    value is b"". Raises OSError.
    """
    if authorities is None:
        return ssl.create_default_context(), b""
    trusted = authorities.read_bytes().removeprefix(BOM_UTF8)
    try:  # an empty text would stand for the system's authorities
        context = ssl.create_default_context(cadata=trusted.decode("ascii", "ignore") or "\n")
    except ssl.SSLError as cause:
        raise OSError(errno.EINVAL, "it contains no valid certificate in PEM", str(authorities)) from cause
    return context, trusted


class TlsFiles(NamedTuple):
    """A certificate with its chain, and its key, both PEM."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None) -> Self | None:
        """Returns the files; None if a path is None."""
        return None if certificate is None or key is None else cls(certificate, key)

    def server_context(self, host: str, port: int) -> ssl.SSLContext:
        """For listening on `host` and `port`. Raises CannotListen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            reason = "it is not PEM, or the two do not belong together" if isinstance(error, ssl.SSLError) else error
            message = f"the certificate {self.certificate} with the key {self.key} cannot be used: {reason}"
            raise CannotListen(message, host, port, error.errno) from error
        return context

    def own_certificate(self) -> bytes:
        """Returns the certificate without its chain (PEM). Trust in it does not extend to other certificates of its
        authority.
        """
        data = self.certificate.read_bytes()
        found = _CERTIFICATE.search(data)
        return data if found is None else found[0]

    def trusting_context(self) -> ssl.SSLContext:
        """For connecting to a peer that has the same certificate; no other is trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.own_certificate().decode())
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
