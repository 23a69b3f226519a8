"""The interface of a traffic recorder, called by listeners with the bytes they read and write.

A recorder numbers connections and receives their bytes as they are on the wire: once for each read, before it is
decoded, and once for each write, after all changes to it. Its methods return at once and raise nothing.
`segstore.traces.files.FileRecorder` writes a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.wire import Buffer


class Recorder(Protocol):
    """Receives the traffic of connections. Buffers belong to the caller; a recorder copies what it keeps."""

    def opened(self, **facts: str) -> int:
        """Called for a new connection; returns its number for the other calls."""
        ...

    def received(self, connection: int, data: Buffer) -> None:
        """Called with bytes from the client, in arbitrary pieces."""
        ...

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        """Called with the buffers that the store writes, in order."""
        ...

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        """Called for a closed connection. by: REQUEST if the client closed it, REPLY if the store did."""
        ...
