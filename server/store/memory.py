"""What is stored in memory, counted roughly in bytes, and the bound on it.

Whatever holds data charges what it takes and gives it back: chunks, segments, attributes, keys of tables, names that
are used up, writers. An append charges nothing but the chunk that it begins, so the account costs it nothing.

Invariant: only growth is refused, and only where it is decided. What has been decided is charged beyond the limit, too:
recovery, merges, entries of indexes. So reads, truncations, merges and deletions go on when memory is full.

Source: ``ThrottlerCalculator``, ``OperationProcessor``, ``AppendProcessor``. There a store delays appends as its cache
fills up, and once it is full the container ends; a full storage, too, is an error without a reply, which closes the
connection. Deliberate difference: here it is closed without the delay.
"""

from __future__ import annotations

import sys

from segstore.server.store.errors import StoreFull

__all__ = ["ATTRIBUTE_BYTES", "SEGMENT_BYTES", "TABLE_KEY_BYTES", "MemoryAccount", "name_bytes"]

SEGMENT_BYTES = 1000
ATTRIBUTE_BYTES = 160
TABLE_KEY_BYTES = 280
"""What each takes beside its name, or its key twice: once in the index, once in the order."""


def name_bytes(name: str) -> int:
    """What a name takes, with its place in a table."""
    return sys.getsizeof(name) + 100


class MemoryAccount:
    """An account; ``limit`` is the bound on it, None for none.

    Attributes:
        limit: as given.
        used: what is charged now.
    """

    __slots__ = ("_whole", "limit", "used")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._whole: MemoryAccount | None = None

    def charge(self, size: int) -> None:
        """``size`` more bytes are taken, or fewer where it is negative."""
        self.used += size
        if self._whole is not None:
            self._whole.used += size

    def check(self, size: int = 0, *, frees: bool = False) -> None:
        """Raises ``StoreFull`` where ``size`` more bytes are beyond the limit.

        ``frees``: they are needed to take something away, for which an eighth of the limit is kept.
        """
        whole = self if self._whole is None else self._whole
        if whole.limit is not None and whole.used + size > whole.limit + (whole.limit // 8 if frees else 0):
            raise StoreFull(used=whole.used, limit=whole.limit)

    def join(self, whole: MemoryAccount) -> None:
        """Be a part of another account, which has the limit."""
        self._whole = whole
        whole.used += self.used

    def leave(self) -> None:
        """Be a part of no other account; no-op for one that is none."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.used -= self.used
