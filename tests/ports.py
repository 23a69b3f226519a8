"""A port that is a test's own: `held_port`."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections except while a server of the test listens there.

    The system gives a bound port to no other socket: to no server that asks for any port, and to no connection. The
    socket here does not listen, so that Linux lets a server listen beside it; elsewhere the port is free, and may be
    taken.
    """
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()
        yield port
