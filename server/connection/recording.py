"""The interface of a traffic recorder, called by listeners with the bytes they read and write.

A recorder gives each connection a number and takes its bytes as they go over the wire: once for each read and for each
write, before anything is made of what was read and after everything that changes what is written. Its calls return at
once and raise nothing. Where the bytes go is not known here; `segstore.traces.files.FileRecorder` writes a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.wire import Buffer


class Recorder(Protocol):
    """Takes what connections carry. Buffers belong to the caller: what is kept of them is copied."""

    def opened(self, **facts: str) -> int:
        """A connection began; its number for the other calls."""
        ...

    def received(self, connection: int, data: Buffer) -> None:
        """The client sent these bytes, in whatever pieces."""
        ...

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        """The store writes these bytes, one buffer behind another."""
        ...

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        """A connection is over. by: REQUEST if the client left, REPLY if the store ended it."""
        ...
