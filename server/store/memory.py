"""Memory accounting for stored data, estimated in bytes, with a limit.

Everything that holds data charges its size and returns it later: chunks, segments, attributes, keys of tables, retired
names, writers. An append is charged only for a new chunk, so it usually costs nothing.

Invariant: only growth is refused, and only before it is decided. What has been decided is charged even beyond the
limit: recovery, merges, index entries. So reads, truncations, merges and deletions still work when memory is full.

Source: ``ThrottlerCalculator``, ``OperationProcessor``, ``AppendProcessor``. In the reference a store delays appends as
its cache fills up, and a full cache stops the container; full storage is an error without a reply, which closes the
connection. Deliberate difference: here the connection is closed without the delay.
"""

from __future__ import annotations

import sys

from segstore.server.store.errors import StoreFull

SEGMENT_BYTES = 1000
ATTRIBUTE_BYTES = 160
TABLE_KEY_BYTES = 280
"""Estimated size of each, without its name; and of a table key without the key itself, which is stored twice: in the
index and in the order."""


def name_bytes(name: str) -> int:
    """Estimated size of a name and its entry in a dictionary."""
    return sys.getsizeof(name) + 100


class MemoryAccount:
    """An account of memory.

    Attributes:
        limit: maximum number of bytes; None for unlimited.
        used: bytes charged now.
    """

    __slots__ = ("_whole", "limit", "used")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._whole: MemoryAccount | None = None

    def charge(self, size: int) -> None:
        """Add ``size`` bytes; a negative size returns them."""
        self.used += size
        if self._whole is not None:
            self._whole.used += size

    def check(self, size: int = 0, *, frees: bool = False) -> None:
        """Raises ``StoreFull`` if ``size`` more bytes would exceed the limit.

        ``frees``: the bytes are needed for a removal, for which an eighth of the limit is reserved in addition.
        """
        whole = self if self._whole is None else self._whole
        if whole.limit is not None and whole.used + size > whole.limit + (whole.limit // 8 if frees else 0):
            raise StoreFull(used=whole.used, limit=whole.limit)

    def join(self, whole: MemoryAccount) -> None:
        """Become part of another account, whose limit applies."""
        self._whole = whole
        whole.used += self.used

    def leave(self) -> None:
        """Leave the account joined before; no-op if there is none."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.used -= self.used
