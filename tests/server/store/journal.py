"""A journal of a container that hands each operation to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from segstore.server.store import Appended, AppendItem, Operation


class Journal:
    """Calls `write` with each operation; a run of appends is one."""

    def __init__(self, write: Callable[[Operation], None]) -> None:
        self._write = write

    def __call__(self, operation: Operation) -> None:
        self._write(operation)

    def appended(self, segment: str, rows: Sequence[AppendItem], now_ms: int, writer: bytes) -> None:
        data, events = b"".join(row[2] for row in rows), sum(row[1] for row in rows)
        self._write(Appended(segment, data, events, now_ms, UUID(bytes=writer), rows[-1][0]))
