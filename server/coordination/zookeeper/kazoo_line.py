"""kazoo's network connection to ZooKeeper, closed by force when its session ends.

A kazoo client whose session has expired opens a new one by itself, with the requests that wait; a session here is one
session, so from then on its client gets no connection any more. The same is what ends a client soon: kazoo waits for
its threads, and those wait for the servers, for a pause between attempts, or for the answer to their farewell.

Invariant: after `end` no connection is made; after `cut` none is left, and nothing in kazoo waits for one.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

_SPARE_S = 0.02
"""Between attempts of a client that is to end."""


class KazooLine:
    """Stands in a kazoo handler for what it opens connections and waits with; used by kazoo's threads.

    Attributes:
        tried: whether a connection was ever tried.
        failed: why the last one could not be made; None if it could.
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
        """Waits, but not for long when the session is over."""
        if self._ended.is_set():
            time.sleep(min(seconds, _SPARE_S))
        else:
            self._ended.wait(seconds)

    def end(self) -> None:
        """No new connection from now on; the one that there is stays."""
        self._ended.set()

    def cut(self) -> None:
        """No connection from now on."""
        with self._lock:
            self._ended.set()
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # it is closed, or was cut from the other side

    def _create_connection(self, *args: Any, **named: Any) -> socket.socket:
        if self._ended.is_set():
            raise ConnectionAbortedError("the session is over")
        self.tried = True
        try:
            made: socket.socket = self._connect(*args, **named)
        except OSError as error:
            self.failed = error
            raise
        with self._lock:
            if not self._ended.is_set():
                self.failed = None
                self._socket = made
                return made
        made.close()
        raise ConnectionAbortedError("the session is over")
