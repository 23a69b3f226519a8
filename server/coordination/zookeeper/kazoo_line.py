"""kazoo's network connection to ZooKeeper, closed by force when its session ends, or when it is stuck.

A kazoo client whose session has expired opens a new session by itself, with the pending requests. Here a session object
is one session, so its client gets no further connection. This also makes a client stop quickly: kazoo waits for its
threads, which wait for the servers, for a pause between attempts, or for the reply to their close request.

Invariant: after `end`, kazoo makes no connection; after `cut`, it has no connection and waits for none.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

_SPARE_S = 0.02
"""Pause between attempts of a client that is stopping."""
_CONNECT_S = 3.0
"""Timeout for opening a connection; kazoo's is the session's, in which another server could have been tried."""


class KazooLine:
    """Replaces a kazoo handler's functions for opening connections and sleeping; used by kazoo's threads.

    `tried` is whether a connection was ever attempted, `failed` the error of the last attempt, None if it succeeded.
    """

    def __init__(self, handler: Any) -> None:
        self.tried = False
        self.failed: OSError | None = None
        self._connect = handler.create_connection
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        handler.create_connection = self._create_connection
        handler.sleep_func = self.sleep

    def sleep(self, seconds: float) -> None:
        """Waits, but only briefly once the session has ended."""
        if self._ended.is_set():
            time.sleep(min(seconds, _SPARE_S))
        else:
            self._ended.wait(seconds)

    def end(self) -> None:
        """Refuses new connections; an existing one stays."""
        self._ended.set()

    def cut(self) -> None:
        """Refuses new connections and closes the current connection."""
        with self._lock:
            self._ended.set()
        self.drop(self.current)

    @property
    def current(self) -> socket.socket | None:
        """Returns the last connection made, open or not; None before the first connection."""
        with self._lock:
            return self._socket

    def drop(self, connection: socket.socket | None) -> None:
        """Shuts down a connection that was not replaced since, so that kazoo stops waiting on it and reconnects."""
        with self._lock:
            if connection is not None and connection is self._socket:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # it is already closed, here or by the server

    def _create_connection(self, *args: Any, **named: Any) -> socket.socket:
        if self._ended.is_set():
            raise ConnectionAbortedError("the session has ended")
        self.tried = True
        try:
            named["timeout"] = min(named["timeout"], _CONNECT_S)
            connection: socket.socket = self._connect(*args, **named)
        except OSError as error:
            self.failed = error
            raise
        with self._lock:
            if not self._ended.is_set():
                self.failed = None
                self._socket = connection
                return connection
        connection.close()
        raise ConnectionAbortedError("the session has ended")
