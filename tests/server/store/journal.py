"""A journal of a container that hands each operation to a function."""

from collections.abc import Callable

from segstore.server.store import Operation, decode

RECORD_BYTES = 8
"""The container's number and the size of the rest, which a record begins with."""


class Journal:
    """Calls `write` with each operation; a run of appends is one."""

    def __init__(self, write: Callable[[Operation], None]) -> None:
        self._write = write

    def __call__(self, operation: Operation) -> None:
        self._write(operation)

    def add_record(self, record: bytes) -> None:
        self._write(decode(record[RECORD_BYTES:]))
