"""Memory accounting for stored data, estimated in bytes, with a limit.

Everything that holds data charges its size to the account and releases it later: chunks, segments, attributes, table
keys, retired names, writers. An append is charged only for a new chunk, so most appends cost nothing.

Invariant: only growth is refused, and only before the change is decided. Decided changes (recovery, merges, index
entries) are charged even beyond the limit. So reads, truncations, merges and deletions work when memory is full.

Source: `ThrottlerCalculator`, `OperationProcessor`, `AppendProcessor`. In the reference a store delays appends as
its cache fills up, and a full cache stops the container; full storage is an error without a reply, which closes the
connection. Deliberate difference: here the connection is closed without the delay.
"""

from __future__ import annotations

import sys

from segstore.server.store.errors import StoreFull

SEGMENT_BYTES = 1000
ATTRIBUTE_BYTES = 160
TABLE_KEY_BYTES = 280
"""Estimated sizes, without the name; the key of a table key is not included, and is stored twice (index and order)."""


def name_bytes(name: str) -> int:
    """Returns the estimated size of a name and its entry in a dictionary."""
    return sys.getsizeof(name) + 100


class MemoryAccount:
    """An account of memory, of which `used` bytes are charged now; `limit` None for unlimited."""

    __slots__ = ("_joined", "limit", "used")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._joined: MemoryAccount | None = None

    def charge(self, size: int) -> None:
        """Charges `size` bytes; a negative size releases them."""
        self.used += size
        if self._joined is not None:
            self._joined.used += size

    def check(self, size: int = 0, *, frees: bool = False) -> None:
        """Raises `StoreFull` if `size` more bytes would exceed the limit.

        `frees`: the bytes are needed for a removal, which may use a reserve of an eighth of the limit.
        """
        account = self if self._joined is None else self._joined
        if account.limit is not None and account.used + size > account.limit + (account.limit // 8 if frees else 0):
            raise StoreFull(used=account.used, limit=account.limit)

    def join(self, account: MemoryAccount) -> None:
        """Joins another account, whose limit applies from then on."""
        self._joined = account
        account.used += self.used

    def leave(self) -> None:
        """Leaves the joined account; no-op without an account."""
        account, self._joined = self._joined, None
        if account is not None:
            account.used -= self.used
