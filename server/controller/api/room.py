"""Room for new connections at a gRPC server.

gRPC refuses connections above its limit without a word, and keeps connections without calls. So a task looks at the
sockets of the port: of more than the limit, it shuts down the connections that have no call in flight and have been
silent the longest. Where the system does not report silence, as outside Linux, all stay until gRPC's own timeout.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from segstore.server.descriptors import Limit

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
_DESCRIPTORS: Final = Path("/dev/fd")
_TCP_INFO: Final[int] = getattr(socket, "TCP_INFO", -1)
_LAST_RECEIVED: Final = struct.Struct("=52xI")
"""`tcpi_last_data_recv` of Linux: milliseconds since the peer has sent data."""


async def make_room(port: int, limit: Limit, busy: Callable[[], Collection[int]]) -> None:
    """Keeps the connections to a port within a limit until cancelled. busy: returns the ports of peers that wait for
    calls.
    """
    has_failed = False
    while _TCP_INFO >= 0:
        await asyncio.sleep(_LOOK_S)
        try:
            with suppress(OSError):  # there is no descriptor for looking
                _shut_down_idle(port, limit, busy)
        except Exception:
            if not has_failed:
                log.exception("unexpected error while looking for idle connections to port %d", port)
            has_failed = True


def _shut_down_idle(port: int, limit: Limit, busy: Callable[[], Collection[int]]) -> None:
    if _lowest_free() <= limit.most:  # fewer are open
        return
    silent = _silent(port)
    if len(silent) > limit.most:
        limit.reached()
        calling = busy()
        idle = sorted((each for each in silent if each[1][1] not in calling), reverse=True)
        for _, peer, descriptor in idle[: len(silent) - limit.most]:
            _shut_down(peer, descriptor)


def _lowest_free() -> int:
    """The lowest free descriptor, which the system assigns to the next file."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def _silent(port: int) -> list[tuple[int, tuple[str, int], int]]:
    """Returns for how long the peers of a port have been silent, in ms, with their addresses and our descriptors."""
    found = []
    for descriptor in [int(each.name) for each in _DESCRIPTORS.iterdir()]:
        with suppress(OSError), _socket_of(descriptor) as connection:
            if _port_of(connection.getsockname()) == port:
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_RECEIVED.size)
                found.append((_LAST_RECEIVED.unpack(info)[0], connection.getpeername()[:2], descriptor))
    return found


def _socket_of(descriptor: int) -> socket.socket:
    """Returns a socket with a descriptor of its own. Raises OSError if `descriptor` is not a socket."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _port_of(name: object) -> int:
    return name[1] if isinstance(name, tuple) and isinstance(name[1], int) else 0


def _shut_down(peer: tuple[str, int], descriptor: int) -> None:
    """Shuts down the connection, unless its descriptor has become another's meanwhile."""
    with suppress(OSError), _socket_of(descriptor) as connection:
        if connection.getpeername()[:2] == peer:
            connection.shutdown(socket.SHUT_RDWR)
