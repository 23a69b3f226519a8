"""Addresses and listening sockets: public hosts, TLS files, ports that cannot be listened on, accepted peers, resets.

asyncio accepts a connection in one tick of the loop and creates its transport in the next. If the server is closed in
between, asyncio drops the connection with an error in the log and leaks its socket (`stop_accepting`). uvloop has no
such gap, but is closed in the same way. An asyncio server also does not report a peer before its TLS handshake is
complete, so a closed server would leave it open. `Listening` therefore accepts connections itself and sees each socket
before its handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
import ssl
import struct
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

_TICKS: Final = 2
"""In the first tick a newly accepted connection gets its transport, in the second its protocol is notified."""
_PAUSE_S: Final = 0.1
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
    peer_socket = transport.get_extra_info("socket")
    if peer_socket is not None:
        peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


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
        match = _CERTIFICATE.search(data)
        return data if match is None else match[0]

    def trusting_context(self) -> ssl.SSLContext:
        """For connecting to a peer that has the same certificate; no other is trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.own_certificate().decode())
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


class Listening:
    """The listening sockets of a host and port, whose peers get a protocol from `factory`.

    Invariant: after `close` and `wait_closed` each accepted socket has its protocol or is closed.

    Attributes:
        address: (host, port) of the first socket.
    """

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], *, tls: dict[str, Any]) -> None:
        """tls: arguments of `loop.connect_accepted_socket`, empty without TLS."""
        self.address = ("", 0)
        self._factory = factory
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, backlog: int) -> Self:
        """Listens on all addresses of the host; port 0 picks a free port. Raises OSError."""
        addresses = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                try:
                    listening = socket.create_server(address, family=family, backlog=backlog)
                except OSError as error:
                    if error.errno == errno.EAFNOSUPPORT and len(addresses) > 1:
                        continue  # names can have IPv6 addresses on a system without IPv6
                    raise
                listening.setblocking(False)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
                self._sockets.append(listening)
        except BaseException:
            self.close()
            raise
        self.address = self._sockets[0].getsockname()[:2]
        self._resume()
        return self

    def _resume(self) -> None:
        self._paused = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # without a pause, the loop would try again at once
            log.warning("no connection is accepted for %g s: %s", _PAUSE_S, error)
            self._pause()
            self._paused = self._loop.call_later(_PAUSE_S, self._resume)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted), name="segstore accepts a connection")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted, **self._tls)
        except (OSError, TimeoutError) as error:
            log.debug("a TLS handshake failed: %s", error)

    def close(self) -> None:
        """Closes the listening sockets and connections in a TLS handshake; other connections stay open. Can be called
        twice.
        """
        if self._paused is not None:
            self._paused.cancel()
        self._pause()
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            listening.close()
        if self._tls:
            for task in self._connecting:
                self._loop.call_soon(task.cancel)  # after it has started, so that it closes its socket

    async def wait_closed(self) -> None:
        """Waits until each accepted connection has its protocol or is closed."""
        await asyncio.gather(*self._connecting, return_exceptions=True)


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Closes the listening sockets of `servers`. Accepted connections stay open, and their protocols are notified.

    Servers that are already closed are allowed. Cancellation still closes them all.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening)
    try:
        for _ in range(_TICKS):
            await asyncio.sleep(0)
    finally:
        for server in servers:
            server.close()
